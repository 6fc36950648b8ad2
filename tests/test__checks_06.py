"""The exercises of chapter 06: right answers pass, and each wrong one hears its own sentence."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from exercise_answers import answers_tested


class Checked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad


class Unchecked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x**3

    @staticmethod
    def backward(ctx, grad):
        return 3 * ctx.x**2 * grad


def rectified_shortcut(x, weight):
    x = x * 1
    return F.relu(x, inplace=True) @ weight + x


def trained(x, target, w1, w2, loud=False, silent=False):
    w1, w2 = w1.clone().requires_grad_(), w2.clone().requires_grad_()
    for _ in range(3):
        hidden = torch.tanh(x @ w1)
        hidden = hidden.add_(0.1 * x) if loud else hidden + 0.1 * x
        loss = ((hidden @ w2 - target) ** 2).mean()
        if silent:
            w2.data.mul_(0.9)
        g1, g2 = torch.autograd.grad(loss, (w1, w2))
        with torch.no_grad():
            w1.sub_(0.1 * g1)
            w2.sub_(0.1 * g2)
            if not silent:
                w2.mul_(0.9)
    return w1.detach(), w2.detach()


RIGHT = {
    "cube": [Checked.apply],
    "preactivation": [lambda x, weight: F.relu(x) @ weight + x, lambda x, weight: x + x.clamp(min=0) @ weight],
    "train": [lambda *weights: trained(*weights)],
}
WRONG = [
    ("cube", Unchecked.apply, ["backward used the new value and raised nothing", "save_for_backward"]),
    ("cube", lambda x: x.detach() ** 3, ["the result has no graph"]),
    ("cube", lambda x: x**2, ["return the right values"]),
    ("preactivation", rectified_shortcut, ["An in-place ReLU overwrites the shortcut", "the gradient of `x` is"]),
    ("preactivation", lambda x, weight: F.relu(x) @ weight, ["return the right values"]),
    ("train", lambda *weights: trained(*weights, loud=True), ["output 0 of Tanh"]),
    ("train", lambda *weights: trained(*weights, silent=True), ["`w1` ends", "`guard_saved_tensors` finds it"]),
    ("train", lambda *weights: trained(*weights)[0], ["not the two weights"]),
]


TestAnswers = answers_tested(RIGHT, WRONG)
