"""Which bytes does a strided tensor stand on, and how is the same tensor made from a copy of them?

The bits of a gradient may depend on the strides of what a kernel reads, and on how its address is aligned. Both come
back as they were.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import torch

_ALIGN = 64  # what PyTorch's allocator for CPUs gives, and what vector instructions ask for: c10/core/alignment.h


class Piece(NamedTuple):
    """What of a storage is kept for a tensor.

    Attributes:
        whole: whether it is the storage as it lies there, which other tensors over it can share; else the elements of
            this tensor alone, one after the other in the order in which they lie in memory.
        start, nbytes: where it starts in the storage, and how many bytes are kept.
        span: bytes from the first to the last element, holes counted: what memory the tensor needs when it is back.
        shift: how far the address of the first byte was past a multiple of 64.
    """

    whole: bool
    start: int
    nbytes: int
    span: int
    shift: int

    def as_stored(self) -> Piece:
        """The same bytes where they are kept, without holes."""
        return self if self.whole else self._replace(span=self.nbytes, shift=0)


class Geometry(NamedTuple):
    """How a tensor looks at a storage; ``start`` is in bytes."""

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    start: int
    conj: bool
    neg: bool


def geometry_of(tensor: torch.Tensor) -> Geometry:
    """How ``tensor``, a strided one, looks at its storage."""
    start = tensor.storage_offset() * tensor.element_size()
    return Geometry(tensor.dtype, tuple(tensor.size()), tensor.stride(), start, tensor.is_conj(), tensor.is_neg())


def piece_of(tensor: torch.Tensor, *, alone: bool = False) -> Piece:
    """What to keep of the storage under ``tensor``: all of it, unless the tensor stands on less than half of it.

    Args:
        tensor: strided, with at least one element.
        alone: whether only the tensor's own elements may be kept, whatever they are of the storage.
    """
    item, size, stride = tensor.element_size(), tensor.size(), tensor.stride()
    own, reach = item, item
    for length, step in zip(size, stride):
        if step:
            own *= length
            reach += (length - 1) * step * item
    total = tensor.untyped_storage().nbytes()
    start = tensor.storage_offset() * item
    address = tensor.untyped_storage().data_ptr()
    if not alone and 2 * own > total:
        return Piece(True, 0, total, total, address % _ALIGN)
    if own > reach or _overlaps(size, stride):  # sliding windows: the bytes under them, as they lie there
        return Piece(True, start, reach, reach, (address + start) % _ALIGN)
    return Piece(False, start, own, reach, (address + start) % _ALIGN)


def _overlaps(size: Any, stride: Any) -> bool:
    """Whether two elements may stand on the same memory, apart from dimensions that are expanded."""
    reach = 0
    for step, length in sorted((step, length) for length, step in zip(size, stride) if step and length > 1):
        if step <= reach:
            return True
        reach += (length - 1) * step
    return False


def bytes_of(tensor: torch.Tensor, piece: Piece) -> torch.Tensor:
    """The piece as a one-dimensional uint8 tensor: a view if the bytes lie side by side, else a copy."""
    if piece.whole:
        flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        return flat.set_(tensor.untyped_storage(), piece.start, (piece.nbytes,), (1,))
    elements = elements_of(tensor).contiguous()
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    start = elements.storage_offset() * elements.element_size()
    return flat.set_(elements.untyped_storage(), start, (piece.nbytes,), (1,))


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two one-dimensional uint8 tensors on the CPU are equal; PyTorch's own answer takes 16 times as long."""
    if a.numel() != b.numel():
        return False
    if _memcmp is None:
        return torch.equal(a, b)
    return _memcmp(a.data_ptr(), b.data_ptr(), a.numel()) == 0


try:
    _memcmp = ctypes.CDLL(None).memcmp
    _memcmp.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
except (OSError, TypeError, AttributeError):  # Windows has no library of that name
    _memcmp = None


def seen_as(flat: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A one-dimensional uint8 tensor, looked at as elements of ``dtype``."""
    start, count = flat.storage_offset() // dtype.itemsize, flat.numel() // dtype.itemsize
    return torch.empty(0, dtype=dtype, device=flat.device).set_(flat.untyped_storage(), start, (count,), (1,))


def elements_of(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as they lie in memory, each once, in one dimension; a view wherever there is one."""
    tensor = _plain_bits(tensor)
    size, stride = _in_memory_order(tensor.size(), tensor.stride())
    return torch.as_strided(tensor, size, stride, tensor.storage_offset()).reshape(-1)


def _plain_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory without the bits that say "conjugate" or "negative" when it is read."""
    if tensor.is_conj():
        tensor = tensor.conj()
    return torch._neg_view(tensor) if tensor.is_neg() else tensor


def _in_memory_order(size: Any, stride: Any) -> tuple[list[int], list[int]]:
    """Sizes and strides from the largest stride down, without the dimensions that are expanded."""
    order = sorted((n for n, step in enumerate(stride) if step), key=lambda n: -stride[n])
    return [size[n] for n in order], [stride[n] for n in order]


def room_for(piece: Piece, item: int, device: torch.device) -> tuple[torch.Tensor, int]:
    """(A new uint8 tensor with room for the tensor whose piece it is, where its first byte has to be).

    Args:
        item: bytes an element. A shift that is no multiple of it cannot be kept, and is dropped.
    """
    shift = piece.shift if piece.shift % item == 0 else 0
    return torch.empty(shift + piece.span, dtype=torch.uint8, device=device), shift


def laid_over(storage: torch.UntypedStorage, shift: int, piece: Piece, geometry: Geometry) -> torch.Tensor:
    """The tensor with its old geometry, over the memory in which its piece now lies."""
    item = geometry.dtype.itemsize
    base = torch.empty(0, dtype=geometry.dtype, device=storage.device)
    start = (shift + geometry.start - piece.start) // item
    base.set_(storage, start, geometry.size, geometry.stride)
    if geometry.conj:
        base = base.conj()
    return torch._neg_view(base) if geometry.neg else base


def spread(elements: torch.Tensor, near: torch.Tensor, shift: int, geometry: Geometry) -> None:
    """Puts elements, as `elements_of` gave them, where the old strides want them."""
    size, stride = _in_memory_order(geometry.size, geometry.stride)
    target = torch.empty(0, dtype=geometry.dtype, device=near.device)
    target.set_(near.untyped_storage(), shift // geometry.dtype.itemsize, size, stride)
    target.copy_(elements.view(size))
