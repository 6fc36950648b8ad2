"""How many bytes live, when? `MemoryTracker` follows the storages of a thread; `measure_memory` answers for one call.

A storage is counted when an operator first returns a tensor over it, and counted off when PyTorch frees it: exact to
the boundaries between operators, and the same on CPU, CUDA and meta. Not seen are: what other threads allocate,
workspaces that an operator takes and frees within itself, buffers of compiled code, and memory that is not PyTorch's
own (NumPy's, say).
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ._autograd import saved_slots, storages_of
from ._source import Found, stack_lines
from ._timeline import ALLOC, FREE, PRECEDENCE, RESIZE, Alive, Event, Replay
from .display import round_bytes

_PARAMETERS, _STATE, _GRADIENTS, _SAVED = PRECEDENCE
_current_node = torch._C._current_autograd_node
_sequence_number = torch._C._autograd._get_sequence_nr
_keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph
# torch.tensor(...) makes its memory unseen and hands it to one of these
_FRESH = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift.default)

_COMPOSES, _EXCHANGES = 1, 2
_traits: dict[int, int] = {}  # by id: operators live as long as PyTorch, and their own hash is slow


def _traits_of(func: Any) -> int:
    """Whether ``func`` only composes other operators, and whether it may exchange or resize memory of an argument."""
    traits = 0
    if isinstance(func, torch._ops.OpOverload):
        schema = func._schema
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            traits |= _COMPOSES
        if schema.name.endswith(("::resize_", "::resize_as_", "::resize_as_sparse_", "::set_")) or any(
            a.kwarg_only and a.alias_info and a.alias_info.is_write for a in schema.arguments
        ):
            traits |= _EXCHANGES
    _traits[id(func)] = traits
    return traits


class _Known(weakref.ref):
    """What a tracker knows of one storage: a weak reference with a few numbers, so it keeps nothing alive.

    Attributes:
        address: of the StorageImpl, under which it is filed.
        number: of the storage, counted from 1 and never used again.
        counted: the bytes counted as live.
        outside: the bytes that were there before and belong to nobody who is tracked.
    """

    __slots__ = ("address", "number", "counted", "outside")


class MemoryTracker(TorchDispatchMode):
    """Follows live memory while its block runs.

    Use it to see when bytes come and go over a forward, a backward and an optimizer step, which line made the peak and
    what was alive there. To ask how much one call takes, `measure_memory` is shorter.

    Args:
        *tracked: what exists already and is to be counted; see `track`.
        lines: whether each event notes the reader's line of code.
        groups: whether gradients and saved activations are told apart from other memory.

    Attributes:
        live_bytes: bytes alive now: what is tracked, and all that was made since.
        start_bytes: bytes alive when the block began.
        peak_bytes: the most that was alive at once.
        operators: how many operators have run.
        phases: (name, first event, last event + 1) of each phase that has ended.
        listener: called after each event from the work itself; a live picture hangs here.

    Example:
        >>> model = torch.nn.Linear(1024, 1024, bias=False)
        >>> x = torch.ones(1024, 1024)
        >>> with MemoryTracker(model, x) as tracker:
        ...     with tracker.phase("forward"):
        ...         loss = model(x).sum()
        ...     with tracker.phase("backward"):
        ...         loss.backward()
        >>> tracker
        MemoryTracker: start 8.00 MiB, peak 12.00 MiB in backward, end 12.00 MiB
        >>> round_bytes(tracker.at_peak["parameters"])
        '4.00 MiB'

    Known limits: those at the top of the module. Trackers nest, each with its own count. A tracker serves one block.
    """

    def __init__(self, *tracked: Any, lines: bool = True, groups: bool = True):
        super().__init__()
        self.live_bytes = self.start_bytes = self.peak_bytes = self.operators = 0
        self.phases: list[tuple[str, int, int]] = []
        self.listener: Callable[[], None] | None = None
        self._lines, self._groups, self._follow = False, groups, lines or groups
        self._wants_lines = lines
        self._log: list[tuple] = []
        self._marks: list[tuple[int, int, str, int]] = []
        self._start = self._peak = 0  # how many entries the log had at the start, and at the peak
        self._state = "new"
        # Storages by the address of their StorageImpl. Addresses are reused at once, so `ref` is always compared too.
        self._storages: dict[int, _Known] = {}
        self._numbers = 0
        self._lock = threading.RLock()  # a storage may be freed in a thread of the autograd engine
        self._thread = threading.get_ident()
        self._phase_names: list[str] = [""]
        self._func: Any = None
        self._op_line: Found | None = None
        self._modules: list[weakref.ref] = []
        self._optimizers: list[weakref.ref] = []
        self._leaves: dict[int, weakref.ref] = {}
        self._hooks: list[Any] = []
        self._named: set[tuple[int, str]] = set()
        self._gradients: set[int] = set()  # numbers of the storages that are some leaf's .grad
        # Graph nodes by sequence number, from when an operator records one until its backward has run.
        self._sequence = 0
        self._node_lines: dict[int, Found | None] = {}
        self._node_events: dict[int, int] = {}
        self._node_saves: dict[int, list[int]] = {}
        self._running, self._running_keeps = -1, False
        self._results: deque[weakref.ref] = deque(maxlen=8)  # perhaps no operator takes them as an input any more
        self._cuda, self._cuda_built = False, torch.cuda.is_available()
        self.track(*tracked)

    # -- what existed before -------------------------------------------------------------------------------------------

    def track(self, *things: Any) -> MemoryTracker:
        """Counts what exists already: modules, optimizers, tensors, and lists, tuples, sets and dicts of these.

        A module comes with its parameters, buffers and gradients, an optimizer with its parameters and its state.

        Raises:
            TypeError: for anything else.
        """
        for thing in things:
            if isinstance(thing, torch.nn.Module):
                self._modules.append(weakref.ref(thing))
                self.track(*thing.parameters(), *thing.buffers())
            elif isinstance(thing, torch.optim.Optimizer):
                self._optimizers.append(weakref.ref(thing))
                self.track(*(group["params"] for group in thing.param_groups))
            elif isinstance(thing, torch.Tensor):
                if thing.is_leaf and thing.requires_grad:
                    self._watch_leaf(thing)
                self._count(thing)
            elif isinstance(thing, Mapping):
                self.track(*thing.values())
            elif isinstance(thing, (list, tuple, set, frozenset)):
                self.track(*thing)
            else:
                raise TypeError(
                    f"cannot track {type(thing).__name__}: pass modules, optimizers, tensors, or lists or dicts of them"
                )
        self._name_roles()
        return self

    def _watch_leaf(self, leaf: torch.Tensor) -> None:
        if id(leaf) in self._leaves and self._leaves[id(leaf)]() is leaf:
            return
        self._leaves[id(leaf)] = weakref.ref(leaf)
        if leaf.grad is not None:
            self._count(leaf.grad)
        if self._state == "running":
            self._hook_leaf(leaf)

    def _hook_leaf(self, leaf: torch.Tensor) -> None:
        if self._groups:
            self._hooks.append(leaf.register_post_accumulate_grad_hook(self._gradient_arrived))

    def _count(self, tensor: torch.Tensor) -> None:
        with self._lock:
            for storage in storages_of(tensor):
                known = self._find(storage)
                if known is not None:
                    known.outside = 0  # it was only seen so far; now it is asked for
                self._update(storage, known or self._file(storage, 0), None)

    # -- the block -----------------------------------------------------------------------------------------------------

    def __enter__(self) -> MemoryTracker:
        if self._state != "new":
            raise RuntimeError("this MemoryTracker has had its block: make a new one, each measures one block")
        self._state, self._lines = "running", self._wants_lines
        self.start_bytes = self.peak_bytes = self.live_bytes
        self._start = self._peak = len(self._log)
        self._sequence = _sequence_number()
        self._thread = threading.get_ident()
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()
        for leaf in _alive(self._leaves.values()):
            self._hook_leaf(leaf)
        _watch_resizes(self)
        return super().__enter__()

    def __exit__(self, *exc: Any) -> None:
        try:
            super().__exit__(*exc)
        finally:
            _unwatch_resizes(self)
            while self._hooks:
                self._hooks.pop().remove()
            self._settle()
            self._state, self._lines = "done", False
            with self._lock:  # from here on nothing is followed, so that the figures stay those of the block
                self._storages.clear()
            self._results.clear()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Names what runs inside, in the timeline and in pictures. Phases nest; the innermost names an event."""
        first = len(self._log)
        self._phase_names.append(name)
        try:
            yield
        finally:
            self._settle()
            self._phase_names.pop()
            self.phases.append((name, first - self._start, len(self._log) - self._start))

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        traits = _traits.get(id(func))
        if traits is None:
            traits = _traits_of(func)
        if traits:
            if traits & _COMPOSES:
                # Inference tensors bring compositions here whole. Their parts allocate, so each is run in our sight.
                with _Again(self):
                    out = func.decompose(*args, **(kwargs or {}))
                if out is not NotImplemented:
                    return out
            if traits & _EXCHANGES:
                self._see(args, kwargs or {})
        self._func = func
        recorded = self._follow and self._before(args)
        out = func(*args, **kwargs) if kwargs else func(*args)
        self.operators += 1
        if type(out) is torch.Tensor and out.layout is torch.strided:
            storage = out.untyped_storage()
            known = self._storages.get(storage._cdata)
            if known is None or known() is not storage or known.counted + known.outside != storage.nbytes():
                self._arrived(storage, args, kwargs, traits)
            if recorded:
                self._results.append(weakref.ref(out))
        elif out is not None:
            for tensor in tree_leaves(out):
                if isinstance(tensor, torch.Tensor):
                    for storage in storages_of(tensor):
                        self._arrived(storage, args, kwargs, traits)
                    if recorded:
                        self._results.append(weakref.ref(tensor))
        return out

    def _arrived(self, storage: torch.UntypedStorage, args: tuple, kwargs: dict | None, traits: int) -> None:
        """An operator returned a tensor over ``storage``: is it new, known, or of somebody who is not tracked?"""
        with self._lock:
            known = self._storages.get(storage._cdata)
            if known is None or known() is not storage:
                outside = 0
                if not storage.resizable() or (  # memory of NumPy and its like cannot be resized by PyTorch
                    not traits and self._func not in _FRESH and any(storage is s for s in _storages_in(args, kwargs))
                ):
                    outside = storage.nbytes()
                known = self._file(storage, outside)
            self._update(storage, known, self._func)

    def _see(self, args: tuple, kwargs: dict) -> None:
        """Files the inputs of an operator that may give them other memory, while they still have their old."""
        with self._lock:
            for storage in _storages_in(args, kwargs):
                if self._find(storage) is None:
                    self._file(storage, storage.nbytes())
            for thing in args:
                # A storage made in Python (as deepcopy does) has one owner; one that a tensor uses has more.
                if isinstance(thing, torch.UntypedStorage) and self._find(thing) is None:
                    used = torch._C._storage_Use_Count(thing._cdata) > 1
                    self._file(thing, thing.nbytes() if used else 0)

    # -- storages ------------------------------------------------------------------------------------------------------

    def _find(self, storage: torch.UntypedStorage) -> _Known | None:
        known = self._storages.get(storage._cdata)
        return known if known is not None and known() is storage else None

    def _file(self, storage: torch.UntypedStorage, outside: int) -> _Known:
        known = _Known(storage, self._freed)
        known.address = storage._cdata
        known.counted, known.outside = 0, outside
        self._numbers = known.number = self._numbers + 1
        self._storages[known.address] = known
        return known

    def _update(self, storage: torch.UntypedStorage, known: _Known, func: Any) -> None:
        counted = storage.nbytes() - known.outside
        delta = counted - known.counted
        if delta:
            known.counted = counted
            cuda = None
            if self._cuda_built and storage.device.type == "cuda":
                self._cuda = True
                cuda = torch.cuda.memory_allocated(storage.device), torch.cuda.memory_reserved(storage.device)
            self._event(ALLOC if delta == counted else RESIZE, func, delta, known, cuda)

    def _freed(self, known: _Known) -> None:
        with self._lock:
            if self._storages.get(known.address) is known:  # else the address has a new owner already
                del self._storages[known.address]
            if known.counted:
                delta, known.counted = -known.counted, 0
                self._event(FREE, self._func, delta, known, None)

    def _resized(self, storage: torch.UntypedStorage) -> None:
        with self._lock:
            known = self._find(storage)
            if known is not None:
                self._update(storage, known, "UntypedStorage.resize_")

    def _event(self, kind: str, func: Any, delta: int, known: _Known, cuda: tuple[int, int] | None) -> None:
        live = self.live_bytes = self.live_bytes + delta
        line = None
        if self._lines:
            # Between an operator's start and its result, its own line is known already.
            line = self._op_line if kind is not FREE and self._op_line is not None else self._line()
        self._log.append(
            (kind, self.operators, func, line, self._phase_names[-1], live, delta, known.number, known.counted, cuda)
        )
        if live > self.peak_bytes and self._state == "running":
            self.peak_bytes, self._peak = live, len(self._log)
        if self.listener is not None:
            self.listener()

    # -- lines and roles -----------------------------------------------------------------------------------------------

    def _line(self) -> Found | None:
        found, backward, outer = stack_lines(sys._getframe(2))
        if found is not None:
            return found  # also inside backward: a custom Function, or a function that a checkpoint runs again
        line = self._node_lines.get(self._running) if backward or _current_node() is not None else None
        if line is None and outer is None:  # backward on CUDA runs in a thread of its own, while its caller waits
            waiting = sys._current_frames().get(self._thread)
            found, _, outer = stack_lines(waiting) if waiting is not None else (None, False, None)
        return line or found or outer

    def _before(self, args: tuple) -> bool:
        """Follows autograd from outside, with no hook in its way. Returns whether it recorded a node for this operator.

        A node takes its sequence number just before its operator comes here, so the numbers tie operators to the nodes
        that run in backward. What a node saved is complete when the next operator takes its result as an input.
        """
        node = _current_node()
        running = -1 if node is None else node._sequence_nr()
        if running != self._running:
            self._leave_node()
            self._running, self._running_keeps = running, node is not None and _keeps_graph()
            if node is not None and self._groups:
                self._read_node(node)
        self._op_line = None
        sequence = _sequence_number()
        if sequence == self._sequence:
            return False
        self._sequence = sequence
        if self._lines:
            self._op_line = self._line()
            self._node_lines.setdefault(sequence - 1, self._op_line)
        if self._groups:
            self._node_events[sequence - 1] = len(self._log)
            for arg in args:
                if isinstance(arg, torch.Tensor):
                    if (node := arg.grad_fn) is not None:
                        self._read_node(node)
                elif isinstance(arg, (list, tuple)):
                    for part in arg:
                        if isinstance(part, torch.Tensor) and (node := part.grad_fn) is not None:
                            self._read_node(node)
        return True

    def _read_node(self, node: Any) -> None:
        """Notes, once, which storages a node keeps for backward; they count as saved from when it was recorded."""
        number = node._sequence_nr()
        if number in self._node_saves:
            return
        since = self._node_events.pop(number, 0)
        self._node_saves[number] = saved = []
        for _, slot in saved_slots(node):
            data = getattr(slot, "data", None)  # an older torch may not show it: then nothing is told apart
            if isinstance(data, torch.Tensor):  # under hooks it is what the pack hook made
                for storage in storages_of(data):
                    known = self._find(storage)
                    if known is not None and known.number not in saved:
                        saved.append(known.number)
                        self._marks.append((since, known.number, _SAVED, 1))

    def _leave_node(self) -> None:
        """The node that ran has released what it kept, unless the graph is retained."""
        if not self._running_keeps and self._running != -1:
            self._node_lines.pop(self._running, None)
            for number in self._node_saves.pop(self._running, ()):
                self._marks.append((len(self._log), number, _SAVED, -1))
        self._running = -1

    def _gradient_arrived(self, leaf: torch.Tensor) -> None:
        for storage in storages_of(leaf.grad) if leaf.grad is not None else ():
            known = self._find(storage)
            if known is not None and known.number not in self._gradients:
                self._gradients.add(known.number)
                self._marks.append((len(self._log), known.number, _GRADIENTS, 1))

    def _name_roles(self) -> None:
        """Says which storages serve as parameters, optimizer state and gradients at this moment."""
        for module in _alive(self._modules):
            self._name(module.parameters(), _PARAMETERS)
        for optimizer in _alive(self._optimizers):
            for group in optimizer.param_groups:
                self._name(group["params"], _PARAMETERS)
            state = [t for t in tree_leaves(list(optimizer.state.values())) if isinstance(t, torch.Tensor)]
            for tensor in state:
                self._count(tensor)
            self._name(state, _STATE)
        now = set()
        for leaf in _alive(self._leaves.values()):
            for storage in storages_of(leaf.grad) if leaf.grad is not None else ():
                if (known := self._find(storage)) is not None:
                    now.add(known.number)
        for numbers, step in ((now - self._gradients, 1), (self._gradients - now, -1)):
            self._marks += [(len(self._log), number, _GRADIENTS, step) for number in sorted(numbers)]
        self._gradients = now

    def _name(self, tensors: Iterable[torch.Tensor], role: str) -> None:
        """Parameters and optimizer state are what they are from birth, however late they are recognised."""
        for tensor in tensors:
            for storage in storages_of(tensor):
                known = self._find(storage)
                if known is not None and (known.number, role) not in self._named:
                    self._named.add((known.number, role))
                    self._marks.append((0, known.number, role, 1))

    def _settle(self) -> None:
        """Reads what can be read only between operators: what the last results' nodes keep, and who serves as what."""
        if self._groups and self._state == "running":
            if _current_node() is None:
                self._leave_node()
            for result in list(_alive(self._results)):
                if result.grad_fn is not None:
                    self._read_node(result.grad_fn)
            self._name_roles()

    # -- results -------------------------------------------------------------------------------------------------------

    def _replay(self) -> Replay:
        self._settle()
        return Replay(self._log, sorted(self._marks, key=lambda mark: mark[0]))

    @property
    def timeline(self) -> list[Event]:
        """Every change of the live memory since the block began, as `Event`; made anew at each call."""
        events = list(self._replay().events())[self._start :]
        return [event._replace(index=event.index - self._start) for event in events]

    @property
    def peak(self) -> Event | None:
        """The event that reached the peak; None when nothing rose above the start."""
        return self.timeline[self._peak - 1 - self._start] if self._peak > self._start else None

    @property
    def groups(self) -> dict[str, int]:
        """Group -> bytes alive now; after the block, at its end."""
        replay = self._replay()
        for _ in replay.events():
            pass
        return dict(replay.settled().totals)

    @property
    def at_peak(self) -> dict[str, int]:
        """Group -> bytes alive at the peak."""
        return dict(self._replay().state_after(self._peak - 1).totals)

    def alive_at(self, index: int) -> list[Alive]:
        """What is alive after event ``index`` of the timeline, largest first; -1 means before the first event."""
        count = len(self._log) - self._start
        if not -1 <= index < count:
            raise ValueError(f"there is no event {index}: this timeline has {count}, numbered from 0 (-1 is the start)")
        return self._replay().state_after(self._start + index).storages()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        from .live import draw_memory  # the drawer reads the recorder, so it cannot be imported before it

        return draw_memory(self)._repr_mimebundle_()

    def __repr__(self) -> str:
        peak = self.peak
        where = f" in {peak.phase}" if peak is not None and peak.phase else ""
        return (
            f"MemoryTracker: start {round_bytes(self.start_bytes)}, peak {round_bytes(self.peak_bytes)}{where}, "
            f"{'end' if self._state == 'done' else 'now'} {round_bytes(self.live_bytes)}"
        )


class _Again:
    """Puts a tracker back on PyTorch's stack of modes for the parts of a composition."""

    def __init__(self, tracker: MemoryTracker):
        self.tracker = tracker

    def __enter__(self) -> None:
        TorchDispatchMode.__enter__(self.tracker)

    def __exit__(self, *exc: Any) -> None:
        TorchDispatchMode.__exit__(self.tracker, *exc)


def _alive(refs: Iterable[weakref.ref]) -> Iterator[Any]:
    return (thing for ref in refs if (thing := ref()) is not None)


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


# `UntypedStorage.resize_` is no operator, so no dispatch mode sees it. It is wrapped while any tracker runs.
_watchers: list[MemoryTracker] = []


def _watch_resizes(tracker: MemoryTracker) -> None:
    if not _watchers:
        original = torch.UntypedStorage.resize_

        def resize_(self: torch.UntypedStorage, size: int) -> Any:
            result = original(self, size)
            for watcher in list(_watchers):
                watcher._resized(self)
            return result

        resize_.__doc__ = original.__doc__
        torch.UntypedStorage.resize_ = resize_
    _watchers.append(tracker)


def _unwatch_resizes(tracker: MemoryTracker) -> None:
    _watchers.remove(tracker)
    if not _watchers:
        del torch.UntypedStorage.resize_  # what was inherited shows through again


class Measurement:
    """What a call took; see `measure_memory`.

    Attributes:
        result: what the call returned, alive.
        retained_bytes: bytes more than before, with the result alive (negative when the call freed what it was given).
        peak_bytes: the most that was alive during the call, over what was there before.
        tracker: the `MemoryTracker`, with its timeline.
    """

    def __init__(self, result: Any, tracker: MemoryTracker, end: int):
        self.result, self.tracker = result, tracker
        self.retained_bytes = end - tracker.start_bytes
        self.peak_bytes = tracker.peak_bytes - tracker.start_bytes

    def __repr__(self) -> str:
        return f"retained {self.retained_bytes:,} B, peak {self.peak_bytes:,} B"


def measure_memory(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Measurement:
    """Calls ``fn(*args, **kwargs)`` and returns what it took: both figures relative to the start, the result alive.

    The peak counts from the start of this call, whatever ran before. Tensors and modules among the arguments are
    tracked, so that memory they lose or gain is counted. Garbage in cycles is collected before the end is read.

    Raises:
        TypeError: if ``fn`` cannot be called. What ``fn`` raises is passed on.

    Example:
        >>> x = torch.zeros(1000, 1000)
        >>> measure_memory(torch.relu, x), measure_memory(torch.relu_, x)
        (retained 4,000,000 B, peak 4,000,000 B, retained 0 B, peak 0 B)
    """
    if not callable(fn):
        raise TypeError(f"measure_memory calls what it measures, got {type(fn).__name__}: use measure_memory(fn, *args)")
    trackable = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)
    given = [a for a in tree_leaves((args, kwargs)) if isinstance(a, trackable)]
    tracker = MemoryTracker(*given, lines=False, groups=False)
    with tracker:
        result = fn(*args, **kwargs)
        gc.collect()
        end = tracker.live_bytes
    return Measurement(result, tracker, end)
