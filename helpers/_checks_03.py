"""What the exercises of chapter 03 (clone, detach, deepcopy) ask for. Stubs and solutions stand in the chapter."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from helpers._checks import Case, Exercise
from helpers._checks_01 import storage_just_fits
from helpers._properties import (
    RETURNED,
    Property,
    Trial,
    describe,
    difference,
    has_own_memory,
    keeps_no_graph,
    leaves_alone,
    returns_tensor,
    right_dtype,
    right_shape,
    right_values,
)


def _on_a_graph(count: int) -> torch.Tensor:
    return torch.arange(float(count), dtype=torch.float32).requires_grad_() * 2


_VALUES = (returns_tensor(), right_shape(), right_dtype(), right_values())

SNAPSHOT = Exercise(
    name="snapshot",
    task="return the values of `t` as they are now, with memory of their own and without a graph",
    parameters=("t",),
    cases=(
        Case("a tensor that hangs on a graph", lambda: (_on_a_graph(12).reshape(3, 4),)),
        Case("a parameter", lambda: (torch.arange(6.0, dtype=torch.float32).requires_grad_(),)),
        Case("a plain tensor", lambda: (torch.arange(5),)),
    ),
    expect=lambda t: {RETURNED: torch.from_numpy(t.detach().numpy().copy())},
    properties=(
        *_VALUES,
        has_own_memory("t", "`detach()` cuts the graph and nothing else: a later write to `t` changes your snapshot."),
        keeps_no_graph(hint="`clone()` is recorded by autograd; a snapshot keeps the whole history alive through it."),
        leaves_alone("t"),
    ),
)


def _network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):  # to make layers draws numbers, and the reader's must stay the next ones
        model = nn.Sequential(nn.Linear(3, 2, dtype=torch.float32), nn.BatchNorm1d(2, dtype=torch.float32))
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(
                torch.arange(float(parameter.numel()), dtype=torch.float32).reshape(parameter.shape) + number
            )
    return model


def _one_layer() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        return nn.Linear(2, 2, dtype=torch.float32)


def _names(t: Trial) -> str | None:
    if not isinstance(t.result, Mapping):
        return f"it returned {describe(t.result)}"
    wanted = sorted(_tensors(t.before["model"]))
    missing = [name for name in wanted if name not in t.result]
    if missing:
        return f"{', '.join(missing)} missing"
    odd = [name for name in wanted if not isinstance(t.result[name], torch.Tensor)]
    return f"`{odd[0]}` is {describe(t.result[odd[0]])}, not a tensor" if odd else None


def _all_named(t: Trial) -> bool:
    return isinstance(t.result, Mapping) and all(name in t.result for name in _tensors(t.before["model"]))


def _right_numbers(t: Trial) -> str | None:
    for name, wanted in _tensors(t.before["model"]).items():
        if t.result[name].dtype != wanted.dtype:
            return f"`{name}` holds {t.result[name].dtype} instead of {wanted.dtype}"
        wrong = difference(t.result[name], wanted)
        if wrong is not None:
            return f"`{name}` holds {wrong}"
    return None


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _stays_put(t: Trial) -> str | None:
    """Trains on, by writing into every tensor of the model, and looks whether the checkpoint noticed."""
    live = _tensors(t.args["model"])
    before = {name: value.detach().clone() for name, value in live.items()}
    kept = {name: t.result[name].detach().clone() for name in live}
    with torch.no_grad():
        try:
            for value in live.values():
                value.add_(1)
            changed = [name for name in live if not torch.equal(t.result[name].detach(), kept[name])]
        finally:
            for name, value in live.items():
                value.copy_(before[name])
    return f"{', '.join(changed)} changed when the model was trained on" if changed else None


def _model_as_it_was(t: Trial) -> str | None:
    live, before = _tensors(t.args["model"]), _tensors(t.before["model"])
    if live.keys() != before.keys():
        return "the model has other parameters and buffers than before"
    for name, wanted in before.items():
        if live[name].dtype != wanted.dtype:
            return f"`{name}` of the model is {live[name].dtype} instead of {wanted.dtype}"
        changed = difference(live[name], wanted)
        if changed is not None:
            return f"`{name}` of the model was changed, {changed}"
    return None


def _no_graphs(t: Trial) -> str | None:
    hanging = [n for n, value in t.result.items() if isinstance(value, torch.Tensor) and value.grad_fn is not None]
    return f"{', '.join(hanging)} keep a graph alive" if hanging else None


CHECKPOINT = Exercise(
    name="best_checkpoint",
    task="return a dictionary of parameters and buffers by name that later training cannot change",
    parameters=("model",),
    cases=(
        Case("a linear layer with batch norm", lambda: (_network(),)),
        Case("one linear layer", lambda: (_one_layer(),)),
    ),
    expect=lambda model: {},
    properties=(
        Property(
            "return a dictionary with every parameter and buffer",
            _names,
            lambda t: "" if _all_named(t) else "`model.state_dict()` names them all.",
            decisive=True,
        ),
        Property("hold the values that the model has", _right_numbers, decisive=True),
        Property(
            "stay as it was when training goes on",
            _stays_put,
            "`state_dict()`, also in a `dict(...)` around it, holds tensors over the memory that training writes into.",
        ),
        Property(
            "keep no graph", _no_graphs, "A `clone()` of a parameter is recorded; clone what `state_dict()` gives."
        ),
        Property("leave `model` as it was", _model_as_it_was, "A checkpoint is read from the model; training goes on."),
    ),
)

READY = Exercise(
    name="ready_to_save",
    task="return the values of `part` with no graph and a storage that just fits",
    parameters=("part",),
    cases=(
        Case("ten of ten thousand, on a graph", lambda: (_on_a_graph(10_000)[:10],)),
        Case("a column of 100 x 100", lambda: (torch.arange(10_000.0, dtype=torch.float32).reshape(100, 100)[:, 3],)),
        Case("a whole tensor", lambda: (torch.arange(6.0, dtype=torch.float32).reshape(2, 3),)),
    ),
    expect=lambda part: {RETURNED: torch.from_numpy(part.detach().numpy().copy())},
    properties=(
        *_VALUES,
        storage_just_fits(
            lambda t: (
                "A view brings the whole storage along; `detach()` gives one, and `contiguous()` where it can."
                if t.result.untyped_storage().data_ptr() == t.memory["part"].untyped_storage().data_ptr()
                else "`deepcopy` copies the whole storage; `clone()` does not."
            )
        ),
        keeps_no_graph(
            hint="It can be saved so, but in memory it keeps its graph alive, and what is loaded asks for gradients: "
            "`detach()` comes first or last."
        ),
        leaves_alone("part"),
    ),
)

EXERCISES = (SNAPSHOT, CHECKPOINT, READY)
