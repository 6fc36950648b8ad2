"""A saved tensor that was written to is refused in PyTorch's own words."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

from helpers import compress, offload_to_cpu, offload_to_disk

KINDS = (offload_to_cpu, offload_to_disk, compress)


def own_result(x):
    y = x.exp()
    return y * 1, y


def layer_norm(x):
    return nn.functional.layer_norm(x, (3,)), x


def custom(x):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            return 2 * grad * ctx.saved_tensors[0]

    return Square.apply(x), x


def view_of_a_leaf(x):
    w = torch.ones(3, 3, requires_grad=True)
    w.data = w.data + 1
    with torch.no_grad():
        w.mul_(1)
    return x @ w.t(), w


CASES = {
    "input": lambda x: (x * x, x),
    "own result": own_result,
    "own result, gone": lambda x: ((y := x.exp()).view(-1), y.detach()),
    "view of it": lambda x: ((y := x.exp()) * 1, y[0]),
    "input without a gradient": lambda x: (x * (y := torch.ones(2, 3)), y),
    "leaf": lambda x: (x * (w := torch.ones(2, 3, requires_grad=True)), w.detach()),
    "softmax": lambda x: ((y := torch.softmax(x, -1)) + 0, y),
    "layer norm": layer_norm,
    "several inputs": lambda x: ((y := torch.cat([x, x])).prod(), y),
    "view of a leaf": view_of_a_leaf,
    "whole numbers": lambda x: (x.gather(1, y := torch.zeros(2, 3, dtype=torch.int64)), y),
    "booleans": lambda x: (x.masked_fill(y := torch.zeros(2, 3, dtype=torch.bool), 0), y),
    "custom Function": custom,
    "view that is saved": lambda x: (x.t() @ x, x),
    "complex": lambda x: ((y := torch.complex(x, x)).abs(), y),
    "16 bits": lambda x: ((y := x.bfloat16()) * y, y),
    "0-dim": lambda x: ((y := x.sum()) * y, y),
    "in place": lambda x: ((y := x * 1).exp_(), y),
}


def said(case, context):
    x = torch.ones(2, 3, requires_grad=True) * 1
    with context:
        y, written = case(x)
    with torch.no_grad():
        written.copy_(written)
        written.copy_(written)
    try:
        y.abs().sum().backward()
    except RuntimeError as error:
        return type(error), str(error).split(" Hint:")[0]
    return None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_words_are_those_without_hooks(case, kind):
    plain = said(case, contextlib.nullcontext())
    for min_bytes in (0, 10**6):  # moved, or kept where it was
        assert said(case, kind(min_bytes=min_bytes)) == plain
    assert plain[0] is RuntimeError and ("is at version 2; expected version 0 instead" in plain[1]) == (
        case not in LATER
    )


LATER = (CASES["in place"], CASES["view of a leaf"])  # these were written to before they were saved


@pytest.mark.parametrize("kind", KINDS)
def test_the_control_nothing_is_said_of_what_was_not_written_to(kind):
    x = torch.ones(2, 3, requires_grad=True)
    with kind(min_bytes=0):
        h = x * 1
        y = h * h
    (x * 3).add_(1)
    h + 1
    y.sum().backward()
    assert torch.equal(x.grad, torch.full((2, 3), 2.0))


@pytest.mark.parametrize("kind", KINDS)
def test_a_leaf_that_is_updated_between_forward_and_backward(kind):
    def step(context):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        with context:
            loss = model(torch.ones(2, 4)).sum()
        torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.no_grad():
            model[1].weight.add_(1)
        loss.backward()

    messages = []
    for context in (contextlib.nullcontext(), kind(min_bytes=0)):
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught:
            step(context)
        messages.append(str(caught.value).split(" Hint:")[0])
    assert messages[0] == messages[1]
