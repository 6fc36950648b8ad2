"""How much less memory do saved tensors take in a lower precision? The one packer that changes gradients.

Whole numbers of eight bits have a scale for each block of 256 elements, so that one large element spoils its
neighbours and nobody else: after Dettmers et al., 8-bit Optimizers via Block-wise Quantization
(https://arxiv.org/abs/2110.02861).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ._packing import Packer
from ._pieces import Geometry, Piece, elements_of, piece_of, room_for, seen_as, spread
from ._policy import Policy
from ._stand_ins import Block
from ._tally import Tally

DTYPES = (torch.bfloat16, torch.float16, torch.int8)
_BLOCK = 256
_AT_ONCE = 1024  # blocks: 1 MiB of float32 at work beside what is kept
_LARGEST = 127  # so that both signs have the same steps


class Small:
    """Elements in fewer bytes, for as long as somebody holds this object."""

    __slots__ = ("tally", "values", "scales", "nbytes", "__weakref__")

    def __init__(self, tally: Tally, values: torch.Tensor, scales: torch.Tensor | None):
        self.tally, self.values, self.scales = tally, values, scales
        self.nbytes = values.nbytes + (scales.nbytes if scales is not None else 0)
        tally.add(self.nbytes)

    def __del__(self) -> None:
        if hasattr(self, "nbytes"):
            self.tally.add(-self.nbytes)

    def into(self, elements: torch.Tensor) -> None:
        """Writes the elements, as near as they are known, into a one-dimensional tensor."""
        if self.scales is None:
            elements.copy_(self.values)
            return
        for blocks, rows in _some_blocks(self.values):
            part = elements[rows.start * _BLOCK : rows.start * _BLOCK + blocks.numel()]
            torch.mul(blocks, self.scales[rows], out=part.view(blocks.shape))


class Compressor(Packer):
    """Keeps floating-point tensors in ``dtype``; see `helpers.hooks.compress`."""

    def __init__(self, dtype: torch.dtype, model: nn.Module | None, min_bytes: int, policy: Policy):
        if dtype not in DTYPES:
            raise ValueError(f"compress keeps tensors as {', '.join(map(str, DTYPES))}; got {dtype!r}")
        super().__init__(Tally(), model, min_bytes, policy)
        self.dtype = dtype

    def _piece(self, tensor: torch.Tensor) -> Piece | None:
        if not tensor.is_floating_point() or tensor.element_size() <= self.dtype.itemsize:
            return None
        piece = piece_of(tensor, alone=True)
        # Elements that are seen many times over cannot be written one by one when they come back.
        return None if piece.whole else piece

    def _put(self, alias: torch.Tensor, piece: Piece) -> Small | None:
        with torch.no_grad():
            elements = elements_of(alias)
            if self.dtype is torch.int8:
                kept = _in_blocks(elements)
                return None if kept is None else Small(self.store, *kept)
            low, high = torch.aminmax(elements)  # one NaN, and both are NaN
            most = torch.finfo(self.dtype).max
            return Small(self.store, elements.to(self.dtype), None) if bool((-most <= low) & (high <= most)) else None

    def _bring(self, block: Block, geometry: Geometry) -> tuple[torch.Tensor, int]:
        small, piece = block.place, block.piece
        with torch.no_grad():
            near, shift = room_for(piece, block.item, block.device)
            if piece.span == piece.nbytes:  # without holes: straight to where they belong
                small.into(seen_as(near[shift : shift + piece.nbytes], geometry.dtype))
            else:
                elements = torch.empty_like(small.values, dtype=geometry.dtype)
                small.into(elements)
                spread(elements, near, shift, geometry)
        return near, shift

    def _size_of(self, block: Block) -> int:
        return block.place.nbytes

    def _same(self, block: Block, alias: torch.Tensor) -> bool | None:
        if alias.device.type != "cpu":
            return None
        other: Any = self._put(alias, block.piece)
        if other is None or not torch.equal(other.values, block.place.values):
            return False
        return other.scales is None or torch.equal(other.scales, block.place.scales)


def _some_blocks(elements: torch.Tensor) -> Iterator[tuple[torch.Tensor, slice]]:
    """(Some blocks of the elements, a row each, which rows they are): a few at a time, to work on little at once.

    The last row may be short; it then comes alone.
    """
    full = elements.numel() // _BLOCK
    for start in range(0, full, _AT_ONCE):
        rows = slice(start, min(start + _AT_ONCE, full))
        yield elements[rows.start * _BLOCK : rows.stop * _BLOCK].view(-1, _BLOCK), rows
    if elements.numel() > full * _BLOCK:
        yield elements[full * _BLOCK :].view(1, -1), slice(full, full + 1)


def _in_blocks(elements: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """(Whole numbers, a scale for each block of them), or None if an element is beyond all scales."""
    values = torch.empty_like(elements, dtype=torch.int8)
    scales = elements.new_empty((-(-elements.numel() // _BLOCK), 1), dtype=torch.float32)
    for blocks, rows in _some_blocks(elements):
        low, high = torch.aminmax(blocks, dim=1, keepdim=True)
        torch.div(torch.maximum(high, -low).float(), _LARGEST, out=scales[rows])
        # What is so small that its scale is 0 comes back as 0.
        steps = (blocks / torch.where(scales[rows] > 0, scales[rows], 1)).round_().clamp_(-_LARGEST, _LARGEST)
        values[rows.start * _BLOCK : rows.start * _BLOCK + blocks.numel()].copy_(steps.view(-1))
    # The largest element comes back as 127 scales, which may be rounded up and out of the range of its dtype.
    return (values, scales) if bool(torch.isfinite((scales * _LARGEST).to(elements.dtype)).all()) else None
