"""The exercises of chapter 11: right answers pass, and each wrong one hears its own sentence."""

from __future__ import annotations

import torch
from exercise_answers import answers_tested
from torch import nn
from torch.utils.checkpoint import checkpoint

from helpers.hooks import compress, offload_to_cpu, offload_to_disk


def unbeaten(points):
    def beaten(time, peak):
        return any(t <= time and p <= peak and (t < time or p < peak) for _, t, p in points)

    return [name for name, time, peak in points if not beaten(time, peak)]


def parts_of_equal_length(layers, x, parts):
    length = len(layers) // parts
    for start in range(0, len(layers), length):
        x = checkpoint(layers[start : start + length], x, use_reentrant=False)
    return x


def one_checkpoint(layers, x, parts):
    return checkpoint(layers, x, use_reentrant=False)


def each_layer(layers, x, parts):
    for layer in layers:
        x = checkpoint(layer, x, use_reentrant=False)
    return x


def always_the_first(layers, x, parts):
    length = len(layers) // parts
    for _ in range(parts):
        y = checkpoint(layers[:length], x, use_reentrant=False)
    return y


def step(model, x, y, hooks=None):
    if hooks is None:
        loss = nn.functional.mse_loss(model(x), y)
    else:
        with hooks:
            loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss.item()


def in_small_batches(model, x, y, budget):
    total = 0.0
    for some, theirs in zip(x.chunk(8), y.chunk(8)):
        loss = nn.functional.mse_loss(model(some), theirs) / 8
        loss.backward()
        total += loss.item()
    return total


def not_weighed(model, x, y, budget):
    return sum(step(model, some, theirs) for some, theirs in zip(x.chunk(8), y.chunk(8))) / 8


def without_graph(model, x, y, budget):
    with torch.no_grad():
        return nn.functional.mse_loss(model(x), y).item()


RIGHT = {
    "frontier": [unbeaten],
    "in_parts": [parts_of_equal_length],
    "step_within": [
        lambda model, x, y, budget: step(model, x, y, offload_to_cpu(model)),
        lambda model, x, y, budget: step(model, x, y, offload_to_disk(model=model)),
        in_small_batches,
    ],
}
WRONG = [
    ("frontier", lambda points: [min(points, key=lambda p: p[1])[0]], ["is missing, and nothing beats it"]),
    ("frontier", lambda points: [name for name, _, _ in points], ["`slow` is among them", "betters in one"]),
    ("frontier", lambda points: sorted(unbeaten(points)), ["in another order"]),
    ("frontier", lambda points: unbeaten(points)[0], ["not a list of names"]),
    ("frontier", lambda points: points, ["not all are names"]),
    ("in_parts", lambda layers, x, parts: layers(x), ["Outside of a checkpoint each layer keeps"]),
    ("in_parts", one_checkpoint, ["0 B are alive", "needs all the rest at once"]),
    ("in_parts", each_layer, ["keeps every input"]),
    ("in_parts", always_the_first, ["takes what the part before it returned"]),
    ("in_parts", lambda layers, x, parts: layers(x).detach(), ["0 B are alive"]),
    ("step_within", lambda model, x, y, budget: step(model, x, y), ["of new memory at the peak", "somewhere else"]),
    ("step_within", lambda model, x, y, budget: step(model, x, y, compress(torch.int8, model)), ["off by", "Rounded"]),
    ("step_within", lambda model, x, y, budget: step(model, x[:2], y[:2]), ["the mean is over all of `y`", "off by"]),
    ("step_within", not_weighed, ["off by 700.00%", "without dividing"]),
    ("step_within", without_graph, ["have no `.grad`"]),
    ("step_within", lambda model, x, y, budget: nn.functional.mse_loss(model(x), y), ["a float32 tensor"]),
]


TestAnswers = answers_tested(RIGHT, WRONG)
