"""How many bytes live, when? `MemoryTracker` follows the storages of a thread; `measure_memory` answers for one call.

A storage is counted when an operator first returns a tensor over it, and counted off when PyTorch frees it: exact to
the boundaries between operators, and the same on CPU, CUDA and meta. Not seen are

- what other threads allocate, and workspaces that an operator takes and frees within itself;
- memory that is not a tensor's (yet): a bare ``UntypedStorage``, a generator's state, the insides of MKL-DNN tensors;
- memory that PyTorch only borrows: NumPy's, a mapped file's (if not by ``torch.load(mmap=True)``), another process's.

From `MemoryTracker.track` to the end of the block ``torch.utils.swap_tensors`` refuses tensors that are watched, for
weak references to them are kept: leaves that are tracked, and what the last operators returned.

Bytes of all devices are added up, those of meta tensors too, on which some of PyTorch (``torch.func.jvp``) works out
shapes. A function of ``torch.compile`` runs uncompiled under any dispatch mode, this one too, and stays uncompiled
until ``torch._dynamo.reset()``. And under any dispatch mode autograd adds gradients that meet at one node out of place,
so a peak that lies at such a moment of backward is higher by one of these gradients than without a tracker; and the
gradient of ``prod`` is worked out another way, which changes its last bits.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ._autograd import storages_of
from ._ledger import hide_from_compiler, learn_owners, unwatch_resizes, watch_resizes
from ._mode_stack import Again, take_off
from ._plain_call import plain_call
from ._recall import MOST_EVENTS, Recall
from ._roles import Roles
from ._traits import COMPOSES, EXCHANGES, FRESH, MIND, WRITES, known_traits, traits_of
from .display import round_bytes

_Tensor, _STRIDED = torch.Tensor, torch.strided  # each step to a name costs, once for every operator


class MemoryTracker(Recall, TorchDispatchMode):
    """Follows live memory while its block runs.

    Use it to see when bytes come and go over a forward, a backward and an optimizer step, which line made the peak and
    what was alive there. To ask how much one call takes, `measure_memory` is shorter.

    Args:
        *tracked: what exists already and is to be counted; see `track`.
        lines: whether each event notes the reader's line of code.
        groups: whether gradients and saved activations are told apart from other memory.
        max_events: how many changes of the memory are kept, about 50 MB for 100,000. Of more, the newest half is whole;
            as many rows stand for all that came before, with its highest moments, the peak and the borders of phases.
            None keeps everything.

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

    def __init__(self, *tracked: Any, lines: bool = True, groups: bool = True, max_events: int | None = MOST_EVENTS):
        Recall.__init__(self, max_events)
        TorchDispatchMode.__init__(self)
        self.phases: list[tuple[str, int, int]] = []
        self._spans: list[tuple[int, int]] = []  # of each of them the operators of its first and its last event
        self._lines, self._follow = lines, lines or groups
        self._roles: Roles | None = Roles(self, lines, groups)
        self._marks = self._roles.marks
        self._state = "new"
        self._at_borders: list[Callable[[], None]] = []  # live pictures, which draw here what they owe from a free
        self.track(*tracked)

    def track(self, *things: Any) -> MemoryTracker:
        """Counts what exists already: modules, optimizers, tensors, and lists, tuples, sets and dicts of these.

        A module comes with its parameters, buffers and gradients, an optimizer with its parameters and its state.

        Raises:
            TypeError: for anything else.
            RuntimeError: after the block, when nothing is followed any more.
        """
        if self._roles is None:
            raise RuntimeError("this MemoryTracker has had its block: track before it or inside it")
        for thing in things:
            self._track(thing)
        self._roles.name_all()
        return self

    def _track(self, thing: Any, around: tuple[Any, ...] = ()) -> None:
        if any(thing is outer for outer in around):
            return  # a list that holds itself holds nothing more
        parts: Iterable[Any] = ()
        if isinstance(thing, torch.nn.Module):
            self._roles.add_module(thing)
            parts = (*thing.parameters(), *thing.buffers())
        elif isinstance(thing, torch.optim.Optimizer):
            self._roles.add_optimizer(thing)
            parts = (group["params"] for group in thing.param_groups)
        elif isinstance(thing, torch.Tensor):
            if thing.is_leaf and thing.requires_grad:
                self._roles.add_leaf(thing)
            self._count(thing)
        elif isinstance(thing, Mapping):
            parts = thing.values()
        elif isinstance(thing, (list, tuple, set, frozenset)):
            parts = thing
        else:
            raise TypeError(
                f"cannot track {type(thing).__name__}: pass modules, optimizers, tensors, or lists or dicts of them"
            )
        for part in parts:
            self._track(part, (*around, thing))

    def __enter__(self) -> MemoryTracker:
        if self._state != "new":
            raise RuntimeError("this MemoryTracker has had its block: make a new one, each measures one block")
        if self._allocator_seen:
            torch.cuda.reset_peak_memory_stats()
        try:
            self._state = "running"
            self._line = self._roles.line if self._lines else None
            self.start_bytes = self.peak_bytes = self.live_bytes
            self._start = self._peak = len(self._log)
            self._begun = True
            learn_owners()
            self._roles.start()
            watch_resizes(self)
            return super().__enter__()
        except BaseException:
            take_off(self)
            unwatch_resizes(self)
            self._roles.stop()
            self._state, self._line = "new", None
            raise

    def __exit__(self, *exc: Any) -> None:
        if self._state != "running":
            when = "has had its block already" if self._state == "done" else "has not been entered"
            raise RuntimeError(
                f"this MemoryTracker {when}, so its block cannot end: enter and leave it once, by `with`"
            )
        try:
            if not take_off(self):
                raise RuntimeError(
                    "this MemoryTracker ends in another thread than it began in, or inside an operator: "
                    "enter and leave it in one thread, between operators, by `with`"
                )
        finally:
            unwatch_resizes(self)
            self._roles.settle()
            self._roles.stop()
            self._state, self._roles = "done", None
            self._close()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Names what runs inside, in the timeline and in pictures. Phases nest; the innermost names an event.

        Raises:
            TypeError: for a name that is not a string.
        """
        if not isinstance(name, str):
            raise TypeError(
                f"a phase is named by a string, got {type(name).__name__}: pass one, as in phase('forward')"
            )
        first = self._border()
        entry: list[Any] = [name, first, None]
        self._phases_open.append(entry)
        self._phase = name
        try:
            self._tell_border()
            yield
        finally:
            self._settle()
            # Not simply the last: a phase in a generator may end after one that was begun later.
            self._phases_open = [other for other in self._phases_open if other is not entry]
            self._phase = self._phases_open[-1][0] if self._phases_open else ""
            last = self._border()
            operators = (0, 0)
            if first < last:
                operators = self._begun_at(first, entry[2]), self._log[last - 1][1]
            self._spans.append(operators)
            self.phases.append((name, first - self._start, last - self._start))
        self._tell_border()

    def _begun_at(self, first: int, noted: int | None) -> int:
        """The operator of a phase's first event; it was noted if the log has let go of that."""
        return self._log[first][1] if noted is None else noted

    def _tell_border(self) -> None:
        for tell in list(self._at_borders):
            tell()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return hide_from_compiler is None

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        roles = self._roles
        if roles is None:  # its block ended where it could not be taken off the stack of modes
            return func(*args, **(kwargs or {}))
        traits = known_traits.get(id(func))
        if traits is None:
            traits = traits_of(func)
        if traits:
            if traits & COMPOSES:
                # Inference tensors bring compositions here whole. Their parts allocate, so each is run in our sight;
                # not by `decompose`, which prefers decompositions in Python that take other memory than the work.
                with Again(self):
                    return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **(kwargs or {}))
            if traits & EXCHANGES or (traits & WRITES and _is_sparse(args)):
                self._see(args, kwargs)
                traits |= FRESH  # what is still unfiled afterwards is new
        self._func = func
        recorded = self._follow and roles.before(args)
        if traits & MIND:
            out = plain_call(func, args, kwargs)
        else:
            out = func(*args, **kwargs) if kwargs else func(*args)
        self.operators += 1
        if type(out) is _Tensor and out.layout is _STRIDED:
            storage = out.untyped_storage()
            known = self._storages.get(storage._cdata)
            if known is None or known() is not storage or known.counted + known.outside != storage.nbytes():
                if out._is_zerotensor():  # claims bytes and holds none; forward-mode derivatives make such
                    self._disregard(storage)
                else:
                    self._arrived(storage, args, kwargs, bool(traits & FRESH))
            if recorded:
                roles.results.append(weakref.ref(out))
        elif out is not None:
            for part in out if isinstance(out, (tuple, list)) else (out,):
                for tensor in (part,) if isinstance(part, _Tensor) else _tensors_in(part):
                    for storage in storages_of(tensor):
                        self._arrived(storage, args, kwargs, bool(traits & FRESH))
                    if recorded:
                        roles.results.append(weakref.ref(tensor))
        return out

    def _settle(self) -> None:
        if self._roles is not None:
            self._roles.settle()

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


if hide_from_compiler is not None:
    hide_from_compiler(MemoryTracker.__torch_dispatch__)


def _tensors_in(part: Any) -> Iterable[torch.Tensor]:
    """What an operator returned that is no tensor itself: most often a number."""
    return filter(torch.is_tensor, tree_leaves(part)) if isinstance(part, (tuple, list, dict)) else ()


def _is_sparse(args: tuple) -> bool:
    return bool(args) and isinstance(args[0], torch.Tensor) and args[0].layout is not torch.strided


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
        raise TypeError(
            f"measure_memory calls what it measures, got {type(fn).__name__}: use measure_memory(fn, *args)"
        )
    trackable = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)
    # No list of what was found is kept here: `fn` may free what it takes out of a list it was given.
    tracker = MemoryTracker(
        *(a for a in tree_leaves((args, kwargs)) if isinstance(a, trackable)), lines=False, groups=False
    )
    with tracker:
        result = fn(*args, **kwargs)
        gc.collect()
        end = tracker.live_bytes
    return Measurement(result, tracker, end)
