"""The exercises of chapter 07: right answers pass, and each wrong one hears its own sentence."""

from __future__ import annotations

import torch
from exercise_answers import answers_tested


def without_recording(model, x):
    with torch.no_grad():
        return model(x)


def by_hooks(fn, x):
    storages = {}

    def pack(t):
        storages[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        result = fn(x)
    del result
    return sum(storages.values())


def every_pack(fn, x):
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.nbytes), lambda t: t):
        fn(x)
    return sum(sizes)


RIGHT = {
    "evaluate": [without_recording],
    "total_of": [lambda losses: sum(loss.item() for loss in losses), lambda losses: sum(t.detach() for t in losses)],
    "bytes_kept": [by_hooks],
}
WRONG = [
    ("evaluate", lambda model, x: model(x), ["the returned tensor keeps a graph alive", "does not stop recording"]),
    ("evaluate", lambda model, x: model.eval()(x), ["the returned tensor keeps a graph alive"]),
    ("evaluate", lambda model, x: model(x).detach(), ["of new memory at the peak", "`detach()` at the end"]),
    ("evaluate", lambda model, x: without_recording(model, x) + 1, ["return the right values"]),
    ("total_of", lambda losses: sum(losses), ["the total keeps a graph alive (its grad_fn is AddBackward0)"]),
    ("total_of", lambda losses: losses[0].item(), ["instead of"]),
    ("total_of", lambda losses: losses, ["it returned a list"]),
    ("bytes_kept", every_pack, ["8,000 instead of 4,000", "kept twice is there once"]),
    ("bytes_kept", lambda fn, x: fn(x).nbytes, ["instead of"]),
    ("bytes_kept", lambda fn, x: fn(x), ["it returned a float32 tensor"]),
]


TestAnswers = answers_tested(RIGHT, WRONG)
