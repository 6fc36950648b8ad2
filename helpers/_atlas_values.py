"""Does new memory hold the input's values? Distinct numbers are put in, and each is looked for in the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ._atlas_probe import Call, is_float, tensors_in

# Each is exact in float16 and in bfloat16, so that a change of precision alone is not taken for a computation. Signs
# are mixed and sizes run from 0.001 to 32,000, so that a clamp, a rounding or a relu shows.
_SIZES = torch.tensor([(1 + k / 128) * 2.0**e for e in range(-10, 15) for k in range(1, 128, 2)], dtype=torch.float64)
VALUES = torch.cat((_SIZES, -_SIZES)).sort().values


def numbers_in(call: Call) -> int:
    """How many numbers lie behind the floating-point inputs; 0 where their values cannot be exchanged freely."""
    floats = [t for t in tensors_in(call[:2]) if is_float(t)]
    if any(t.layout is not torch.strided or t.is_neg() for t in floats):
        return 0
    return sum(_count(t) for t in floats)


def _count(t: torch.Tensor) -> int:
    return t.untyped_storage().nbytes() // t.element_size() * (2 if t.is_complex() else 1)


def _refilled(call: Call, numbers: torch.Tensor) -> Call:
    """The call with the memory of its floating-point inputs filled from ``numbers``, every stride as it was."""
    at = 0

    def refill(t: torch.Tensor) -> torch.Tensor:
        nonlocal at
        if not is_float(t):
            return t.clone()
        count = _count(t)
        memory = numbers[at : at + count].to(t.dtype.to_real())
        at += count
        if t.is_complex():
            memory = torch.view_as_complex(memory.reshape(-1, 2))
        again = memory.as_strided(t.size(), t.stride(), t.storage_offset())
        return again.conj() if t.is_conj() else again

    return call.fresh(refill)


def _numbers(result: Any) -> torch.Tensor:
    flat = []
    for out in tensors_in(result):
        t = torch.as_tensor(out).detach()
        t = (t.to_dense() if t.layout is not torch.strided else t).resolve_conj().resolve_neg().reshape(-1)
        if t.is_complex():
            t = torch.view_as_real(t.cdouble())
            t = t[:, 0] if not t[:, 1].any() else t.reshape(-1)
        flat.append(t.double())
    return torch.cat(flat) if flat else torch.empty(0)


def carries_values(run: Callable[..., Any], call: Call) -> int | None:
    """How many numbers the output took unchanged from places of the input; 0 if any was computed, None if unknown.

    Distinct values are put into the inputs, so that an output number names the place it came from. Twice in different
    order: a copy takes from the same places whatever the values are, which `sort` and `max` do not. Then once all equal
    and once all NaN, where `unique_consecutive` and `nan_to_num` part from copies.
    """
    count = numbers_in(call)
    if not 1 < count <= len(VALUES):
        return None
    order = torch.Generator().manual_seed(count)
    places = []
    for _ in range(2):
        drawn = torch.randperm(len(VALUES), generator=order)
        got = _numbers(run(*(again := _refilled(call, VALUES[drawn[:count]])).args, **again.kwargs))
        rank = torch.searchsorted(VALUES, got).clamp_(max=len(VALUES) - 1)
        place = torch.argsort(drawn)[rank]
        if not got.numel() or not torch.equal(VALUES[rank], got) or bool((place >= count).any()):
            return 0
        places.append(place)
    if not torch.equal(*places):
        return 0
    for value in (1.5, float("nan")):
        again = _refilled(call, torch.full((count,), value, dtype=torch.float64))
        got = _numbers(run(*again.args, **again.kwargs))
        if not torch.equal(
            got.nan_to_num(nan=-1.0), torch.full_like(places[0], value, dtype=torch.float64).nan_to_num(nan=-1.0)
        ):
            return 0
    return len(places[0])
