"""Where do bytes go that leave a device for the memory of the CPU?

From a CPU there is nowhere to go: the copy lies in the same memory, and is accounted as if it were far away. From a
CUDA device they go over a `CudaLink`.
"""

from __future__ import annotations

import threading
from collections import deque

import torch

from ._autograd import Unseen
from ._cuda_link import CudaLink
from ._pieces import Piece, room_for


class Place:
    """Bytes in the far memory, for as long as somebody holds this object."""

    __slots__ = ("store", "buffer", "nbytes", "__weakref__")

    def __init__(self, store: FarStore, buffer: torch.Tensor, nbytes: int):
        self.store, self.buffer, self.nbytes = store, buffer, nbytes

    def __del__(self) -> None:
        self.store.drop(self.nbytes)


class FarStore:
    """Keeps copies of bytes in the memory of the CPU.

    Args:
        pin_memory: whether copies of CUDA tensors lie in pinned memory; None is yes.
    """

    def __init__(self, pin_memory: bool | None = None):
        self.pin_memory = pin_memory
        self.live_bytes = 0
        self.from_cpu = False  # whether anything came from the memory that it went to
        self._lock = threading.Lock()
        self._dropped: deque[int] = deque()
        self._links: dict[torch.device, CudaLink] = {}

    def put(self, flat: torch.Tensor, piece: Piece, item: int) -> object:
        """Copies a one-dimensional uint8 tensor; what comes back stands for the copy, and keeps it."""
        with self._lock:
            self.live_bytes += piece.nbytes
        if flat.device.type != "cpu":
            return self._link(flat.device).send(flat, piece, item, dropped=self.drop)
        self.from_cpu = True
        try:
            return Place(self, flat.clone(), piece.nbytes)
        except BaseException:
            self.drop(piece.nbytes)
            raise

    def bring(self, place: object, piece: Piece, item: int, device: torch.device) -> tuple[torch.Tensor, int]:
        """(New memory on ``device``, uint8, with the bytes in it, where in it they start)."""
        if device.type != "cpu":
            return self._link(device).bring(place)
        near, shift = room_for(piece, item, device)
        with Unseen():
            near[shift : shift + piece.nbytes].copy_(place.buffer)
        return near, shift

    def same(self, place: object, flat: torch.Tensor) -> bool:
        """Whether the bytes are still those of ``flat``; taken for granted where the question costs a transfer."""
        return flat.device.type != "cpu" or torch.equal(place.buffer, flat)

    def drop(self, nbytes: int) -> None:
        """Called when a copy dies, from any thread and even while this one holds the lock."""
        self._dropped.append(nbytes)
        while self._dropped and self._lock.acquire(blocking=False):
            try:
                self.live_bytes -= self._dropped.popleft()
            except IndexError:  # another thread was faster
                pass
            finally:
                self._lock.release()

    def _link(self, device: torch.device) -> CudaLink:
        with self._lock:
            if device not in self._links:
                self._links[device] = CudaLink(device, pin_memory=self.pin_memory is not False)
            return self._links[device]
