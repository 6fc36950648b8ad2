"""The exercises of chapter 02: right answers pass, and each wrong one hears its own sentence."""

from __future__ import annotations

import pytest
import torch

from helpers.exercises import check

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


@pytest.mark.parametrize("name", RIGHT)
def test_right_answers_pass(name):
    for number, answer in enumerate(RIGHT[name]):
        result = check(answer, name)
        assert result.passed, f"answer {number}: {result}"


@pytest.mark.parametrize(("name", "answer", "sentences"), WRONG)
def test_wrong_answers_hear_their_own_sentence(name, answer, sentences):
    result = check(answer, name)
    assert not result.passed
    for sentence in sentences:
        assert sentence in repr(result), result


@pytest.mark.parametrize("name", RIGHT)
def test_the_stub_is_told_from_a_wrong_answer(name):
    def stub(*args):
        raise NotImplementedError

    assert "not written yet" in repr(check(stub, name))
