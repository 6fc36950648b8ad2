"""Are these still the same bytes? A number for what a tensor holds, made without copying it whole.

The bytes are read as 64-bit lanes. Each lane ``x`` counts twice, as ``x * w`` and as ``(x >> 32) * v``, where ``w`` and
``v`` are odd and belong to its position, summed modulo 2**64. One changed lane always shows, since an odd number has
an inverse. The second sum is for the upper halves: without it two flips of the top bit, which is the sign of a float64,
would cancel. For weights that know nothing of the data, two tensors agree by chance about once in 2**32.

PyTorch's own ``torch.hash_tensor`` is an XOR of the lanes: any constant of even length gives 0, and order is not seen.
Hashes of hashlib need the bytes on the CPU in one piece, and blake2b is four times slower.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ._autograd import _PARTS, _PLAIN

# 256 KiB: with the scratch space of the second sum it stays in a core's cache, the fastest of 64 KiB to 1 MiB measured.
_LANES = 2**15
_MASK = 2**64 - 1
_STEP = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio: odd, and so invertible from chunk to chunk
_weights: dict[torch.device, tuple[Any, Any]] = {}


def fingerprint(tensor: torch.Tensor) -> Any:
    """A value that is equal for equal bytes: two integers and the flags that say how the bytes are read.

    Made for comparing a tensor with itself at a later time: memory order counts, not logical order, and elements that
    no index reaches (gaps between strides) are left out. Works for any dtype, layout and number of elements, and takes
    at most 512 KiB of scratch memory. On CUDA it waits for the device.

    Returns:
        None for a tensor whose bytes cannot be read: on the meta device, opaque, or a wrapper of ``torch.func``.

    Example:
        >>> x = torch.zeros(4)
        >>> before = fingerprint(x)
        >>> fingerprint(x) == before, fingerprint(x.neg_()) == before  # -0.0 == 0.0, but the bytes differ
        (True, False)
    """
    if type(tensor) not in _PLAIN and is_traceable_wrapper_subclass(tensor):
        return tuple(fingerprint(getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0])
    if tensor.layout is not torch.strided:
        return tuple(fingerprint(getattr(tensor, part)()) for part in _PARTS.get(tensor.layout, ())) or None
    if tensor.device.type == "meta" or tensor.is_nested or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return None
    if tensor._is_zerotensor():
        return "zero"
    flags = tensor.is_conj(), tensor.is_neg()
    sums = [0, 0]
    if tensor.numel():
        storage = tensor.untyped_storage()
        if not storage.nbytes():
            return "freed"  # storage().resize_(0) under a tensor, as sharding libraries do
        size, stride = tensor.size(), tensor.stride()
        # An expanded dimension shows the same bytes again.
        dims = [(s, n) for n, s in zip(size, stride) if n > 1 and s != 0]
        _add(storage, tensor.storage_offset(), sorted(dims, reverse=True), tensor.element_size(), tensor.device, sums)
    return *sums, flags


def _add(storage: Any, offset: int, dims: list[tuple[int, int]], width: int, device: Any, sums: list[int]) -> None:
    """Adds elements at ``offset`` of ``storage``: dimensions as (stride, length), largest stride first."""
    dense = 1
    for stride, length in reversed(dims):
        if stride != dense:
            break
        dense *= length
    else:
        raw = torch.empty(0, dtype=torch.uint8, device=device).set_(storage, offset * width, (dense * width,))
        return _add_bytes(raw, sums)
    elements = 1
    for _, length in dims:
        elements *= length
    if elements * width <= 8 * _LANES:
        raw = torch.empty(0, dtype=torch.uint8, device=device)
        size, strides = [length for _, length in dims], [stride * width for stride, _ in dims]
        raw.set_(storage, offset * width, (*size, width), (*strides, 1))
        return _add_bytes(raw.reshape(-1), sums)
    (stride, length), *rest = dims
    inner = elements // length
    rows = max(1, 8 * _LANES // (inner * width))  # as many as are gathered at once
    for first in range(0, length, rows):
        some = min(rows, length - first)
        part = [(stride, some), *rest] if some > 1 else rest
        _add(storage, offset + first * stride, part, width, device, sums)
    return None


def _add_bytes(raw: torch.Tensor, sums: list[int]) -> None:
    """Adds bytes that lie side by side."""
    total = raw.numel()
    whole = total // 8 * 8
    on_cpu = raw.device.type == "cpu"
    weights, others = _weights_on(raw.device)
    if whole:
        # Lanes must lie on multiples of eight bytes, so that the same bytes give the same sums wherever they lie.
        aligned = raw.storage_offset() % 8 == 0
        scratch = np.empty(min(whole // 8, _LANES), np.int64) if on_cpu else None
        for first in range(0, whole, 8 * _LANES):
            chunk = raw if total <= 8 * _LANES and whole == total else raw[first : min(first + 8 * _LANES, whole)]
            lanes = (chunk if aligned else chunk.clone()).view(torch.int64)
            count = lanes.numel()
            if on_cpu:  # NumPy's calls cost a third of PyTorch's, and most saved tensors are small
                lanes, upper = lanes.numpy(), scratch[:count]
                np.right_shift(lanes, 32, out=upper)
                _mix(sums, int(lanes.dot(weights[:count])), int(upper.dot(others[:count])))
            else:  # CUDA has no dot of integers
                _mix(
                    sums,
                    *torch.stack([(lanes * weights[:count]).sum(), ((lanes >> 32) * others[:count]).sum()]).tolist(),
                )
    if whole < total:
        tail = int.from_bytes(bytes(raw[whole:].tolist()), sys.byteorder)
        _mix(sums, tail * _STEP, (tail >> 32) * _STEP)
    _mix(sums, total, total)


def _mix(sums: list[int], first: int, second: int) -> None:
    sums[0] = (sums[0] * _STEP + first) & _MASK
    sums[1] = (sums[1] * _STEP + second) & _MASK


def _weights_on(device: torch.device) -> tuple[Any, Any]:
    """Two sets of odd 64-bit numbers, by splitmix64: the reader's random generators are left alone."""
    if device not in _weights:
        made = []
        for seed in (1, 2):
            z = (np.arange(_LANES, dtype=np.uint64) * 2 + seed) * _STEP
            for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
                z = (z ^ (z >> shift)) * np.uint64(factor)
            made.append((z | 1).view(np.int64))
        _weights[device] = tuple(made) if device.type == "cpu" else tuple(torch.from_numpy(w).to(device) for w in made)
    return _weights[device]
