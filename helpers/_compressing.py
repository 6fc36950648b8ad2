"""How much less memory do saved tensors take in a lower precision? The one packer that changes gradients.

Whole numbers of eight bits have a scale for each block of 256 elements, so that one large element spoils its
neighbours and nobody else: after Dettmers et al., 8-bit Optimizers via Block-wise Quantization
(https://arxiv.org/abs/2110.02861).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ._packing import Block, Packer
from ._pieces import Geometry, Piece, elements_of, piece_of, room_for, spread
from ._policy import Policy
from ._tally import Tally

DTYPES = (torch.bfloat16, torch.float16, torch.int8)
_BLOCK = 256
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
                return self._in_blocks(elements)
            values = elements.to(self.dtype)
            return Small(self.store, values, None) if bool(torch.isfinite(values).all()) else None

    def _in_blocks(self, elements: torch.Tensor) -> Small | None:
        blocks = torch.nn.functional.pad(elements, (0, -elements.numel() % _BLOCK)).view(-1, _BLOCK)
        scales = blocks.abs().amax(1, keepdim=True).float() / _LARGEST
        # The largest element comes back as 127 scales, which may be rounded up and out of the range of its dtype.
        if not bool(torch.isfinite((scales * _LARGEST).to(elements.dtype)).all()):
            return None
        # What is so small that its scale is 0 comes back as 0.
        steps = (blocks / torch.where(scales > 0, scales, 1)).round_().clamp_(-_LARGEST, _LARGEST)
        return Small(self.store, steps.to(torch.int8).view(-1)[: elements.numel()].clone(), scales)

    def _bring(self, block: Block, geometry: Geometry) -> tuple[torch.Tensor, int]:
        small = block.place
        with torch.no_grad():
            values = small.values
            if small.scales is not None:
                count = values.numel()
                padded = torch.nn.functional.pad(values, (0, -count % _BLOCK)).view(-1, _BLOCK)
                values = (padded * small.scales).view(-1)[:count]
            values = values.to(geometry.dtype)
            near, shift = room_for(block.piece, block.item, block.device)
            spread(values, near, shift, geometry)
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
