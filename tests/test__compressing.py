"""How much is lost, and how many bytes are left, when saved tensors are kept in fewer bits."""

from __future__ import annotations

import math

import pytest
import torch

from helpers import compress

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def back(tensor, dtype):
    """What backward gets of ``tensor``, and the hooks."""
    seen = []

    class Saves(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, saved):
            ctx.save_for_backward(saved)
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            seen.extend(ctx.saved_tensors)
            return grad, None

    x = torch.ones(1, requires_grad=True)
    with compress(dtype, min_bytes=0) as hooks:
        y = Saves.apply(x, tensor)
    hooks.bytes_while_saved = hooks.bytes_live
    y.sum().backward()
    return seen[0], hooks


def spread_out(count=5000, seed=0):
    """Numbers of both signs and of many sizes."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.empty(count, dtype=torch.float64).uniform_(-12, 12, generator=generator)
    signs = torch.randint(0, 2, (count,), generator=generator) * 2 - 1
    return sizes.exp2() * signs


@pytest.mark.parametrize("dtype, bits", [(torch.bfloat16, 8), (torch.float16, 11)], ids=str)
@pytest.mark.parametrize("of", [torch.float32, torch.float64], ids=str)
def test_the_relative_error_is_half_a_unit_of_the_last_bit(dtype, bits, of):
    tensor = spread_out().to(of)
    again, hooks = back(tensor, dtype)
    error = ((again - tensor) / tensor).abs().max().item()
    assert 2**-bits / 2 < error <= 2**-bits  # the bound holds, and is not far from what happens
    assert again.dtype is of and hooks.bytes_written == hooks.bytes_while_saved == 10_000 and hooks.bytes_live == 0


@pytest.mark.parametrize("of", FLOATS, ids=str)
def test_int8_is_wrong_by_half_a_step_of_its_block(of):
    tensor = torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(of)
    tensor[300] = 1000.0  # spoils the block of elements 256 to 511, and no other
    again, hooks = back(tensor, torch.int8)
    largest = torch.stack([block.abs().max() for block in tensor.double().split(256)])
    errors = torch.stack([block.abs().max() for block in (again.double() - tensor.double()).split(256)])
    rounding = torch.finfo(of).eps  # of what comes back
    assert bool((errors <= largest / 254 * (1 + 1e-3) + largest * rounding).all())
    assert errors[1] > 1 > 20 * errors[[0, 2, 3]].max()
    assert hooks.bytes_written == 1000 + 4 * 4 and again.dtype is of  # a byte each, and a float32 for each block


def test_the_bound_would_fail_with_fewer_bits():
    tensor = torch.randn(1000)
    coarse = (tensor / tensor.abs().max() * 63).round() / 63 * tensor.abs().max()
    assert (coarse - tensor).abs().max() > tensor.abs().max() / 254


@pytest.mark.parametrize("size", [1, 255, 256, 257, 513])
def test_blocks_that_are_not_full(size):
    tensor = torch.linspace(-3, 5, size)
    again, hooks = back(tensor, torch.int8)
    assert (again - tensor).abs().max() <= 5 / 254 * 1.001
    assert hooks.bytes_written == size + 4 * math.ceil(size / 256)


@pytest.mark.parametrize(
    "value, stays_in",
    [
        (math.inf, (torch.bfloat16, torch.float16, torch.int8)),
        (-math.inf, (torch.bfloat16, torch.float16, torch.int8)),
        (math.nan, (torch.bfloat16, torch.float16, torch.int8)),
        (70_000.0, (torch.float16,)),
        (65_504.0, ()),
        (torch.finfo(torch.float32).max, (torch.bfloat16, torch.float16, torch.int8)),
        (0.0, ()),
        (-0.0, ()),
    ],
)
def test_what_cannot_be_represented_stays(value, stays_in):
    for dtype in (torch.bfloat16, torch.float16, torch.int8):
        tensor = torch.ones(3000)
        tensor[17] = value
        again, hooks = back(tensor, dtype)
        if dtype in stays_in:
            assert hooks.skipped_because == {"not to be represented": 1} and hooks.packed == hooks.bytes_packed == 0
            assert again.data_ptr() == tensor.data_ptr() and hooks.bytes_written == 0
        else:
            assert hooks.packed == 1 and bool(torch.isfinite(again).all())


@pytest.mark.parametrize("of", FLOATS, ids=str)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_number_of_a_dtype_comes_back_finite_or_stays(of, sign):
    largest = torch.finfo(of).max
    again, hooks = back(torch.full((300,), sign * largest, dtype=of), torch.int8)
    assert bool(torch.isfinite(again).all())
    assert hooks.packed == 1 or hooks.skipped_because.keys() <= {"not to be represented", "nothing to gain"}


def test_zeros_and_the_smallest_numbers():
    for tensor in (torch.zeros(600), torch.full((600,), 1e-45), torch.full((600,), 1e-40), torch.full((600,), 3e-38)):
        again, hooks = back(tensor, torch.int8)
        assert hooks.packed == 1
        assert (again.double() - tensor.double()).abs().max() <= tensor.double().max() / 254 + 1e-43


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8], ids=str)
def test_what_has_nothing_to_gain_stays(dtype):
    stays = [torch.arange(3000), torch.ones(3000, dtype=torch.bool), torch.ones(3000, dtype=torch.complex64)]
    stays.append(torch.ones(3000, dtype=torch.float8_e4m3fn))
    stays.append(torch.arange(3000.0).as_strided((1000, 8), (2, 1)))  # elements that are seen many times
    if dtype is not torch.int8:
        stays += [torch.ones(3000, dtype=torch.bfloat16), torch.ones(3000, dtype=torch.float16)]
    for tensor in stays:
        again, hooks = back(tensor, dtype)
        assert hooks.skipped_because == {"nothing to gain": 1} and again.data_ptr() == tensor.data_ptr()
    again, hooks = back(torch.arange(3000.0), dtype)  # the control
    assert hooks.packed == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8], ids=str)
def test_views_come_back_with_their_strides(dtype):
    base = torch.arange(1200.0) / 1200
    for view in (base.view(30, 40).t(), base[100:200], base[::3], base[7].expand(50), base.view(30, 40)[:, 3:5]):
        again, hooks = back(view, dtype)
        assert again.stride() == view.stride() and again.shape == view.shape
        assert (again - view).abs().max() < 2**-7
        own = len(set(torch.arange(1200).as_strided(view.size(), view.stride()).reshape(-1).tolist()))
        scales = 4 * math.ceil(own / 256) if dtype is torch.int8 else 0
        assert hooks.bytes_written == own * dtype.itemsize + scales


def test_gradients_change_by_as_much_as_was_lost():
    errors = {}
    for dtype in (torch.float16, torch.bfloat16, torch.int8):
        x = torch.linspace(0.5, 2, 3000, requires_grad=True)
        with compress(dtype):
            y = (x * 1).pow(2).sum()
        y.backward()
        errors[dtype] = (x.grad - 2 * x.detach()).abs().max().item()
    assert 0 < errors[torch.float16] < errors[torch.bfloat16] <= 4 * 2**-8 and 0 < errors[torch.int8] <= 4 / 254


def test_one_tensor_saved_twice_is_kept_once():
    x = torch.ones(3000, requires_grad=True)
    with compress() as hooks:
        h = x * 1
        y = (h * h).sum()
    assert (hooks.packed, hooks.stored, hooks.bytes_live) == (2, 1, 6000)
    y.backward()
    assert hooks.bytes_live == 0
