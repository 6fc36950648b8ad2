"""What was alive at that moment? A slider over the timeline of a `MemoryTracker`, with a line in its picture."""

from __future__ import annotations

import html
from numbers import Integral
from typing import Any, NamedTuple

from ._memory_picture import memory_svg
from ._timeline import Alive, Event
from .controls import Playground
from .display import MAX_WIDTH, Picture, Table, exact_bytes, in_xml, round_bytes
from .live import brackets_of, curve_of, drawn_at, marker_of
from .memory import MemoryTracker

_LARGEST = 3  # storages that are named at each moment
_HEIGHT = 560  # px: the picture, the sentence and the table


class Moment(NamedTuple):
    """What is known of one event.

    Attributes:
        number: its place in the timeline, from 0.
        count: how many events the timeline holds.
        event: the `Event`, with what was alive by group.
        largest: the largest storages that were alive then; None where a long run no longer knows them.
    """

    number: int
    count: int
    event: Event
    largest: list[Alive] | None

    @property
    def sentence(self) -> str:
        """Operator, change, bytes, phase and line, in words."""
        event, size = self.event, round_bytes(abs(self.event.delta_bytes))
        happened = {
            "alloc": f"{event.op} takes {size}" if event.op else f"{size} that exist are tracked",
            "free": f"{size} are given back, after {event.op or 'no operator yet'}",
            "resize": f"a storage {'grows' if event.delta_bytes > 0 else 'shrinks'} by {size} in {event.op}",
        }[event.kind]
        where = f" in {event.phase}" if event.phase else ""
        line = f" The line: {event.line}" if event.line else ""
        return f"Event {self.number:,}{where}: {happened}; {round_bytes(event.live_bytes)} are live.{line}"

    @property
    def table(self) -> Table:
        """What was alive, to the byte; the bytes add up to those that were live."""
        rows = [[group, n] for group, n in self.event.groups.items() if n]
        return Table(["alive then", "bytes"], [*rows, ["all together", self.event.live_bytes]])

    def __repr__(self) -> str:
        return "\n".join([self.sentence, repr(self.table), *self._storages()])

    def _storages(self) -> list[str]:
        if self.largest is None:
            return ["Which storages these were is no longer known: the run has too many events."]
        places = "Largest", "2nd largest", "3rd largest"
        return [f"{place}: {storage}" for place, storage in zip(places, self.largest)]


def moment(tracker: MemoryTracker, number: int, events: list[Event] | None = None) -> Moment:
    """Returns what is known of the event at place ``number`` of ``tracker.timeline``; changes nothing.

    Args:
        events: the timeline, if it is there already; it takes long to make.
    """
    events = tracker.timeline if events is None else events
    event = events[number]
    try:
        largest = tracker.alive_at(event.index)[:_LARGEST]
    except ValueError:  # thinned
        largest = None
    return Moment(number, len(events), event, largest)


class _View:
    """A moment as it is seen: the picture with a line at it, and its words."""

    def __init__(self, seen: Moment, picture: Picture):
        self.seen, self.picture = seen, picture

    def __repr__(self) -> str:
        return repr(self.seen)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        words = "<br>".join(html.escape(in_xml(line)) for line in (self.seen.sentence, *self.seen._storages()))
        return {
            "text/html": f'{self.picture.html}<p style="margin:6px 0">{words}</p>{self.seen.table.html}',
            "text/plain": repr(self.seen),
        }


class Explorer(Playground):
    """The slider and what stands at it. Made by `explore_memory`; ``result`` is the `Moment`."""

    def at(self, event: int) -> Moment:
        """Returns the moment of ``event``; the slider stays where it is.

        Raises:
            TypeError: if it is no whole number.
            ValueError: if there is no such event.
        """
        if not isinstance(event, Integral) or isinstance(event, bool):
            raise TypeError(f"an event has a number, got {type(event).__name__}: pass it, as in at(0)")
        last = self.ranges["event"].greatest
        if not 0 <= event <= last:
            raise ValueError(f"there is no event {event}: pass a number from 0 to {last}")
        return self.body(event)

    @property
    def widgets(self) -> dict[str, Any]:
        fresh = self._widgets is None
        found = super().widgets
        if fresh:
            found["event"].continuous_update = True  # a moment is only looked up, so the line can follow the hand
            found["event"].layout.max_width = f"{MAX_WIDTH}px"  # there are many events, and the keys go one by one
        return found


def explore_memory(tracker: MemoryTracker) -> Explorer:
    """Goes through a run event by event: operator, line, bytes, and what was alive.

    Move the slider with the mouse, or with the arrow keys once it has the focus. It begins at the peak.

    Args:
        tracker: a run in which something happened; what comes later is not looked at.

    Returns:
        An `Explorer`; ``explorer.at(0)`` is the `Moment` of the first event. As the last value of a cell it shows its
        slider; the saved file keeps the moment of the peak.

    Raises:
        TypeError: if ``tracker`` is no `MemoryTracker`.
        ValueError: if nothing happened in its block.

    Example:
        >>> import torch
        >>> with MemoryTracker() as tracker:
        ...     kept = torch.zeros(1024)
        ...     kept = None
        >>> explore_memory(tracker).at(1).event.delta_bytes
        -4096
    """
    if not isinstance(tracker, MemoryTracker):
        raise TypeError(f"expected a MemoryTracker, got {type(tracker).__name__}: pass the tracker of a run")
    events = tracker.timeline
    if not events:
        raise ValueError("nothing was allocated or freed in this run: there is no moment to look at")
    curve, brackets, peak, marker = curve_of(tracker), brackets_of(tracker), tracker.peak, marker_of(tracker)
    most, operators = round_bytes(tracker.peak_bytes), tracker.operators  # now: the tracker may run on

    def show(now: Moment, before: Moment | None) -> _View:
        event = now.event
        change = f"{'+' if event.delta_bytes > 0 else ''}{round_bytes(event.delta_bytes)}"
        svg = memory_svg(
            curve,
            title=in_xml(f"Event {now.number:,}: {change} by {event.op or 'no operator'}"),
            figures=f"at the line {round_bytes(event.live_bytes)},  peak {most}",
            brackets=brackets,
            peak=marker,
            cursor=(drawn_at(event.kind, event.operator), event.live_bytes),
            operators=operators,
        )
        events_told = f"{now.count:,} event{'' if now.count == 1 else 's'}"
        words = f"Live memory of {events_told}, with a line at event {now.number:,}"
        return _View(now, Picture(svg, alt=f"{words}: {exact_bytes(event.live_bytes)} of {exact_bytes(curve.top)}"))

    at = 0 if peak is None else next(i for i, event in enumerate(events) if event.index == peak.index)
    return Explorer(lambda event: moment(tracker, event, events), show, {"event": (0, at, len(events) - 1)}, _HEIGHT)
