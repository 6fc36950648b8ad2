"""The exercises of chapter 02: right answers pass, and each wrong one hears its own sentence."""

from __future__ import annotations

import torch
from exercise_answers import answers_tested

RIGHT = {
    "zero_at": [lambda x, p: x.__setitem__(p, 0), lambda x, p: x.index_put_((p,), torch.tensor(0.0))],
    "flat_view": [lambda x: x.view(-1), lambda x: x.view(x.numel())],
    "tally": [
        lambda c, labels: c.index_add_(0, labels, torch.ones_like(labels, dtype=c.dtype)),
        lambda c, labels: c.index_put_((labels,), torch.ones((), dtype=c.dtype), accumulate=True),
        lambda c, labels: c.add_(torch.bincount(labels, minlength=len(c)).to(c.dtype)),
    ],
}
WRONG = [
    ("zero_at", lambda x, p: x[p].zero_(), ["`x` still holds its old values", "makes a copy when it is read"]),
    ("zero_at", lambda x, p: x.index_fill(0, p.long(), 0), ["`x` still holds its old values"]),
    ("zero_at", lambda x, p: x.zero_(), ["`x` holds at"]),
    ("flat_view", lambda x: x.reshape(-1), ["raise RuntimeError for a transposed matrix"]),
    ("flat_view", lambda x: x.clone().view(-1), ["the result is a copy", "copy without a word"]),
    ("flat_view", lambda x: x, ["shape (3, 4) instead of (12,)"]),
    ("tally", lambda c, labels: c.__setitem__(labels, c[labels] + 1), ["1 instead of 3", "instead of adding it"]),
    ("tally", lambda c, labels: c + torch.bincount(labels, minlength=len(c)), ["still holds its old values"]),
]


TestAnswers = answers_tested(RIGHT, WRONG)
