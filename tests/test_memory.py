"""Bytes that the tracker reports against bytes counted by hand. Each claim has a twin that must come out otherwise."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

from helpers import _ledger
from helpers.memory import Measurement, MemoryTracker, measure_memory
from helpers.models import mlp

FLOAT = 4  # bytes
LENGTH = 1000
ROW = LENGTH * FLOAT


def numbers(*shape: int, **options) -> torch.Tensor:
    return torch.ones(*(shape or (LENGTH,)), **options)


def took(fn, *args, **kwargs) -> tuple[int, int]:
    """(retained, peak) of a call."""
    measured = measure_memory(fn, *args, **kwargs)
    return measured.retained_bytes, measured.peak_bytes


def assert_sums_up(tracker: MemoryTracker) -> None:
    """What must hold in every timeline, whatever ran."""
    events = tracker.timeline
    live = tracker.start_bytes
    for number, event in enumerate(events):
        live += event.delta_bytes
        assert event.index == number
        assert event.live_bytes == live
        assert sum(event.groups.values()) == live
        assert min(event.groups.values()) >= 0
    assert live == tracker.live_bytes
    assert tracker.peak_bytes == max([tracker.start_bytes, *(e.live_bytes for e in events)])
    assert sum(tracker.at_peak.values()) == tracker.peak_bytes
    assert sum(tracker.groups.values()) == tracker.live_bytes
    if tracker.peak is not None:
        assert tracker.peak.live_bytes == tracker.peak_bytes
        assert tracker.peak.groups == tracker.at_peak
    for index in range(-1, len(events), max(1, len(events) // 7)):
        expected = tracker.start_bytes if index == -1 else events[index].live_bytes
        assert sum(alive.nbytes for alive in tracker.alive_at(index)) == expected


# -- one call: (what runs on x of 1000 float32, retained, peak) --------------------------------------------------------


def exchange_data(x):
    x.data = torch.zeros(2 * LENGTH)


def grow_again(x):
    storage = x.untyped_storage()
    storage.resize_(0)
    storage.resize_(ROW)


def chain_in_place(x):
    return x.add_(1).mul_(2).relu_()


def chain(x):
    return x.add(1).mul(2).relu()


ONE_CALL = {
    # views share, copies do not
    "view": (lambda x: x.view(10, 100), 0, 0),
    "transpose": (lambda x: x.view(10, 100).t(), 0, 0),
    "expand": (lambda x: x.expand(50, LENGTH), 0, 0),
    "slice": (lambda x: x[::2], 0, 0),
    "detach": (lambda x: x.detach(), 0, 0),
    "unfold": (lambda x: x.unfold(0, 10, 1), 0, 0),
    "as_strided": (lambda x: x.as_strided((LENGTH, 2), (0, 1)), 0, 0),
    "view_as_complex": (lambda x: torch.view_as_complex(x.view(-1, 2)).conj().imag, 0, 0),
    "resolved conjugate": (lambda x: torch.view_as_complex(x.view(-1, 2)).conj().resolve_conj(), ROW, ROW),
    "transpose, contiguous": (lambda x: x.view(10, 100).t().contiguous(), ROW, ROW),
    "expand, clone of all rows": (lambda x: x.expand(50, LENGTH).contiguous(), 50 * ROW, 50 * ROW),
    "advanced indexing": (lambda x: x[torch.arange(10)], 10 * FLOAT, 10 * FLOAT + 10 * 8),
    "split": (lambda x: x.split(100), 0, 0),
    "stack": (lambda x: torch.stack(x.split(100)), ROW, ROW),
    "cat twice": (lambda x: torch.cat([x, x]), 2 * ROW, 2 * ROW),
    # a small view keeps the whole of a base that nobody has any more
    "row of a dropped base": (lambda x: torch.zeros(LENGTH, LENGTH)[0], LENGTH * ROW, LENGTH * ROW),
    "clone of that row": (lambda x: torch.zeros(LENGTH, LENGTH)[0].clone(), ROW, (LENGTH + 1) * ROW),
    # in place and out of place
    "chain in place": (chain_in_place, 0, 0),
    "chain out of place": (chain, ROW, 2 * ROW),
    "out= of the right size": (lambda x: torch.add(x, 1, out=x), 0, 0),
    "out= of an empty tensor": (lambda x: torch.add(x, 1, out=torch.empty(0)), ROW, ROW),
    "out= twice": (
        lambda x: torch.max(x.view(10, 100), 1, out=(torch.empty(0), torch.empty(0, dtype=torch.long))),
        10 * (FLOAT + 8),
        10 * (FLOAT + 8),
    ),
    # memory exchanged under a tensor's feet
    "resize_ larger": (lambda x: x.resize_(3 * LENGTH), 2 * ROW, 2 * ROW),
    "resize_ smaller keeps all": (lambda x: x.resize_(10), 0, 0),
    "storage to nothing": (lambda x: x.untyped_storage().resize_(0), -ROW, 0),
    "storage to nothing and back": (grow_again, 0, 0),
    "typed storage to nothing": (lambda x: x._typed_storage()._resize_(0), -ROW, 0),
    "set_ to a larger tensor": (lambda x: x.set_(torch.zeros(2 * LENGTH)), ROW, 2 * ROW),
    "set_ to nothing": (lambda x: x.set_(), -ROW, 0),
    "set_ to a bare storage": (
        lambda x: x.set_(torch.UntypedStorage(2 * ROW), 0, (LENGTH,)),
        ROW,
        ROW,
    ),  # seen when set
    ".data = a larger tensor": (exchange_data, ROW, 2 * ROW),
    ".data written into": (lambda x: x.data.copy_(torch.zeros(1)), 0, FLOAT),
    # sparse: the indices and the values count
    "COO": (lambda x: x.view(10, 100).to_sparse(), LENGTH * (2 * 8 + FLOAT), LENGTH * (2 * 8 + FLOAT)),
    "COO scaled in place": (lambda x: x.to_sparse().mul_(2), LENGTH * (8 + FLOAT), None),
    # the column numbers of CSR are one row of COO's indices, and keep both rows
    "CSR": (lambda x: x.view(10, 100).to_sparse_csr(), 11 * 8 + LENGTH * (2 * 8 + FLOAT), None),
    "CSR, its values": (lambda x: x.view(10, 100).to_sparse_csr().values().clone(), ROW, None),
    # what others bring
    "deepcopy": (copy.deepcopy, ROW, ROW + FLOAT),  # a scalar comes first, and is given the copied storage
    "shallow copy": (copy.copy, 0, 0),
    "pickled and back": (lambda x: pickle.loads(pickle.dumps(x)), ROW, None),
    "mean of a vmapped product": (lambda x: torch.vmap(torch.mul)(x, x), ROW, ROW),
    "vmapped view": (lambda x: torch.vmap(lambda row: row[0])(x.view(10, 100)), 0, 0),
    "torch.func.grad": (lambda x: torch.func.grad(lambda v: (v * v).sum())(x), ROW, None),
    "a zero tangent holds nothing": (lambda x: torch._efficientzerotensor((LENGTH,)), 0, 0),
    "a zero that does": (lambda x: torch.zeros(LENGTH), ROW, ROW),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize(("fn", "retained", "peak"), ONE_CALL.values(), ids=ONE_CALL.keys())
def test_one_call_on_a_tracked_tensor(fn, retained, peak):
    measured = measure_memory(fn, numbers())
    assert measured.retained_bytes == retained
    assert peak is None or measured.peak_bytes == peak
    assert_sums_up(measured.tracker)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_out_of_the_wrong_size_is_given_other_memory():
    small, right = torch.empty(10), torch.empty(LENGTH)
    assert took(lambda out, x: torch.add(x, 1, out=out), small, numbers()) == (ROW - 10 * FLOAT, ROW - 10 * FLOAT)
    assert took(lambda out, x: torch.add(x, 1, out=out), right, numbers()) == (0, 0)


def test_numpy_memory_is_not_counted_until_copied():
    array = np.zeros(LENGTH)  # float64
    assert took(lambda: torch.from_numpy(array)) == (0, 0)
    assert took(lambda: torch.from_numpy(array)[1:].add_(1)) == (0, 0)
    assert took(lambda: torch.as_tensor(array)) == (0, 0)
    assert took(lambda: torch.tensor(array)) == (8 * LENGTH, 8 * LENGTH)
    assert took(lambda: torch.from_numpy(array).clone()) == (8 * LENGTH, 8 * LENGTH)


def test_an_array_over_a_tensor_keeps_its_bytes():
    with MemoryTracker() as tracker:
        array = numbers().numpy()
        assert tracker.live_bytes == ROW
        del array
        assert tracker.live_bytes == 0


def test_set_keeps_old_memory_that_a_view_still_uses():
    def with_view(x):
        view = x[1:]
        x.set_(torch.zeros(2 * LENGTH))
        return view

    assert took(with_view, numbers()) == (2 * ROW, 2 * ROW)
    assert took(lambda x: x.set_(torch.zeros(2 * LENGTH)), numbers()) == (ROW, 2 * ROW)


def test_an_untracked_tensor_is_not_new_because_a_view_of_it_comes_by():
    x, tracked = numbers(), numbers()
    with MemoryTracker(tracked) as tracker:
        views = x[2:], tracked[2:]
        x.add_(1)
        empty = torch.empty(0).set_(x)
    assert tracker.start_bytes == tracker.live_bytes == tracker.peak_bytes == ROW  # only `tracked`
    with MemoryTracker() as tracker:
        x.resize_(3 * LENGTH)  # what it grows by is new, what it was is not
        assert tracker.live_bytes == 2 * ROW
        copied = x.clone()
    assert tracker.live_bytes == 5 * ROW
    assert len(views) + empty.numel() + copied.numel() > 0


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("depth", [1, 3])
def test_a_bare_storage_is_new_unless_a_tensor_has_it(depth, inference):
    x = numbers()
    trackers = [MemoryTracker() for _ in range(depth)]
    with contextlib.ExitStack() as stack:
        for tracker in trackers:
            stack.enter_context(tracker)
        stack.enter_context(torch.inference_mode(inference))
        alias = torch.empty(0).set_(x.untyped_storage(), 0, (LENGTH,))
        assert [t.live_bytes for t in trackers] == [0] * depth
        fresh = torch.empty(0).set_(torch.UntypedStorage(ROW), 0, (LENGTH,))
        assert [t.live_bytes for t in trackers] == [ROW] * depth
        copied = x.untyped_storage().clone()  # lays a tensor over either for a moment
        assert [t.live_bytes for t in trackers] == [2 * ROW] * depth
    assert alias.data_ptr() == x.data_ptr() != fresh.data_ptr() != copied.data_ptr()


def test_track_inside_counts_what_was_only_seen_before():
    x = numbers()
    with MemoryTracker() as tracker:
        view = x[1:]
        assert tracker.live_bytes == 0
        tracker.track(x, [x, {"again": view}])
        assert tracker.live_bytes == ROW
        del x, view
        assert tracker.live_bytes == 0


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.add_(1),
        lambda x: x.clamp_(0).zero_(),
        lambda x: x.copy_(torch.zeros(1)),
        lambda x: torch._foreach_add_([x], 1),
        lambda x: torch.add(x, 1, out=x),
        lambda x: x.resize_(10),
        lambda x: x.__setitem__(slice(0, 5), 2.0),
        lambda x: x.requires_grad_().sum().backward(inputs=[x]) or setattr(x, "grad", None),
        lambda x: x.to_sparse().coalesce().mul_(2) is None,
    ],
)
def test_writing_into_an_untracked_tensor_does_not_make_it_new(write):
    x = numbers()
    with MemoryTracker() as tracker:
        write(x)
        gc.collect()
    assert tracker.live_bytes == 0
    with MemoryTracker(x) as tracker:
        pass
    assert tracker.live_bytes == ROW


def test_writing_into_an_untracked_sparse_tensor_counts_its_new_parts():
    x = numbers().to_sparse()
    with MemoryTracker() as tracker:
        x._values().mul_(2)
        assert tracker.live_bytes == 0
        x.add_(x)  # sparse addition makes indices and values anew
        assert tracker.live_bytes == sum(part.untyped_storage().nbytes() for part in (x._indices(), x._values()))


def test_what_existed_is_counted_off_when_it_goes():
    model, x = nn.Linear(100, 10, bias=False), numbers()
    with MemoryTracker(model, {"inputs": (x,)}) as tracker:
        assert tracker.live_bytes == tracker.start_bytes == 100 * 10 * FLOAT + ROW
        del x
        assert tracker.live_bytes == 100 * 10 * FLOAT
        del model
        gc.collect()
        assert tracker.live_bytes == 0
    untracked = numbers()
    with MemoryTracker() as tracker:
        del untracked
        assert tracker.timeline == []


def test_deepcopy_of_a_module_shares_nothing():
    model = nn.Sequential(nn.Linear(10, 10), nn.BatchNorm1d(10))
    own = (100 + 10 + 4 * 10) * FLOAT + 8  # weight, bias, the norm's four vectors, its counter
    for tracked in ((), (model,)):
        with MemoryTracker(*tracked) as tracker:
            twin = copy.deepcopy(model)
        assert tracker.live_bytes - tracker.start_bytes == own
        assert tracker.start_bytes == (own if tracked else 0)
    with MemoryTracker() as tracker:
        alias = copy.copy(model)
    assert tracker.live_bytes == 0
    assert twin is not alias


def test_loading_counts_what_was_read():
    file = io.BytesIO()
    torch.save(nn.Linear(100, 10, bias=False).state_dict(), file)
    file.seek(0)
    with MemoryTracker() as tracker:
        state = torch.load(file)
        assert tracker.live_bytes == 100 * 10 * FLOAT
        model = nn.Linear(100, 10, bias=False)
        assert tracker.live_bytes == 2 * 100 * 10 * FLOAT
        model.load_state_dict(state, assign=True)  # drops the parameters just made
        assert tracker.live_bytes == 100 * 10 * FLOAT


class Pair(torch.Tensor):
    """A tensor that consists of two others and has no memory of its own."""

    @staticmethod
    def __new__(cls, first, second):
        return torch.Tensor._make_wrapper_subclass(cls, first.shape, dtype=first.dtype)

    def __init__(self, first, second):
        self.first, self.second = first, second

    def __tensor_flatten__(self):
        return ["first", "second"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, meta, size, stride):
        return cls(inner["first"], inner["second"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        parts = ([a.__dict__[n] if isinstance(a, Pair) else a for a in args] for n in ("first", "second"))
        return cls(*(func(*part, **(kwargs or {})) for part in parts))


def test_a_wrapper_subclass_counts_its_parts():
    pair = Pair(numbers(), numbers())
    with MemoryTracker(pair) as tracker:
        assert tracker.live_bytes == 2 * ROW
        double = pair * 2
        assert tracker.live_bytes == 4 * ROW
        del double
        assert tracker.live_bytes == 2 * ROW
    with MemoryTracker(pair.first) as tracker:
        assert tracker.live_bytes == ROW


class Named(torch.Tensor):
    """A subclass with the torch function of its base."""


def test_a_torch_function_subclass_counts_once():
    x = numbers().as_subclass(Named)
    with MemoryTracker(x) as tracker:
        y = x * 2
        z = y[:10]
    assert isinstance(z, Named)
    assert tracker.live_bytes == 2 * ROW


def test_short_lived_tensors_reuse_addresses_and_are_all_counted():
    addresses = set()
    with MemoryTracker(lines=False, groups=False) as tracker:
        for number in range(10_000):
            t = torch.empty(number % 7 + 1)
            addresses.add(t.untyped_storage()._cdata)
        assert tracker.live_bytes == (9_999 % 7 + 1) * FLOAT
        del t
    assert len(addresses) < 5_000, "the test is about reuse"
    assert tracker.live_bytes == 0
    assert tracker.peak_bytes == (6 + 7) * FLOAT  # a new tensor is there before the name lets go of the old one
    assert [sum(e.kind == kind for e in tracker.timeline) for kind in ("alloc", "free", "resize")] == [
        10_000,
        10_000,
        0,
    ]
    assert_sums_up(tracker)


def test_a_tensor_freed_by_another_thread_is_counted_off():
    with MemoryTracker() as tracker:
        held = [numbers()]
        assert tracker.live_bytes == ROW
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        assert tracker.live_bytes == 0
        assert tracker.timeline[-1].kind == "free"


def test_what_another_thread_allocates_is_not_seen():
    made = []
    with MemoryTracker() as tracker:
        thread = threading.Thread(target=lambda: made.append(numbers()))
        thread.start()
        thread.join()
        product = made[0] * 2
    assert tracker.live_bytes == product.nbytes == ROW


def test_garbage_collected_in_the_middle_of_an_event_comes_after_it():
    class Cycle:
        def __init__(self):
            self.me, self.tensor = self, numbers()

    threshold = gc.get_threshold()
    gc.set_threshold(3)  # so the collector comes while events are written
    try:
        with MemoryTracker() as tracker:
            for _ in range(300):
                Cycle()
    finally:
        gc.set_threshold(*threshold)
    assert any(e.kind == "free" for e in tracker.timeline)
    assert_sums_up(tracker)


def test_nested_trackers_each_keep_their_own_count():
    x = numbers()
    with MemoryTracker(x) as outer:
        first = x + 1
        with MemoryTracker() as inner:
            second = x + 2
            del first
            view = x[1:]
        third = x + 3
    assert (outer.start_bytes, outer.peak_bytes, outer.live_bytes) == (ROW, 3 * ROW, 3 * ROW)
    assert (inner.start_bytes, inner.peak_bytes, inner.live_bytes) == (0, ROW, ROW)  # `first` was not its own
    assert second.numel() + third.numel() + view.numel() == 3 * LENGTH - 1


def traces() -> tuple:
    """What a tracker could leave behind."""
    return (
        len(_get_current_dispatch_mode_stack()),
        torch.UntypedStorage.resize_,
        "resize_" in vars(torch.UntypedStorage),
    )


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_passes_and_everything_is_put_back(error):
    model, before = nn.Linear(10, 10), traces()
    with pytest.raises(error, match="mine"), MemoryTracker(model) as tracker, tracker.phase("forward"):
        assert traces() != before
        assert model.weight._post_accumulate_grad_hooks
        y = model(torch.ones(5, 10))
        raise error("mine")
    assert traces() == before
    assert not model.weight._post_accumulate_grad_hooks
    figures = tracker.live_bytes, len(tracker.timeline)
    more = y * 2
    del y
    assert (tracker.live_bytes, len(tracker.timeline)) == figures  # nothing is followed after the block
    assert [phase[0] for phase in tracker.phases] == ["forward"]
    assert more.shape == (5, 10)


def test_a_parameter_that_was_frozen_after_track_is_no_error():
    model, before = nn.Linear(10, 10), traces()
    tracker = MemoryTracker(model)
    model.weight.requires_grad_(False)
    with tracker:
        model(torch.ones(5, 10)).sum().backward()
    assert traces() == before
    assert tracker.groups["gradients"] == 10 * FLOAT, "the bias has one still"
    assert not model.weight._post_accumulate_grad_hooks and not model.bias._post_accumulate_grad_hooks


@pytest.mark.parametrize("where", ["learn_owners", "watch_resizes", "TorchDispatchMode.__enter__"])
def test_a_block_that_cannot_begin_leaves_nothing_behind(where, monkeypatch):
    def fails(*args):
        raise KeyboardInterrupt("mine")

    model, before = nn.Linear(10, 10), traces()
    tracker = MemoryTracker(model)
    with monkeypatch.context() as patch:
        patch.setattr(f"helpers.memory.{where}", fails)
        with pytest.raises(KeyboardInterrupt, match="mine"):
            tracker.__enter__()
    assert traces() == before
    assert not model.weight._post_accumulate_grad_hooks
    with tracker:  # and it can be entered still
        kept = numbers()
    assert tracker.live_bytes - tracker.start_bytes == kept.nbytes


def flags() -> tuple:
    from torch.utils import _python_dispatch as modes

    return (
        modes._is_in_torch_dispatch_mode,
        modes._is_in_non_infra_torch_dispatch_mode,
        modes._is_in_any_mode_without_ignore_compile_internals,
    )


def test_trackers_may_overlap_without_nesting():
    before = traces(), flags()
    first, second, third = MemoryTracker(), MemoryTracker(), MemoryTracker()
    first.__enter__()
    a = numbers()
    second.__enter__()
    third.__enter__()
    inside = flags()
    b = numbers()
    first.__exit__(None, None, None)
    assert flags() == inside != before[1]
    c = numbers()
    third.__exit__(None, None, None)
    assert flags() == inside
    d = numbers()
    second.__exit__(None, None, None)
    assert (traces(), flags()) == before
    e = numbers()
    assert (first.live_bytes, second.live_bytes, third.live_bytes) == (2 * ROW, 3 * ROW, 2 * ROW)
    del a, b, c, d, e


def test_a_block_ends_once():
    before, tracker = traces(), MemoryTracker()
    with pytest.raises(RuntimeError, match="has not been entered"):
        tracker.__exit__(None, None, None)
    with tracker:
        kept = numbers()
    with MemoryTracker() as other:
        with pytest.raises(RuntimeError, match="has had its block already"):
            tracker.__exit__(None, None, None)
        more = numbers()
    assert (tracker.live_bytes, other.live_bytes, traces()) == (kept.nbytes, more.nbytes, before)


def test_a_block_that_ends_in_another_thread_says_so_and_lets_the_work_go_on():
    before, tracker, raised = traces(), MemoryTracker(), []

    def leave():
        try:
            tracker.__exit__(None, None, None)
        except RuntimeError as error:
            raised.append(str(error))

    tracker.__enter__()
    try:
        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
        assert numbers().mul(2).sum() == 2 * LENGTH
    finally:
        TorchDispatchMode.__exit__(tracker, None, None, None)
    assert "in one thread" in raised[0]
    assert tracker.live_bytes == 0
    assert traces() == before


def test_an_error_inside_an_operator_leaves_the_count_right():
    with MemoryTracker() as tracker:
        x = numbers(10, 100)
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            x @ x
        y = x * 2
    assert tracker.live_bytes == x.nbytes + y.nbytes
    assert_sums_up(tracker)


def test_a_patch_of_resize_that_was_there_before_stays(monkeypatch):
    calls, original = [], torch.UntypedStorage.resize_
    monkeypatch.setattr(
        torch.UntypedStorage, "resize_", lambda self, size: (calls.append(size), original(self, size))[1]
    )
    theirs = torch.UntypedStorage.resize_
    with MemoryTracker() as tracker:
        x = numbers()
        x.untyped_storage().resize_(0)
    assert torch.UntypedStorage.resize_ is theirs
    assert calls == [0]
    assert tracker.live_bytes == 0


def test_the_tracker_keeps_nothing_alive_and_goes_itself():
    model = nn.Linear(10, 10)
    with MemoryTracker(model) as tracker:
        x = torch.ones(5, 10)
        y = model(x).relu()
        refs = [weakref.ref(t) for t in (x, y, model)]
        kept = [y]  # whose graph has saved x
        del x, y, model
        gc.collect()
        assert [ref() is None for ref in refs] == [False, False, True]
        kept.clear()
        assert [ref() is None for ref in refs] == [True, True, True]
        assert tracker.live_bytes == 0
    own = weakref.ref(tracker)
    del tracker
    gc.collect()
    assert own() is None


def test_a_graph_does_not_keep_the_tracker():
    with MemoryTracker() as tracker:
        y = (numbers(requires_grad=True) ** 2).sum()
    own = weakref.ref(tracker)
    del tracker
    gc.collect()
    assert own() is None
    y.backward()


# -- autograd ----------------------------------------------------------------------------------------------------------


def test_gradients_by_hand():
    model, x = nn.Linear(100, 50, bias=False), torch.ones(10, 100)
    weight, output = 100 * 50 * FLOAT, 10 * 50 * FLOAT
    with MemoryTracker(model, x) as tracker:
        loss = model(x).sum()
        assert tracker.live_bytes == weight + x.nbytes + FLOAT  # `sum` keeps no values, so the output is gone
        assert tracker.peak_bytes == weight + x.nbytes + output + FLOAT
        loss.backward()
        assert tracker.live_bytes == 2 * weight + x.nbytes + FLOAT
        assert tracker.groups["gradients"] == weight
        del loss
        model.zero_grad()
        assert tracker.live_bytes == weight + x.nbytes
        assert tracker.groups["gradients"] == 0
    assert_sums_up(tracker)


def test_a_second_backward_adds_in_place():
    model, x = nn.Linear(100, 50, bias=False), torch.ones(10, 100)
    weight = 100 * 50 * FLOAT
    with MemoryTracker(model, x) as tracker:
        for _ in range(3):
            model(x).sum().backward()
            assert tracker.live_bytes == 2 * weight + x.nbytes
            assert tracker.groups["gradients"] == weight
    assert tracker.peak_bytes >= 3 * weight  # the sum and what is added to it
    assert_sums_up(tracker)


def test_double_backward():
    with MemoryTracker() as tracker:
        x = numbers(requires_grad=True)
        (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        first.sum().backward()
        assert torch.equal(x.grad, torch.full((LENGTH,), 6.0))
        del first
        gc.collect()
        assert tracker.live_bytes == 2 * ROW  # x and its gradient
    assert_sums_up(tracker)


@pytest.mark.parametrize(("branches", "gradients"), [(1, 2), (2, 3), (5, 3)])
def test_gradients_that_meet_are_added_out_of_place_under_any_mode(branches, gradients):
    x = numbers(requires_grad=True)
    h = x * 2
    loss = sum(h * factor for factor in range(1, branches + 1)).sum()
    del h
    with MemoryTracker() as tracker:
        (gradient,) = torch.autograd.grad(loss, x)
    # With one branch: what comes out of a product and what comes out of the next. Where two meet there is their sum,
    # which without a mode would be written into one of them. The gradient of the loss is one number.
    assert tracker.peak_bytes == gradients * ROW + FLOAT
    assert tracker.live_bytes == gradient.nbytes == ROW


class Counting:
    """Saved-tensor hooks that count how often they run."""

    def __init__(self):
        self.packed = self.unpacked = 0

    def pack(self, tensor):
        self.packed += 1
        return tensor.detach(), tensor._version

    def unpack(self, held):
        self.unpacked += 1
        return held[0]

    def __call__(self):
        return torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)


@pytest.mark.parametrize("nesting", ["hooks outside", "hooks inside"])
@pytest.mark.parametrize("rounds", [1, 2])
def test_saved_tensor_hooks_of_the_reader_run_once_each(nesting, rounds):
    def work():
        x = numbers(requires_grad=True)
        loss = (x * x).exp().sum()  # `x * x` saves x twice, exp its result
        for left in range(rounds, 0, -1):
            loss.backward(retain_graph=left > 1)
        return x.grad

    alone, observed = Counting(), Counting()
    with alone():
        expected = work()
    if nesting == "hooks outside":
        with observed(), MemoryTracker() as tracker:
            grad = work()
    else:
        with MemoryTracker() as tracker, observed():
            grad = work()
    assert (observed.packed, observed.unpacked) == (alone.packed, alone.unpacked) == (3, 3 * rounds)
    assert torch.equal(grad, expected)
    assert_sums_up(tracker)


@pytest.mark.parametrize("tracked", [True, False])
def test_the_version_check_still_raises(tracked):
    x = numbers(requires_grad=True)
    with MemoryTracker(x) if tracked else pytest.MonkeyPatch.context():
        y = x.exp()
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        x.exp().add(1).sum().backward()  # the same out of place
    assert x.grad is not None


def blocks(calls: list[int]):
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(20, 20), nn.Tanh(), nn.Tanh(), nn.Tanh()) for _ in range(4)))

    def counted(layer, x):
        calls[0] += 1
        return layer(x)

    return layers, counted


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_still_saves_memory(reentrant):
    def peak(checkpointed: bool) -> tuple[int, int]:
        torch.manual_seed(0)
        calls = [0]
        layers, counted = blocks(calls)
        x = torch.ones(500, 20, requires_grad=True)
        with MemoryTracker(layers, x) as tracker:
            y = x
            for layer in layers:
                y = checkpoint(counted, layer, y, use_reentrant=reentrant) if checkpointed else counted(layer, y)
            y.sum().backward()
            del y
        assert_sums_up(tracker)
        return tracker.peak_bytes, calls[0]

    plain, once = peak(False)
    less, twice = peak(True)
    assert (once, twice) == (4, 8)
    activation = 500 * 20 * FLOAT
    # 3 saved in each of 4 blocks, against 1 at each seam and one block's 3; gradients flow on top of either
    assert (12 - 4 - 3 - 1) * activation <= plain - less <= (12 - 4 - 1) * activation


@pytest.mark.parametrize(
    ("fn", "shapes", "options"),
    [
        (F.interpolate, [(1, 3, 64, 64)], {"scale_factor": 2, "mode": "bilinear"}),
        (F.interpolate, [(1, 3, 64, 64)], {"scale_factor": 2, "mode": "bicubic"}),
        (F.linear, [(2, 5, 30), (20, 30), (20,)], {}),
        (torch.reshape, [(30, 40)], {"shape": (40, 30)}),
        (lambda x: x.t().reshape(-1), [(30, 40)], {}),
        (F.scaled_dot_product_attention, [(1, 2, 16, 8)] * 3, {}),
        (F.scaled_dot_product_attention, [(1, 2, 16, 8)] * 3, {"dropout_p": 0.5}),
        (F.dropout, [(30, 40)], {"p": 0.5, "training": True}),
        (F.group_norm, [(2, 6, 8, 8)], {"num_groups": 3}),
    ],
)
def test_inference_mode_takes_what_no_grad_takes(fn, shapes, options):
    def run(mode, measure):
        torch.manual_seed(1)
        with mode():
            args = [torch.randn(shape) for shape in shapes]
            return measure(fn, *args, **options)

    inference, no_grad = run(torch.inference_mode, measure_memory), run(torch.no_grad, measure_memory)
    assert repr(inference) == repr(no_grad)
    bare = run(torch.inference_mode, lambda fn, *args, **options: fn(*args, **options))
    assert torch.equal(inference.result, bare)


def test_inference_mode_is_seen_in_its_parts():
    model = nn.Sequential(nn.Linear(100, 100), nn.ReLU(), nn.LayerNorm(100), nn.Linear(100, 50))
    x = torch.ones(40, 100)

    def run(mode):
        with MemoryTracker(model, x) as tracker, mode():
            y = torch.einsum("bi,bj->ij", model(x), x).reshape(-1)
        del y
        assert_sums_up(tracker)
        return tracker

    inference, no_grad = run(torch.inference_mode), run(torch.no_grad)
    assert inference.peak_bytes == no_grad.peak_bytes > inference.start_bytes
    assert [e.delta_bytes for e in inference.timeline] == [e.delta_bytes for e in no_grad.timeline]
    with MemoryTracker(model, x) as recorded:
        y = torch.einsum("bi,bj->ij", model(x), x).reshape(-1)
    assert recorded.peak_bytes > inference.peak_bytes  # activations stay for backward
    del y


def step_events(device: str) -> list[tuple]:
    with torch.device(device):
        model = mlp(width=64, depth=3)
        optimizer = torch.optim.Adam(model.parameters())
        x = torch.ones(32, 64)
    with MemoryTracker(model, optimizer, x) as tracker:
        model(x).square().mean().backward()
        optimizer.step()
    assert_sums_up(tracker)
    return [(e.op, e.kind, e.delta_bytes, e.groups) for e in tracker.timeline]


def test_meta_takes_what_the_cpu_takes():
    on_meta, on_cpu = step_events("meta"), step_events("cpu")
    assert on_meta == on_cpu
    assert len(on_meta) > 50


def test_allocator_figures_are_noted_by_a_stand_in_for_cuda_as_no_gpu_is_here(monkeypatch):
    figures = SimpleNamespace(calls=0, resets=0)

    def stats(device):
        assert device.type == "meta"
        figures.calls += 1
        size = {"current": 512 * figures.calls, "peak": 10_000 + figures.calls}
        return {"allocated_bytes": {"all": size}, "reserved_bytes": {"all": {"current": 2**21}}}

    monkeypatch.setattr(_ledger, "ALLOCATOR", "meta")  # meta tensors play the part of those on a GPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", stats)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: setattr(figures, "resets", figures.resets + 1))
    before = torch.empty(10, device="meta")
    with MemoryTracker(before) as tracker:
        x = torch.empty(LENGTH, device="meta")
        y = torch.empty(LENGTH)
    first, second = tracker.timeline
    assert (first.delta_bytes, first.allocated, first.reserved, first.allocated_peak) == (ROW, 1024, 2**21, 10_002)
    assert (second.delta_bytes, second.allocated, second.reserved, second.allocated_peak) == (ROW, None, None, None)
    assert (figures.calls, figures.resets) == (2, 1)
    assert x.numel() == y.numel()
    with MemoryTracker():
        torch.empty(5)
    assert figures.resets == 1  # nothing on the GPU was tracked, so its counters are left alone


def test_a_compiled_function_is_measured_uncompiled():
    calls = []

    def backend(graph, inputs):
        calls.append(len(inputs))
        return graph.forward

    compiled = torch.compile(lambda x: (x * 2).relu(), backend=backend)
    measured = measure_memory(compiled, numbers())
    assert calls == []
    assert (measured.retained_bytes, measured.peak_bytes) == (ROW, 2 * ROW)
    torch._dynamo.reset()  # PyTorch remembers that it was not to compile this under a mode
    assert torch.equal(compiled(numbers()), measured.result)
    assert calls == [1]


NO_COMPILER = """
import sys, torch
from torch.utils._python_dispatch import TorchDispatchMode
from helpers.memory import MemoryTracker

class Empty(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))

def imported(mode):
    with mode:
        torch.ones(3, requires_grad=True).exp().sum().backward()
    return "torch._dynamo" in sys.modules

print(imported(MemoryTracker()), imported(Empty()))
"""


def test_a_tracker_does_not_import_the_compiler_as_any_mode_would(root):
    run = subprocess.run([sys.executable, "-c", NO_COMPILER], cwd=root, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "True"]


def test_modes_of_the_reader_run_in_either_nesting():
    class Doubling(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    for outer, inner in ((MemoryTracker(), Doubling()), (Doubling(), MemoryTracker())):
        with outer, inner:
            x = numbers() * 2
        tracker = outer if isinstance(outer, MemoryTracker) else inner
        assert tracker.live_bytes == x.nbytes


# -- timeline, phases, errors ------------------------------------------------------------------------------------------


def test_phases_nest_and_the_innermost_names_an_event():
    with MemoryTracker() as tracker:
        a = numbers(1)
        with tracker.phase("epoch"):
            b = numbers(2)
            with tracker.phase("forward"):
                c = numbers(3)
            d = numbers(4)
        e = numbers(5)
    assert [event.phase for event in tracker.timeline] == ["", "epoch", "forward", "epoch", ""]
    assert tracker.phases == [("forward", 2, 3), ("epoch", 1, 4)]
    assert tracker.peak.phase == ""
    assert repr(tracker) == "MemoryTracker: start 0 B, peak 60 B, end 60 B"
    assert sum(t.numel() for t in (a, b, c, d, e)) == 15


def test_a_phase_in_a_generator_ends_only_itself():
    def batches(tracker):
        with tracker.phase("load"):
            yield numbers(1)

    with MemoryTracker() as tracker:
        loading = batches(tracker)
        a = next(loading)
        with tracker.phase("step"):
            loading.close()
            b = numbers(2)
            with tracker.phase("step"):
                pass
            c = numbers(3)
        d = numbers(4)
    assert [event.phase for event in tracker.timeline] == ["load", "step", "step", ""]
    assert [name for name, _, _ in tracker.phases] == ["load", "step", "step"]
    del a, b, c, d


@pytest.mark.parametrize("name", [None, 3, b"forward"])
def test_a_phase_is_named_by_a_string(name):
    with MemoryTracker() as tracker:
        message = rf"got {type(name).__name__}: pass one, as in phase\('forward'\)"
        with pytest.raises(TypeError, match=message), tracker.phase(name):
            pass
        kept = numbers(1)
    assert tracker.phases == [] and tracker.timeline[0].phase == ""
    del kept


def test_timeline_begins_with_the_block():
    x = numbers()
    with MemoryTracker(x) as tracker:
        y = x * 2
        x.resize_(2 * LENGTH)
        del y
    kinds = [(e.index, e.op, e.kind, e.delta_bytes, e.live_bytes) for e in tracker.timeline]
    assert kinds == [
        (0, "aten.mul", "alloc", ROW, 2 * ROW),
        (1, "aten.resize_", "resize", ROW, 3 * ROW),
        (2, "aten.resize_", "free", -ROW, 2 * ROW),
    ]
    assert (tracker.peak.index, tracker.peak.op) == (1, "aten.resize_")
    assert tracker.operators == 2


def test_alive_at_names_what_is_there():
    x = numbers()
    with MemoryTracker(x) as tracker:
        y = numbers(2 * LENGTH)
        del x
    assert [(a.op, a.nbytes) for a in tracker.alive_at(-1)] == [("before the start", ROW)]
    assert [(a.op, a.nbytes) for a in tracker.alive_at(0)] == [("aten.ones", 2 * ROW), ("before the start", ROW)]
    assert [(a.op, a.nbytes) for a in tracker.alive_at(1)] == [("aten.ones", 2 * ROW)]
    assert str(tracker.alive_at(1)[0]).startswith("other: 8,000 B from aten.ones (test_memory.py, line ")
    for index in (-2, 2):
        with pytest.raises(ValueError, match=rf"no event {index}: this timeline has 2"):
            tracker.alive_at(index)
    for index in ("x", 1.0, None):
        with pytest.raises(TypeError, match=rf"got {type(index).__name__}: pass its index"):
            tracker.alive_at(index)
    assert len(tracker.alive_at(np.int64(1))) == 1
    assert y.numel() == 2 * LENGTH


def test_a_tracker_without_events():
    with MemoryTracker() as tracker:
        pass
    assert (tracker.timeline, tracker.peak, tracker.peak_bytes) == ([], None, 0)
    assert set(tracker.at_peak.values()) == {0}
    assert tracker.alive_at(-1) == []


def test_the_listener_is_called_after_each_event():
    seen = []
    with MemoryTracker() as tracker:
        tracker.listener = lambda: seen.append(tracker.live_bytes)
        x = numbers()
        x = x * 2
        del x
    assert seen == [ROW, 2 * ROW, ROW, 0] == [e.live_bytes for e in tracker.timeline]


@pytest.mark.parametrize("junk", [3, "model", None, nn.Linear, np.zeros(3), object()])
def test_what_cannot_be_tracked_is_named(junk):
    with pytest.raises(TypeError, match=f"cannot track {type(junk).__name__}: pass modules, optimizers, tensors"):
        MemoryTracker(junk)
    with pytest.raises(TypeError, match=f"cannot track {type(junk).__name__}"):
        MemoryTracker({"x": [numbers(), junk]})


def test_a_list_or_dict_that_holds_itself_is_tracked_once():
    x = numbers()
    things = [x]
    things.append({"again": things, "x": x, "pair": ([x], [x])})
    with MemoryTracker(things) as tracker:
        pass
    assert tracker.start_bytes == ROW


def test_what_is_not_tracked_can_shrink_and_takes_nothing_away():
    theirs = torch.zeros(100)
    with MemoryTracker() as tracker:
        theirs.add_(1)
        theirs.untyped_storage().resize_(0)
        assert tracker.live_bytes == 0
        ours = torch.zeros(50)
        assert tracker.live_bytes == 200, "by hand: 50 numbers of 4 B, and nobody's 400 B that went"
        theirs.untyped_storage().resize_(240)
        assert tracker.live_bytes == 440, "what it takes now is taken in our sight"
    assert [(e.kind, e.delta_bytes) for e in tracker.timeline] == [("alloc", 200), ("alloc", 240)]
    other = torch.zeros(100)

    def shrink():
        other.add_(1)
        other.untyped_storage().resize_(0)

    assert repr(measure_memory(shrink)) == "retained 0 B, peak 0 B"
    del ours


def interrupts_once(tracker: MemoryTracker, at: str) -> None:
    """As Ctrl-C does that comes while an event is written down (at its line) or told of."""
    usual = getattr(tracker, at)

    def once():
        setattr(tracker, at, usual)
        raise KeyboardInterrupt

    setattr(tracker, at, once)


@pytest.fixture
def interruptible():
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, usual)


@pytest.mark.parametrize("at", ["_line", "listener"])
def test_an_interrupt_while_something_is_freed_comes_a_little_later(at, interruptible):
    with MemoryTracker() as tracker:
        x = numbers()
        interrupts_once(tracker, at)
        with pytest.raises(KeyboardInterrupt):
            del x
            for _ in range(1000):  # 10 s: what is sent again does not wake a sleep
                time.sleep(0.01)
        assert tracker.live_bytes == 0
        time.sleep(0.1)  # it comes once
    assert [(e.kind, e.delta_bytes, e.live_bytes) for e in tracker.timeline] == [("alloc", ROW, ROW), ("free", -ROW, 0)]


def test_an_interrupt_while_something_is_counted_leaves_the_figures_true():
    with MemoryTracker() as tracker:
        interrupts_once(tracker, "_line")
        with pytest.raises(KeyboardInterrupt):
            numbers()
        assert (tracker.live_bytes, tracker.timeline) == (0, []), "its result went with it"
        x = numbers()
        del x
    assert [e.live_bytes for e in tracker.timeline] == [ROW, 0]


def test_what_was_freed_unheard_is_counted_off_when_its_place_is_taken_and_at_the_end():
    """An interrupt may come before the first line of what hears of a free; Python drops it, and the call with it."""
    with MemoryTracker() as tracker:
        heard, tracker._on_free = tracker._on_free, lambda known: None
        x = numbers()
        del x
        assert tracker.live_bytes == ROW
        tracker._on_free = heard
        kept = [numbers() for _ in range(1000)]  # one of them is where it was
        assert tracker.live_bytes == 1000 * ROW
        del kept
        tracker._on_free = lambda known: None
        numbers()
        assert tracker.live_bytes == ROW
    assert tracker.live_bytes == sum(e.delta_bytes for e in tracker.timeline) == 0


def test_a_tracker_serves_one_block():
    before = traces()
    with MemoryTracker() as tracker:
        with pytest.raises(RuntimeError, match="make a new one"), tracker:
            pass
        x = numbers()
    with pytest.raises(RuntimeError, match="make a new one"), tracker:
        pass
    with pytest.raises(RuntimeError, match="track before it or inside it"):
        tracker.track(x)
    assert traces() == before
    assert tracker.live_bytes == ROW


# -- measure_memory ----------------------------------------------------------------------------------------------------


def test_measure_memory_keeps_the_result_and_counts_from_the_start():
    big = numbers(10 * LENGTH)
    del big  # an earlier peak does not count
    measured = measure_memory(lambda x: x * 2 + 1, numbers())
    assert isinstance(measured, Measurement)
    assert torch.equal(measured.result, numbers() * 3)
    assert repr(measured) == "retained 4,000 B, peak 8,000 B"
    assert took(torch.relu_, numbers()) == (0, 0)
    assert took(torch.relu, numbers()) == (ROW, ROW)


def test_measure_memory_sees_an_argument_shrink():
    def consume(tensors):
        tensors.pop()
        return numbers(10)

    assert took(consume, [numbers()]) == (10 * FLOAT - ROW, 0)
    assert took(lambda tensors: numbers(10), [numbers()]) == (10 * FLOAT, 10 * FLOAT)


def test_measure_memory_tracks_keyword_arguments_and_modules():
    model = nn.Linear(100, 10, bias=False)
    measured = measure_memory(lambda x, *, model: model(x), numbers(5, 100), model=model)
    assert measured.tracker.start_bytes == 5 * 100 * FLOAT + 100 * 10 * FLOAT
    assert (measured.retained_bytes, measured.peak_bytes) == (5 * 10 * FLOAT, 5 * 10 * FLOAT)


def test_measure_memory_collects_cycles_before_the_end():
    def leave_a_cycle():
        cycle = [numbers()]
        cycle.append(cycle)

    assert took(leave_a_cycle) == (0, ROW)


def test_measure_memory_passes_exceptions_on():
    before = traces()
    with pytest.raises(ZeroDivisionError):
        measure_memory(lambda: 1 / 0)
    assert traces() == before


def test_measure_memory_wants_a_function_and_its_arguments():
    with pytest.raises(TypeError, match=r"got Tensor: use measure_memory\(fn, \*args\)"):
        measure_memory(torch.relu(numbers()))
