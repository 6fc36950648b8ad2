"""How do bytes cross between a CUDA device and the CPU without either waiting for the other?

Copies run on a stream of their own, into pinned buffers that are used again; when backward asks for one piece, the
piece before it is sent on its way. After NVIDIA's rules for asynchronous copies (CUDA C++ Programming Guide, "Overlap
of data transfer and kernel execution") and PyTorch's for memory that two streams use (`torch.Tensor.record_stream`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch

from ._autograd import Unseen
from ._locks import new_lock
from ._pieces import Piece, room_for
from ._tally import Tally

POOL_BYTES = 4 << 30  # pinned memory is lost to all other programs; what is beyond goes to pageable memory, and waits
_SMALLEST = 1 << 16


class PinnedPool:
    """Buffers in pinned memory, which take milliseconds to make and are therefore kept.

    Args:
        limit: bytes in all, in use and waiting.
        make: nbytes -> a one-dimensional uint8 tensor.
    """

    def __init__(self, limit: int, make: Callable[[int], torch.Tensor]):
        self.limit, self.make = limit, make
        self.total_bytes = 0
        self._waiting: dict[int, list[torch.Tensor]] = {}  # by size, a power of two
        self._lock = new_lock()

    def take(self, nbytes: int) -> torch.Tensor | None:
        """A buffer of at least ``nbytes``, or None where that would be beyond the limit."""
        size = max(_SMALLEST, 1 << (nbytes - 1).bit_length())
        with self._lock:
            if self._waiting.get(size):
                return self._waiting[size].pop()
            if self.total_bytes + size > self.limit:
                self._forget(self.total_bytes + size - self.limit)
            if self.total_bytes + size > self.limit:
                return None
            try:
                buffer = self.make(size)
            except RuntimeError:  # the machine has no more of it
                return None
            self.total_bytes += size
            return buffer

    def give_back(self, buffer: torch.Tensor) -> None:
        """The buffer is free for the next; no copy may still be on its way but on the stream that the next will use."""
        # A list's append is one step: this is called when objects die, which may be while this thread holds the lock.
        self._waiting.setdefault(buffer.numel(), []).append(buffer)

    def _forget(self, nbytes: int) -> None:
        """Lets waiting buffers of other sizes go, the largest first, until ``nbytes`` are free."""
        for size in sorted(self._waiting, reverse=True):
            while nbytes > 0 and self._waiting[size]:
                self._waiting[size].pop()
                self.total_bytes -= size
                nbytes -= size


class Sent:
    """Bytes of a CUDA device in the memory of the CPU, for as long as somebody holds this object."""

    __slots__ = ("link", "buffer", "pinned", "piece", "item", "before", "arriving", "tally", "__weakref__")

    def __del__(self) -> None:
        if self.pinned:
            self.link.pool.give_back(self.buffer)
        self.tally.add(-self.piece.nbytes)


class CudaLink:
    """The way between one CUDA device and the memory of the CPU.

    Args:
        device: the CUDA device.
        pin_memory: whether to use pinned buffers. Without them every copy waits.
        pool_bytes: of pinned memory, at most.
    """

    def __init__(self, device: torch.device, *, pin_memory: bool = True, pool_bytes: int = POOL_BYTES):
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.pool = None
        if pin_memory:
            self.pool = PinnedPool(pool_bytes, lambda n: torch.empty(n, dtype=torch.uint8, pin_memory=True))
        self._latest: weakref.ref[Sent] | None = None

    def send(self, flat: torch.Tensor, piece: Piece, item: int, tally: Tally) -> Sent:
        """Starts the copy of a one-dimensional uint8 tensor to the CPU; ``tally`` has its bytes while it lives."""
        sent = Sent()
        sent.link, sent.piece, sent.item, sent.tally = self, piece, item, tally
        sent.arriving = sent.buffer = None
        sent.pinned = False
        tally.add(piece.nbytes)  # and from here on `__del__` takes them off, whatever happens
        buffer = self.pool.take(piece.nbytes) if self.pool is not None else None
        if buffer is None:
            sent.buffer = flat.cpu()
        else:
            sent.buffer, sent.pinned = buffer, True
            self.stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self.stream):
                buffer[: piece.nbytes].copy_(flat, non_blocking=True)
            flat.record_stream(self.stream)  # its memory goes to nobody else before the copy has read it
        sent.before, self._latest = self._latest, weakref.ref(sent)
        return sent

    def bring(self, sent: Sent) -> tuple[torch.Tensor, int]:
        """(New memory on the device, uint8, which the current stream may read, where in it the bytes start)."""
        (near, shift), arrived = sent.arriving or self._start(sent)
        sent.arriving = None
        current = torch.cuda.current_stream(self.device)
        current.wait_event(arrived)
        near.record_stream(current)
        before = sent.before() if sent.before is not None else None
        if before is not None and before.arriving is None:
            before.arriving = self._start(before)  # what backward is likely to ask for next
        return near, shift

    def _start(self, sent: Sent) -> tuple:
        with torch.cuda.stream(self.stream):
            near, shift = room_for(sent.piece, sent.item, self.device)
            with Unseen():
                into = near[shift : shift + sent.piece.nbytes]
                into.copy_(sent.buffer[: sent.piece.nbytes], non_blocking=True)
            return (near, shift), self.stream.record_event()
