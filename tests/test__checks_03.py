"""The exercises of chapter 03: right answers pass, and each wrong one hears its own sentence."""

from __future__ import annotations

import copy
import io

import torch
from exercise_answers import answers_tested

from helpers.exercises import check


def zeroes_afterwards(model):
    kept = copy.deepcopy(model.state_dict())
    for value in model.state_dict().values():
        value.zero_()
    return kept


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
    (
        "best_checkpoint",
        lambda model: {name: value.detach().numpy().copy() for name, value in model.state_dict().items()},
        ["`0.bias` is a ndarray, not a tensor"],
    ),
    (
        "best_checkpoint",
        lambda model: {name: torch.zeros_like(value) for name, value in model.state_dict().items()},
        ["hold the values that the model has", "`0.weight` holds at [0, 1] 0 instead of 1"],
    ),
    (
        "best_checkpoint",
        lambda model: {n: v.double() for n, v in model.state_dict().items()},
        ["`0.weight` holds torch.float64 instead of torch.float32"],
    ),
    (
        "best_checkpoint",
        zeroes_afterwards,
        ["leave `model` as it was", "`0.weight` of the model was changed, at [0, 1]"],
    ),
    ("ready_to_save", lambda part: part.detach(), ["40,000 B where its elements need 40 B", "A view brings"]),
    (
        "ready_to_save",
        lambda part: copy.deepcopy(part.detach()),
        ["40,000 B where its elements need 40 B", "`deepcopy` copies the whole storage"],
    ),
    ("ready_to_save", lambda part: part.clone(), ["keeps a graph alive", "what is loaded asks for gradients"]),
]


def test_zeros_are_not_told_that_training_changed_them():
    result = check(lambda model: {n: torch.zeros_like(v) for n, v in model.state_dict().items()}, "best_checkpoint")
    assert [f.says for f in result.failures] == ["hold the values that the model has"]
    assert "deepcopy" not in repr(check(lambda part: part.detach(), "ready_to_save")), "no hint for what was not done"


def test_the_model_is_as_it_was_even_where_looking_fails():
    class Torn(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            if func is torch.equal:
                raise RuntimeError("torn")
            return super().__torch_function__(func, types, args, kwargs or {})

    seen = []

    def torn(model):
        seen.append((model, {n: v.clone() for n, v in model.state_dict().items()}))
        return {n: v.clone().as_subclass(Torn) for n, v in model.state_dict().items()}

    result = check(torn, "best_checkpoint")
    assert "to look at that raised RuntimeError: torn" in repr(result)
    for model, before in seen:
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_the_hint_says_of_saving_is_so():
    part, file = torch.ones(3, requires_grad=True) * 2, io.BytesIO()
    torch.save(part, file)
    file.seek(0)
    loaded = torch.load(file)
    assert part.grad_fn is not None and loaded.is_leaf and loaded.requires_grad


TestAnswers = answers_tested(RIGHT, WRONG)
