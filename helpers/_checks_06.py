"""What the exercises of chapter 06 (wrong gradients, no error) ask for. Stubs and solutions stand in the chapter."""

from __future__ import annotations

import numpy as np
import torch

from helpers._checks import Case, Exercise
from helpers._checks_05 import _ramp, right_gradient
from helpers._properties import (
    RETURNED,
    Property,
    Trial,
    describe,
    difference,
    leaves_alone,
    returns_tensor,
    right_shape,
    right_values,
)


def _notices(t: Trial) -> str | None:
    """Writes into the input, counted, after the call: a Function that saved it properly makes backward raise."""
    with torch.no_grad():
        t.args["x"].add_(1)
    try:
        torch.autograd.grad(t.result.sum(), t.args["x"], retain_graph=True)
    except RuntimeError:
        return None
    finally:
        with torch.no_grad():
            t.args["x"].sub_(1)
    return "after a counted write into `x`, backward used the new value and raised nothing"


CUBE = Exercise(
    name="cube",
    task="return `x ** 3` by a custom Function that keeps `x` in a way PyTorch can check",
    parameters=("x",),
    cases=(
        Case("four numbers", lambda: (_ramp(4),)),
        Case("2 x 3 numbers", lambda: (_ramp(2, 3, start=-3.0),)),
    ),
    expect=lambda x: {
        RETURNED: torch.from_numpy(x.detach().numpy() ** 3),
        "gradient of x": torch.from_numpy(3 * x.detach().numpy() ** 2),
    },
    properties=(
        returns_tensor(),
        right_shape(),
        right_values(),
        right_gradient("x", hint="The derivative of a cube is three times the square."),
        Property(
            "make backward notice a write into `x`",
            _notices,
            "What is put on `ctx` as an attribute is never checked; `ctx.save_for_backward(x)` is.",
        ),
    ),
)


def _block(x: torch.Tensor, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    a, w = x.detach().numpy(), weight.detach().numpy()
    positive = np.maximum(a, 0)
    return {
        RETURNED: torch.from_numpy(positive @ w + a),
        "gradient of x": torch.from_numpy((a > 0) * w.sum(1) + 1),
    }


BLOCK = Exercise(
    name="preactivation",
    task="return `relu(x) @ weight + x`, with the untouched `x` as the shortcut",
    parameters=("x", "weight"),
    cases=(
        Case("numbers of both signs", lambda: (_ramp(2, 3, start=-2.5), _ramp(3, 3))),
        Case("negative numbers only", lambda: (_ramp(1, 2, start=-9.0), _ramp(2, 2))),
    ),
    expect=_block,
    properties=(
        returns_tensor(),
        right_shape(),
        right_values("An in-place ReLU overwrites the shortcut: both terms then see the rectified values."),
        right_gradient("x"),
        leaves_alone("x", "weight"),
    ),
)

_STEPS, _RATE, _DECAY = 3, 0.1, 0.9


def _trained(x: torch.Tensor, target: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same training by hand, in NumPy and double precision, with the gradients written out."""
    x_, target_, a, b = (t.detach().numpy().astype(np.float64) for t in (x, target, w1, w2))
    for _ in range(_STEPS):
        tanh = np.tanh(x_ @ a)
        hidden = tanh + 0.1 * x_
        error = 2 * (hidden @ b - target_) / target_.size
        grad_b = hidden.T @ error
        grad_a = x_.T @ ((error @ b.T) * (1 - tanh**2))
        a = a - _RATE * grad_a
        b = (b - _RATE * grad_b) * _DECAY
    return {"w1": torch.from_numpy(a.astype(np.float32)), "w2": torch.from_numpy(b.astype(np.float32))}


def _right_weights(t: Trial) -> str | None:
    if not isinstance(t.result, tuple) or len(t.result) != 2:
        return f"it returned {describe(t.result)}, not the two weights"
    for name, found in zip(("w1", "w2"), t.result, strict=True):
        wrong = difference(found.detach(), t.expected[name])
        if wrong is not None:
            return f"`{name}` ends {wrong}"
    return None


TRAIN = Exercise(
    name="train",
    task="train the two weights for three steps, with the gradients of the forward pass as it was",
    parameters=("x", "target", "w1", "w2"),
    cases=(
        Case(
            "two examples",
            lambda: (
                _ramp(2, 3, wants_grad=False),
                torch.ones(2, 1, dtype=torch.float32),
                torch.eye(3, dtype=torch.float32),
                torch.ones(3, 1, dtype=torch.float32),
            ),
        ),
        Case(
            "four examples",
            lambda: (
                _ramp(4, 2, start=-4.0, wants_grad=False),
                torch.zeros(4, 1, dtype=torch.float32),
                torch.eye(2, dtype=torch.float32),
                torch.ones(2, 1, dtype=torch.float32),
            ),
        ),
    ),
    expect=_trained,
    properties=(
        Property(
            "end with the weights of a training by hand",
            _right_weights,
            "One of the two writes raises nothing: it changes a weight between forward and backward. "
            "`guard_saved_tensors` finds it.",
        ),
        leaves_alone("x", "target", "w1", "w2"),
    ),
)

EXERCISES = (CUBE, BLOCK, TRAIN)
