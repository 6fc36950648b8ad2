"""The framework under `check`: what it lets neither in nor out, whatever the reader's function does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _device

from helpers._checks import Case, Exercise
from helpers._properties import RETURNED, Property, right_dtype, right_values
from helpers.exercises import EXERCISES, check

# ---------------------------------------------------------------------------------------------------- settings


def settings() -> tuple:
    """All that `check` sets, as it is now."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_device(),
        _device.CURRENT_DEVICE,
        _get_current_function_mode_stack(),
        getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None),
    )


@contextmanager
def set_for_a_while(setter: Callable, value: Any, usual: Any) -> Iterator[None]:
    setter(value)
    try:
        yield
    finally:
        setter(usual)


@contextmanager
def both_kinds_of_device() -> Iterator[None]:
    with set_for_a_while(torch.set_default_device, "meta", None), torch.device("meta"):
        yield


WHERE = {
    "no_grad": torch.no_grad,
    "gradients off for good": lambda: set_for_a_while(torch.set_grad_enabled, False, True),
    "inference_mode": torch.inference_mode,
    "float64": lambda: set_for_a_while(torch.set_default_dtype, torch.float64, torch.float32),
    "default device": lambda: set_for_a_while(torch.set_default_device, "meta", None),
    "with a device": lambda: torch.device("meta"),
    "both": both_kinds_of_device,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


def residual(h, weight):
    return h + h @ weight


def needs_all(x):
    """What each setting would spoil: a gradient, a version, a dtype, memory, and the dtype of a product."""
    y = x.clone().requires_grad_()
    (y @ torch.ones(2)).sum().backward()
    assert y._version == 0 and (x @ x).dtype is torch.float32
    return y.grad + torch.zeros(2) * 1.5


ANY = Case("two by two", lambda: (torch.ones(2, 2),))
NEEDS_ALL = Exercise(
    "made_up", "need all", ("x",), (ANY, ANY), lambda x: {RETURNED: x}, (right_dtype(), right_values())
)


@pytest.mark.parametrize("where", WHERE)
def test_a_right_answer_passes_wherever_it_is_checked_and_the_settings_stay(where):
    usual = settings()
    with WHERE[where]():
        before = settings()
        assert before != usual, "the control"
        results = NEEDS_ALL.check(needs_all), check(residual)
        assert settings() == before
    assert settings() == usual
    assert all(result.passed for result in results), results


def changes_them_all() -> None:
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_autocast_enabled("cpu", True)


def and_returns(x):
    right = needs_all(x)
    changes_them_all()
    return right


def and_raises(x):
    changes_them_all()
    raise ValueError("after all that")


def and_is_stopped(x):
    changes_them_all()
    raise KeyboardInterrupt


@pytest.mark.parametrize("where", [None, *WHERE])
def test_what_the_function_sets_reaches_neither_its_next_call_nor_the_reader(where):
    usual = settings()
    with WHERE[where]() if where else torch.enable_grad():
        before = settings()
        assert NEEDS_ALL.check(and_returns).passed
        assert settings() == before
        assert "ValueError: after all that" in repr(NEEDS_ALL.check(and_raises))
        assert settings() == before
        with pytest.raises(KeyboardInterrupt):  # whoever stops the cell is obeyed
            NEEDS_ALL.check(and_is_stopped)
        assert settings() == before
    assert settings() == usual


def test_no_exercise_stumbles_over_settings_that_a_function_leaves():
    def changes(*args):
        changes_them_all()
        return args[0] if args else None

    usual = settings()
    for name in EXERCISES:
        assert not check(changes, name).passed, name
        assert settings() == usual, name


def test_what_a_returned_function_sets_reaches_no_other_property():
    seen = []

    def calls(t):
        t.result()
        seen.append(settings())

    properties = tuple(Property(f"be called {times}", calls) for times in ("once", "twice"))
    exercise = Exercise("made_up", "return a function", ("x",), (ANY,), lambda x: {}, properties)
    usual = settings()
    assert exercise.check(lambda x: lambda: seen.append(settings()) or changes_them_all()).passed
    assert seen[0] == seen[2] == usual and seen[1] != usual


# ---------------------------------------------------------------------------------------------------- odd results


class Silent(torch.Tensor):
    """A tensor that tells nothing of itself."""

    @classmethod
    def __torch_function__(cls, *args, **kwargs):
        raise RuntimeError("ask somebody else")


class Pretends:
    __class__ = torch.Tensor  # so that isinstance takes it for one


ODD = {
    "nested": (
        lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
        "a Tensor, and to look at that raised RuntimeError: Internal error: NestedTensorImpl",
    ),
    "silent": (
        lambda: torch.zeros(2).as_subclass(Silent),
        "a Silent, and to look at that raised RuntimeError: ask somebody else",
    ),
    "pretends": (
        Pretends,
        "a Pretends, and to look at that raised AttributeError: 'Pretends' object has no attribute 'layout'",
    ),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("odd", ODD)
def test_a_result_that_cannot_be_looked_at_is_a_failure_in_words(odd):
    make, seen = ODD[odd]
    usual = settings()
    result = NEEDS_ALL.check(lambda x: make())
    assert [failure.says for failure in result.failures] == ["return what can be read"]
    assert result.failures[0].seen.startswith(f"it returned {seen}")
    assert settings() == usual
    must_raise = Exercise("made_up", "refuse", ("x",), (Case("all", ANY.make, ValueError),), lambda x: {}, ())
    assert must_raise.check(lambda x: make()).failures[0].seen == f"it returned {seen.partition(',')[0]}"
    for name in EXERCISES:
        assert not check(lambda *args: make(), name).passed, name
