"""What the exercises of chapter 05 (in-place writes and autograd) ask for. Stubs and solutions stand in the chapter."""

from __future__ import annotations

import numpy as np
import torch

from helpers._checks import Case, Exercise
from helpers._properties import (
    RETURNED,
    Property,
    Trial,
    difference,
    leaves_alone,
    message_of,
    returns_tensor,
    right_shape,
    right_values,
    writes_into,
)


def right_gradient(*names: str, hint: str = "") -> Property:
    """The gradient of the result's sum with respect to the named arguments is the expected one.

    ``expect`` gives it under ``"gradient of NAME"``.
    """

    def test(t: Trial) -> str | None:
        if not t.result.requires_grad:
            return "the result has no graph, so no gradient reaches anything"
        try:
            found = torch.autograd.grad(
                t.result.sum(), [t.args[n] for n in names], allow_unused=True, retain_graph=True
            )
        except RuntimeError as error:
            return f"backward raised RuntimeError: {message_of(error).split(':')[0]}"
        for name, gradient in zip(names, found, strict=True):
            if gradient is None:
                return f"no gradient reaches `{name}`"
            wrong = difference(gradient, t.expected[f"gradient of {name}"])
            if wrong is not None:
                return f"the gradient of `{name}` is {wrong}"
        return None

    return Property(f"give the right gradient of {' and '.join(f'`{n}`' for n in names)}", test, hint)


def _ramp(*shape: int, start: float = 1.0, wants_grad: bool = True) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return (
        ((torch.arange(float(count), dtype=torch.float32) + start) / 4)
        .reshape(shape)
        .clone()
        .requires_grad_(wants_grad)
    )


def _residual(h: torch.Tensor, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    a, w = h.detach().numpy(), weight.detach().numpy()
    return {
        RETURNED: torch.from_numpy(a + a @ w),
        "gradient of h": torch.from_numpy(np.broadcast_to(1 + w.sum(1), a.shape).copy()),
        "gradient of weight": torch.from_numpy(np.broadcast_to(a.sum(0)[:, None], w.shape).copy()),
    }


RESIDUAL = Exercise(
    name="residual",
    task="return `h + h @ weight`, with right gradients",
    parameters=("h", "weight"),
    cases=(
        Case("2 x 3 and 3 x 3", lambda: (_ramp(2, 3), _ramp(3, 3, start=-2.0))),
        Case("a result of other operators", lambda: (_ramp(4, 2), _ramp(2, 2, start=3.0))),
    ),
    expect=_residual,
    properties=(
        returns_tensor(),
        right_shape(),
        right_values(),
        right_gradient(
            "h", "weight", hint="The product keeps `h` for the gradient of `weight`: what is added into `h` spoils it."
        ),
        leaves_alone("h", "weight"),
    ),
)


def _counted(t: Trial) -> str | None:
    return None if t.args["w"]._version > 0 else "the version counter of `w` did not move, so autograd cannot notice"


def _still_a_leaf(t: Trial) -> str | None:
    w = t.args["w"]
    return None if w.is_leaf and w.requires_grad else "`w` is no longer a leaf that wants a gradient"


DESCEND = Exercise(
    name="descend",
    task="subtract `step` from the leaf `w`, in the memory of `w`, so that autograd knows of it",
    parameters=("w", "step"),
    cases=(
        Case("five numbers", lambda: (_ramp(5), _ramp(5, start=0.0, wants_grad=False))),
        Case("3 x 2 numbers", lambda: (_ramp(3, 2), torch.ones(3, 2, dtype=torch.float32))),
    ),
    expect=lambda w, step: {"w": torch.from_numpy(w.detach().numpy() - step.numpy())},
    properties=(
        writes_into("w", "`w = w - step` makes a new tensor and ties your local name to it."),
        Property("be counted by the version counter", _counted, "`w.data` shares the memory of `w`, not its counter."),
        Property("leave `w` a leaf", _still_a_leaf),
        leaves_alone("step"),
    ),
)


def _two_descents(w: torch.Tensor, x: torch.Tensor, lr: float) -> dict[str, torch.Tensor]:
    a, b = w.detach().numpy().astype(np.float64), x.numpy().astype(np.float64)
    a = a - lr * 2 * a * b**2
    a = a - lr * 3 * a**2 * b**3
    return {"w": torch.from_numpy(a.astype(np.float32))}


TWO_LOSSES = Exercise(
    name="two_losses",
    task="descend first `((w * x) ** 2).sum()`, then `((w * x) ** 3).sum()`, each by one step of `lr`, in `w` itself",
    parameters=("w", "x", "lr"),
    cases=(
        Case("three numbers, lr 0.1", lambda: (_ramp(3), _ramp(3, start=2.0, wants_grad=False), 0.1)),
        Case("2 x 2 numbers, lr 0.01", lambda: (_ramp(2, 2), torch.ones(2, 2, dtype=torch.float32), 0.01)),
    ),
    expect=_two_descents,
    properties=(
        writes_into(
            "w",
            "The second loss has to be computed from the new `w`, without the gradient of the first in it.",
        ),
        leaves_alone("x"),
    ),
)

EXERCISES = (RESIDUAL, DESCEND, TWO_LOSSES)
