"""Where do bytes go that leave a device for the memory of the CPU?

From a CPU there is nowhere to go: the copy lies in the same memory, and is accounted as if it were far away. From a
CUDA device they go over a `CudaLink`.
"""

from __future__ import annotations

import torch

from ._autograd import Unseen
from ._cuda_link import CudaLink
from ._locks import new_lock
from ._pieces import Piece, room_for, same_bytes
from ._tally import Tally


class Place:
    """Bytes in the far memory, for as long as somebody holds this object."""

    __slots__ = ("tally", "buffer", "__weakref__")

    def __init__(self, tally: Tally, buffer: torch.Tensor):
        self.tally, self.buffer = tally, buffer
        tally.add(buffer.numel())

    def __del__(self) -> None:
        if hasattr(self, "buffer"):
            self.tally.add(-self.buffer.numel())


class FarStore:
    """Keeps copies of bytes in the memory of the CPU.

    Args:
        pin_memory: whether copies of CUDA tensors lie in pinned memory; None is yes.
    """

    def __init__(self, pin_memory: bool | None = None):
        if pin_memory is not None and not isinstance(pin_memory, bool):
            raise TypeError(f"pin_memory is True, False or None; got {pin_memory!r}")
        self.pin_memory = pin_memory
        self.tally = Tally()
        self.from_cpu = False  # whether anything came from the memory that it went to
        self._lock = new_lock()
        self._links: dict[torch.device, CudaLink] = {}

    @property
    def live_bytes(self) -> int:
        """Bytes that somebody still holds a place of."""
        return self.tally.live_bytes

    def put(self, flat: torch.Tensor, piece: Piece, item: int) -> object:
        """Copies a one-dimensional uint8 tensor; what comes back stands for the copy, and keeps it."""
        if flat.device.type != "cpu":
            return self._link(flat.device).send(flat, piece, item, self.tally)
        self.from_cpu = True
        return Place(self.tally, flat.clone())

    def bring(self, place: object, piece: Piece, item: int, device: torch.device) -> tuple[torch.Tensor, int]:
        """(New memory on ``device``, uint8, with the bytes in it, where in it they start)."""
        if device.type != "cpu":
            return self._link(device).bring(place)
        near, shift = room_for(piece, item, device)
        with Unseen():
            near[shift : shift + piece.nbytes].copy_(place.buffer)
        return near, shift

    def same(self, place: object, flat: torch.Tensor) -> bool | None:
        """Whether the bytes are those of ``flat`` still; None of a device, which would have to be waited for."""
        return same_bytes(place.buffer, flat) if flat.device.type == "cpu" else None

    def _link(self, device: torch.device) -> CudaLink:
        with self._lock:
            if device not in self._links:
                self._links[device] = CudaLink(device, pin_memory=self.pin_memory is not False)
            return self._links[device]
