"""What the exercises of chapter 08 (saved-tensor hooks) ask for. Stubs and solutions stand in the chapter itself."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves

from helpers._checks import Case, Exercise
from helpers._properties import Property, Trial, difference, message_of, returns_two_functions, right_number


def _square(x: torch.Tensor) -> torch.Tensor:
    return x * x


def _exp(x: torch.Tensor) -> torch.Tensor:
    return x.exp()


def _plus_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def _picked(x: torch.Tensor) -> torch.Tensor:
    return x[torch.tensor([2, 0, 2])] * x[:3]


_PACKS = {_square: 2, _exp: 1, _plus_one: 0}  # a product keeps both factors, exp its result, a sum nothing


PACKS_OF = Exercise(
    name="packs_of",
    task="return how often `pack` is called while `fn(x)` runs",
    parameters=("fn", "x"),
    cases=(
        Case("x * x", lambda: (_square, torch.ones(4, requires_grad=True, dtype=torch.float32))),
        Case("x.exp()", lambda: (_exp, torch.ones(4, requires_grad=True, dtype=torch.float32))),
        Case("x + 1", lambda: (_plus_one, torch.ones(4, requires_grad=True, dtype=torch.float32))),
    ),
    expect=lambda fn, x: {},
    properties=(
        right_number(
            "return the number of calls",
            lambda t: _PACKS[t.args["fn"]],
            "`pack` is called for every slot, also when two slots hold one tensor.",
        ),
    ),
)


def _gradient(make: Callable, dtype: torch.dtype, hooks: tuple | None, twice: bool = False) -> torch.Tensor:
    leaf = (torch.arange(6.0, dtype=dtype) / 4).requires_grad_()
    h = leaf * 1
    if hooks is None:
        out = make(h)
    else:
        with saved_tensors_hooks(*hooks):
            out = make(h)
    out.sum().backward(retain_graph=twice)
    if twice:
        leaf.grad = None
        out.sum().backward()
    return leaf.grad


def _gradients(loose: bool, twice: bool = False) -> Callable[[Trial], str | None]:
    def test(t: Trial) -> str | None:
        for make, name in ((_square, "x * x"), (_exp, "x.exp()"), (_picked, "x[positions] * x[:3]")):
            for dtype in (torch.float32, torch.float64):
                wanted = _gradient(make, dtype, None)
                try:
                    found = _gradient(make, dtype, t.result, twice)
                except Exception as error:  # whatever the reader's hooks raise belongs on the card
                    return f"{name} in {dtype}: {type(error).__name__}: {message_of(error).partition(chr(10))[0][:90]}"
                near = torch.allclose(found, wanted, rtol=2e-2, atol=1e-2) if loose else torch.equal(found, wanted)
                if not near:
                    return (
                        f"the gradient of {name} in {dtype} is wrong {difference(found, wanted) or 'in its last bits'}"
                    )
        return None

    return test


def _small(t: Trial) -> str | None:
    pack, _ = t.result
    packed = sum(
        leaf.nbytes
        for leaf in tree_leaves(pack(torch.ones(1000, dtype=torch.float32)))
        if isinstance(leaf, torch.Tensor)
    )
    return None if packed <= 2000 else f"1,000 float32 numbers, 4,000 B, are kept in {packed:,} B"


def _range(t: Trial) -> str | None:
    pack, unpack = t.result
    for value in (1e30, 1e-30):
        given = torch.tensor([value], dtype=torch.float32)
        try:
            found = unpack(pack(given))
            if torch.allclose(found.double(), given.double(), rtol=2e-2, atol=0):
                continue
        except Exception:  # hooks that fail altogether hear so from the gradients
            return None
        return f"{value:g} comes back as {found.item():g}"
    return None


COMPRESS = Exercise(
    name="compressing_hooks",
    task="return `pack` and `unpack` that keep floating-point tensors in bfloat16 and leave others as they are",
    parameters=(),
    cases=(Case("products, exponentials and positions", lambda: ()),),
    expect=lambda: {},
    properties=(
        returns_two_functions(),
        Property("keep 4,000 B in half of it", _small, "`t.to(torch.bfloat16)` has half the bytes of float32."),
        Property(
            "give gradients that are right to two digits",
            _gradients(loose=True),
            "What comes back must have the dtype that was given, and positions must stay whole numbers.",
        ),
        Property(
            "keep the range of float32",
            _range,
            "float16 has as few bytes, but ends at 65,504 and makes 0 of tiny numbers. bfloat16 has float32's range.",
        ),
    ),
)


def _no_leak(t: Trial) -> str | None:
    h = torch.ones(1000, requires_grad=True, dtype=torch.float32) * 1
    with saved_tensors_hooks(*t.result):
        out = h.exp()
        kept = weakref.ref(out.untyped_storage())
        del out
    gc.collect()
    if kept() is not None:
        return "the result of an exp whose graph was dropped is still in memory"
    with saved_tensors_hooks(*t.result):
        out = h.exp().sum()
    out.backward()
    kept = weakref.ref(h.untyped_storage())
    del h, out
    gc.collect()
    return None if kept() is None else "a tensor that backward is done with is still in memory"


def _notices(t: Trial) -> str | None:
    h = torch.ones(4, requires_grad=True, dtype=torch.float32) * 1
    with saved_tensors_hooks(*t.result):
        out = h * h
    with torch.no_grad():
        h.add_(1)
    try:
        out.sum().backward()
    except RuntimeError:
        return None
    return "a kept tensor was overwritten, counted, and backward raised nothing"


SAFE = Exercise(
    name="safe_hooks",
    task="return `pack` and `unpack` that change nothing: no gradient, no lifetime, no error",
    parameters=(),
    cases=(Case("products, exponentials and positions", lambda: ()),),
    expect=lambda: {},
    properties=(
        returns_two_functions(),
        Property("give the gradients that there are without hooks, to the last bit", _gradients(loose=False)),
        Property(
            "unpack a second time",
            _gradients(loose=False, twice=True),
            "With `retain_graph=True` backward runs twice, and asks twice for what was kept.",
        ),
        Property(
            "keep nothing alive longer than the graph does",
            _no_leak,
            "A saved result holds its own graph: keep `t.detach()`. A list or a dictionary of your own never forgets.",
        ),
        Property(
            "make backward raise when a kept tensor was overwritten",
            _notices,
            "With hooks PyTorch compares no versions. Keep `t._version` and compare it in `unpack`.",
        ),
    ),
)

EXERCISES = (PACKS_OF, COMPRESS, SAFE)
