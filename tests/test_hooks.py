"""Hooks that cost no gradient: where saved tensors go, what is counted, and every way in which a graph can be used."""

from __future__ import annotations

import contextlib
import copy
import doctest
import gc
import pickle
import signal
import threading
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import helpers
from helpers import (
    MemoryTracker,
    WithSavedTensorHooks,
    _packing,
    compress,
    explain_inplace,
    guard_saved_tensors,
    offload_to_cpu,
    offload_to_disk,
    same_storage,
    saved_tensors,
)
from helpers import hooks as hooks_module
from helpers.models import convnet, mlp, transformer

LOSSLESS = (offload_to_cpu, offload_to_disk)
KINDS = (*LOSSLESS, compress)
plain = contextlib.nullcontext


def active():
    return torch._C._autograd._top_saved_tensors_default_hooks(False)


def gradients(build, make, *contexts, **options):
    """The gradients of the sum of ``build(*h)``, where each h is a leaf times one."""
    leaves = [leaf.detach().clone().requires_grad_() for leaf in make()]
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        out = build(*(leaf * 1 for leaf in leaves))
    out.sum().abs().backward(**options)
    return [leaf.grad for leaf in leaves]


def equal(a, b):
    return len(a) == len(b) and all(torch.equal(x, y) and x.stride() == y.stride() for x, y in zip(a, b))


# -- the public functions ----------------------------------------------------------------------------------------------


def test_the_examples_in_the_docstrings():
    result = doctest.testmod(hooks_module)
    assert result.failed == 0 and result.attempted > 15


def test_the_public_names():
    assert {"offload_to_cpu", "offload_to_disk", "compress", "WithSavedTensorHooks"} <= set(helpers.__all__)
    assert issubclass(hooks_module.OffloadError, RuntimeError)


MODELS = {
    "mlp": (lambda: mlp(32, 3), (8, 32)),
    "transformer": (lambda: transformer(32, 2, 2), (3, 10, 32)),
    "convnet": (convnet, (2, 3, 32, 32)),
}


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize("make, shape", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("with_model", [True, False])
def test_a_model_has_the_same_gradients(kind, make, shape, with_model):
    def train(of):
        torch.manual_seed(0)
        model, x = make(), torch.randn(shape)
        hooks = of(model)
        for _ in range(2):
            with hooks as entered:
                loss = model(x).pow(2).mean()
            loss.backward()
        return [p.grad for p in model.parameters()], entered

    expected, _ = train(lambda model: plain())
    got, hooks = train(lambda model: kind(model=model if with_model else None, min_bytes=0))
    assert equal(got, expected)
    assert hooks.packed > 4 and hooks.unpacked == hooks.packed and hooks.bytes_live == 0
    assert hooks.bytes_read >= hooks.bytes_written > 0 and hooks.skipped == sum(hooks.skipped_because.values()) > 0
    other, _ = train(lambda model: compress(torch.int8, model, min_bytes=0))
    assert not equal(other, expected)  # the control: a hook that loses something shows


def test_counters_by_hand():
    x = torch.ones(1000, requires_grad=True)
    with offload_to_cpu(min_bytes=0) as hooks:
        h = x * 1  # saves nothing: one factor is a number
        y = h * h  # h twice
        z = y.exp()  # its result
        (x * x).sum()  # a leaf, twice
    assert (hooks.packed, hooks.stored, hooks.skipped, hooks.unpacked) == (3, 2, 2, 0)
    assert hooks.skipped_because == {"leaf": 2}
    assert (hooks.bytes_packed, hooks.bytes_written, hooks.bytes_read) == (12_000, 8000, 0)
    assert (hooks.bytes_live, hooks.peak_bytes) == (8000, 8000)
    z.sum().backward()
    assert (hooks.unpacked, hooks.bytes_read, hooks.bytes_live, hooks.peak_bytes) == (3, 8000, 0, 8000)
    assert repr(hooks) == (
        "offload_to_cpu: 3 of 5 saved tensors moved, 8,000 B written, 8,000 B brought back, 0 B there now; nothing was "
        "gained, they were on the CPU before"
    )


def test_the_reprs_of_those_that_did_nothing():
    counts = "0 of 0 saved tensors moved, 0 B written, 0 B brought back, 0 B there now"
    assert repr(offload_to_cpu()) == f"offload_to_cpu: {counts}"
    assert repr(offload_to_disk()) == f"offload_to_disk: {counts}; the file has 0 B"
    assert repr(compress(torch.int8)) == f"compress to int8: {counts}"


def test_the_file_stays_as_long_as_it_was():
    x = torch.ones(1000, requires_grad=True)
    with offload_to_disk(min_bytes=0) as hooks:
        y = (x * 1).exp()
    y.sum().backward()
    assert hooks.bytes_live == 0 and hooks.file_bytes == 4096 and "the file has 4,096 B" in repr(hooks)


WRONG = {
    "model": ({"model": 3}, TypeError, "model= takes an nn.Module, whose parameters then stay where they are; got 3"),
    "min_bytes": ({"min_bytes": -1}, ValueError, "min_bytes is a number of bytes, 0 or more; got -1"),
    "min_bytes=True": ({"min_bytes": True}, ValueError, "min_bytes is a number of bytes, 0 or more; got True"),
    "policy": (
        {"policy": 3},
        TypeError,
        "policy takes a function of a tensor that returns whether to move it, or modules, or their names; got 3",
    ),
    "name": (
        {"policy": "nine", "model": nn.Sequential(nn.ReLU(), nn.Tanh())},
        ValueError,
        "policy names a module 'nine'; the model has '0', '1'",
    ),
    "name without model": (
        {"policy": "0"},
        ValueError,
        "policy names a module '0'; names need the model: give model=",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arguments, error, words", WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_named(kind, arguments, error, words):
    with pytest.raises(error) as caught:
        kind(**arguments)
    assert str(caught.value) == words


def test_more_wrong_arguments():
    with pytest.raises(ValueError) as caught:
        compress(torch.float64)
    assert str(caught.value) == "compress keeps tensors as torch.bfloat16, torch.float16, torch.int8; got torch.float64"
    with pytest.raises(TypeError, match="pin_memory is True, False or None; got 'yes'"):
        offload_to_cpu(pin_memory="yes")
    with pytest.raises(TypeError, match=r"WithSavedTensorHooks wraps an nn.Module; got 3"):
        WithSavedTensorHooks(3, offload_to_cpu)
    with pytest.raises(TypeError, match=r"hooks= takes a function that makes a context manager, such as .* got 3"):
        WithSavedTensorHooks(nn.ReLU(), 3)
    with pytest.raises(
        TypeError, match=r"hooks\(\) of WithSavedTensorHooks must make a context manager; it returned 3"
    ):
        WithSavedTensorHooks(nn.ReLU(), lambda: 3)(torch.ones(1))


def test_leaving_a_with_in_another_thread_is_said():
    hooks, said = offload_to_cpu(), []

    def leave():
        try:
            hooks.__exit__(None, None, None)
        except RuntimeError as error:
            said.append(str(error))

    with hooks:
        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
    assert said == ["hooks belong to a thread: this one leaves a `with` that it did not enter"] and active() is None


# -- what moves, and what is shared ------------------------------------------------------------------------------------


def test_queries_keys_and_values_share_one_copy():
    torch.manual_seed(0)
    q, k, v = (nn.Linear(64, 64) for _ in range(3))
    x = torch.randn(100, 64, requires_grad=True)
    with offload_to_cpu() as hooks:
        h = x * 1
        y = q(h) + k(h) + v(h)
    assert (hooks.packed, hooks.stored, hooks.bytes_written) == (3, 1, 25_600)
    assert hooks.bytes_packed == 3 * 25_600
    y.sum().backward()
    assert (hooks.unpacked, hooks.bytes_read) == (3, 25_600)


def test_the_result_of_relu_is_the_input_of_the_next_layer():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    with offload_to_cpu(model) as hooks:
        y = model(torch.randn(100, 64))
    assert (hooks.packed, hooks.stored, hooks.bytes_written) == (3, 2, 2 * 25_600)
    y.sum().backward()
    assert hooks.bytes_read == 2 * 25_600


def test_memory_that_is_written_to_is_stored_anew():
    x = torch.ones(2000, requires_grad=True)
    with offload_to_cpu() as hooks:
        h = x * 1
        h.exp()
        y = h * h
        with torch.no_grad():
            h.add_(1)
        z = h * h
    assert hooks.stored == 3  # the result of exp, and h twice
    z.sum().backward()
    assert torch.equal(x.grad, torch.full((2000,), 4.0))
    with pytest.raises(RuntimeError, match="is at version 1; expected version 0 instead"):
        y.sum().backward()


def through_data(t):
    t.data.add_(1)


def through_numpy(t):
    t.detach().numpy()[:] += 1


def through_one_element(t):
    t.detach().numpy()[-1] += 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("write", [through_data, through_numpy, through_one_element])
@pytest.mark.parametrize("recorded", [False, True], ids=["an input", "made by an operator"])
def test_silent_writes_between_two_saves_do_not_share(kind, write, recorded):
    """Without hooks the second product is right, and the first is wrong without a word; with them both are right."""
    w = torch.ones(2000, requires_grad=True)
    x = torch.ones(2000, requires_grad=recorded) * 1
    expected = torch.ones(2000)
    write(expected)
    with kind() as hooks:
        first = w * x
        first.exp()  # by then the first has been stored
        write(x)
        second = w * x
    w.grad = None
    torch.autograd.backward(second.sum(), inputs=[w], retain_graph=True)
    assert torch.equal(w.grad, expected)
    w.grad = None
    torch.autograd.backward(first.sum(), inputs=[w])
    assert torch.equal(w.grad, torch.ones(2000))
    assert hooks.stored == 3


def test_an_input_that_nobody_wrote_to_is_shared():
    w, x = torch.ones(2000, requires_grad=True), torch.ones(2000)
    with offload_to_disk() as hooks:
        y = (w * x).exp() * x
    assert (hooks.packed, hooks.stored) == (3, 2)  # x twice, the result of exp once
    y.sum().backward()


def test_int8_tells_a_tensor_from_its_double():
    """Their whole numbers are the same, their scales are not."""
    w, x = torch.ones(2000, requires_grad=True), torch.linspace(-1, 1, 2000)
    with compress(torch.int8) as hooks:
        first = w * x
        (w * 2).exp()
        x.data.mul_(2)
        second = w * x
    (grad,) = torch.autograd.grad(second.sum(), w)
    assert hooks.stored == 3 and (grad - 2 * torch.linspace(-1, 1, 2000)).abs().max() < 2 / 200
    del first


class InPlace(torch.autograd.Function):
    """As memory-saving layers do it: the result lies in the memory of the input, and no version tells."""

    @staticmethod
    def forward(ctx, x):
        return x.data.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


@pytest.mark.parametrize("kind", LOSSLESS)
def test_two_tensors_in_one_memory_at_one_version_are_not_taken_for_each_other(kind):
    def build(h):
        y = InPlace.apply(torch.relu(h))
        return y * y

    make = lambda: [torch.tensor([1.0, 2.0, 3.0])]  # noqa: E731
    assert equal(gradients(build, make, kind(min_bytes=0)), gradients(build, make))


class WritesInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0].mul_(3)


def test_a_backward_that_writes_into_what_it_saved_harms_nobody_else():
    x = torch.full((5,), 2.0, requires_grad=True)
    with offload_to_cpu(min_bytes=0) as hooks:
        h = x * 1
        y = WritesInBackward.apply(h) + h * h + WritesInBackward.apply(h)
    assert hooks.stored == 1
    for _ in range(2):
        (grad,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
        assert torch.equal(grad, torch.full((5,), 6.0 + 4.0 + 6.0))


def test_a_reader_of_saved_tensors_shares_no_memory_with_backward():
    x = torch.full((5,), 2.0, requires_grad=True)
    with offload_to_cpu(min_bytes=0) as hooks:
        h = x * 1
        y = h.pow(2) + h.exp() * h
    mine, other = y.grad_fn.next_functions[0][0]._saved_self, y.grad_fn.next_functions[1][0]._saved_other
    assert same_storage(mine, other) and not same_storage(mine, h)  # readers see who shares with whom
    mine.detach().zero_()
    assert torch.equal(other, torch.zeros(5))
    y.sum().backward()
    (expected,) = torch.autograd.grad((x.pow(2) + x.exp() * x).sum(), x)
    assert torch.equal(x.grad, expected) and hooks.bytes_read >= 20 + 40  # h for the readers, and all for backward


@pytest.mark.parametrize("kind", KINDS)
def test_the_tools_of_the_lab_see_what_was_saved(kind):
    x = torch.ones(2000, requires_grad=True)
    with kind() as hooks:
        y = (x * 1).exp().sin().sum()
    assert "packed by a hook" in str(saved_tensors(y))
    assert hooks.unpacked == 2 and hooks.bytes_live > 0  # each read once
    y.backward()
    assert hooks.bytes_live == 0


def numpy_slice(start, dtype=np.float32):
    """Memory that NumPy owns, ``start`` bytes after a multiple of 64."""
    raw = np.zeros(1000, np.uint8)
    first = -raw.ctypes.data % 64 + start
    array = raw[first : first + 400].view(dtype)
    array[:] = np.arange(len(array)) + 1
    return torch.from_numpy(array)


BIG = 3000
TENSORS = {  # name: (made of 3,000 floats or more, bytes that are kept of it)
    "all of it": (lambda h: h, 4 * BIG),
    "transposed": (lambda h: h.view(30, 100).t(), 4 * BIG),
    "more than half": (lambda h: h[:1600], 4 * BIG),
    "a small view of a large storage": (lambda h: h[7:19], 48),
    "a column": (lambda h: h.view(30, 100)[:, 3], 120),
    "a permuted box": (lambda h: h.view(10, 30, 10)[1:3, 5:9, 2:5].permute(2, 0, 1), 96),
    "expanded": (lambda h: h[5:8].view(3, 1).expand(3, 7), 12),
    "one, seen often": (lambda h: h[5].expand(100), 4),
    "overlapping windows": (lambda h: h[:107].as_strided((50, 8), (2, 1)), 4 * 106),
    "unfolded": (lambda h: h[:100].unfold(0, 10, 3), 400),
    "complex": (lambda h: torch.view_as_complex(h.view(-1, 2)), 4 * BIG),
    "conjugated": (lambda h: torch.view_as_complex(h.view(-1, 2)).conj(), 4 * BIG),
    "a conjugated view": (lambda h: torch.view_as_complex(h.view(-1, 2))[3:9].conj(), 48),
    "negative": (lambda h: torch.view_as_complex(h.view(-1, 2)).conj().imag, 2 * BIG),
    "a negative view": (lambda h: torch.view_as_complex(h.view(-1, 2)).conj().imag[4:9], 20),
    "conjugated and negative": (lambda h: torch._neg_view(torch.view_as_complex(h.view(-1, 2))[2:6].conj()), 32),
    "0-dim": (lambda h: h[17], 4),
    "0-dim of its own": (lambda h: h.sum(), 4),
    "bfloat16": (lambda h: h.bfloat16(), 2 * BIG),
    "float16": (lambda h: h.half()[3:6], 6),
    "float64": (lambda h: h.double(), 8 * BIG),
    "complex128": (lambda h: torch.complex(h.double(), h.double()), 16 * BIG),
}


class Saves(torch.autograd.Function):
    """Saves the second tensor, whatever it is; hands it to whoever asks in backward."""

    seen: list = []  # noqa: RUF012

    @staticmethod
    def forward(ctx, x, tensor):
        ctx.save_for_backward(tensor)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        Saves.seen.append(ctx.saved_tensors[0])
        return grad, None


def saved_and_back(tensor, context):
    Saves.seen.clear()
    x = torch.ones(3, requires_grad=True)
    with context:
        y = Saves.apply(x, tensor)
    y.sum().backward()
    return Saves.seen.pop()


def raw(tensor):
    """What lies in memory, element by element, bits as they are."""
    if tensor.is_conj():
        tensor = tensor.conj()
    if tensor.is_neg():
        tensor = torch._neg_view(tensor)
    return tensor.reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8)


def same_tensor(a, b):
    flags = [(t.dtype, t.shape, t.stride(), t.is_conj(), t.is_neg()) for t in (a, b)]
    return flags[0] == flags[1] and torch.equal(raw(a), raw(b))


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize("of, nbytes", TENSORS.values(), ids=TENSORS)
def test_any_tensor_comes_back_as_it_was(kind, of, nbytes):
    base = torch.randn(BIG, generator=torch.Generator().manual_seed(0), requires_grad=True)
    tensor = of(base * 1)
    hooks = kind(min_bytes=0)
    back = saved_and_back(tensor, hooks)
    assert same_tensor(back, tensor)
    assert back.data_ptr() != tensor.data_ptr()
    assert back.data_ptr() % 64 == tensor.data_ptr() % 64  # so that kernels go the same way
    assert (hooks.packed, hooks.stored, hooks.bytes_written) == (1, 1, nbytes)


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int64, torch.bool, torch.uint16], ids=str
)
def test_dtypes_that_have_no_gradient(kind, dtype):
    tensor = torch.randint(0, 2, (300, 3), generator=torch.Generator().manual_seed(0)).to(dtype)
    for view in (tensor, tensor.t(), tensor[2:4, 1:]):
        hooks = kind(min_bytes=0)
        assert same_tensor(saved_and_back(view, hooks), view) and hooks.stored == 1
    changed = tensor.clone()
    changed.view(torch.uint8)[0, 0] ^= 1
    assert not same_tensor(changed, tensor)


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize("start", [0, 1, 4, 8, 36])
def test_memory_of_numpy_at_any_address(kind, start):
    numbers = numpy_slice(start)
    assert numbers.data_ptr() % 64 == start
    back = saved_and_back(numbers, kind(min_bytes=0))
    assert same_tensor(back, numbers) and back.data_ptr() % 64 == (start if start % 4 == 0 else 0)
    # A complex view stands on elements twice as long, and cannot share what came back with the shift of the others.
    w, v = torch.ones(100, requires_grad=True), torch.ones(50, dtype=torch.complex64, requires_grad=True)
    pairs = numbers.view(torch.complex64)
    with kind(min_bytes=0):
        y = (w * numbers).sum() + (v * pairs).sum().real
    y.backward()
    assert torch.equal(w.grad, numbers) and torch.equal(v.grad, pairs.conj())


def test_what_stays():
    x = torch.randn(5000, requires_grad=True)
    model = nn.Sequential(nn.Linear(100, 100), nn.BatchNorm1d(100))
    model[0].weight.requires_grad_(False)
    sparse = torch.eye(100).to_sparse().requires_grad_()
    with offload_to_cpu(model) as hooks:
        kept = [x * x, x.view(50, 100).exp() * 2, model(x.view(50, 100)), torch.sparse.mm(sparse, x.view(100, 50))]
        (x[:10] * 1).exp()  # 40 bytes
        (x[:0] * 1).exp()
    reasons = hooks.skipped_because
    assert reasons.keys() == {"leaf", "parameter", "buffer", "small", "layout or device"} and len(kept) == 4
    assert reasons["layout or device"] >= 1 and reasons["buffer"] == 2
    with offload_to_cpu() as other:
        model(x.view(50, 100))
    assert {"parameter", "buffer"}.isdisjoint(other.skipped_because)  # without the model the frozen weight moves too


def test_a_storage_that_its_owner_emptied_is_left_to_its_owner():
    """As sharding libraries do: the memory is freed after forward, and filled again before backward."""
    w, table = torch.ones(2000, requires_grad=True), torch.arange(2000.0)
    with offload_to_cpu() as hooks:
        y = w * table
        table.untyped_storage().resize_(0)
    assert hooks.skipped_because == {"freed": 1}
    assert hooks.packed == 0
    table.untyped_storage().resize_(8000)
    table.data.copy_(torch.arange(2000.0))
    y.sum().backward()
    assert torch.equal(w.grad, torch.arange(2000.0))


def test_subclasses_stay_and_work():
    two_tensor = pytest.importorskip("torch.testing._internal.two_tensor").TwoTensor
    x = two_tensor(torch.ones(2000), torch.full((2000,), 2.0)).requires_grad_()
    with offload_to_cpu(min_bytes=0) as hooks:
        y = (x * 1).exp()
    y.sum().backward()
    assert hooks.skipped_because == {"subclass": 1} and isinstance(x.grad, two_tensor)
    assert torch.equal(x.grad.b, torch.full((2000,), 2.0).exp())


# -- policies and nesting ----------------------------------------------------------------------------------------------


def test_what_a_policy_excludes_goes_to_the_pair_around():
    model = mlp(64, 2)
    outer, inner = offload_to_disk(model=model), offload_to_cpu(model, policy=lambda t: t.shape[0] == 100)
    x = torch.randn(100, 64)
    with outer, inner:
        y = model(x).sum() + model(x.repeat(2, 1)).sum()
    assert inner.packed == outer.packed > 0
    assert inner.skipped_because["policy"] == outer.packed
    y.backward()
    assert inner.unpacked == inner.packed and outer.unpacked == outer.packed
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    (model(x).sum() + model(x.repeat(2, 1)).sum()).backward()
    assert equal([p.grad for p in model.parameters()], expected)


def test_a_pair_around_that_is_none_of_ours():
    seen = []
    x = torch.ones(2000, requires_grad=True)
    around = saved_tensors_hooks(
        lambda t: seen.append("pack") or (t.detach(), 5), lambda packed: seen.append("unpack") or packed[0]
    )
    with around, offload_to_cpu(policy=lambda t: False) as hooks:
        y = (x * 1).exp()
    y.sum().backward()
    assert seen == ["pack", "unpack"] and hooks.packed == 0 and torch.equal(x.grad, x.detach().exp())


def test_without_a_pair_around_they_stay_and_are_still_checked():
    x = torch.ones(2000, requires_grad=True)
    with offload_to_cpu(policy=lambda t: False) as hooks:
        h = x * 1
        y = h * h
    assert hooks.skipped_because == {"policy": 2} and hooks.bytes_live == 0
    h.detach().add_(1)
    with pytest.raises(RuntimeError, match="is at version 1; expected version 0"):
        y.sum().backward()


def test_modules_and_names_choose():
    model = nn.Sequential(nn.Linear(64, 64), nn.Sequential(nn.Linear(64, 64), nn.ReLU()), nn.Linear(64, 64))
    x = torch.randn(100, 64)
    counts = {}
    for name, policy in {
        "all": None,
        "0": "0",
        "1": model[1],
        "1.0": "1.0",
        "both": ["0", model[2]],
        "none": [],
    }.items():
        with offload_to_cpu(model, policy=policy) as hooks:
            model(x)
        counts[name] = hooks.packed
    assert counts == {"all": 4, "0": 1, "1": 2, "1.0": 1, "both": 2, "none": 0}
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


# -- observers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, -1], ids=["tracker outside", "tracker inside"])
def test_the_tracker_counts_what_is_near(order):
    def live(context):
        x = torch.ones(100_000, requires_grad=True)
        tracker = MemoryTracker(x)
        with contextlib.ExitStack() as stack:
            for entered in (tracker, context)[::order]:
                stack.enter_context(entered)
            y = (x * 1).exp().sin().tanh()
            after_forward = tracker.live_bytes - tracker.start_bytes
            y.sum().backward()
        return after_forward, y

    for kind in LOSSLESS:
        assert live(kind())[0] == 400_000  # y alone
    assert live(plain())[0] == 800_000  # and the result of exp, which sin saved too


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize("observer", [explain_inplace, guard_saved_tensors])
@pytest.mark.parametrize("order", [1, -1], ids=["observer outside", "observer inside"])
def test_observers_in_both_orders(kind, observer, order):
    def run(write, hooks):
        x = torch.ones(2000, requires_grad=True)
        with contextlib.ExitStack() as stack:
            for context in (observer(), hooks)[::order]:
                stack.enter_context(context)
            h = x * 1
            y = h * h
            if write:
                h.detach().add_(1)
            y.sum().backward()
        return x.grad

    hooks = kind(min_bytes=0)
    assert torch.equal(run(False, hooks), torch.full((2000,), 2.0))
    assert hooks.packed == 2
    with pytest.raises(RuntimeError, match="is at version 1; expected version 0 instead"):
        run(True, hooks)
    assert active() is None


# -- the ways to use a graph -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LOSSLESS)
def test_double_backward(kind):
    def run(context):
        x = torch.linspace(0.1, 2, 2000, requires_grad=True)
        with context:
            (g,) = torch.autograd.grad((x * 1).exp().mul(x.sin() * 1).sum(), x, create_graph=True)
            g.pow(2).sum().backward()
        return x.grad

    hooks = kind(min_bytes=0)
    assert torch.equal(run(hooks), run(plain()))
    assert hooks.packed > 6 and hooks.bytes_live == 0


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize("inside", [True, False])
def test_two_backwards_inside_and_outside_of_the_with(kind, inside):
    def run(hooks):
        x = torch.linspace(0.1, 2, 2000, requires_grad=True)
        with hooks:
            y = (x * 1).exp().sin().sum()
            if inside:
                y.backward(retain_graph=True)
                y.backward()
        if not inside:
            y.backward(retain_graph=True)
            y.backward()
        return x.grad

    hooks = kind(min_bytes=0)
    assert torch.equal(run(hooks), run(plain()))
    assert hooks.unpacked == 2 * hooks.packed == 4 and hooks.bytes_live == 0


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("where", ["around", "around both", "inside"])
def test_checkpoint(kind, use_reentrant, where):
    def run(hooks):
        torch.manual_seed(0)
        model = mlp(64, 2)
        x = torch.randn(100, 64, requires_grad=True)

        def inner(h):
            with hooks if where == "inside" else plain():
                return model(h)

        with hooks if where != "inside" else plain():
            y = checkpoint(inner, x * 1, use_reentrant=use_reentrant)
            if where == "around both":
                y.sum().backward()
        if where != "around both":
            y.sum().backward()
        return [x.grad, *(p.grad for p in model.parameters())]

    hooks = kind(min_bytes=0)
    assert equal(run(hooks), run(plain())) and hooks.packed > 0 and hooks.bytes_live == 0


@pytest.mark.parametrize(
    "use_reentrant, where, packed, calls",
    [
        (False, "around", 1, 2),  # the input alone
        (False, "around both", 1, 2),  # what is recomputed is packed by the checkpoint's own pair
        (False, "inside", 3, 1),  # the inner pair wins: nothing is recomputed, and nothing saved by the checkpoint
        (True, "around", 1, 2),
        (True, "around both", 4, 2),  # what is recomputed is packed too
        (True, "inside", 3, 2),
    ],
)
def test_what_hooks_see_of_a_checkpoint(use_reentrant, where, packed, calls):
    hooks, called = offload_to_cpu(min_bytes=0), []

    def function(h):
        called.append(1)
        with hooks if where == "inside" else plain():
            return h.exp().tanh().sin()  # saves two results and an input

    x = torch.ones(2000, requires_grad=True)
    with hooks if where != "inside" else plain():
        y = checkpoint(function, x * 1, use_reentrant=use_reentrant)
        if where == "around both":
            y.sum().backward()
    if where != "around both":
        y.sum().backward()
    assert (hooks.packed, len(called)) == (packed, calls)


@pytest.mark.parametrize("kind", LOSSLESS)
def test_two_graphs_at_once_in_any_order(kind):
    hooks, made = kind(min_bytes=0), []
    for value in range(1, 5):
        x = torch.full((2000,), float(value), requires_grad=True)
        with hooks:
            made.append((x, (x * 1).pow(2).sum()))
    for number in (2, 0, 3, 1):
        x, y = made[number]
        y.backward()
        assert torch.equal(x.grad, 2 * x.detach())
    assert hooks.bytes_live == 0 and hooks.peak_bytes == 32_000


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("in_cycle", [False, True])
def test_a_graph_that_is_dropped_frees_all(kind, in_cycle):
    hooks = kind(min_bytes=0)
    x = torch.ones(2000, requires_grad=True)
    with hooks:
        h = x * 1
        y = h.exp() * h
    storages = [weakref.ref(t.untyped_storage()) for t in (h, y)]
    assert hooks.bytes_live > 0
    if in_cycle:
        holder = [y]
        holder.append(holder)
        del holder
    gc.disable()
    try:
        del h, y
        assert (hooks.bytes_live == 0) is not in_cycle
    finally:
        gc.enable()
    gc.collect()
    assert hooks.bytes_live == 0 and [ref() for ref in storages] == [None, None]
    ref = weakref.ref(hooks)
    gc.disable()
    del hooks
    assert ref() is None  # no cycle keeps it, and its file, until the collector comes
    gc.enable()


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_let_go_as_soon_as_it_is_stored(kind):
    x = torch.ones(2000, requires_grad=True)
    with kind(min_bytes=0):
        y = (x * 1).exp().sin()
        h = y * 1
        saved = weakref.ref(h.untyped_storage())
        z = h * h
        del h
        assert saved() is None
    z.sum().backward()


@pytest.mark.parametrize("kind", LOSSLESS)
def test_the_hooks_may_go_before_the_graph(kind):
    x = torch.ones(2000, requires_grad=True)
    with kind(min_bytes=0):
        y = (x * 1).exp()
    gc.collect()
    y.sum().backward()
    assert torch.equal(x.grad, x.detach().exp())


def test_a_thousand_steps_keep_bytes_and_books_level():
    model = mlp(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    hooks, levels = offload_to_cpu(model, min_bytes=0), set()
    for number in range(1000):
        optimizer.zero_grad()
        with hooks:
            loss = model(torch.ones(4, 8, requires_grad=True) * 1).pow(2).mean()
        loss.backward()
        optimizer.step()
        if number % 100 == 50:
            levels.add((hooks.bytes_live, hooks.peak_bytes, len(hooks._known)))
            assert len(hooks._staying._storages) < 50
    assert len(levels) == 1 and levels.pop()[0] == 0 and hooks.packed > 3000


def test_torch_func_refuses_as_it_does_with_any_hooks():
    def said(context):
        with context, pytest.raises(RuntimeError) as caught:
            torch.func.grad(lambda x: (x * x).sum())(torch.ones(2))
        return str(caught.value)

    expected = said(saved_tensors_hooks(lambda t: t, lambda t: t))
    for kind in KINDS:
        assert said(kind(min_bytes=0)) == expected
    assert torch.func.grad(lambda x: (x * x).sum())(torch.ones(2)).tolist() == [2, 2]
    with offload_to_cpu():
        assert torch.vmap(lambda x: x * x)(torch.ones(2)).tolist() == [1, 1]


def test_where_hooks_are_disabled_nothing_is_entered():
    hooks = offload_to_cpu(policy=[nn.ReLU()])
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        with pytest.raises(RuntimeError, match="not here"):
            hooks.__enter__()
        assert hooks._entries() == [] and hooks._choice._handles == []
    with hooks:
        pass


@pytest.mark.parametrize("kind", KINDS)
def test_entered_again_inside_itself(kind):
    x = torch.ones(2000, requires_grad=True)
    hooks = kind(min_bytes=0)
    with hooks:
        h = (x * 1).exp()
        with hooks:
            h = h.sin()
        y = h.tanh()
    assert hooks.packed == 3 and active() is None
    y.sum().backward()


def test_an_error_in_the_with_leaves_nothing():
    x = torch.ones(2000, requires_grad=True)
    hooks = offload_to_cpu()
    with pytest.raises(KeyError), hooks:
        y = (x * 1) * torch.ones(2000)
        raise KeyError
    assert active() is None and hooks._entries() == []
    y.sum().backward()  # it waited for its operator, and stays where it is
    assert torch.equal(x.grad, torch.ones(2000))


def test_a_generator_that_is_left_half_way():
    hooks, x = offload_to_cpu(min_bytes=0), torch.ones(2000, requires_grad=True)

    def batches():
        with hooks:
            yield (x * 1).exp()
            yield None

    made = batches()
    y = next(made)
    made.close()
    assert active() is None and hooks._entries() == []
    y.sum().backward()
    assert torch.equal(x.grad, x.detach().exp())


# -- threads and modules -----------------------------------------------------------------------------------------------


def in_threads(*work):
    """Runs each function in a thread of its own, all at once; returns what they returned, or raises."""
    results, errors, gate = [None] * len(work), [], threading.Barrier(len(work))

    def run(number):
        try:
            gate.wait()
            results[number] = work[number]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


@pytest.mark.parametrize("kind", KINDS)
def test_many_threads_under_one_object(kind):
    hooks = kind(min_bytes=0)

    def work(seed):
        def run():
            for step in range(20):
                x = torch.full((1000 + seed,), float(seed + step), requires_grad=True)
                with hooks:
                    h = x * 1
                    y = h * h + nn.functional.rrelu(h, training=True)
                (grad,) = torch.autograd.grad(y.sum(), x)
                if not torch.equal(grad, 2 * x.detach() + 1):  # all are positive: rrelu is the identity
                    return False
            return True

        return run

    assert in_threads(*(work(seed) for seed in range(1, 9))) == [True] * 8
    assert hooks.bytes_live == 0 and hooks.packed >= 8 * 20 * 3


@pytest.mark.parametrize("kind", LOSSLESS)
def test_backward_in_another_thread_and_in_several(kind):
    x = torch.linspace(0.1, 2, 2000, requires_grad=True)
    hooks = kind(min_bytes=0)
    with hooks:
        y = (x * 1).exp().sin().sum()
        grads = in_threads(*[lambda: torch.autograd.grad(y, x, retain_graph=True)[0]] * 6)
    (expected,) = torch.autograd.grad(x.exp().sin().sum(), x)
    assert all(torch.equal(grad, expected) for grad in grads)
    assert hooks.unpacked == 6 * hooks.packed


def test_backward_while_the_forward_thread_goes_on(monkeypatch):
    """What waits for its operator may be moved by one thread in the moment in which another asks for it."""
    x, table = torch.ones(2000, requires_grad=True), torch.arange(2000.0)
    move, moved, asked = _packing.Packer._move, threading.Event(), threading.Event()

    def slow_move(self, *args):
        asked.wait(10)
        move(self, *args)
        moved.set()

    monkeypatch.setattr(_packing.Packer, "_move", slow_move)
    with offload_to_cpu() as hooks:
        y = x * table
        entered = hooks._entries()[-1]

        def backward():
            asked.set()
            return torch.autograd.grad(y.sum(), x, retain_graph=True)[0]

        def flush():
            hooks._store_waiting(entered, threading.main_thread().ident)

        for grad in in_threads(backward, flush)[:1]:
            assert torch.equal(grad, table)
    assert moved.is_set() and torch.equal(torch.autograd.grad(y.sum(), x)[0], table)


def test_what_one_thread_saves_does_not_end_the_waiting_of_another():
    """A thread of the engine works under the hooks of the thread that called backward, and counts its nodes itself."""
    hooks = offload_to_cpu(min_bytes=0)
    with hooks:
        entry = hooks._entries()[-1]
        pack = entry.hooks.pack_hook
        unfilled = torch.zeros(2000)
        mine = pack(unfilled)
        in_threads(lambda: pack(torch.ones(2000)), lambda: pack(torch.ones(2000)))
        assert hooks.stored == 0 and len(entry.waiting) >= 2
        unfilled.fill_(3)
        unfilled_version = unfilled._version
        mine.version = unfilled_version  # as if the operator had filled it without counting
    assert torch.equal(hooks._unpack(mine), torch.full((2000,), 3.0))


@pytest.mark.parametrize("kind", LOSSLESS)
def test_many_threads_save_one_tensor(kind):
    x = torch.linspace(0.1, 1, 3000, requires_grad=True)
    hooks = kind(min_bytes=0)
    h, factors = x * 1, range(1, 9)

    def work(factor):
        def run():
            with hooks:
                parts = [h * h.sin() * factor for _ in range(10)]
            return torch.autograd.grad(sum(parts).sum(), h)[0]

        return run

    got = in_threads(*(work(factor) for factor in factors))
    for factor, grad in zip(factors, got):
        (expected,) = torch.autograd.grad(sum(h * h.sin() * factor for _ in range(10)).sum(), h)
        assert torch.equal(grad, expected)
    del got
    assert hooks.bytes_live == 0 and hooks._known == {}
    assert hooks.stored < hooks.packed / 2  # shared, though two threads may store it in the same moment


@pytest.mark.parametrize("kind", LOSSLESS)
def test_a_store_that_fails_once(kind, monkeypatch):
    """In the midst of forward, by a tensor that waited for its operator; the others wait on and are stored."""
    hooks, tables = kind(min_bytes=0), [torch.full((2000,), float(n)) for n in range(3)]
    x, put, calls = torch.ones(2000, requires_grad=True), hooks.store.put, []

    def fails_once(*args):
        calls.append(args)
        if len(calls) == 1:
            raise MemoryError("no room")
        return put(*args)

    monkeypatch.setattr(hooks.store, "put", fails_once)
    made = []
    with pytest.raises(MemoryError), hooks:
        for table in tables:
            made.append(x * table)
    assert len(made) == 1 and active() is None and hooks._entries() == []
    (grad,) = torch.autograd.grad(made[0].sum(), x)
    assert torch.equal(grad, tables[0])  # it stays where it was
    with hooks:
        y = sum(x * table for table in tables)
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], sum(tables)) and hooks.stored == 3
    del made, y, calls[:]
    assert hooks.bytes_live == 0


def test_what_is_left_in_another_order_than_entered():
    """As two generators or coroutines of one thread may do; PyTorch's stack of pairs knows no names."""
    x, first, second = torch.ones(2000, requires_grad=True), offload_to_cpu(min_bytes=0), offload_to_disk(min_bytes=0)
    table, parts = torch.arange(2000.0), []
    for act in (first.__enter__, second.__enter__, None, None):
        if act is None:
            (first if len(parts) == 2 else second).__exit__(None, None, None)
        else:
            act()
        parts.append(x * table + (x * 1).exp())
    assert active() is None and first._entries() == second._entries() == []
    (grad,) = torch.autograd.grad(sum(parts).sum(), x)
    assert torch.equal(grad, torch.autograd.grad(sum(x * table + (x * 1).exp() for _ in range(4)).sum(), x)[0])


@pytest.mark.parametrize("kind", LOSSLESS)
def test_a_kept_graph_holds_one_storage_a_thread_at_most(kind):
    x = torch.ones(100_000, requires_grad=True)
    tracker = MemoryTracker(x)
    with tracker, kind(min_bytes=0):
        h = x * 1
        for _ in range(10):
            h = h.exp().tanh()
        before = tracker.live_bytes
        torch.autograd.grad(h.sum(), x, retain_graph=True)
        assert tracker.live_bytes - before <= 400_000


def parallel(replicas, inputs):
    """As torch.nn.parallel.parallel_apply runs replicas on GPUs: a thread each, with the modes of the first."""
    grad_enabled = torch.is_grad_enabled()

    def worker(module, x):
        def run():
            with torch.set_grad_enabled(grad_enabled):
                return module(x)

        return run

    return in_threads(*(worker(*pair) for pair in zip(replicas, inputs)))


def replicate(module):
    """As torch.nn.parallel.replicate: copies that share the dicts of hooks, with parameters that are no leaves."""
    copies = {id(m): m._replicate_for_data_parallel() for m in module.modules()}
    for original in module.modules():
        replica = copies[id(original)]
        for name, child in original._modules.items():
            setattr(replica, name, copies[id(child)])
        for name, parameter in original._parameters.items():
            setattr(replica, name, parameter * 1 if parameter is not None else None)
    return copies[id(module)]


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize("how", ["shared", "made anew", "by module"])
def test_replicas_in_threads(kind, how):
    torch.manual_seed(0)
    inner = mlp(32, 3).double()
    for parameter in inner.parameters():  # whole numbers, whose sums are the same in any order
        parameter.data.random_(-2, 3)
    made = []

    def hooks():
        made.append(kind(min_bytes=0))
        return made[-1]

    if how == "made anew":
        model = WithSavedTensorHooks(inner, hooks)
    else:
        made.append(kind(min_bytes=0, policy=inner[0] if how == "by module" else None))
        model = WithSavedTensorHooks(inner, made[0])
    inputs = [torch.randint(-2, 3, (16, 32)).double() for _ in range(6)]
    for _ in range(5):
        out = parallel([replicate(model) for _ in inputs], inputs)
        torch.cat(out).pow(2).sum().backward()
    got = [p.grad.clone() for p in inner.parameters()]
    inner.zero_grad()
    for _ in range(5):
        torch.cat([replicate(inner)(x) for x in inputs]).pow(2).sum().backward()
    assert equal(got, [p.grad for p in inner.parameters()])
    assert len(made) == (30 if how == "made anew" else 1)
    assert sum(m.packed for m in made) >= 30 * (1 if how == "by module" else 4)
    assert sum(m.bytes_live for m in made) == 0 and active() is None
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    with kind(min_bytes=0) as outside:  # the control: a `with` around does not reach the threads
        parallel([replicate(inner) for _ in inputs], inputs)
    assert outside.packed == 0


def test_a_module_under_hooks_is_a_module():
    layer = nn.Linear(64, 64)
    wrapped = WithSavedTensorHooks(layer, save_on_cpu)
    assert [name for name, _ in wrapped.named_parameters()] == ["module.weight", "module.bias"]
    x = torch.randn(10, 64)
    assert torch.equal(wrapped(x), layer(x)) and torch.equal(wrapped(input=x), layer(x))
    assert active() is None

    class Odd(nn.Module):
        def forward(self, a, *, b=None):
            return {"a": a, "b": (b, None)}

    assert WithSavedTensorHooks(Odd(), offload_to_cpu)(1, b=2) == {"a": 1, "b": (2, None)}


def test_one_layer_of_a_sequential():
    hooks = offload_to_cpu(min_bytes=0)
    model = nn.Sequential(nn.Linear(8, 8), WithSavedTensorHooks(nn.Linear(8, 8), hooks), nn.Linear(8, 8))
    model(torch.randn(2, 8)).sum().backward()
    assert (hooks.packed, hooks.bytes_written) == (1, 64)


@pytest.mark.parametrize("kind", KINDS)
def test_copies_have_the_settings_and_none_of_the_work(kind, tmp_path):
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
    first = (tmp_path,) if kind is offload_to_disk else ()
    hooks = kind(*first, model=model, min_bytes=7, policy="0")
    wrapped = nn.Sequential(WithSavedTensorHooks(model, hooks))
    wrapped(torch.randn(100, 64)).sum().backward()
    assert hooks.packed == 1
    for twin in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        other = twin[0].hooks
        assert type(other) is type(hooks) and other.min_bytes == 7 and other.packed == 0
        assert other.model is twin[0].module is not model
        twin(torch.randn(100, 64)).sum().backward()
        assert (other.packed, hooks.packed) == (1, 1)
        if first:
            assert other.store.folder == tmp_path
    assert copy.copy(offload_to_cpu(pin_memory=False)).store.pin_memory is False


# -- under torch.compile -----------------------------------------------------------------------------------------------


def test_hooks_around_and_inside_a_compiled_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    x = torch.randn(128, 64)
    model(x).sum().backward()
    truth = [p.grad.clone() for p in model.parameters()]
    around, inside = offload_to_cpu(model), offload_to_disk(model=model)
    wrapped = nn.Sequential(model[0], model[1], WithSavedTensorHooks(model[2], inside))
    for module, hooks in ((model, around), (wrapped, inside)):
        compiled = torch.compile(module, backend="aot_eager")  # the default backend needs a C++ compiler
        model.zero_grad()
        with hooks if hooks is around else plain():
            out = compiled(x)
        out.sum().backward()
        assert hooks.packed > 0 and hooks.bytes_live == 0
        assert all(torch.allclose(p.grad, g) for p, g in zip(model.parameters(), truth))
    torch._dynamo.reset()


# -- what practitioners do between forward and backward ----------------------------------------------------------------


@pytest.mark.parametrize("make", LOSSLESS)
def test_parameters_that_are_given_other_data_act_as_without_hooks_and_their_memory_is_freed(make):
    def clipped(*contexts):
        torch.manual_seed(0)
        layer, x = nn.Conv1d(1, 32, 5), torch.randn(8, 1, 64, requires_grad=True)
        with contextlib.ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context)
            loss = layer(x).pow(2).sum()
        for p in layer.parameters():
            p.data = p.data.clamp(-0.01, 0.01)
        loss.backward()
        return [x.grad, *(p.grad for p in layer.parameters())]

    assert equal(clipped(), clipped(make()))

    weight = nn.Parameter(torch.randn(1000, 16, 5))
    storage, leaf = weakref.ref(weight.untyped_storage()), weakref.ref(weight)
    with make():
        y = nn.functional.conv1d(torch.randn(2, 16, 64), weight)
    weight.data = torch.empty(0)
    assert storage() is None
    del weight, y
    assert leaf() is None  # a leaf in its own graph is no cycle


def test_forward_mode_inside_the_block():
    torch.manual_seed(0)
    layer, x, direction = nn.Linear(64, 64), torch.randn(32, 64, requires_grad=True), torch.randn(32, 64)

    def tangent(*contexts):
        with torch.autograd.forward_ad.dual_level(), contextlib.ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context)
            out = torch.tanh(layer(torch.autograd.forward_ad.make_dual(x, direction)))
            return torch.autograd.forward_ad.unpack_dual(out).tangent

    assert torch.equal(tangent(), tangent(offload_to_cpu(layer, min_bytes=0)))


def test_a_model_is_copied_inside_a_block_with_a_policy_by_module():
    model, x = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)), torch.randn(32, 64)
    hooks = offload_to_cpu(model, min_bytes=0, policy="1")
    with hooks:
        twin, third = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
        model(x), twin(x), third(x)
    assert hooks.packed == 1  # nobody is inside the copies
    assert not model[1]._forward_hooks and torch.equal(twin(x), model(x))


def test_what_was_never_moved_is_not_counted_as_moved():
    x = torch.ones(2000, requires_grad=True)
    with offload_to_cpu() as hooks:
        (x * torch.arange(2000.0)).sum().backward()  # the table waits for its operator, and is used from memory
    assert (hooks.packed, hooks.stored, hooks.bytes_packed) == (0, 0, 0)
    assert hooks.skipped_because["gone before it was moved"] == 1


def test_a_signal_handler_may_read_the_counters():
    hooks, read = offload_to_cpu(min_bytes=0), []
    before = signal.signal(signal.SIGALRM, lambda *_: read.append(repr(hooks)))
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        x = torch.ones(64, requires_grad=True)
        while len(read) < 200:
            with hooks:
                loss = (x * 2).exp().sum()
            loss.backward()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert hooks.bytes_live == 0


def test_a_policy_has_to_give_one_answer():
    told = r"it returned a tensor of shape \(2000,\)\. Make one answer of it"
    with pytest.raises(TypeError, match=told), offload_to_cpu(policy=lambda t: t > 0):
        (torch.ones(2000, requires_grad=True) * 2).exp()
