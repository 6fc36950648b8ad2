"""What the exercises of chapter 11 (choose your trade-off) ask for. Stubs and solutions stand in the chapter itself."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from helpers._autograd import saved_slots
from helpers._blame import node_name, nodes_under
from helpers._checks import Case, Exercise
from helpers._properties import (
    RETURNED,
    Property,
    Trial,
    describe,
    peak_at_most,
    returns_tensor,
    right_number,
    right_shape,
    right_values,
)
from helpers.display import exact_bytes
from helpers.memory import measure_memory
from helpers.models import mlp, transformer

_SIX = [("plain", 1.0, 24), ("slow", 1.6, 24), ("disk", 1.5, 5), ("parts", 1.2, 11), ("half", 1.3, 14), ("CPU", 1.4, 5)]
_TIES = [("a", 1.0, 8), ("twin of a", 1.0, 8), ("as fast, larger", 1.0, 9), ("b", 2.0, 4), ("as small, slower", 3.0, 4)]


def _unbeaten(points: list) -> list[str]:
    """From the fastest on, each that is smaller than all before it; twins of one that is there belong to it."""
    best: list[tuple] = []
    for point in sorted(points, key=lambda p: p[1:]):
        if not best or point[2] < best[-1][2] or point[1:] == best[-1][1:]:
            best.append(point)
    names = {name for name, _, _ in best}
    return [name for name, _, _ in points if name in names]


def _right_names(t: Trial) -> str | None:
    wanted = t.expected[RETURNED]
    if not isinstance(t.result, list):
        return f"it returned {describe(t.result)}, not a list of names"
    extra = [name for name in t.result if name not in wanted]
    missing = [name for name in wanted if name not in t.result]
    if extra:
        return f"`{extra[0]}` is among them, and is beaten" if isinstance(extra[0], str) else "not all are names"
    if missing:
        return f"`{missing[0]}` is missing, and nothing beats it"
    return None if t.result == wanted else "they are in another order"


FRONTIER = Exercise(
    name="frontier",
    task="return the names of the points that no other point beats",
    parameters=("points",),
    cases=(
        Case("six policies", lambda: (list(_SIX),)),
        Case("points with equal times and equal peaks", lambda: (list(_TIES),)),
        Case("one point", lambda: ([("alone", 1.0, 1)],)),
    ),
    expect=lambda points: {RETURNED: _unbeaten(points)},
    properties=(
        Property(
            "return the right names, in order",
            _right_names,
            "Beaten is a point that another matches in both and betters in one; two equal points both stay.",
        ),
    ),
)


def _layers(width: int, depth: int) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):  # the reader's random numbers must stay the next ones
        torch.manual_seed(7)
        return nn.Sequential(
            *(layer for _ in range(depth // 2) for layer in (nn.Linear(width, width), nn.Tanh()))
        ).float()


def _numbers(*shape: int, wants_grad: bool = False) -> torch.Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        return torch.randn(shape, dtype=torch.float32).requires_grad_(wants_grad)


def _inputs_kept(t: Trial) -> str | None:
    parts, nbytes = t.args["parts"], t.args["x"].nbytes
    # The first input is the caller's, the result is new, and each checkpoint keeps the state of the random generator.
    others = t.retained_bytes - t.result.nbytes
    states = parts * torch.get_rng_state().nbytes
    if (parts - 1) * nbytes <= others <= (parts - 1) * nbytes + states:
        return None
    asked = f"{parts - 1} inputs of {exact_bytes(nbytes)}"
    return f"beside `x` and the result {exact_bytes(others)} are alive, where {asked} were asked for"


def _parts_hint(t: Trial) -> str:
    linear = [node for node in nodes_under([t.result]) if node_name(node).startswith("Addmm")]
    outside = [node for node in linear if any(slot.unpack_hook is None for _, slot in saved_slots(node))]
    if outside:
        if len(outside) < len(linear):
            return "`checkpoint_sequential` leaves the last part without a checkpoint."
        return "Outside of a checkpoint each layer keeps what it needs."
    inputs = 1 + (t.retained_bytes - t.result.nbytes) // t.args["x"].nbytes
    if inputs == 1:
        return "One checkpoint around everything keeps one input, and needs all the rest at once in backward."
    if inputs >= len(t.args["layers"]):
        return "A checkpoint around each layer keeps every input."
    return "`parts` says how many there are, not how many layers one has."


def _right_gradients(t: Trial) -> str | None:
    layers, x = t.args["layers"], t.args["x"]
    wanted = torch.autograd.grad(layers(x).sum(), list(layers.parameters()))
    found = torch.autograd.grad(t.result.sum(), list(layers.parameters()), allow_unused=True)
    wrong = sum(f is None or not torch.equal(f, w) for f, w in zip(found, wanted))
    return f"{wrong} of {len(wanted)} gradients are not those of the plain layers" if wrong else None


IN_PARTS = Exercise(
    name="in_parts",
    task="return `layers(x)`, computed in `parts` equal parts with a checkpoint around each",
    parameters=("layers", "x", "parts"),
    cases=(
        Case("8 layers in 4 parts", lambda: (_layers(64, 8), _numbers(128, 64, wants_grad=True), 4)),
        Case("12 layers in 3 parts", lambda: (_layers(32, 12), _numbers(256, 32, wants_grad=True), 3)),
    ),
    expect=lambda layers, x, parts: {RETURNED: layers(x).detach()},
    properties=(
        returns_tensor(),
        right_shape(),
        right_values("Each part takes what the part before it returned."),
        Property("keep the inputs of its parts alive, and nothing else", _inputs_kept, _parts_hint),
        Property(
            "have the gradients of the plain layers",
            _right_gradients,
            "With `use_reentrant=True` only `backward()` gives gradients: pass `use_reentrant=False`.",
        ),
    ),
)


def _plain_step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss.item()


def _with_budget(model: nn.Module, x: torch.Tensor) -> tuple:
    """The arguments, with three fifths of what the plain step needs for a budget."""
    y = _numbers(*x.shape).flip(-1)
    plain = measure_memory(_plain_step, copy.deepcopy(model), x, y).peak_bytes
    return model, x, y, plain * 3 // 5


def _made(make: Any, *args: Any, **kwargs: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return make(*args, **kwargs).float()


def _plain_answer(model: nn.Module, x: torch.Tensor, y: torch.Tensor, budget: int) -> dict[str, Any]:
    loss = _plain_step(model, x, y)
    return {"loss": loss, "gradient": [p.grad for p in model.parameters()]}


def _right_step(t: Trial) -> str | None:
    found = [p.grad for p in t.args["model"].parameters()]
    missing = sum(g is None for g in found)
    if missing:
        return f"{missing} of {len(found)} parameters have no `.grad`"
    wanted = torch.cat([g.flatten() for g in t.expected["gradient"]])
    error = ((torch.cat([g.flatten() for g in found]) - wanted).norm() / wanted.norm()).item()
    return None if error <= 1e-4 else f"a gradient that is off by {error:.2%}"


STEP_WITHIN = Exercise(
    name="step_within",
    task="run forward and backward with a peak of at most `budget` bytes, and return the loss",
    parameters=("model", "x", "y", "budget"),
    cases=(
        Case(
            "a transformer",
            lambda: _with_budget(_made(transformer, 64, 2, 2, dropout=0.0), _numbers(16, 64, 64)),
        ),
        Case("an MLP at a large batch", lambda: _with_budget(_made(mlp, 64, 6), _numbers(2048, 64))),
    ),
    expect=_plain_answer,
    properties=(
        right_number(
            "return the loss as a number",
            lambda t: t.expected["loss"],
            "`loss.item()` is the number; the mean is over all of `y`.",
            within=1e-4,
        ),
        Property(
            "leave the gradients of the plain step in `.grad`",
            _right_step,
            "Rounded saved tensors and a part of the batch give another gradient; so do the losses of parts, added up "
            "without dividing each by the number of parts.",
        ),
        peak_at_most(
            lambda args: args["budget"],
            "What is saved in forward has to be somewhere else, or computed again, when backward begins.",
            says="keep its peak within the budget",
        ),
    ),
)

EXERCISES = (FRONTIER, IN_PARTS, STEP_WITHIN)
