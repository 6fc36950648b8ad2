"""The exercises of chapter 09: right answers pass, and each wrong one hears its own sentence."""

from __future__ import annotations

import copy
import itertools

import torch
from exercise_answers import answers_tested
from torch import nn
from torch.autograd.graph import save_on_cpu

from helpers import WithSavedTensorHooks, saved_tensors
from helpers.exercises import check


def wrapped(model, position, hooks):
    layers = list(model)
    layers[position] = WithSavedTensorHooks(layers[position], hooks)
    return nn.Sequential(*layers)


def wrapped_copy(model, position, hooks):
    return wrapped(copy.deepcopy(model), position, hooks)


def wrapped_in_place(model, position, hooks):
    model[position] = WithSavedTensorHooks(model[position], hooks)
    return model


def all_wrapped(model, position, hooks):
    return WithSavedTensorHooks(model, hooks)


def none_wrapped(model, position, hooks):
    return nn.Sequential(*model)


def wrapped_by_hand(model, position, hooks):
    class Hooked(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            with hooks():
                return self.layer(x)

    return nn.Sequential(*(Hooked(layer) if i == position else layer for i, layer in enumerate(model)))


def fewest(model, x, wanted):
    keepers, sizes = {}, {}
    for record in saved_tensors(lambda: model(x), model):
        if record.kind == "activation" and record.nbytes >= 4096:
            keepers.setdefault(record.storage, set()).add(record.module)
            sizes[record.storage] = record.storage_nbytes
    names = [name for name, _ in model.named_children()]
    for count in range(len(names) + 1):
        for chosen in itertools.combinations(names, count):
            if sum(sizes[s] for s in sizes if keepers[s] <= set(chosen)) >= wanted:
                return list(chosen)


def by_what_is_saved(model, x, wanted):
    chosen = []
    for name, nbytes in saved_tensors(lambda: model(x), model).by_module.items():
        if wanted <= 0:
            break
        chosen.append(name)
        wanted -= nbytes
    return chosen


def far(model, stay=True, versions=True, let_go=True, copy_of=torch.clone, error=RuntimeError):
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()} if stay else set()

    def pack(t):
        alias, version = t.detach(), t._version
        if t.untyped_storage().data_ptr() in weights:
            return alias, version, None
        kept = copy_of(alias)
        if let_go:
            alias.data = torch.empty(0, dtype=t.dtype)
        return alias, version, kept

    def unpack(kept):
        alias, version, there = kept
        if versions and alias._version != version:
            raise error("overwritten")
        return alias if there is None else there

    return pack, unpack


def by_shape(model):
    shapes = {s for p in model.parameters() for s in (p.shape, p.t().shape)}
    pack, unpack = far(model, stay=False)

    def choosing(t):
        return (t.detach(), t._version, None) if t.shape in shapes else pack(t)

    return choosing, unpack


def in_a_list(model):
    pack, unpack = far(model)
    kept = []

    def listing(t):
        kept.append(pack(t))
        return len(kept) - 1

    return listing, lambda number: unpack(kept[number])


def once(model):
    pack, unpack = far(model)
    store = {}

    def storing(t):
        store[len(store)] = pack(t)
        return len(store) - 1

    return storing, lambda number: unpack(store.pop(number))


def official(model):
    hooks = save_on_cpu(pin_memory=True)
    return hooks.pack_hook, hooks.unpack_hook


RIGHT = {"wrap_layer": [wrapped, wrapped_by_hand], "fewest_layers": [fewest], "far_hooks": [far]}
WRONG = [
    ("wrap_layer", lambda model, position, hooks: hooks, ["it returned a function"]),
    ("wrap_layer", wrapped_copy, ["of 6 parameters it has 0", "never updated"]),
    ("wrap_layer", wrapped_in_place, ["layer 0 of `model` is another now", "make a list of the layers"]),
    ("wrap_layer", all_wrapped, ["Hooks around the whole model move everything"]),
    ("wrap_layer", none_wrapped, ["0 B were moved, layer 0 alone saves 32,768 B"]),
    ("fewest_layers", lambda model, x, wanted: 2, ["it returned a int"]),
    ("fewest_layers", lambda model, x, wanted: ["layer 7"], ["'layer 7' is no layer of the model"]),
    ("fewest_layers", lambda model, x, wanted: ["0", "1", "2", "3", "4"], ["5 layers, where '1' would do"]),
    ("fewest_layers", lambda model, x, wanted: ["0"], ["10,240 B freed of 40,960 B"]),
    ("fewest_layers", by_what_is_saved, ["a ReLU whose result the next layer keeps too", "0 B freed of 40,960 B"]),
    ("far_hooks", lambda model: lambda t: t, ["not two functions"]),
    ("far_hooks", lambda model: far(model, stay=False), ["allocated 2,048 B", "transposed view"]),
    (
        "far_hooks",
        lambda model: far(model, versions=False),
        ["an activation was written to, and backward raised nothing"],
    ),
    ("far_hooks", lambda model: far(model, error=ValueError), ["backward raised ValueError, not RuntimeError"]),
    ("far_hooks", lambda model: far(model, let_go=False), ["stays, as long as its graph does", "leaves its counter"]),
    ("far_hooks", lambda model: far(model, copy_of=lambda t: t.half().to(t.dtype)), ["to the last bit"]),
    ("far_hooks", by_shape, ["only has the shape of a weight", "not shapes or types"]),
    ("far_hooks", in_a_list, ["left 4,000 B behind", "never forgets"]),
    ("far_hooks", once, ["KeyError", "asks twice"]),
    ("far_hooks", official, ["allocated", "raised nothing"]),
]


TestAnswers = answers_tested(RIGHT, WRONG)


def test_one_input_is_one_input():
    assert repr(check(far, "far_hooks")).startswith("far_hooks: passed, on 1 input.\n")
    assert repr(check(wrapped, "wrap_layer")).startswith("wrap_layer: passed, on 3 inputs.\n")
