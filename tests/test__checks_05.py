"""The exercises of chapter 05: right answers pass, and each wrong one hears its own sentence."""

from __future__ import annotations

import torch
from exercise_answers import answers_tested


def into_a_kept_input(h, weight):
    h = h * 1
    out = h @ weight
    h += out
    return h


def counted(w, step):
    with torch.no_grad():
        w.sub_(step)


def fresh_forward(w, x, lr):
    for power in (2, 3):
        (gradient,) = torch.autograd.grad(((w * x) ** power).sum(), w)
        with torch.no_grad():
            w.sub_(lr * gradient)


def both_forwards_first(w, x, lr):
    gradients = [torch.autograd.grad(((w * x) ** power).sum(), w)[0] for power in (2, 3)]
    with torch.no_grad():
        for gradient in gradients:
            w.sub_(lr * gradient)


def accumulated(w, x, lr):
    for power in (2, 3):
        ((w * x) ** power).sum().backward()
        with torch.no_grad():
            w.sub_(lr * w.grad)


RIGHT = {
    "residual": [lambda h, weight: h + h @ weight, lambda h, weight: (h @ weight).add_(h)],
    "descend": [counted],
    "two_losses": [fresh_forward],
}
WRONG = [
    ("residual", into_a_kept_input, ["modified by an inplace operation", "spoils it"]),
    ("residual", lambda h, weight: h.add_(h @ weight), ["a leaf Variable that requires grad"]),
    ("residual", lambda h, weight: (h + h @ weight).detach(), ["the result has no graph"]),
    ("residual", lambda h, weight: h + h.detach() @ weight, ["the gradient of `h` is"]),
    ("descend", lambda w, step: w.data.sub_(step), ["the version counter of `w` did not move"]),
    ("descend", lambda w, step: w.sub_(step), ["a leaf Variable that requires grad"]),
    ("descend", lambda w, step: w - step, ["`w` still holds its old values"]),
    ("two_losses", both_forwards_first, ["`w` holds", "computed from the new `w`"]),
    ("two_losses", accumulated, ["`w` holds", "without the gradient of the first"]),
]


TestAnswers = answers_tested(RIGHT, WRONG)
