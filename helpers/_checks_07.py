"""What the exercises of chapter 07 (what autograd saves) ask for. Stubs and solutions stand in the chapter itself."""

from __future__ import annotations

import numbers

import torch
from torch import nn

from helpers._checks import Case, Exercise
from helpers._checks_05 import _ramp
from helpers._properties import (
    RETURNED,
    Property,
    Trial,
    describe,
    keeps_no_graph,
    leaves_alone,
    peak_at_most,
    returns_tensor,
    right_number,
    right_shape,
    right_values,
)


def _network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):  # to make layers draws numbers, and the reader's must stay the next ones
        linear = [nn.Linear(64, 64, dtype=torch.float32) for _ in range(3)]
    layers = [linear[0], nn.ReLU(), linear[1], nn.ReLU(), linear[2]]
    for number, layer in enumerate(linear):
        with torch.no_grad():
            layer.weight.copy_(torch.eye(64) * (number + 1))
            layer.bias.fill_(-number)
    return nn.Sequential(*layers)


def _by_hand(model: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    a = x.numpy()
    for number in range(3):
        a = (number + 1) * a - number
        a = a.clip(min=0) if number < 2 else a
    return {RETURNED: torch.from_numpy(a)}


EVALUATE = Exercise(
    name="evaluate",
    task="return `model(x)` and keep nothing for backward",
    parameters=("model", "x"),
    cases=(Case("32 examples of 64 numbers", lambda: (_network(), _ramp(32, 64, wants_grad=False))),),
    expect=_by_hand,
    properties=(
        returns_tensor(),
        right_shape(),
        right_values(),
        keeps_no_graph(hint="`eval()` does not stop recording."),
        peak_at_most(
            lambda args: 2 * args["x"].nbytes,
            "`detach()` at the end cuts the graph off; until then it kept the result of every layer.",
            says="have no more than two layers' results alive at once",
        ),
    ),
)


def _right_total(t: Trial) -> str | None:
    if isinstance(t.result, torch.Tensor):
        if t.result.grad_fn is not None:
            return f"the total keeps a graph alive (its grad_fn is {type(t.result.grad_fn).__name__})"
        value = t.result.item()
    elif isinstance(t.result, numbers.Number):
        value = t.result
    else:
        return f"it returned {describe(t.result)}"
    wanted = sum(float(loss.detach()) for loss in t.args["losses"])
    return None if abs(value - wanted) < 1e-4 else f"{value:g} instead of {wanted:g}"


TOTAL = Exercise(
    name="total_of",
    task="return the sum of `losses` and keep no graph alive by it",
    parameters=("losses",),
    cases=(
        Case("three losses", lambda: ([(_ramp(4) * k).sum() for k in (1.0, 2.0, 3.0)],)),
        Case("one loss", lambda: ([_ramp(2).prod()],)),
    ),
    expect=lambda losses: {},
    properties=(
        Property(
            "return the sum, without a graph",
            _right_total,
            "Adding tensors is recorded like everything else: the sum reaches back into every loss.",
        ),
    ),
)

# By input, what its graph keeps, counted by hand: the storages, each once and whole.
_KEPT = {"x * x": 1000 * 4, "exp, which keeps its result": 10 * 4, "ten of a thousand": 1000 * 4, "x + 1": 0}


def _square(x: torch.Tensor) -> torch.Tensor:
    return x * x


def _exp(x: torch.Tensor) -> torch.Tensor:
    return x.exp()


def _square_of_slice(x: torch.Tensor) -> torch.Tensor:
    return x[:10] * x[10:20]


def _plus_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


_NAMES = {
    _square: "x * x",
    _exp: "exp, which keeps its result",
    _square_of_slice: "ten of a thousand",
    _plus_one: "x + 1",
}


BYTES_KEPT = Exercise(
    name="bytes_kept",
    task="return the bytes that the graph of `fn(x)` keeps, each storage once and whole",
    parameters=("fn", "x"),
    cases=(
        Case(
            "x * x, of a thousand numbers", lambda: (_square, torch.ones(1000, requires_grad=True, dtype=torch.float32))
        ),
        Case("x.exp(), of ten numbers", lambda: (_exp, torch.ones(10, requires_grad=True, dtype=torch.float32))),
        Case(
            "a product of two slices",
            lambda: (_square_of_slice, torch.ones(1000, requires_grad=True, dtype=torch.float32)),
        ),
        Case("x + 1", lambda: (_plus_one, torch.ones(10, requires_grad=True, dtype=torch.float32))),
    ),
    expect=lambda fn, x: {},
    properties=(
        right_number(
            "return the bytes of the storages that are kept",
            lambda t: _KEPT[_NAMES[t.args["fn"]]],
            "A tensor kept twice is there once, and a slice keeps all of its storage.",
        ),
        leaves_alone("x"),
    ),
)

EXERCISES = (EVALUATE, TOTAL, BYTES_KEPT)
