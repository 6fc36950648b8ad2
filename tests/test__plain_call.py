"""Operators called from inside a dispatch mode, against the same operators without one."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from helpers._plain_call import plain_call
from helpers.memory import MemoryTracker


class Bare(TorchDispatchMode):
    """The control: an ordinary mode."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Minding(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return plain_call(func, args, kwargs)


def inverse(mode):
    torch.manual_seed(0)
    matrix = torch.randn(4, 4, dtype=torch.complex64)
    with mode():
        found = torch.linalg.pinv(matrix)
    return (found @ matrix - torch.eye(4)).abs().max().item()


def version_after_step(mode):
    tensors = [torch.ones(3), torch.ones(2)]
    with mode():
        torch._foreach_add_(tensors, 1.0)
    return [tensor._version for tensor in tensors]


@pytest.mark.parametrize("mode", [Minding, MemoryTracker])
def test_a_complex_pseudo_inverse_stays_one(mode):
    assert inverse(mode) < 1e-4
    assert inverse(Bare) > 1  # the control: if it fails, PyTorch has mended it, and so may we


@pytest.mark.parametrize("mode", [Minding, MemoryTracker])
def test_a_foreach_step_is_counted(mode):
    assert version_after_step(mode) == [1, 1]
    assert version_after_step(Bare) == [0, 0]  # the control


def test_backward_notices_a_foreach_step_under_the_tracker():
    weight = torch.ones(3, requires_grad=True)
    with MemoryTracker(weight):
        loss = (weight * weight).sum()
        with torch.no_grad():
            torch._foreach_add_([weight], 1.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_inference_tensors_have_no_version_to_count():
    with torch.inference_mode():
        tensors = [torch.ones(2)]
        with Minding():
            torch._foreach_add_(tensors, 1.0)
    assert tensors[0].tolist() == [2, 2]
