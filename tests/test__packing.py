"""Every operator that PyTorch lists has the gradients, and the errors, that it has without hooks."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
from typing import NamedTuple

import pytest
import torch
from operator_samples import catalogue, differentiable, on_non_leaves, samples_of
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves, tree_map

from helpers import offload_to_cpu, offload_to_disk

op_db = catalogue()
FULL = bool(os.environ.get("TENSOR_LAB_FULL_SWEEP"))
MOST = None if FULL else 4  # samples of each operator; all of them, two minutes, with TENSOR_LAB_FULL_SWEEP=1
DTYPES = (torch.float32, torch.complex64, torch.bfloat16)


class Case(NamedTuple):
    name: str
    call: object
    sample: object


@functools.cache
def cases(dtype, most=MOST, name=""):
    """The calls of the catalogue: of each operator that has a gradient all samples, or ``most`` drawn with a seed.

    Where there is an in-place variant, each sample is called that way too.
    """
    found = []
    for op in differentiable(op_db, dtype, name):
        samples = samples_of(op, dtype, most, first=6 if most == 1 else None)  # making them takes longest
        full_name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        found += [Case(full_name, op, sample) for sample in samples]
        if op.get_inplace() is not None and op.supports_inplace_autograd:
            found += [Case(f"{full_name}, in place", op.get_inplace(), sample) for sample in samples]
    return found


class Outcome(NamedTuple):
    """What one forward and backward gave: gradients, or the error's type and words."""

    grads: list
    error: tuple | None


def run(case, context=None) -> Outcome:
    """Calls it on tensors that are no leaves, since leaves stay where they are, and asks for all gradients."""
    torch.default_generator.manual_seed(0)  # torch.manual_seed takes a millisecond
    leaves, args, kwargs = on_non_leaves(case.sample)
    # A call that writes to what it is given must find the same next time.
    args, kwargs = tree_map(lambda t: t.clone() if is_plain_input(t) else t, (args, kwargs))
    try:
        with context or contextlib.nullcontext():
            outputs = [out for out in tree_leaves(case.call(*args, **kwargs)) if isinstance(out, torch.Tensor)]
            outputs = [out for out in outputs if out.requires_grad]
        grads = []
        if outputs:
            ones = [torch.ones_like(out) for out in outputs]
            grads = list(torch.autograd.grad(outputs, leaves, ones, allow_unused=True))
    except Exception as error:
        return Outcome([], (type(error), str(error)))
    return Outcome(grads, None)


def is_plain_input(t):
    return isinstance(t, torch.Tensor) and not t.requires_grad and t.layout is torch.strided


def same(a: Outcome, b: Outcome) -> bool:
    """Whether both raised the same, or every tensor has the same bits and strides."""
    if a.error is not None or b.error is not None or len(a.grads) != len(b.grads):
        return a.error == b.error and len(a.grads) == len(b.grads)
    return all(same_bits(*pair) for pair in zip(a.grads, b.grads))


def same_bits(a, b):
    if a is None or b is None:
        return a is b
    if a.layout is not torch.strided:
        return a.layout is b.layout and same_bits(a.to_dense(), b.to_dense())
    if a.dtype is not b.dtype or a.shape != b.shape or a.stride() != b.stride():
        return False
    a, b = (t.reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8) for t in (a, b))
    return torch.equal(a, b)


class Counting(saved_tensors_hooks):
    """A plain pair of hooks that counts what a packer may take."""

    def __init__(self):
        self.packed = 0
        super().__init__(self.pack, lambda t: t)

    def pack(self, tensor):
        base = tensor if tensor._base is None else tensor._base
        is_leaf = base.is_leaf and base.requires_grad
        self.packed += tensor.layout is torch.strided and tensor.numel() > 0 and not is_leaf
        return tensor.detach()


class Sweep:
    """What came out of all cases of one dtype."""

    def __init__(self, dtype, *kinds, most=MOST, name=""):
        self.cases = self.raising = self.packed = 0
        self.other_bits, self.unsteady, self.miscounted, self.kept = set(), set(), set(), set()
        hooks = [kind(min_bytes=0) for kind in kinds]
        for case in cases(dtype, most, name):
            self.cases += 1
            plain = run(case)
            self.raising += plain.error is not None
            counting = Counting()
            counted = run(case, counting)
            self.packed += counting.packed
            # Hooks that keep what they are given change nothing but the version check.
            if not same(plain, counted if plain.error is None else run(case)):
                self.unsteady.add(case.name)
                continue
            for packer in hooks:
                before = packer.packed
                outcome = run(case, packer)
                if not same(plain, outcome):
                    self.other_bits.add((case.name, outcome.error))
                if packer.packed - before != counting.packed:
                    self.miscounted.add((case.name, packer.packed - before, counting.packed))
                del outcome
                if packer.bytes_live:
                    gc.collect()
                if packer.bytes_live:
                    self.kept.add(case.name)
        self.unpacked = [packer.unpacked for packer in hooks]


# Calls and saved tensors, counted with PyTorch 2.13, less some room for versions with fewer samples.
LEAST = {torch.float32: (2000, 3000), torch.complex64: (300, 400), torch.bfloat16: (450, 600)}
LEAST_IN_FULL = {torch.float32: (14_000, 30_000), torch.complex64: (5000, 8500), torch.bfloat16: (11_000, 24_000)}


@pytest.mark.no_cover  # which would take as long again
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_operator_has_the_gradients_and_errors_that_it_has_without_hooks(dtype, one_thread):
    kinds = (offload_to_cpu, offload_to_disk)
    sweep = Sweep(dtype, *kinds, most=MOST if FULL or dtype is torch.float32 else 1)
    assert sweep.other_bits == set()
    assert sweep.miscounted == set()  # what might move has moved, operator by operator
    assert sweep.kept == set()  # and its bytes are gone
    assert sweep.unsteady == set()  # none has other gradients the second time, so the comparison means something
    least_cases, least_packed = (LEAST_IN_FULL if FULL else LEAST)[dtype]
    assert sweep.cases > least_cases and sweep.packed > least_packed
    assert all(unpacked > 0.8 * sweep.packed for unpacked in sweep.unpacked)
    assert sweep.raising >= 10  # among them samples that cannot be called in place


@pytest.mark.no_cover  # which would take as long again
@pytest.mark.filterwarnings("ignore")
def test_the_sweep_finds_the_operators_that_save_what_they_have_not_filled(monkeypatch, one_thread):
    assert Sweep(torch.float32, offload_to_cpu, most=None, name="relu").other_bits == set()
    monkeypatch.setattr("helpers._packing._may_be_unfilled", lambda tensor: False)
    sweep = Sweep(torch.float32, offload_to_cpu)
    assert {name for name, error in sweep.other_bits if error is None} == UNFILLED
    assert all(error is None for _, error in sweep.other_bits)


UNFILLED = {"nn.functional.rrelu", "nn.functional.rrelu, in place"}


class Flipped(saved_tensors_hooks):
    """Hooks with a fault: the last bit of what they bring back is another one."""

    def __init__(self):
        super().__init__(self.pack, lambda packed: packed)

    @staticmethod
    def pack(tensor):
        copy = tensor.detach().clone()
        if (tensor.is_floating_point() or tensor.is_complex()) and tensor.numel() and copy.is_contiguous():
            copy.view(-1).view(torch.uint8)[0] ^= 1
        return copy


class Dense(saved_tensors_hooks):
    """Hooks with a fault: what they bring back has the strides of a new tensor."""

    def __init__(self):
        super().__init__(lambda tensor: tensor.detach().clone(memory_format=torch.contiguous_format), lambda t: t)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("faulty, least", [(Flipped, 80), (Dense, 2)])
def test_the_sweep_can_fail(faulty, least, one_thread):
    found = {case.name for case in cases(torch.complex64, 1, "") if not same(run(case), run(case, faulty()))}
    assert len(found) > least


def test_one_comparison_tells_bits_strides_and_errors_apart():
    def of(*tensors, error=None):
        return Outcome(list(tensors), error)

    a = torch.tensor([[1.0, float("nan")], [0.0, 2.0]])
    assert same(of(a, None), of(a.clone(), None)) and same(of(error=(ValueError, "a")), of(error=(ValueError, "a")))
    negative_zero = a.clone()
    negative_zero[1, 0] = -0.0
    for other in (a + 1, a.t().contiguous().t(), a[:1], a.double(), negative_zero, None):
        assert not same(of(a), of(other))
    assert not same(of(a), of())
    for error in ((ValueError, "b"), (TypeError, "a")):
        assert not same(of(error=(ValueError, "a")), of(error=error)) and not same(of(a), of(error=error))
