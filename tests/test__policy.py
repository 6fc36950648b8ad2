"""Which tensors a policy takes: by what they are, or by what is running."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from helpers import offload_to_cpu
from helpers._policy import Choice

T = torch.ones(3)


def model():
    return nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 3)), nn.Tanh())


class Probe(nn.Module):
    """Notes what a choice would take while it runs."""

    def __init__(self, inner=None):
        super().__init__()
        self.inner, self.choice, self.taken = inner, None, []

    def forward(self, x):
        self.taken.append(self.choice.takes(x))
        return x if self.inner is None else self.inner(x)


def inside(choice, run, *, outermost=True):
    choice.enter(outermost=outermost)
    try:
        return run()
    finally:
        choice.leave()


def test_no_policy_takes_all_and_an_empty_one_nothing():
    assert Choice(None, None).takes(T) is True
    assert Choice([], None).takes(T) is False


def test_a_function_gets_the_tensor_without_its_graph():
    seen = []
    choice = Choice(lambda t: seen.append(t) or t.numel() > 2, None)
    with_graph = torch.ones(3, requires_grad=True) * 1
    assert choice.takes(with_graph) is True and choice.takes(with_graph[:1]) is False
    assert seen[0].grad_fn is None and seen[0].data_ptr() == with_graph.data_ptr()
    assert Choice(lambda t: 1, None).takes(T) is True  # as bool() sees it


def test_what_a_function_computes_is_not_saved_in_turn():
    weight = torch.ones(2000, requires_grad=True) * 1
    with offload_to_cpu(policy=lambda t: bool((t * weight * weight).sum() > 0)) as hooks:
        y = (weight * 2).exp()
    assert hooks.packed == 1 and y.requires_grad


def test_the_error_of_a_function_is_the_readers_own():
    with pytest.raises(ZeroDivisionError):
        Choice(lambda t: 1 / 0, None).takes(T)


def test_while_a_module_runs():
    probe, other = Probe(), Probe()
    choice = probe.choice = other.choice = Choice(probe, None)

    def run():
        other(T)
        probe(T)
        return choice.takes(T)

    assert inside(choice, run) is False
    assert (probe.taken, other.taken) == ([True], [False])
    run()  # outside nobody listens
    assert (probe.taken, other.taken) == ([True, False], [False, False])
    assert not probe._forward_hooks and not probe._forward_pre_hooks


def test_modules_inside_of_modules_count_as_deep_as_they_are():
    inner = Probe()
    outer = Probe(inner)
    choice = inner.choice = outer.choice = Choice([outer, inner], None)
    after = []
    outer.register_forward_hook(lambda *args: after.append(choice.takes(T)))
    inside(choice, lambda: outer(T))
    assert (outer.taken, inner.taken) == ([True], [True]) and choice.takes(T) is False
    only_inner = inner.choice = outer.choice = Choice([inner], None)
    inside(only_inner, lambda: outer(T))
    assert outer.taken == [True, False] and inner.taken == [True, True]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_after_an_error_in_a_module_nothing_is_taken_outside_of_it(error):
    class Fails(nn.Module):
        def forward(self, x):
            raise error

    module = Fails()
    choice = Choice(module, None)
    with pytest.raises(error):
        inside(choice, lambda: module(T))
    assert inside(choice, lambda: choice.takes(T)) is False
    assert not module._forward_hooks and not module._forward_pre_hooks


def test_a_hook_of_the_reader_that_fails_first_does_not_count_below_zero():
    module = Probe()

    def fails(*args):
        raise ValueError

    handle = module.register_forward_pre_hook(fails)
    choice = module.choice = Choice(module, None)

    def run():
        with pytest.raises(ValueError):
            module(T)
        handle.remove()
        module(T)

    inside(choice, run)
    assert module.taken == [True]


def test_threads_are_where_they_are():
    gate, probe = threading.Barrier(2), Probe()
    choice = probe.choice = Choice(probe, None)
    results = []

    class Waits(nn.Module):
        def forward(self, x):
            gate.wait()
            gate.wait()
            return x

    probe.inner = Waits()

    def other():
        gate.wait()  # while the first is inside of the module
        results.append(inside(choice, lambda: choice.takes(T)))
        gate.wait()

    thread = threading.Thread(target=other)
    thread.start()
    inside(choice, lambda: probe(T))
    thread.join()
    assert results == [False] and probe.taken == [True]
    assert not probe._forward_hooks  # the last to leave has put them away


def test_names_are_read_once():
    whole = model()
    choice = Choice(["1.1", whole[2]], whole)
    assert choice.policy == [whole[1][1], whole[2]]
    assert Choice("1", whole).policy == [whole[1]] and Choice(whole, None).policy == [whole]
    function = lambda t: True  # noqa: E731
    assert Choice(function, None).policy is function and Choice(None, None).policy is None


MANY = nn.Sequential(*(nn.Tanh() for _ in range(12)))


@pytest.mark.parametrize(
    "policy, of, error, words",
    [
        ("2.1", model(), ValueError, "policy names a module '2.1'; the model has '0', '1', '1.0', '1.1', '2'"),
        (
            "99",
            nn.Sequential(*[nn.Tanh() for _ in range(12)]),
            ValueError,
            "'0', '1', '2', '3', '4', '5', '6', '7', ...",
        ),
        ("0", None, ValueError, "policy names a module '0'; names need the model: give model="),
        (["0", 3], model(), TypeError, "or modules, or their names; got 3"),
        (3.5, None, TypeError, "or modules, or their names; got 3.5"),
    ],
)
def test_wrong_policies_are_named(policy, of, error, words):
    with pytest.raises(error) as caught:
        Choice(policy, of)
    assert words in str(caught.value)
