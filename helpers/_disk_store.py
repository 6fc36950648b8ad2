"""Where do bytes go that leave memory for a disk? Into one file without a name, of which places are used again.

The file is gone from its folder before the first byte is written, so no crash and no kill leaves anything behind; the
system frees its blocks when the last descriptor closes. Reads and writes are positional, so threads need no order.
"""

from __future__ import annotations

import bisect
import ctypes
import errno
import os
import shutil
import tempfile
import threading
import weakref
from collections import deque
from pathlib import Path

import torch

from ._autograd import Unseen
from ._pieces import Piece, room_for

_PAGE = 4096
_NO_UNLINK = (
    "This platform does not take the name off a file that is open, so a crash would leave the file behind: use "
    "offload_to_cpu, or Linux or macOS."
)


class OffloadError(RuntimeError):
    """A tensor could not be written to the file, or what is in the file is not what was written.

    Attributes:
        folder: where the file is.
        bytes_wanted, bytes_free: what was to be written or read, and what the folder's file system has left.
    """

    def __init__(self, what: str, folder: Path, bytes_wanted: int, advice: str):
        self.folder, self.bytes_wanted, self.bytes_free = folder, bytes_wanted, _free_bytes(folder)
        free = "unknown" if self.bytes_free is None else f"{self.bytes_free:,} B"
        super().__init__(f"{what}\nFolder: {folder}; wanted: {bytes_wanted:,} B; free there: {free}.\n{advice}")


def _free_bytes(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


class Place:
    """Bytes in the file, for as long as somebody holds this object."""

    __slots__ = ("file", "offset", "nbytes", "__weakref__")

    def __init__(self, file: _File, offset: int, nbytes: int):
        self.file, self.offset, self.nbytes = file, offset, nbytes

    def __del__(self) -> None:
        self.file.drop(self.offset, self.nbytes)


class DiskStore:
    """Keeps copies of bytes in a file without a name.

    Args:
        folder: where; made by nobody here. None is the system's folder for temporary files.

    Raises:
        OffloadError: if the folder is missing, is no folder, cannot be written to, if no descriptor is left, or if the
            platform cannot take the name off an open file.
    """

    def __init__(self, folder: str | os.PathLike | None = None):
        self.folder = Path(tempfile.gettempdir() if folder is None else folder).absolute()
        self.file = _File(self.folder)
        _stores.add(self)

    def put(self, flat: torch.Tensor, piece: Piece, item: int) -> Place:
        """Writes a one-dimensional uint8 tensor; what comes back stands for the copy, and keeps it."""
        return self.file.write(flat.cpu())

    def bring(self, place: Place, piece: Piece, item: int, device: torch.device) -> tuple[torch.Tensor, int]:
        """(New memory on ``device``, uint8, with the bytes in it, where in it they start)."""
        near, shift = room_for(piece, item, device)
        with Unseen():
            into = near[shift : shift + piece.nbytes]
            read = into if device.type == "cpu" else torch.empty_like(into, device="cpu")
            place.file.read(place, read)
            if read is not into:
                into.copy_(read)
        return near, shift

    def same(self, place: Place, flat: torch.Tensor) -> bool:
        """Whether the bytes are still those of ``flat``."""
        stored = torch.empty(place.nbytes, dtype=torch.uint8)
        place.file.read(place, stored)
        return torch.equal(stored, flat.cpu())

    @property
    def live_bytes(self) -> int:
        """Bytes that somebody still holds a place of."""
        return self.file.tally.live

    @property
    def file_bytes(self) -> int:
        """How long the file is now."""
        return self.file.end

    def _before_fork(self) -> None:
        # Parent and child would share the descriptor, and each would write over what the other still reads.
        self.file.shared = True

    def _after_fork(self, *, child: bool) -> None:
        if child:
            self.file.lock = threading.Lock()  # another thread may have held it, and is not here to release it
        self.file = self.file.successor()


class _Tally:
    """Bytes that somebody holds a place of; one count for all files of a store."""

    live = 0


class _File:
    """One file: its descriptor, and which parts of it are in use."""

    def __init__(self, folder: Path, tally: _Tally | None = None):
        self.folder = folder
        self.tally = _Tally() if tally is None else tally
        self.shared = False
        self.end = 0
        self.free: list[tuple[int, int]] = []  # (offset, length), by offset, no two of them side by side
        self.lock = threading.Lock()
        self.dropped: deque[tuple[int, int]] = deque()  # by __del__, which may run while this thread holds the lock
        self.writing, self.changed_at = 0, 0  # how many threads are at it, and when the file changed last by their hand
        self.descriptor: int | None = None

    def successor(self) -> _File:
        """The file to go on with after a fork: another one, if this one has been written to."""
        if self.descriptor is None:
            self.shared = False
        return _File(self.folder, self.tally) if self.shared else self

    def open(self) -> None:
        """Opens the file, if it is not open, so that what is wrong with the folder is said early."""
        with self.lock:
            self._open()

    def _open(self) -> None:
        if self.descriptor is not None:
            return
        if not hasattr(os, "pwrite"):
            raise OffloadError("offload_to_disk needs positional reads and writes.", self.folder, 0, _NO_UNLINK)
        try:
            descriptor = _nameless(self.folder)
        except OSError as error:
            why, advice = _reason(error, self.folder)
            raise OffloadError(f"offload_to_disk cannot make a file: {why}.", self.folder, 0, advice) from error
        self.descriptor = descriptor
        # Not at exit: a number that is closed there may be another file's by the time the last graph is dropped.
        weakref.finalize(self, os.close, descriptor).atexit = False

    def write(self, flat: torch.Tensor) -> Place:
        nbytes = flat.numel()
        with self.lock:
            self._open()
            place = Place(self, self._take(nbytes), nbytes)
            self.tally.live += nbytes
            self.writing += 1
        try:
            _write_all(self.descriptor, flat, place.offset)
        except BaseException as error:
            del place  # else the traceback keeps it, and its room in the file
            if not isinstance(error, OSError):
                raise
            why, advice = _reason(error, self.folder)
            what = f"offload_to_disk could not write a saved tensor: {why}."
            raise OffloadError(what, self.folder, nbytes, advice) from error
        finally:
            with self.lock:
                self.writing -= 1
                self._changed_by_us()
            self.settle()
        return place

    def read(self, place: Place, into: torch.Tensor) -> None:
        again = "Its gradient cannot be computed: run forward again, with a folder that nobody else writes to."
        try:
            got = _read_all(self.descriptor, into, place.offset)
            changed_at = os.fstat(self.descriptor).st_mtime_ns
        except OSError as error:
            why, advice = _reason(error, self.folder)
            what = f"offload_to_disk could not read a saved tensor: {why}."
            raise OffloadError(what, self.folder, place.nbytes, advice) from error
        if got != place.nbytes:
            raise OffloadError(
                f"offload_to_disk's file was cut short by somebody else: {got:,} B of a saved tensor are left.",
                self.folder,
                place.nbytes,
                again,
            )
        with self.lock:
            if not self.writing and changed_at > self.changed_at:
                what = "offload_to_disk's file was written to by somebody else."
                raise OffloadError(what, self.folder, place.nbytes, again)

    def _changed_by_us(self) -> None:
        self.changed_at = max(self.changed_at, os.fstat(self.descriptor).st_mtime_ns)

    def drop(self, offset: int, nbytes: int) -> None:
        self.dropped.append((offset, nbytes))
        self.settle()

    def settle(self) -> None:
        """Takes back what was dropped; whoever holds the lock does it afterwards for all."""
        while self.dropped and self.lock.acquire(blocking=False):
            try:
                while self.dropped:
                    offset, nbytes = self.dropped.popleft()
                    self.tally.live -= nbytes
                    if not self.shared:
                        self._give_back(offset, _pages(nbytes))
            finally:
                self.lock.release()

    def _take(self, nbytes: int) -> int:
        length = _pages(nbytes)
        if not self.shared:
            for index, (offset, free) in enumerate(self.free):
                if free >= length:
                    if free == length:
                        del self.free[index]
                    else:
                        self.free[index] = offset + length, free - length
                    return offset
        offset = self.end
        self.end += length
        return offset

    def _give_back(self, offset: int, length: int) -> None:
        index = bisect.bisect(self.free, (offset,))
        if index < len(self.free) and offset + length == self.free[index][0]:
            length += self.free.pop(index)[1]
        if index and sum(self.free[index - 1]) == offset:
            index -= 1
            before = self.free.pop(index)
            offset, length = before[0], before[1] + length
        if offset + length == self.end:
            self.end = offset  # the file keeps its length: pages that are there are written faster than new ones
        else:
            self.free.insert(index, (offset, length))


def _pages(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE


def _nameless(folder: Path) -> int:
    """A descriptor of a new file in ``folder`` that no longer has a name, or never had one."""
    if hasattr(os, "O_TMPFILE"):
        try:
            return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):  # what old file systems answer
                raise
    descriptor, name = tempfile.mkstemp(prefix="tensor_memory_lab_", dir=folder)
    try:
        os.unlink(name)
    except BaseException:
        os.close(descriptor)
        os.unlink(name)
        raise
    return descriptor


def _reason(error: OSError, folder: Path) -> tuple[str, str]:
    """(Why, what to do about it)."""
    why = f"{error.strerror} ({errno.errorcode.get(error.errno, error.errno)})"
    advice = "Name another folder: offload_to_disk(folder=...)."
    if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
        advice = (
            "Free some room, name a folder on a larger disk (offload_to_disk(folder=...)), or keep more in memory "
            "(a larger min_bytes, or a policy). Parameters and gradients are as they were before this step."
        )
    elif error.errno in (errno.EMFILE, errno.ENFILE):
        advice = "This process has no descriptor left: close files, raise `ulimit -n`, or share one offload_to_disk."
    elif error.errno == errno.ENOENT:
        advice = "The folder does not exist: make it first, or name another (offload_to_disk(folder=...))."
    elif isinstance(error, PermissionError) and os.access(folder, os.W_OK):
        advice = _NO_UNLINK
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        advice = "The folder cannot be written to: name another (offload_to_disk(folder=...))."
    elif error.errno == errno.ENOTDIR:
        advice = "That is a file: name a folder (offload_to_disk(folder=...))."
    return why, advice


def _write_all(descriptor: int, flat: torch.Tensor, offset: int) -> None:
    """Writes every byte; a write may be short (2 GiB at a time is Linux's most), and is then gone on with."""
    view, done = _view(flat), 0
    while done < len(view):
        written = os.pwrite(descriptor, view[done:], offset + done)
        if not written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done += written


def _read_all(descriptor: int, into: torch.Tensor, offset: int) -> int:
    """Reads until ``into`` is full or the file ends; says how many bytes came."""
    view, done = _view(into), 0
    while done < len(view):
        got = os.preadv(descriptor, [view[done:]], offset + done)
        if not got:
            break
        done += got
    return done


def _view(flat: torch.Tensor) -> memoryview:
    """The tensor's own bytes. Not through NumPy, which makes a storage that it looked at once non-resizable."""
    return memoryview((ctypes.c_char * flat.numel()).from_address(flat.data_ptr())).cast("B")


_stores: weakref.WeakSet[DiskStore] = weakref.WeakSet()


def _before() -> None:
    for store in list(_stores):
        store._before_fork()


def _in_parent() -> None:
    for store in list(_stores):
        store._after_fork(child=False)


def _in_child() -> None:
    for store in list(_stores):
        store._after_fork(child=True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
