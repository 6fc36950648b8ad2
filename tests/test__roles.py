"""What storages serve as, and whose line an event carries; by way of the tracker, which is how both are met."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from helpers import _roles
from helpers.display import GROUPS
from helpers.memory import MemoryTracker
from helpers.models import training_step

FLOAT = 4  # bytes
LENGTH = 1000
ROW = LENGTH * FLOAT


def leaf(*shape: int) -> torch.Tensor:
    return torch.ones(*(shape or (LENGTH,)), requires_grad=True)


def groups(**bytes_) -> dict[str, int]:
    """All groups, with those that are named by their first word."""
    return {name: bytes_.pop(name.split()[0], 0) for name in GROUPS} | bytes_


def texts(tracker: MemoryTracker, kind: str = "alloc") -> list[str]:
    return [event.line.text for event in tracker.timeline if event.kind == kind]


# -- groups ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (lambda x: x * x, groups(saved=ROW, other=ROW)),  # its input, twice
        (lambda x: x.exp(), groups(saved=ROW, other=ROW)),  # its result
        (lambda x: x * x.exp(), groups(saved=2 * ROW, other=ROW)),
        (lambda x: x + 1, groups(other=2 * ROW)),
        (lambda x: x[1:], groups(other=ROW)),
        (lambda x: x.detach() * x.detach(), groups(other=2 * ROW)),
    ],
    ids=["x*x", "exp", "x*exp(x)", "x+1", "view", "detached"],
)
def test_saved_activations_by_hand(operation, expected):
    x = leaf()
    with MemoryTracker(x) as tracker:
        y = operation(x)
        assert tracker.groups == expected
    assert tracker.groups == expected
    assert y is not None


def test_no_grad_saves_nothing():
    with MemoryTracker() as tracker, torch.no_grad():
        x = leaf()
        y = x * x
    assert tracker.groups == groups(other=2 * ROW)
    assert y.numel() == LENGTH


def test_a_graph_dropped_without_backward_gives_back():
    x = leaf()
    with MemoryTracker(x) as tracker:
        y = x * x
        assert tracker.groups == groups(saved=ROW, other=ROW)
        value = y.detach()
        del y
        assert tracker.groups == groups(other=2 * ROW)  # the value lives, the graph does not
        z = x * x
        del value
    assert tracker.groups == groups(saved=ROW, other=ROW)
    assert z.grad_fn is not None


def test_a_retained_graph_keeps_until_the_last_backward():
    x = leaf()
    with MemoryTracker(x) as tracker:
        y = (x * x).sum()
        y.backward(retain_graph=True)
        assert tracker.groups == groups(saved=ROW, gradients=ROW, other=FLOAT)
        y.backward()
        assert tracker.groups == groups(gradients=ROW, other=ROW + FLOAT)


def test_groups_of_a_graph_recorded_before_the_block():
    x = leaf()
    y = (x * x).sum()
    with MemoryTracker(x) as tracker:
        y.backward()
    assert tracker.alive_at(-1)[0].group == "saved activations"
    assert tracker.groups == groups(gradients=ROW, other=ROW)


def test_gradients_are_what_a_tracked_leaf_has():
    x, other = leaf(), leaf()
    with MemoryTracker(x) as tracker:
        (x + other).sum().backward()
        assert x.grad.data_ptr() != other.grad.data_ptr()
        assert tracker.groups == groups(gradients=ROW, other=2 * ROW)  # `other` is not tracked: x, and its gradient
        kept = x.grad
        x.grad = None
        assert tracker.groups == groups(other=3 * ROW)
        x.grad = kept
        assert tracker.groups == groups(gradients=ROW, other=2 * ROW)


def test_a_new_gradient_takes_the_place_of_one_that_is_kept():
    x = leaf()
    with MemoryTracker(x) as tracker:
        x.sum().backward()
        kept, x.grad = x.grad, None
        (x * 2).sum().backward()
    assert tracker.groups == groups(gradients=ROW, other=2 * ROW)
    assert kept is not x.grad


def test_an_adam_step_by_hand():
    width, batch = 100, 10
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    x, target = torch.ones(batch, width), torch.zeros(batch, width)
    parameters, matrix, count = 2 * (width * width + width) * FLOAT, width * width * FLOAT, 4
    training_step(model, optimizer, x, target)  # makes the optimizer's state
    with MemoryTracker(model, optimizer, x, target) as tracker:
        loss = training_step(model, optimizer, x, target)
    state = 2 * parameters + count * FLOAT
    assert tracker.alive_at(-1)[0].nbytes == matrix
    start = groups(parameters=parameters, optimizer=state, gradients=parameters, other=x.nbytes + target.nbytes)
    assert tracker.start_bytes == sum(start.values())
    # At the peak Adam has the root of a matrix of second moments and that root divided, and what was divided for the
    # bias before, which the name in its loop still holds. The loss has a storage of its own.
    scalar, vector = loss.untyped_storage().nbytes(), width * FLOAT
    expected = start | {"other": start["other"] + scalar + 2 * matrix + vector}
    assert tracker.at_peak == expected
    assert tracker.peak.op == "aten.div"
    assert tracker.groups == start | {"other": start["other"] + scalar}
    # Saved for backward: x, and the ReLU's result once, although two nodes keep it; and what the loss compares.
    most_saved = max(event.groups["saved activations"] for event in tracker.timeline)
    assert most_saved == x.nbytes + 2 * batch * width * FLOAT + target.nbytes


@pytest.mark.parametrize(
    ("make", "copies"),
    [
        (lambda p: torch.optim.SGD(p, 0.1), 0),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), 1),
        (lambda p: torch.optim.Adam(p, amsgrad=True, foreach=True), 3),
        (lambda p: torch.optim.Adam(p, fused=True), 2),
    ],
    ids=["SGD", "momentum", "amsgrad, foreach", "fused"],
)
def test_optimizer_state_from_its_birth(make, copies):
    model = nn.Linear(50, 50, bias=False)
    optimizer = make(model.parameters())
    with MemoryTracker(model, optimizer) as tracker:
        model(torch.ones(2, 50)).sum().backward()
        with tracker.phase("step"):
            optimizer.step()
    steps = FLOAT if copies > 1 else 0
    assert tracker.groups["optimizer state"] == copies * 50 * 50 * FLOAT + steps
    assert tracker.groups["parameters"] == 50 * 50 * FLOAT
    first = next((e for e in tracker.timeline if e.groups["optimizer state"]), None)
    assert (first is None) == (copies == 0)
    assert first is None or first.delta_bytes == first.groups["optimizer state"]  # not only when the phase had ended


def test_hooks_that_keep_something_else_are_counted_by_what_they_keep():
    x = leaf()
    with MemoryTracker(x) as tracker:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.half(), lambda t: t.float()):
            y = x.exp()
        assert tracker.groups == groups(saved=ROW // 2, other=2 * ROW)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: 7, lambda t: torch.ones(LENGTH)):
            z = x.exp()
        assert tracker.groups == groups(saved=ROW // 2, other=3 * ROW)
        y.sum().backward()
        z.sum().backward()
    assert tracker.groups == groups(gradients=ROW, other=3 * ROW)


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_a_checkpoint_keeps_stays_saved_while_it_runs_again(reentrant):
    seen = []

    def body(h):
        h = h.exp()
        seen.append(tracker.groups["saved activations"])
        return h.exp()

    x = leaf()
    with MemoryTracker(x) as tracker:
        start = x * 2  # other memory, that only the checkpoint keeps
        y = checkpoint(body, start, use_reentrant=reentrant)
        del start
        y.sum().backward()
    # When it runs again, the inner graph has saved exp's result. The reentrant form has its own input in its node's
    # care, which runs at that moment; the other form has it as an argument of a function, which is no saved tensor.
    assert seen == ([0, 2 * ROW] if reentrant else [0, ROW])
    assert tracker.groups == groups(gradients=ROW, other=2 * ROW)
    assert y.numel() == LENGTH


def test_notes_of_nodes_do_not_grow_with_the_steps(monkeypatch):
    model = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 5))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    x, target = torch.ones(2, 5), torch.zeros(2, 5)

    def notes() -> int:
        roles = tracker._roles
        sizes = roles._node_lines, roles._node_events, roles._node_saves, roles._gradients, roles._named, roles._running
        return sum(map(len, sizes)) + len(tracker._storages)

    def evaluate() -> None:
        nn.functional.mse_loss(model(x), target)  # the graph is dropped, as in a careless validation

    with MemoryTracker(model, optimizer) as tracker:
        for _ in range(20):
            training_step(model, optimizer, x, target)
        settled, logged = notes(), len(tracker._log)
        for _ in range(100):
            training_step(model, optimizer, x, target)
        assert notes() == settled
        grown = len(tracker._log) - logged
        assert grown > 0
        assert grown % 100 == 0  # the log does grow, by the same number of events each step
        monkeypatch.setattr(_roles, "_MOST_NODES", 100)
        for _ in range(200):
            evaluate()
        assert notes() < settled + 2 * 100 + 20
    assert len(tracker.timeline) == len(tracker._log) - tracker._start


# -- lines -------------------------------------------------------------------------------------------------------------


def test_lines_of_a_training_step():
    model, x = nn.Linear(20, 20), torch.ones(5, 20)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    with MemoryTracker(model, optimizer, x) as tracker:
        with tracker.phase("forward"):
            h = model(x)
            h = h.exp()
            loss = h.sum()
        with tracker.phase("backward"):
            loss.backward()
        with tracker.phase("step"):
            optimizer.step()
    lines = {
        name: {e.line.text for e in tracker.timeline if e.phase == name} for name in ("forward", "backward", "step")
    }
    assert lines["forward"] == {"h = model(x)", "h = h.exp()", "loss = h.sum()"}
    assert lines["step"] == {"optimizer.step()"}
    assert "loss.backward()" in lines["backward"]  # the first gradient, of no forward operator
    by_operator = {e.op: e.line.text for e in tracker.timeline if e.phase == "backward" and e.kind == "alloc"}
    assert by_operator["aten.mul"] == "h = h.exp()"
    assert by_operator["aten.mm"] == "h = model(x)"
    assert tracker.timeline[0].line.where.startswith("test__roles.py, line ")


def test_a_free_carries_the_line_that_let_go():
    with MemoryTracker() as tracker:
        x = torch.ones(LENGTH)
        y = torch.ones(LENGTH)
        del x
        y = y + 1
    assert texts(tracker, "free") == ["del x", "y = y + 1"]
    assert texts(tracker) == ["x = torch.ones(LENGTH)", "y = torch.ones(LENGTH)", "y = y + 1"]
    assert y.numel() == LENGTH


class Triple(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        tripled = x * 3
        return tripled

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        scaled = grad * x
        return scaled


def test_a_custom_function_has_lines_of_its_own():
    x = leaf()
    with MemoryTracker(x) as tracker:
        with tracker.phase("forward"):
            y = Triple.apply(x)
            assert tracker.groups == groups(saved=ROW, other=ROW)
            loss = y.exp().sum()
        loss.backward()
    forward = [e.line.text for e in tracker.timeline if e.phase == "forward" and e.kind == "alloc"]
    assert forward[0] == "tripled = x * 3"
    backward = [e.line.text for e in tracker.timeline if e.phase == "" and e.op == "aten.mul" and e.kind == "alloc"]
    assert backward == ["loss = y.exp().sum()", "scaled = grad * x"]


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_that_runs_again_has_the_lines_of_its_function(reentrant):
    def body(h):
        h = h.exp()
        return h.sin()

    x = leaf()
    with MemoryTracker(x) as tracker:
        y = checkpoint(body, x, use_reentrant=reentrant)
        with tracker.phase("backward"):
            y.sum().backward()
    again = [e.line.text for e in tracker.timeline if e.phase == "backward" and e.op == "aten.exp"]
    assert again[0] == "h = h.exp()"
    cosine = [
        e.line.text for e in tracker.timeline if e.phase == "backward" and e.op == "aten.cos" and e.kind == "alloc"
    ]
    assert cosine == ["return h.sin()"]


def test_lines_are_the_readers_in_a_generator_and_a_deep_recursion():
    def generate():
        while True:
            made = torch.ones(LENGTH)
            yield made

    def recurse(depth: int):
        if depth == 0:
            return torch.zeros(LENGTH)
        return recurse(depth - 1)

    with MemoryTracker() as tracker:
        a = next(generate())
        b = recurse(400)
    assert texts(tracker) == ["made = torch.ones(LENGTH)", "return torch.zeros(LENGTH)"]
    assert a.numel() == b.numel()


def test_without_lines_and_groups_neither_is_told():
    x = leaf()
    with MemoryTracker(x, lines=False, groups=False) as tracker:
        y = (x * x).sum()
        y.backward()
    assert {e.line for e in tracker.timeline} == {None}
    assert {name for e in tracker.timeline for name, n in e.groups.items() if n} == {"other"}
    with MemoryTracker(x, lines=True, groups=False) as tracker:
        y = (x * x).sum()
    assert texts(tracker) == ["y = (x * x).sum()"] * 2
    assert y.grad_fn is not None


def test_a_model_that_is_gone_leaves_its_roles():
    model = nn.Linear(10, 10, bias=False)
    with MemoryTracker(model) as tracker:
        weight = model.weight
        del model
        gc.collect()
        assert tracker.groups == groups(parameters=400)
        del weight
        assert tracker.groups == groups()
