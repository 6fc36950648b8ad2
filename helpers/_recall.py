"""What was alive when? The answers that a `MemoryTracker` gives from its log, and from what a long run keeps of it."""

from __future__ import annotations

from numbers import Integral

from ._history import History
from ._ledger import Ledger
from ._timeline import Alive, Event, Replay, event_of

FEWEST_EVENTS, MOST_EVENTS = 64, 100_000


def events_limit(max_events: int | None) -> int | None:
    """Returns ``max_events`` if a tracker can keep so many.

    Raises:
        TypeError: if it is neither a whole number nor None.
        ValueError: if it is too small.
    """
    if max_events is None:
        return None
    if not isinstance(max_events, Integral) or isinstance(max_events, bool):
        raise TypeError(
            f"max_events is a whole number or None, got {type(max_events).__name__}: as in max_events=10**6"
        )
    if max_events < FEWEST_EVENTS:
        raise ValueError(f"max_events={max_events} is too few to tell anything: pass {FEWEST_EVENTS} or more, or None")
    return int(max_events)


class Recall(Ledger):
    """A ledger whose log can be asked; see `MemoryTracker`."""

    def __init__(self, max_events: int | None) -> None:
        super().__init__()
        self._marks: list[tuple[int, int, str, int]] = []
        self.max_events = events_limit(max_events)
        self._begun = False  # whether the block has begun; what was logged before it tells what existed already
        if self.max_events is not None:
            self._recent = self.max_events // 2
            self._full = self._recent

    def _settle(self) -> None:
        """Learns what can be learnt only between operators."""

    def _thin(self) -> None:
        """Half of the events are kept whole, the newest; as many more stand for all the older ones."""
        if self._history is None:
            self._history = History(self._log, self._marks, self._recent)
        replays = [follow() for follow in self._followers]
        until = self._events - self._recent + max(self._recent // 8, 1)
        for phase in self._phases_open:
            if phase[2] is None and phase[1] < until:  # its picture needs the operator at which it began
                phase[2] = self._log[phase[1]][1]
        self._history.fold(until, self._start if self._begun else self._events, self._peak - 1, self._borders)
        for replay in replays:
            replay.marks_replaced()
        self._full = self._log.first + self._recent

    def _replay(self) -> Replay:
        """Plays what the log still holds; exact, as the marks are in order."""
        self._settle()
        marks = sorted(self._marks, key=lambda mark: mark[0])
        return Replay(self._log, marks) if self._history is None else self._history.state.branch(marks)

    def _totals_at_start(self) -> dict[str, int]:
        if self._history is not None and self._history.start is not None:
            return self._history.start[0]
        return dict(self._replay().state_after(self._start - 1).totals)

    def _following(self) -> Replay:
        """Plays what the log still holds and, called on again, what has come since; see `Replay` on late marks."""
        if self._history is None:
            return Replay(self._log, self._marks)
        replay = self._history.state.branch([])
        replay.marks = self._marks
        return replay

    def _highest(self) -> tuple[int, tuple] | None:
        """(number, entry) of the event that reached the peak so far; None when nothing rose above the start."""
        index = self._peak - 1
        if index < self._start:
            return None
        return index, self._log[index] if index >= self._log.first else self._history.peak[0][1]

    @property
    def timeline(self) -> list[Event]:
        """The changes of the live memory since the block began, as `Event`; made anew at each call.

        All of them, unless there were more than ``max_events``; see `dropped`.
        """
        rows = self._history.rows if self._history is not None else ()
        events = [event_of(index, entry, totals) for index, entry, totals, _ in rows]
        events += [event for event in self._replay().events() if event.index >= self._start]
        return [event._replace(index=event.index - self._start) for event in events]

    @property
    def dropped(self) -> int:
        """How many events `timeline` leaves out, as there were more than ``max_events``: never the peak."""
        return 0 if self._history is None else self._history.seen - len(self._history.rows)

    @property
    def peak(self) -> Event | None:
        """The event that reached the peak; None when nothing rose above the start."""
        index = self._peak - 1
        if index < self._start:
            return None
        if self._history is not None and self._history.peak is not None and self._history.peak[0][0] == index:
            event = event_of(*self._history.peak[0][:3])
        else:
            event = next(self._replay().state_after(index - 1).events())
        return event._replace(index=index - self._start)

    @property
    def groups(self) -> dict[str, int]:
        """Group -> bytes alive now; after the block, at its end."""
        return dict(self._replay().state_after(len(self._log) - 1).settled().totals)

    @property
    def at_peak(self) -> dict[str, int]:
        """Group -> bytes alive at the peak."""
        peak = self.peak
        return self._totals_at_start() if peak is None else dict(peak.groups)

    def alive_at(self, index: int) -> list[Alive]:
        """What is alive after event ``index`` of the timeline, largest first; -1 means before the first event."""
        count = len(self._log) - self._start
        if not isinstance(index, Integral):
            raise TypeError(f"an event has a number, got {type(index).__name__}: pass its index, as in alive_at(0)")
        if not -1 <= index < count:
            raise ValueError(f"there is no event {index}: this timeline has {count}, numbered from 0 (-1 is the start)")
        event, history = self._start + index, self._history
        if history is None or event >= history.state.next_event:
            return self._replay().state_after(event).storages()
        if index == -1 and history.start is not None:
            return history.start[1]
        if history.peak is not None and history.peak[0][0] == event:
            return history.peak[1]
        raise ValueError(
            f"what was alive at event {index:,} is no longer known: of {count:,} events it is kept for those from "
            f"{history.state.next_event - self._start:,} on, for the start and for the peak. Pass a larger max_events, "
            "or None to keep everything."
        )
