"""What was alive when? Plays back the log of a `MemoryTracker`, which is kept as bare tuples while the work runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from ._source import Place, line_at, place
from .display import GROUPS, exact_bytes

# What a storage is called when it is several things at once: the first of these that holds.
PRECEDENCE = ("parameters", "optimizer state", "gradients", "saved activations")
ALLOC, FREE, RESIZE = "alloc", "free", "resize"


class Log:
    """The events as they come: `FIELDS` of them each, kept flat in one list.

    A tuple for each would be one more object that Python's garbage collector goes through again and again; on small
    operators that costs more than to write the event down.

    Attributes:
        first: the number of the oldest entry that is still here; a long run lets go of the older ones.
    """

    __slots__ = ("first", "flat")

    FIELDS = ("kind", "operator", "func", "spot", "phase", "live", "delta", "storage", "nbytes", "cuda")
    _WIDTH = len(FIELDS)

    def __init__(self) -> None:
        self.flat: list[Any] = []
        self.first = 0

    def __len__(self) -> int:
        return self.first + len(self.flat) // self._WIDTH

    def __getitem__(self, index: int) -> tuple:
        at = (index - self.first) * self._WIDTH
        entry = self.flat[at : at + self._WIDTH] if at >= 0 else ()
        if not entry:
            raise IndexError(f"there is no entry {index}; the log has those from {self.first} to {len(self) - 1}")
        return tuple(entry)

    def forget(self, before: int) -> None:
        """Lets go of the entries before ``before``."""
        del self.flat[: (before - self.first) * self._WIDTH]
        self.first = before


class Event(NamedTuple):
    """One change of the live memory.

    Attributes:
        index: its number in the timeline, from 0.
        operator: how many operators had run.
        op: the operator that ran, as ``aten.relu``; for a free the one that ran last.
        kind: ``alloc``, ``free`` or ``resize``.
        phase: the innermost phase, or "".
        line: the reader's line, a `Place`, or None. In backward it is the line of the forward operator whose
            gradient is being computed.
        live_bytes: live after the event.
        delta_bytes: by how much it changed.
        groups: group -> live bytes after the event.
        allocated: the CUDA caching allocator's allocated bytes, or None off CUDA.
        reserved: its reserved bytes, or None.
        allocated_peak: the most it had allocated since the block began, which also knows what came and went inside one
            operator, or None.
    """

    index: int
    operator: int
    op: str
    kind: str
    phase: str
    line: Place | None
    live_bytes: int
    delta_bytes: int
    groups: dict[str, int]
    allocated: int | None = None
    reserved: int | None = None
    allocated_peak: int | None = None


class Alive(NamedTuple):
    """One storage that is alive at some event: who made it, where, how large it is and what it serves as."""

    op: str
    line: Place | None
    nbytes: int
    group: str

    def __str__(self) -> str:
        return f"{self.group}: {exact_bytes(self.nbytes)} from {self.op}" + (f" ({self.line})" if self.line else "")


def op_name(func: Any) -> str:
    """``aten.relu`` for ``torch.ops.aten.relu.default``: the overload says little to a reader."""
    return str(func).rsplit(".", 1)[0] if isinstance(func, torch._ops.OpOverload) else str(func or "")


def event_of(index: int, entry: tuple, totals: dict[str, int]) -> Event:
    """The entry of a log in words."""
    kind, operator, func, spot, phase, live, delta, _, _, cuda = entry
    line = place(line_at(spot))
    return Event(index, operator, op_name(func), kind, phase, line, live, delta, dict(totals), *(cuda or ()))


class Replay:
    """Runs the log of a tracker forward, event by event, and keeps which storage serves as what.

    Args:
        log: a `Log`, or a list of tuples of its `FIELDS`.
        marks: tuples (event number, storage number, group, +1 or -1): a storage began or ceased to serve as ``group``
            before the event of that number. In order of that number for an exact replay; a live picture passes the
            growing list itself, and a mark that comes late then counts from when it came.
    """

    def __init__(self, log: Log | list[tuple], marks: list[tuple]):
        self.log, self.marks = log, marks
        self.totals = dict.fromkeys(GROUPS, 0)
        self.alive: dict[int, tuple[int, str, tuple]] = {}  # storage number -> (nbytes, group, its first entry)
        self._roles: dict[int, dict[str, int]] = {}
        self.next_event = self._next_mark = 0

    def branch(self, marks: list[tuple]) -> Replay:
        """Returns another that goes on from here, with ``marks`` after those that are still to come."""
        other = Replay(self.log, self.marks[self._next_mark :] + marks)
        other.totals, other.alive, other.next_event = dict(self.totals), dict(self.alive), self.next_event
        other._roles = {storage: dict(roles) for storage, roles in self._roles.items()}
        return other

    def entries(self) -> Iterator[tuple[int, tuple]]:
        """Plays what is not played yet and yields each (number, entry); meanwhile `totals` are those after it."""
        while self.next_event < (end := len(self.log)):
            for index in range(self.next_event, end):
                entry = self.log[index]
                self._play(index, entry)
                yield index, entry

    def events(self) -> Iterator[Event]:
        """The same as `Event`, which takes longer: lines are counted and operators named."""
        for index, entry in self.entries():
            yield event_of(index, entry, self.totals)

    def state_after(self, index: int) -> Replay:
        """Plays up to and with event ``index``; then `totals` and `storages` tell what was alive."""
        while self.next_event <= index:
            self._play(self.next_event, self.log[self.next_event])
        return self

    def settled(self) -> Replay:
        """Applies what was learnt after the last event."""
        self._apply_marks(float("inf"))
        return self

    def marks_replaced(self) -> None:
        """All marks had been applied when `marks` was shortened: what stands there now is known already."""
        self._next_mark = len(self.marks)

    def storages(self) -> list[Alive]:
        """What is alive now, largest first."""
        found = []
        for nbytes, group, entry in self.alive.values():
            found.append(Alive(op_name(entry[2]) or "before the start", place(line_at(entry[3])), nbytes, group))
        return sorted(found, key=lambda a: -a.nbytes)

    def _play(self, index: int, entry: tuple) -> None:
        if self._next_mark < len(self.marks):
            self._apply_marks(index)
        kind, _, _, _, _, _, _, storage, nbytes, _ = entry
        _, group, first = self.alive.get(storage, (0, None, entry))
        self._remove(storage)
        self.next_event = index + 1
        if kind == FREE:
            self._roles.pop(storage, None)
        else:
            self._put(storage, nbytes, group or self._group(storage), first)

    def _apply_marks(self, before: float) -> None:
        while self._next_mark < len(self.marks) and self.marks[self._next_mark][0] <= before:
            _, storage, group, step = self.marks[self._next_mark]
            self._next_mark += 1
            if step < 0 and storage not in self._roles:
                continue  # it was freed before its node let go: what dead storages were is not collected
            roles = self._roles.setdefault(storage, {})
            roles[group] = roles.get(group, 0) + step
            if storage in self.alive:
                nbytes, _, first = self.alive[storage]
                self._remove(storage)
                self._put(storage, nbytes, self._group(storage), first)

    def _group(self, storage: int) -> str:
        roles = self._roles.get(storage)
        if not roles:
            return "other"
        return next((group for group in PRECEDENCE if roles.get(group, 0) > 0), "other")

    def _put(self, storage: int, nbytes: int, group: str, first: tuple) -> None:
        self.alive[storage] = nbytes, group, first
        self.totals[group] += nbytes

    def _remove(self, storage: int) -> None:
        if storage in self.alive:
            nbytes, group, _ = self.alive.pop(storage)
            self.totals[group] -= nbytes
