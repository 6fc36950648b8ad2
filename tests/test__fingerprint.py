"""A fingerprint changes with any byte, and with nothing else."""

from __future__ import annotations

import struct

import pytest
import torch

from helpers._fingerprint import fingerprint

DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.complex64, torch.complex128, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)


def random(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    size = torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 2 if dtype is torch.bool else 256, (*shape, size), dtype=torch.uint8)
    return raw.view(dtype).squeeze(-1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 1000, 70_001])
def test_any_changed_byte_shows(dtype, count):
    x = random(dtype, count)
    before = fingerprint(x)
    assert fingerprint(x) == before == fingerprint(x.clone())
    raw = x.view(torch.uint8)
    for place in {0, 1, raw.numel() // 2, raw.numel() - 1} & set(range(raw.numel())):
        old = int(raw[place])
        for new in (old ^ 1, old ^ 128, 255 - old):
            raw[place] = new
            assert fingerprint(x) != before, (place, new)
        raw[place] = old
    assert fingerprint(x) == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64], ids=str)
def test_constants_order_and_signs_of_zero_tell(dtype):
    prints = [fingerprint(torch.full((64,), value, dtype=dtype)) for value in (0.0, -0.0, 1.0, -1.0, 2.0)]
    assert len(set(prints)) == 5
    x = torch.arange(64).to(dtype)
    assert len({fingerprint(t) for t in (x, x.flip(0).clone(), x.roll(1), -x, x + 1)}) == 5


def test_two_signs_do_not_cancel():
    # The flip of a float64's sign is 2**63, and twice that is nothing modulo 2**64.
    x = torch.zeros(10, dtype=torch.float64)
    before = fingerprint(x)
    for i in range(10):
        for j in range(i):
            x[i] = x[j] = -0.0
            assert fingerprint(x) != before
            x[i] = x[j] = 0.0


def test_every_lane_turned_over_shows():
    x = random(torch.int64, 4096)
    assert fingerprint(x) != fingerprint(~x)


def test_payloads_of_nan_tell():
    quiet, other = (
        torch.frombuffer(bytearray(struct.pack("<I", bits)), dtype=torch.float32) for bits in (0x7FC00000, 0x7FC00001)
    )
    assert quiet.isnan() and other.isnan() and fingerprint(quiet) != fingerprint(other)


def test_conjugate_and_negative_bits_tell():
    x = torch.randn(4, dtype=torch.complex64)
    assert fingerprint(x.conj()) != fingerprint(x)
    assert fingerprint(x.conj()) == fingerprint(x.clone().conj())
    assert fingerprint(x.conj().imag) != fingerprint(x.imag)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x[:, ::2],
        lambda x: x[::3, 1:5],
        lambda x: x[5:6].expand(100, 300),
        lambda x: x[:, None, :, None],
        lambda x: x[3, 4],
        lambda x: x.as_strided((4, 5, 6), (7, 1, 50), 3),
        lambda x: x.diagonal(),
    ],
)
def test_views_see_their_own_elements_and_no_others(view):
    x = torch.randn(300, 300)
    seen = view(x)
    before = fingerprint(seen)
    assert fingerprint(view(x.clone())) == before
    mask = torch.zeros_like(x, dtype=torch.bool)
    view(mask).fill_(True)
    x[~mask] += 1
    assert fingerprint(seen) == before
    view(mask).fill_(False)
    first = (0,) * seen.dim()
    seen.select(0, 0) if seen.dim() else None
    target = seen[first] if seen.dim() else seen
    target += 1
    assert fingerprint(seen) != before


def test_large_views_with_gaps_are_read_in_parts():
    x = torch.randn(600, 700)
    seen = x[:, :699]
    before = fingerprint(seen)
    x[:, 699] += 1
    assert fingerprint(seen) == before
    x[599, 698] += 1
    assert fingerprint(seen) != before


def test_where_the_bytes_lie_does_not_matter():
    x = torch.randint(0, 256, (100_003,), dtype=torch.uint8)
    assert len({fingerprint(x[i : i + 100_000].clone()) == fingerprint(x[i : i + 100_000]) for i in range(4)}) == 1


def test_odd_tensors():
    assert fingerprint(torch.empty(0)) == fingerprint(torch.empty(0, 3))
    assert fingerprint(torch.tensor(1.0)) != fingerprint(torch.tensor(2.0))
    assert fingerprint(torch.empty(3, device="meta")) is None
    sparse = torch.eye(3).to_sparse()
    assert fingerprint(sparse) == fingerprint(sparse.clone()) != fingerprint(sparse * 2)
    csr = torch.eye(3).to_sparse_csr()
    assert fingerprint(csr) == fingerprint(csr.clone()) != fingerprint(csr * 2)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    assert fingerprint(nested) != fingerprint(nested * 2)
    freed = torch.ones(3)
    freed.untyped_storage().resize_(0)
    assert fingerprint(freed) == "freed"


def test_no_random_number_is_drawn():
    from helpers import _fingerprint

    _fingerprint._weights.clear()
    state = torch.get_rng_state()
    fingerprint(torch.ones(10))
    assert torch.equal(torch.get_rng_state(), state)
