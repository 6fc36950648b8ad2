"""Where do bytes go that leave memory for a disk? Into one file without a name, of which places are used again.

The file is gone from its folder before the first byte is written, so no crash and no kill leaves anything behind; the
system frees its blocks when the last descriptor closes. Reads and writes are positional, so threads need no order.
"""

from __future__ import annotations

import ctypes
import errno
import os
import tempfile
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path

import torch

from ._autograd import Unseen
from ._file_room import FileRoom
from ._locks import new_lock
from ._offload_error import NO_UNLINK, RUN_AGAIN, OffloadError, from_system
from ._pieces import Piece, room_for, same_bytes
from ._tally import Tally

_CHUNK = 1 << 18  # what is compared at once: it stays in a core's cache


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
        OffloadError: by `open`, if the folder is missing, is no folder, cannot be written to, if no descriptor is left,
            or if the platform cannot take the name off an open file.
    """

    def __init__(self, folder: str | os.PathLike | None = None):
        self.given_folder = folder
        self.folder = Path(tempfile.gettempdir() if folder is None else folder).absolute()
        self.tally = Tally()
        self.file = _File(self.folder, self.tally)
        _stores[id(self)] = self

    def open(self) -> None:
        """Opens the file, if it is not open, so that what is wrong with the folder is said early."""
        self._usable_file().open()

    def put(self, flat: torch.Tensor, piece: Piece, item: int) -> Place:
        """Writes a one-dimensional uint8 tensor; what comes back stands for the copy, and keeps it."""
        flat = flat.cpu()
        place = self._usable_file().write(flat)
        if place is None:  # somebody else was at the file: it is left to those who still hope to read it
            place = self._usable_file().write(flat)
        if place is None:
            what = "offload_to_disk's file is written to by somebody else all the time."
            raise OffloadError(what, self.folder, flat.numel(), RUN_AGAIN)
        return place

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

    def same(self, place: Place, flat: torch.Tensor) -> bool | None:
        """Whether the bytes are those of ``flat`` still; None of a device, which would have to be waited for."""
        if flat.device.type != "cpu":
            return None
        read = torch.empty(min(place.nbytes, _CHUNK), dtype=torch.uint8)
        for start in range(0, place.nbytes, _CHUNK):
            part = flat[start : start + _CHUNK]
            try:
                place.file.read(place, read[: part.numel()], start)
            except OffloadError:
                return False  # the one who needs them will hear of it
            if not same_bytes(read[: part.numel()], part):
                return False
        return True

    @property
    def live_bytes(self) -> int:
        """Bytes that somebody still holds a place of."""
        return self.tally.live_bytes

    @property
    def file_bytes(self) -> int:
        """How long the file is now."""
        return self.file.room.length

    def _usable_file(self) -> _File:
        file = self.file
        if file.spoiled:
            file = self.file = _File(self.folder, self.tally)
        return file

    def _before_fork(self) -> None:
        # Parent and child would share the descriptor, and each would write over what the other still reads.
        self.file.shared = True

    def _after_fork(self) -> None:
        if self.file.descriptor is None:
            self.file.shared = False
        else:
            self.file = _File(self.folder, self.tally)


class _File:
    """One file: its descriptor, and which parts of it are in use."""

    def __init__(self, folder: Path, tally: Tally):
        self.folder, self.tally = folder, tally  # one tally for all files of a store
        self.shared = False  # with another process: no place is used twice
        self.spoiled = ""  # what somebody else did to it; nothing in it can be relied on
        self.room = FileRoom()
        self.lock = new_lock()
        self.dropped: deque[tuple[int, int]] = deque()  # places whose room the next write takes back
        self.descriptor: int | None = None
        self.identity = 0, 0
        self.writers: set[object] = set()  # a token for each thread that is at it
        self.changed_at = 0  # when the file changed last by their hand
        self.length = 0  # what it is at least, by their hand

    def open(self) -> None:
        with self.lock:
            self._open()

    def _open(self) -> None:
        if self.descriptor is not None:
            return
        if not hasattr(os, "pwrite"):
            raise OffloadError("offload_to_disk needs positional reads and writes.", self.folder, 0, NO_UNLINK)
        try:
            descriptor = _nameless(self.folder)
        except OSError as error:
            raise from_system("offload_to_disk cannot make a file", error, self.folder, 0) from error
        # Not at exit: a number that is closed there may be another file's by the time the last graph is dropped.
        weakref.finalize(self, _close, descriptor, identity := _identity(os.fstat(descriptor))).atexit = False
        self.descriptor, self.identity = descriptor, identity
        self._changed_by_us()

    def write(self, flat: torch.Tensor) -> Place | None:
        """Writes a one-dimensional uint8 tensor to a place of its own; None if the file turns out to be spoiled."""
        nbytes = flat.numel()
        try:
            with self.lock:
                self._open()
                self._look()
                if self.spoiled:
                    return None
                self._take_back()
                place = Place(self, self.room.take(nbytes, only_new=self.shared), nbytes)
                self.tally.add(nbytes)
            token = object()
            try:
                with self.lock:
                    self.writers.add(token)
                _write_all(self.descriptor, flat, place.offset)
            except BaseException:
                del place  # else the traceback keeps it, and its room in the file
                raise
            finally:
                with self.lock:
                    self.writers.discard(token)
                    self._changed_by_us()
        except OSError as error:
            raise from_system("offload_to_disk could not write a saved tensor", error, self.folder, nbytes) from error
        return place

    def read(self, place: Place, into: torch.Tensor, start: int = 0) -> None:
        """Fills a one-dimensional uint8 tensor with what is in ``place`` from ``start`` on."""
        try:
            got = _read_all(self.descriptor, into, place.offset + start)
        except OSError as error:
            with self.lock:
                self._look()
            if not self.spoiled:
                what = "offload_to_disk could not read a saved tensor"
                raise from_system(what, error, self.folder, place.nbytes) from error
        else:
            with self.lock:
                self._look()
                if got != into.numel() and not self.spoiled:
                    self.spoiled = f"was cut short by somebody else: {got:,} B of a saved tensor are left"
        if self.spoiled:
            raise OffloadError(f"offload_to_disk's file {self.spoiled}.", self.folder, place.nbytes, RUN_AGAIN)

    def _look(self) -> None:
        """Notes whether somebody else was at the file. A write of ours would hide it, so this comes before each."""
        if self.spoiled:
            return
        try:
            found = os.fstat(self.descriptor)
        except OSError:
            found = None
        if found is None or _identity(found) != self.identity:
            self.spoiled = "was closed by somebody else, as os.closerange() does"
        elif found.st_size < self.length:
            self.spoiled = f"was cut short by somebody else: {found.st_size:,} B of {self.length:,} B are left"
        elif not self.writers and found.st_mtime_ns > self.changed_at:
            # Within one tick of the file system's clock, a few milliseconds, this cannot be told from our own write.
            self.spoiled = "was written to by somebody else"

    def _changed_by_us(self) -> None:
        found = os.fstat(self.descriptor)
        self.changed_at = max(self.changed_at, found.st_mtime_ns)
        self.length = max(self.length, found.st_size)

    def drop(self, offset: int, nbytes: int) -> None:
        """The place is nobody's any more. No lock is asked for: objects die at any moment, while one is held too."""
        self.tally.add(-nbytes)
        self.dropped.append((offset, nbytes))

    def _take_back(self) -> None:
        while self.dropped:
            offset, nbytes = self.dropped.popleft()
            if not self.shared:
                self.room.give_back(offset, nbytes)


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _close(descriptor: int, identity: tuple[int, int]) -> None:
    """Closes the file, unless somebody did, and the number is now another file's or nobody's."""
    try:
        if _identity(os.fstat(descriptor)) == identity:
            os.close(descriptor)
    except OSError:
        pass


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
    return _memory_view(flat.data_ptr(), flat.numel(), 0x200)  # PyBUF_WRITE


# A ctypes array would do, but makes a type for every length, which only the garbage collector frees.
_signature = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
_memory_view = _signature(("PyMemoryView_FromMemory", ctypes.pythonapi))


_stores: weakref.WeakValueDictionary[int, DiskStore] = weakref.WeakValueDictionary()


def _each_store(do: Callable[[DiskStore], None]) -> None:
    for ref in _stores.valuerefs():  # a list, which no other thread makes longer meanwhile
        if (store := ref()) is not None:
            do(store)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _each_store(DiskStore._before_fork),
        after_in_parent=lambda: _each_store(DiskStore._after_fork),
        after_in_child=lambda: _each_store(DiskStore._after_fork),
    )
