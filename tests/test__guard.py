"""The guard catches each silent write that is documented, and is silent over every operator that PyTorch lists."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import threading
import weakref

import numpy as np
import pytest
import torch
from operator_samples import catalogue, differentiable, on_non_leaves, samples_of
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from helpers import MemoryTracker, explain_inplace, guard_saved_tensors
from helpers._autograd import saved_slots
from helpers._blame import nodes_under
from helpers._fingerprint import fingerprint
from helpers._guard import CHANGES_WHAT_IT_PACKED, Guard, SavedTensorChanged
from helpers._slots import operator_of
from helpers.models import resnet

FIRST = "one of the variables needed for gradient computation has been modified by an inplace operation: "


def square(write=lambda b: None, *contexts, op=lambda b: b * b):
    """The gradient of a square, written to between forward and backward; the truth is 2."""
    a = torch.ones(3, requires_grad=True)
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        b = a * 1
        c = op(b)
        write(b)
        c.sum().backward()
    return a.grad[0].item()


def through_numpy(b):
    b.detach().numpy()[:] += 1


def through_dlpack(b):
    torch.from_dlpack(b.detach())[0] = 5


def through_preserved_counter(b):
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(b):
        b.add_(1)


def through_other_data(b):
    b.data = torch.zeros(3)


def through_fused_step(b):
    """Fused optimizers count no version up."""
    b = b.detach()
    torch._fused_sgd_(
        [b], [torch.ones(3)], [], weight_decay=0, momentum=0, lr=1.0, dampening=0, nesterov=False, maximize=False,
        is_first_step=True,
    )  # fmt: skip


SILENT = {
    ".data.add_": lambda b: b.data.add_(1),
    ".data =": through_other_data,
    "numpy": through_numpy,
    "a storage's fill_": lambda b: b.untyped_storage().fill_(0),
    "a storage's copy_": lambda b: b.untyped_storage().copy_(torch.zeros(3).untyped_storage()),
    "DLPack": through_dlpack,
    "_unsafe_preserve_version_counter": through_preserved_counter,
    "a fused optimizer": through_fused_step,
}


@pytest.mark.parametrize("write", SILENT.values(), ids=SILENT)
def test_a_silent_write_is_an_error(write):
    assert square(write) != 2 or write is through_other_data  # the gradient is wrong, and nothing is said
    with pytest.raises(SavedTensorChanged) as caught:
        square(write, guard_saved_tensors())
    message = str(caught.value)
    assert message.startswith(f"{FIRST}[torch.FloatTensor [3]], which is output 0 of Mul")
    assert " is at version 0, as expected, but its values have changed." in message.splitlines()[0]
    assert "Saved by mul (its other) at test__guard.py, line" in message and "op=lambda b: b * b" in message
    assert "explain_inplace(check_values=True)" in message
    assert isinstance(caught.value, RuntimeError)


def test_the_controls():
    assert (
        square(lambda b: b.data.add_(1), guard_saved_tensors(check_values=False)) == 4.0
    )  # not seen by versions alone
    assert square(lambda b: None, guard_saved_tensors()) == 2.0
    assert (
        square(lambda b: setattr(b, "data", b.data.clone()), guard_saved_tensors()) == 2.0
    )  # other memory, same values
    assert square(lambda b: b.data.add_(0), guard_saved_tensors()) == 2.0
    assert square(lambda b: b.data.add_(1), guard_saved_tensors(), op=lambda b: 2 * b) == 2.0  # nothing is saved


def test_memory_that_numpy_owns():
    def run(guard):
        array = np.ones(3, np.float32)
        w = torch.ones(3, requires_grad=True)
        with guard:
            loss = (w * torch.from_numpy(array)).sum()
            array[:] = 7
            loss.backward()
        return w.grad[0].item()

    assert run(contextlib.nullcontext()) == 7.0
    with pytest.raises(SavedTensorChanged, match=r"\[torch.FloatTensor \[3\]\] is at version 0, as expected"):
        run(guard_saved_tensors())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.complex64, torch.float64], ids=str)
@pytest.mark.parametrize(
    "view", [lambda t: t, lambda t: t.t(), lambda t: t[::2], lambda t: t.conj(), lambda t: t[0, 0]]
)
def test_any_dtype_and_layout(dtype, view):
    x = torch.ones(4, 6, dtype=dtype, requires_grad=True)
    for write in (False, True):
        with pytest.raises(SavedTensorChanged) if write else contextlib.nullcontext(), guard_saved_tensors():
            h = x * 1
            y = view(h) * view(h)
            if write:
                h.data[0, 0] = -0.0
            y.sum().abs().backward()


HOOKS = {
    "identity": lambda: saved_tensors_hooks(lambda t: t, lambda t: t),
    "detach": lambda: saved_tensors_hooks(lambda t: t.detach(), lambda t: t),
    "save_on_cpu": save_on_cpu,
    "in a tuple": lambda: saved_tensors_hooks(lambda t: ("kept", t.detach()), lambda packed: packed[1]),
}


@pytest.mark.parametrize("order", [1, -1], ids=["guard outside", "guard inside"])
@pytest.mark.parametrize("check_values", [True, False])
@pytest.mark.parametrize("hooks", HOOKS.values(), ids=HOOKS)
def test_hooks_that_switch_the_check_off(hooks, check_values, order):
    def contexts():
        return (guard_saved_tensors(check_values=check_values), hooks())[::order]

    def write(b):
        b.mul_(10)

    assert square(write, hooks()) == 20.0  # ten times the truth, and no error
    with pytest.raises(SavedTensorChanged, match="is at version 1; expected version 0 instead"):
        square(write, *contexts())
    assert square(lambda b: None, *contexts()) == 2.0
    if check_values:
        with pytest.raises(SavedTensorChanged, match="but its values have changed"):
            square(lambda b: b.data.mul_(10), *contexts())


@pytest.mark.parametrize("order", [1, -1], ids=["guard outside", "guard inside"])
def test_hooks_that_keep_a_copy_make_the_write_harmless(order):
    hooks = saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t)
    assert square(lambda b: b.mul_(10), *(guard_saved_tensors(), hooks)[::order]) == 2.0


def test_the_readers_hooks_get_what_they_get_without_a_guard():
    def calls(guarded):
        seen = []
        pack = lambda t: seen.append(("pack", tuple(t.shape), t.requires_grad)) or t.detach()  # noqa: E731
        unpack = lambda t: seen.append(("unpack", tuple(t.shape))) or t  # noqa: E731
        with guard_saved_tensors() if guarded else contextlib.nullcontext():
            with saved_tensors_hooks(pack, unpack):
                x = torch.ones(2, requires_grad=True)
                y = (x * x.exp()).sum()
            y.backward()
        return seen

    assert calls(True) == calls(False)


def test_the_sentence_is_pytorchs_own():
    cases = (
        lambda b, w: (b * b, b),
        lambda b, w: ((y := b.exp()) * 1, y),
        lambda b, w: (b @ w.t(), w),
        lambda b, w: ((w * w).sum(), w),
        lambda b, w: (torch.nn.functional.softmax(b, -1), None),
    )
    for case in cases:
        said = []
        for hooks in (contextlib.nullcontext(), save_on_cpu()):
            w = torch.ones(2, 3, requires_grad=True)
            with pytest.raises(RuntimeError) as caught, guard_saved_tensors(check_values=False), hooks:
                y, written = case(torch.ones(2, 3, requires_grad=True) * 1, w)
                with torch.no_grad():
                    (y if written is None else written).add_(1)
                y.sum().backward()
            said.append(str(caught.value).split(" Hint:")[0].split("\n")[0])
        assert said[0] == said[1]


def test_batch_norm_in_evaluation_then_in_training():
    def run(guard, first, second):
        norm, x = nn.BatchNorm1d(3), torch.randn(8, 3, requires_grad=True)
        with guard:
            y = norm.train(first)(x)
            norm.train(second)(x + 1)
            y.pow(2).sum().backward()

    run(contextlib.nullcontext(), False, True)  # wrong, and nothing is said
    with pytest.raises(SavedTensorChanged, match=r"Saved by native_batch_norm \(its running_mean\)"):
        run(guard_saved_tensors(), False, True)
    for right in ((True, True), (True, False), (False, False)):
        run(guard_saved_tensors(), *right)


@pytest.mark.parametrize("hooks", [contextlib.nullcontext, HOOKS["detach"]], ids=["plain", "hooks"])
def test_noise_filled_after_it_was_packed_is_no_change(hooks):
    x = torch.randn(4, 3, requires_grad=True)
    with guard_saved_tensors() as guard, hooks():
        nn.functional.rrelu(x * 1, training=True).sum().backward()
    assert guard.checked


def test_training_is_left_alone(one_thread):
    def train(guard):
        torch.manual_seed(0)
        model = resnet(18, width=8, classes=4, inplace=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with guard as entered:
            for _ in range(2):
                optimizer.zero_grad()
                for _ in range(2):  # gradients accumulate over two backwards
                    model(torch.randn(2, 3, 32, 32)).pow(2).mean().backward()
                optimizer.step()
        return [p.detach().clone() for p in model.parameters()], entered

    plain, _ = train(contextlib.nullcontext())
    guarded, guard = train(guard_saved_tensors())
    explained, report = train(explain_inplace(check_values=True))
    assert guard.checked > 300 and report.text == ""
    for a, b, c in zip(plain, guarded, explained):
        assert torch.equal(a, b) and torch.equal(a, c)


def test_guards_nest_with_each_other_and_with_the_tracker():
    for contexts in (
        lambda: (guard_saved_tensors(), guard_saved_tensors()),
        lambda: (guard_saved_tensors(check_values=False), save_on_cpu(), guard_saved_tensors()),
        lambda: (MemoryTracker(), guard_saved_tensors()),
        lambda: (guard_saved_tensors(), MemoryTracker()),
    ):
        assert square(lambda b: None, *contexts()) == 2.0
        with pytest.raises(SavedTensorChanged):
            square(lambda b: b.data.add_(1), *contexts())


def test_peak_memory_is_that_of_the_graph():
    def peak(guard):
        x = torch.ones(100_000, requires_grad=True)
        tracker = MemoryTracker(x)
        with tracker, guard:
            (x.exp().sin() * 2).sum().backward()
        return tracker.peak_bytes

    assert peak(guard_saved_tensors()) == peak(contextlib.nullcontext())


def test_checkpoint_stays_a_checkpoint():
    def run(guard, write=lambda x: None):
        x = torch.randn(1000, requires_grad=True)
        tracker = MemoryTracker(x)
        with tracker, guard:
            h = x * 1
            y = checkpoint(lambda t: t.exp().sin().tanh(), h, use_reentrant=False)
            live = tracker.live_bytes
            write(h)
            y.sum().backward()
        return live

    assert run(guard_saved_tensors()) == run(contextlib.nullcontext())
    with pytest.raises(SavedTensorChanged, match="Saved by checkpoint"):
        run(guard_saved_tensors(), lambda h: h.data.add_(1))


def test_several_backwards_threads_and_retained_graphs():
    with guard_saved_tensors() as guard:
        x = torch.ones(3, requires_grad=True)
        y = (x.exp() * x).sum()
        errors = []

        def backward():
            try:
                y.backward(retain_graph=True)
            except RuntimeError as error:
                errors.append(error)

        threads = [threading.Thread(target=backward) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors and guard.checked == 4 * 3
        x.data.add_(1)
        backward()
    assert isinstance(errors[0], SavedTensorChanged)


def test_double_backward():
    def run(guard, write=False):
        x = torch.tensor([2.0], requires_grad=True)
        with guard:
            (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
            if write:
                x.data.add_(1)
            g.sum().backward()
        return x.grad.item()

    assert run(guard_saved_tensors()) == run(contextlib.nullcontext()) == 12.0
    with pytest.raises(SavedTensorChanged):
        run(guard_saved_tensors(), write=True)


def test_afterwards_all_is_as_before_and_nothing_is_kept():
    before = saved_tensors_hooks.__enter__, torch.autograd.graph.disable_saved_tensors_hooks
    error = None
    b = torch.ones(3, requires_grad=True) * 1
    ref = weakref.ref(b)
    try:
        with guard_saved_tensors() as guard:
            c = b * b
            b.data.add_(1)
            c.sum().backward()
    except RuntimeError as caught:
        error = caught.with_traceback(None)
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None
    assert torch._C._len_torch_dispatch_stack() == 0
    assert (saved_tensors_hooks.__enter__, torch.autograd.graph.disable_saved_tensors_hooks) == before
    del b, c
    gc.collect()
    assert ref() is None and error is not None and guard.checked == 1
    with pytest.raises(RuntimeError, match=r"call guard_saved_tensors\(\) again"), guard:
        pass


def test_torch_func_runs_inside_and_the_readers_hooks_still_forbid_it():
    with guard_saved_tensors():
        assert torch.func.grad(lambda x: (x * x).sum())(torch.ones(2)).tolist() == [2, 2]
        with pytest.raises(RuntimeError, match="saved tensor hooks"), HOOKS["detach"]():
            torch.func.grad(lambda x: (x * x).sum())(torch.ones(2))
        with pytest.raises(SavedTensorChanged):
            square(lambda b: b.data.add_(1))  # it is back


# -- every operator that PyTorch lists ---------------------------------------------------------------------------------

op_db = catalogue()
MOST = 6  # samples of each operator; all of them, and other dtypes, in two minutes with TENSOR_LAB_FULL_SWEEP=1
FULL = bool(os.environ.get("TENSOR_LAB_FULL_SWEEP"))


@functools.cache
def samples(dtype, most=None, name=""):
    """(operator, sample) of the catalogue: of each operator all, or ``most`` drawn with a seed."""
    entries = differentiable(op_db, dtype, name)
    return [(op, sample) for op in entries for sample in samples_of(op, dtype, most)]


def gradients(op, sample, context):
    """The gradients of one call on non-leaf inputs, since sample inputs are leaves; and what ``context`` gave."""
    torch.default_generator.manual_seed(0)  # torch.manual_seed takes a millisecond
    leaves, args, kwargs = on_non_leaves(sample)
    with context as entered:
        outputs = tree_leaves(op(*args, **kwargs))
        outputs = [out for out in outputs if isinstance(out, torch.Tensor) and out.requires_grad]
        if not outputs:
            return [], entered
        grads = torch.autograd.grad(outputs, leaves, [torch.ones_like(o) for o in outputs], allow_unused=True)
    return grads, entered


def same_bits(a, b):
    if a is None or b is None:
        return a is b
    a, b = (t if t.layout is torch.strided else t.to_dense() for t in (a, b))
    return a.shape == b.shape and fingerprint(a.contiguous()) == fingerprint(b.contiguous())


@pytest.mark.no_cover  # which would take as long again
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.float32, *([torch.bfloat16, torch.complex64] if FULL else [])], ids=str)
def test_no_operator_raises_an_alarm_or_changes_a_bit(dtype, one_thread):
    alarms, checked, run = [], 0, 0
    for op, sample in samples(dtype, None if FULL else MOST):
        try:
            plain, _ = gradients(op, sample, contextlib.nullcontext())
        except (RuntimeError, NotImplementedError):
            continue  # so it does without a guard
        block = explain_inplace(check_values=True)
        try:
            guarded, _ = gradients(op, sample, block)
        except RuntimeError as error:
            alarms.append(f"{op.name}: {error}")
            continue
        checked, run = checked + block._guard.checked, run + 1
        if not all(same_bits(a, b) for a, b in zip(plain, guarded)):
            alarms.append(f"{op.name}: other bits")
    assert not alarms, "\n".join(alarms[:10])
    assert run > 2000 and checked > 4000


class EmptyMode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_what_a_bare_mode_changes_a_guard_does_not():
    def pseudoinverse(context):
        x = torch.randn(4, 3, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
        with context:
            return torch.linalg.pinv(x)

    def gradient_of_product(context):
        x = torch.randn(7, generator=torch.Generator().manual_seed(1), requires_grad=True)
        with context:
            return torch.autograd.grad(x.prod(), x)[0]

    def version_after_a_step(context):
        p = torch.ones(3)
        with context:
            torch._foreach_add_([p], 1.0)
        return torch.tensor(p._version)

    for compute in (pseudoinverse, gradient_of_product, version_after_a_step):
        plain = compute(contextlib.nullcontext())
        assert not same_bits(plain, compute(EmptyMode()))  # so does PyTorch 2.13; if it no longer does, all the better
        for context in (guard_saved_tensors(), explain_inplace(), explain_inplace(check_values=True)):
            assert same_bits(plain, compute(context))


@pytest.mark.filterwarnings("ignore")
def test_the_sweep_can_fail(monkeypatch):
    monkeypatch.setattr("helpers._guard.CHANGES_WHAT_IT_PACKED", frozenset())
    ((op, sample),) = samples(torch.float32, 1, "nn.functional.rrelu")
    sample.kwargs["training"] = True
    with pytest.raises(SavedTensorChanged, match="noise"):
        gradients(op, sample, guard_saved_tensors())


@pytest.mark.no_cover  # which would take as long again
@pytest.mark.filterwarnings("ignore")
def test_these_operators_and_no_others_change_what_they_packed(one_thread):
    found: set[tuple[str, str]] = set()
    for op, sample in samples(torch.float32, MOST):
        records: list[tuple[torch.Tensor, object]] = []

        def pack(tensor, records=records):
            records.append((tensor.detach(), fingerprint(tensor.detach())))
            return records[-1][0]

        try:
            with saved_tensors_hooks(pack, lambda t: t):
                outputs = op(sample.input, *sample.args, **sample.kwargs)
        except (RuntimeError, NotImplementedError):
            continue
        changed = {id(tensor) for tensor, before in records if fingerprint(tensor) != before}
        if changed:
            tensors = [out for out in tree_leaves(outputs) if isinstance(out, torch.Tensor) and out.grad_fn is not None]
            for node in nodes_under(tensors):
                found |= {(node.name(), name) for name, slot in saved_slots(node) if id(slot.data) in changed}
    assert found == {
        *((f"{norm}Backward0", slot) for norm in NORMS for slot in ("running_mean", "running_var")),
        ("RreluWithNoiseBackward0", "noise"),
    }
    assert {f"aten::{operator_of(node)}" for node, _ in found} <= {
        name.replace("::_", "::") for name in CHANGES_WHAT_IT_PACKED
    }


NORMS = ("NativeBatchNorm", "NativeBatchNormLegit", "BatchNormWithUpdate")


def test_a_guard_is_made_by_its_function():
    assert type(guard_saved_tensors()) is Guard
