"""The exercises of chapter 01: right answers pass, and each wrong one hears its own sentence."""

from __future__ import annotations

import copy

import pytest
import torch
from exercise_answers import answers_tested

from helpers.exercises import check

RIGHT = {
    "column_view": [lambda x, j: x[:, j], lambda x, j: x.select(1, j), lambda x, j: x.t()[j]],
    "bytes_kept_alive": [lambda t: t.untyped_storage().nbytes()],
    "cut_loose": [lambda part: part.clone(), lambda part: part + 0],
}
WRONG = [
    ("column_view", lambda x, j: x[:, [j]], ["shape (3, 1) instead of (3,)"]),
    ("column_view", lambda x, j: x[:, [j]].squeeze(1), ["the result is a copy", "A list or a tensor as an index"]),
    ("column_view", lambda x, j: x[j], ["return the right shape"]),
    ("bytes_kept_alive", lambda t: t.nbytes, ["40 instead of 4,000", "It keeps its whole storage alive"]),
    ("bytes_kept_alive", lambda t: t.numel(), ["10 instead of 4,000", "That is a number of elements"]),
    ("bytes_kept_alive", lambda t: 7, ["7 instead of 4,000", "What stays allocated is a storage"]),
    ("bytes_kept_alive", lambda t: t, ["it returned a float32 tensor"]),
    ("cut_loose", lambda part: part.contiguous(), ["the result is a view of `part`"]),
    ("cut_loose", lambda part: copy.deepcopy(part), ["4,000 B where its elements need 40 B"]),
    ("cut_loose", lambda part: part.detach(), ["`detach()` is a view"]),
    ("cut_loose", lambda part: part.float().clone(), ["return the right dtype"]),
    ("cut_loose", lambda part: (part.set_(part.clone()), part.clone())[1], ["put into other memory", "`set_` and"]),
]
ACCUSED = [  # an answer, and a word of a hint that is about another one
    ("column_view", lambda x, j: x[j], "`x[:, [j]]`"),
    ("bytes_kept_alive", lambda t: t.numel(), "t.nbytes"),
    ("cut_loose", lambda part: part.contiguous(), "deepcopy"),
    ("cut_loose", lambda part: [part], "`return`"),
    ("cut_loose", lambda part: (part.set_(part.clone()), part.clone())[1], "ends in `_`"),
]


TestAnswers = answers_tested(RIGHT, WRONG)


@pytest.mark.parametrize(("name", "answer", "word"), ACCUSED)
def test_no_hint_speaks_of_what_was_not_done(name, answer, word):
    result = check(answer, name)
    assert not result.passed
    assert word not in repr(result), result


def test_a_view_through_numpy_is_a_view():
    assert check(lambda x, j: torch.from_numpy(x.numpy()[:, j]), "column_view").passed
    assert "is a view of `part`" in repr(check(lambda part: torch.from_numpy(part.numpy()), "cut_loose"))
