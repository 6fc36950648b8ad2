"""Which storages live, and how many bytes are they? The accounts of a `MemoryTracker`, and the log of every change."""

from __future__ import annotations

import _thread
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ._autograd import _PLAIN, storages_of
from ._history import History
from ._source import Spot
from ._timeline import ALLOC, FREE, RESIZE, Log, Replay

_NUMBERS = (int, float, bool)  # what arguments are that are no tensors, more often than not
_has_storage, _storage_id = torch._C._has_storage, torch._C._storage_id
ALLOCATOR = "cuda"  # the type of the devices whose caching allocator keeps figures of its own


class Known(weakref.ref):
    """What a ledger knows of one storage: a weak reference with a few numbers, so it keeps nothing alive.

    Attributes:
        address: of the StorageImpl, under which it is filed.
        number: of the storage, counted from 1 and never used again.
        counted: the bytes counted as live.
        outside: the bytes that were there before and belong to nobody who is tracked.
    """

    __slots__ = ("address", "counted", "number", "outside")


class Ledger:
    """Files storages by address, sums their bytes, and logs what changes; see `MemoryTracker` for the attributes.

    The log takes ten entries for each allocation, resize and free, about 300 bytes, for as long as the ledger is kept
    or until `_thin` takes some away. Nothing else here grows with the time that the work runs.
    """

    def __init__(self) -> None:
        self.live_bytes = self.start_bytes = self.peak_bytes = self.operators = 0
        self.listener: Callable[[], None] | None = None
        self._line: Callable[[], Spot | None] | None = None  # finds the line of an event, where lines are wanted
        self._op_line: Spot | None = None  # between an operator's start and its result, if known already
        self._func: Any = None
        # Of each [name, number of its first event, operator of that if noted]; a list tells it from its namesakes.
        self._phases_open: list[list[Any]] = []
        self._phase = ""  # the innermost of these
        self._borders: list[int] = []  # numbers of the first events behind the begin or the end of a phase
        self._log = Log()
        self._write = self._log.flat.extend
        self._events = 0  # how many entries the log has: to count is cheaper than to ask
        self._start = self._peak = 0  # how many entries the log had at the start, and at the peak
        self._full = float("inf")  # how many there may be before `_thin` is called
        self._history: History | None = None  # what it keeps of those that it took away
        self._followers: list[Callable[[], Replay]] = []  # live pictures, which read the log before it is thinned
        # By the address of the StorageImpl. Addresses are reused at once, so the reference is always asked too.
        self._storages: dict[int, Known] = {}
        self._numbers = 0
        self._on_free = self._freed  # once, not for each storage
        self._lock = threading.RLock()  # a storage may be freed in any thread
        self._writing = False
        self._late: deque[Known] = deque()
        self._has_allocator, self._allocator_seen = torch.cuda.is_available(), False

    def _find(self, storage: torch.UntypedStorage) -> Known | None:
        known = self._storages.get(storage._cdata)
        return known if known is not None and known() is storage else None

    def _numbers_of(self, tensor: torch.Tensor) -> list[int]:
        """The numbers of the filed storages under ``tensor``."""
        if type(tensor) in _PLAIN and tensor.layout is torch.strided and _has_storage(tensor):
            known = self._storages.get(_storage_id(tensor))  # without making a Python object of the storage
            return [] if known is None or known() is None else [known.number]
        return [known.number for storage in storages_of(tensor) if (known := self._find(storage)) is not None]

    def _count(self, tensor: torch.Tensor) -> None:
        """Counts a tensor that exists already, because its owner is tracked."""
        with self._lock:
            for storage in storages_of(tensor):
                known = self._find(storage)
                if known is not None:
                    known.outside = 0  # it was only seen so far; now it is asked for
                self._update(storage, known or self._file(storage, 0), None)

    def _see(self, args: tuple, kwargs: dict | None) -> None:
        """Files the inputs of an operator that may give them other memory, while they still have their old."""
        with self._lock:
            for storage in _storages_in(args, kwargs):
                if self._find(storage) is None:
                    self._file(storage, storage.nbytes())
            for thing in args:
                # A storage made in Python (deepcopy and torch.load do) comes here bare, before any tensor lies over it.
                if isinstance(thing, torch.UntypedStorage) and self._find(thing) is None:
                    borrowed = thing.device.type == "cpu" and thing.is_shared()
                    self._file(thing, thing.nbytes() if borrowed or _has_tensor(thing) else 0)

    def _arrived(self, storage: torch.UntypedStorage, args: tuple, kwargs: dict | None, is_new: bool) -> None:
        """An operator returned a tensor over ``storage``: is it new, known, or of somebody who is not tracked?

        Args:
            is_new: whether an unfiled storage is new even if an argument lies over it now.
        """
        with self._lock:
            known = self._storages.get(storage._cdata)
            if known is None or known() is not storage:
                if known is not None and known.counted:
                    self._freed(known)  # an interrupt came before `_freed` did
                known = self._file(storage, 0)
                # Memory of NumPy and its like cannot be resized by PyTorch.
                if not storage.resizable() or (not is_new and _has_argument(storage, args, kwargs)):
                    known.outside = storage.nbytes()
                    return
            self._update(storage, known, self._func)

    def _disregard(self, storage: torch.UntypedStorage) -> None:
        """Files a storage that claims bytes and holds none."""
        with self._lock:
            self._file(storage, storage.nbytes())

    def _resized(self, storage: torch.UntypedStorage) -> None:
        with self._lock:
            known = self._find(storage)
            if known is not None:
                self._update(storage, known, "UntypedStorage.resize_")

    def _border(self) -> int:
        """A phase begins or ends here. Returns the number that the next event gets."""
        here = self._events
        if self._full != float("inf") and (not self._borders or self._borders[-1] != here):
            self._borders.append(here)
        return here

    def _close(self) -> None:
        """Follows nothing from here on, so that the figures stay what they are."""
        with self._lock:
            for known in list(self._storages.values()):
                if known.counted and known() is None:
                    self._freed(known)  # an interrupt came before `_freed` did
            self._storages.clear()
            self._line = None

    def _file(self, storage: torch.UntypedStorage, outside: int) -> Known:
        known = Known(storage, self._on_free)
        known.address = address = storage._cdata
        known.counted, known.outside = 0, outside
        self._numbers = known.number = self._numbers + 1
        self._storages[address] = known
        return known

    def _update(self, storage: torch.UntypedStorage, known: Known, func: Any) -> None:
        nbytes = storage.nbytes()
        if known.outside > nbytes:  # somebody else's has shrunk: what it grows by afterwards is new
            known.outside = nbytes
        counted = nbytes - known.outside
        delta = counted - known.counted
        if delta:
            figures = None
            if self._has_allocator and storage.device.type == ALLOCATOR:
                figures = _allocator_figures(storage.device)
                self._allocator_seen = figures is not None
            self._event(ALLOC if delta == counted else RESIZE, func, delta, known, figures)

    def _freed(self, known: Known) -> None:
        try:
            with self._lock:
                if self._writing:  # the garbage collector came in the middle of another event, which has to stand first
                    self._late.append(known)
                    return
                if self._storages.get(known.address) is known:  # else the address has a new owner already
                    del self._storages[known.address]
                if known.counted:
                    self._event(FREE, self._func, -known.counted, known, None)
        except KeyboardInterrupt:
            self._freed(known)  # what had been done is not done again
            _interrupt_again()

    def _event(self, kind: str, func: Any, delta: int, known: Known, figures: tuple[int, int, int] | None) -> None:
        self._writing = True
        try:
            line = None
            if self._line is not None:
                line = self._op_line if kind is not FREE and self._op_line is not None else self._line()
            live, counted = self.live_bytes + delta, known.counted + delta
            entry = kind, self.operators, func, line, self._phase, live, delta, known.number, counted, figures
            # Python lets an interrupt in after a call: with the only one at their end, these are done all or none.
            self.live_bytes, known.counted = live, counted
            self._events += 1
            if live > self.peak_bytes:
                self.peak_bytes, self._peak = live, self._events
            self._write(entry)
            if self._events >= self._full:
                self._thin()
        finally:
            self._writing = False
        while self._late:
            self._freed(self._late.popleft())
        if self.listener is not None:
            self.listener()

    def _thin(self) -> None:
        """Makes room in the log; see `Recall`."""


def _interrupt_again() -> None:
    """Lets an interrupt come once more, a moment later: Python drops what is raised while something is freed."""

    def again() -> None:
        time.sleep(0.005)  # until the free is long done with
        _thread.interrupt_main()

    _thread.start_new_thread(again, ())  # `threading` would wait here until it runs, and could be interrupted so


def _has_argument(storage: torch.UntypedStorage, args: tuple, kwargs: dict | None) -> bool:
    """Whether an argument lies over ``storage``."""
    for thing in (*args, *kwargs.values()) if kwargs else args:
        kind = type(thing)
        if kind in _PLAIN and thing.layout is torch.strided and _has_storage(thing):
            if thing.untyped_storage() is storage:
                return True
        elif kind not in _NUMBERS and any(storage is other for other in _storages_in((thing,), None)):
            return True
    return False


def _storages_in(args: tuple, kwargs: dict | None) -> list[torch.UntypedStorage]:
    found: list[torch.UntypedStorage] = []
    for thing in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(thing, torch.Tensor):
            found += storages_of(thing)
        elif isinstance(thing, (list, tuple)):
            for part in thing:
                if isinstance(part, torch.Tensor):
                    found += storages_of(part)
    return found


# torch.compile must not look into the handler of a mode. PyTorch hides each behind a wrapper, whose first call imports
# the compiler, for a second or more, and whose every call costs microseconds. To mark the handler's code does the same.
try:
    from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
except ImportError:  # another version of PyTorch: then by the wrapper
    hide_from_compiler = None
else:

    def hide_from_compiler(handler: Callable) -> None:
        skip = _FrameAction.SKIP
        set_code_exec_strategy(handler.__code__, _FrameExecStrategy(skip, skip))  # its own frame, and those it calls


_owners: dict[bool, int] = {}  # inference mode or not -> owners of a bare storage that is on its way through a mode


class _CountOwners(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return hide_from_compiler is None

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        for arg in args:
            if isinstance(arg, torch.UntypedStorage):
                _owners[torch.is_inference_mode_enabled()] = torch._C._storage_Use_Count(arg._cdata)
        return func(*args, **(kwargs or {}))


if hide_from_compiler is not None:
    hide_from_compiler(_CountOwners.__torch_dispatch__)


def learn_owners() -> None:
    """Measures, once, what `_has_tensor` needs; to be called from outside any operator."""
    if not _owners:
        for inference in (False, True):
            with _disable_current_modes(), torch.inference_mode(inference), _CountOwners():
                torch.empty(0).set_(torch.UntypedStorage(0))


def _has_tensor(storage: torch.UntypedStorage) -> bool:
    """Whether a tensor lies over a bare storage that is on its way through a mode.

    PyTorch counts a storage's owners. The call itself adds some, a number that PyTorch may change and that was measured
    therefore, and one for each mode that it has passed, which the stack tells.
    """
    frame, passed = sys._getframe(), -1
    while frame is not None:
        passed += frame.f_code.co_name == "__torch_dispatch__"
        frame = frame.f_back
    return torch._C._storage_Use_Count(storage._cdata) > _owners[torch.is_inference_mode_enabled()] + passed


def _allocator_figures(device: torch.device) -> tuple[int, int, int] | None:
    """(allocated, reserved, most allocated) of the caching allocator; asked for in one call, as each takes long."""
    stats = torch.cuda.memory_stats_as_nested_dict(device)
    if not stats:  # before CUDA is initialised
        return None
    allocated = stats["allocated_bytes"]["all"]
    return allocated["current"], stats["reserved_bytes"]["all"]["current"], allocated["peak"]


# `UntypedStorage.resize_` is no operator, so no dispatch mode sees it. It is wrapped while any tracker runs.
_watchers: list[Ledger] = []
_before_us: list[Callable] = []  # what stood in its place, if it was not inherited


def watch_resizes(ledger: Ledger) -> None:
    if not _watchers:
        original = torch.UntypedStorage.resize_
        _before_us[:] = [vars(torch.UntypedStorage)["resize_"]] if "resize_" in vars(torch.UntypedStorage) else []

        def resize_(self: torch.UntypedStorage, size: int) -> Any:
            result = original(self, size)
            for watcher in list(_watchers):
                watcher._resized(self)
            return result

        resize_.__doc__ = original.__doc__
        torch.UntypedStorage.resize_ = resize_
    _watchers.append(ledger)


def unwatch_resizes(ledger: Ledger) -> None:
    if ledger not in _watchers:
        return
    _watchers.remove(ledger)
    if not _watchers:
        if _before_us:
            torch.UntypedStorage.resize_ = _before_us.pop()
        else:
            del torch.UntypedStorage.resize_  # what is inherited shows through again
