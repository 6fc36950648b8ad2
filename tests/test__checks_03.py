"""The exercises of chapter 03: right answers pass, and each wrong one hears its own sentence."""

from __future__ import annotations

import copy

import pytest

from helpers.exercises import check

RIGHT = {
    "snapshot": [lambda t: t.detach().clone(), lambda t: t.clone().detach(), lambda t: t.data.clone()],
    "best_checkpoint": [
        lambda model: {name: value.clone() for name, value in model.state_dict().items()},
        lambda model: copy.deepcopy(model.state_dict()),
    ],
    "ready_to_save": [lambda part: part.detach().clone(), lambda part: part.clone().detach()],
}
WRONG = [
    ("snapshot", lambda t: t.clone(), ["keeps a graph alive (its grad_fn is CloneBackward0)"]),
    ("snapshot", lambda t: t.detach(), ["the result is a view of `t`", "cuts the graph and nothing else"]),
    ("snapshot", lambda t: t.detach().mul_(1).clone().add_(1), ["return the right values"]),
    ("snapshot", lambda t: t.detach().add_(1).clone(), ["`t` was changed"]),
    ("best_checkpoint", lambda model: model.state_dict(), ["changed when the model was trained on"]),
    ("best_checkpoint", lambda model: dict(model.state_dict()), ["changed when", "in a `dict(...)` around it"]),
    ("best_checkpoint", lambda model: copy.copy(model.state_dict()), ["changed when the model was trained on"]),
    (
        "best_checkpoint",
        lambda model: {name: value.clone() for name, value in model.named_parameters()},
        ["1.running_mean, 1.running_var missing", "keep a graph alive"],
    ),
    ("best_checkpoint", lambda model: list(model.parameters()), ["it returned a list"]),
    ("ready_to_save", lambda part: part.detach(), ["40,000 B where its elements need 40 B"]),
    ("ready_to_save", lambda part: copy.deepcopy(part.detach()), ["40,000 B where its elements need 40 B"]),
    ("ready_to_save", lambda part: part.clone(), ["keeps a graph alive", "comes first or last"]),
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
