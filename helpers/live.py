"""What does memory do while the cell runs? Draws a `MemoryTracker` as it moves, and leaves a finished picture."""

from __future__ import annotations

import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

from ._finding import comparison, finding, nested
from ._memory_phases import Bracket
from ._memory_picture import Curve, Marker, memory_svg
from ._timeline import FREE, Log, Replay, line_at, op_name, place
from .display import LiveOutput, Picture, exact_bytes, in_xml, round_bytes
from .memory import MemoryTracker

_SECONDS_A_FRAME = 0.1
_PAUSES_A_FRAME = 33  # at least so many times what a frame took passes before the next, however slow the machine


def brackets_of(tracker: MemoryTracker) -> list[Bracket]:
    """The phases of a run as operator numbers, outermost first; those still open end at the last operator."""
    running = [phase for phase in tracker._phases_open if phase[1] < tracker._events] if _goes_on(tracker) else []
    open_since = [first - tracker._start for _, first, _ in running]
    # Of the phases that have ended those lie inside an open one that began with it or later.
    ended = [
        Bracket(phase.name, *phase.operators, phase.depth + sum(first <= phase.first for first in open_since))
        for phase in nested(tracker)
    ]
    going = [
        Bracket(name, tracker._begun_at(first, noted), tracker.operators, depth)
        for depth, (name, first, noted) in enumerate(running)
    ]
    return sorted(ended + going, key=lambda bracket: bracket.depth) if going else ended


def _goes_on(tracker: MemoryTracker) -> bool:
    return tracker._state != "done"


def curve_of(tracker: MemoryTracker) -> Curve:
    """Live bytes by group of a whole run, from what existed before its first event on."""
    curve = _begun(tracker)
    _extend(curve, tracker._replay(), tracker._start)
    return curve


def _begun(tracker: MemoryTracker) -> Curve:
    """The start of a run and, of a long one, what is kept of the events that are no longer in the log."""
    curve = Curve()
    curve.add(0, tracker._totals_at_start())
    for _, entry, totals, _ in tracker._history.rows if tracker._history is not None else ():
        curve.add(drawn_at(*entry[:2]), totals, *(entry[9] or ())[:2])
    return curve


def _extend(curve: Curve, replay: Replay, start: int) -> None:
    for index, entry in replay.entries():
        if index >= start:
            curve.add(drawn_at(*entry[:2]), replay.totals, *(entry[9] or ())[:2])


def drawn_at(kind: str, operator: int) -> float:
    """Where over the operators an event is drawn: what is given back goes between the last operator and the next.

    At the same place as the operator a fall would have no width, and the picture say that two were always there.
    """
    return operator + 0.5 if kind == FREE else operator


def _check(before: Any, title: Any) -> None:
    if before is not None and not isinstance(before, MemoryTracker):
        raise TypeError(f"expected an earlier MemoryTracker, got {type(before).__name__}: pass before=tracker, or none")
    if title is not None and not isinstance(title, str):
        raise TypeError(f"a title is a string, got {type(title).__name__}: pass title='...', or none")


def draw_memory(tracker: MemoryTracker, *, before: MemoryTracker | None = None, title: str | None = None) -> Picture:
    """Draws a run: bands of live bytes over operators, phases, and the peak with the line of code that made it.

    Args:
        tracker: the run, finished or still going on.
        before: an earlier run, laid over as an outline; the difference of the peaks is written out.
        title: the finding in one sentence, if you know better than the picture does.

    Returns:
        A `Picture`; its ``data`` are the curve, the phases and the peak `Event`.

    Raises:
        TypeError: if ``tracker`` or ``before`` is no `MemoryTracker`, or ``title`` no string.

    Example:
        >>> import torch
        >>> with MemoryTracker() as tracker:
        ...     kept = torch.zeros(1024).exp()
        >>> draw_memory(tracker)  # doctest: +ELLIPSIS
        The peak is 8.00 KiB, 8.00 KiB over the start. ...
    """
    if not isinstance(tracker, MemoryTracker):
        raise TypeError(f"expected a MemoryTracker, got {type(tracker).__name__}: pass the tracker of a run")
    _check(before, title)
    return _drawn(tracker, before, title, "now" if _goes_on(tracker) else "end")


def _drawn(tracker: MemoryTracker, before: MemoryTracker | None, title: str | None, until: str) -> Picture:
    curve, peak = curve_of(tracker), tracker.peak
    old = curve_of(before) if before is not None else None
    heading = title or (finding(tracker) if before is None else comparison(tracker, before))
    figures = (
        f"start {round_bytes(tracker.start_bytes)},  peak {round_bytes(tracker.peak_bytes)},  "
        f"{until} {round_bytes(tracker.live_bytes)}"
    )
    if before is not None:
        change = tracker.peak_bytes - before.peak_bytes
        figures += f",  {'+' if change > 0 else ''}{round_bytes(change)} at the peak against the run before"
    figures += _thinned(tracker)
    marker = marker_of(tracker)
    brackets = brackets_of(tracker)
    operators = max(run.operators for run in (tracker, before) if run is not None)
    svg = memory_svg(
        curve, title=heading, figures=figures, brackets=brackets, peak=marker, before=old, operators=operators
    )
    return Picture(svg, alt=in_xml(_in_words(tracker, heading, figures, marker)), data={"curve": curve, "peak": peak})


def marker_of(tracker: MemoryTracker, when: str = "peak {}") -> Marker | None:
    """The peak with its bytes, its operator and the reader's line; None when nothing rose above the start."""
    highest = tracker._highest()
    if highest is None or tracker._state == "new":
        return None
    _, (_, operator, func, spot, *_) = highest
    line, maker = place(line_at(spot)), op_name(func) or "counted by track"
    words = f"{when.format(round_bytes(tracker.peak_bytes))}: {maker}" + (f", {line}" if line else "")
    return Marker(operator, tracker.peak_bytes, words)


def _thinned(tracker: MemoryTracker) -> str:
    """What a reader has to know of a long run: how much of it is drawn."""
    events, dropped = len(tracker._log) - tracker._start, tracker.dropped
    return f",  drawn from the highest {events - dropped:,} of {events:,} events" if dropped else ""


def _in_words(tracker: MemoryTracker, heading: str, figures: str, marker: Marker | None) -> str:
    at_peak = ", ".join(f"{group} {exact_bytes(n)}" for group, n in tracker.at_peak.items() if n)
    words = f"{heading}. Live memory over {_count(tracker.operators)}: {' '.join(figures.split())}."
    if marker is not None:
        words += f" {marker.text[0].upper()}{marker.text[1:]}."
    return f"{words} Alive at the peak: {at_peak or 'nothing'}."


def _count(operators: int) -> str:
    return f"{operators:,} operator{'' if operators == 1 else 's'}"


class LiveMemoryPlot:
    """Draws a running `MemoryTracker` under the cell, about ten times a second, and leaves a finished picture.

    Frames are drawn by the work itself, between two operators, never by another thread, so they also move where a
    thread's drawings are not shown (Colab), and a frame never tells of a moment that was not. What is freed shows with
    the next memory that is taken, or where a phase begins or ends. Interrupting the kernel
    leaves the picture of what had run; an exception of yours passes through. A frame that cannot be drawn is the last
    one: your work goes on, and a warning tells of it after the block.

    A plain script shows nothing while it runs: read ``plot.picture.alt`` afterwards, or save ``plot.picture.svg``.

    Args:
        tracker: a `MemoryTracker`, entered before.
        title: see `draw_memory`.
        before: see `draw_memory`.

    Attributes:
        frames: how many frames were drawn while the work ran.
        picture: the finished `Picture`, after the block; None before.
        error: what a frame raised, after which none was drawn any more; None when all were drawn.

    Raises:
        TypeError: if ``tracker`` or ``before`` is no `MemoryTracker`, or ``title`` no string.
        RuntimeError: at the start of the block, if the tracker does not run or the plot has been entered before.

    Example:
        >>> import torch
        >>> with MemoryTracker() as tracker, LiveMemoryPlot(tracker) as plot:
        ...     kept = torch.zeros(1024)
        >>> plot.picture.alt.startswith("The peak is 4.00 KiB")
        True
    """

    def __init__(self, tracker: MemoryTracker, *, title: str | None = None, before: MemoryTracker | None = None):
        if not isinstance(tracker, MemoryTracker):
            raise TypeError(
                f"expected a MemoryTracker, got {type(tracker).__name__}: "
                "with MemoryTracker(model) as tracker, LiveMemoryPlot(tracker): ..."
            )
        _check(before, title)
        self.tracker, self.title, self.before = tracker, title, before
        self.picture: Picture | None = None
        self.error: Exception | None = None
        self._output = LiveOutput(png=True)
        self._curve = Curve()
        self._replay: Replay | None = None
        self._ended: Counter[str] = Counter()  # how many phases of each name have ended, of those seen so far
        self._outer: list[tuple[int, Bracket]] = []  # the outermost of these, each with its first event
        self._due = self._took = 0.0  # when the next frame is due, and how long the last one took
        self._owed = False  # a frame was due when something was freed
        self._thread: int | None = None  # the thread that entered, and draws
        self._previous: Callable[[], None] | None = None

    @property
    def frames(self) -> int:
        return self._output.frames

    def __enter__(self) -> LiveMemoryPlot:
        if self.tracker._state != "running":
            state = "has had its block: make a new one" if self.tracker._state == "done" else "does not run yet"
            raise RuntimeError(
                f"this MemoryTracker {state}. Enter tracker and plot together: "
                "with MemoryTracker(...) as tracker, LiveMemoryPlot(tracker): ..."
            )
        if self._thread is not None:
            raise RuntimeError(
                "this LiveMemoryPlot has been entered before: make a new one for each block, several may draw one "
                "tracker: with LiveMemoryPlot(tracker): ..."
            )
        self._thread = threading.get_ident()
        self._previous, self.tracker.listener = self.tracker.listener, self._event
        try:
            self._curve, self._replay = _begun(self.tracker), self.tracker._following()
            self.tracker._followers.append(self._catch_up)
            self.tracker._at_borders.append(self._border)
            self._frame()
        except BaseException:
            self._let_go()
            self._thread = None
            raise
        return self

    def __exit__(self, kind: Any = None, under_way: BaseException | None = None, traceback: Any = None) -> None:
        self._let_go()
        try:
            # The end of the plot's block: that of the tracker is most often the next thing to come.
            self.picture = _drawn(self.tracker, self.before, self.title, "end")
            self._output.finish(self.picture)
        except Exception as failed:
            if under_way is None:
                raise
            under_way.add_note(f"and the picture of its memory could not be drawn: {failed!r}")
        if self.error is not None:
            told = f"the live picture stopped moving, as a frame could not be drawn: {self.error!r}"
            if under_way is None:
                warnings.warn(told, RuntimeWarning, stacklevel=2)
            else:
                under_way.add_note(told)

    def _let_go(self) -> None:
        self._due = float("inf")
        tracker = self.tracker
        for told, mine in ((tracker._followers, self._catch_up), (tracker._at_borders, self._border)):
            if mine in told:
                told.remove(mine)
        if tracker.listener == self._event:
            tracker.listener = self._previous
            return
        # Another hangs over this one: a plot takes it out of its chain, anything else goes on calling it.
        plot = getattr(tracker.listener, "__self__", None)
        while isinstance(plot, LiveMemoryPlot):
            if plot._previous == self._event:
                plot._previous = self._previous
                return
            plot = getattr(plot._previous, "__self__", None)

    def _event(self) -> None:
        if self._previous is not None:
            self._previous()
        if time.monotonic() >= self._due:
            if self.tracker._log.flat[-Log._WIDTH] is FREE:
                # Python calls on a free from where an exception cannot get out: an interrupt would be lost in a frame.
                self._owed = True
            else:
                self._draw()

    def _border(self) -> None:
        if self._owed and time.monotonic() >= self._due:
            self._draw()

    def _draw(self) -> None:
        if threading.get_ident() != self._thread:
            return
        self._owed = False
        try:
            self._frame()
        except Exception as error:  # the work that is measured is not to fail by its picture
            self.error, self._due = error, float("inf")

    def _catch_up(self) -> Replay:
        """Reads what has come; also asked for before a long log is thinned."""
        _extend(self._curve, self._replay, self.tracker._start)
        return self._replay.settled()

    def _frame(self) -> None:
        begun = time.monotonic()
        tracker = self.tracker
        self._catch_up()
        now, peak = round_bytes(tracker.live_bytes), round_bytes(tracker.peak_bytes)
        brackets, phase = self._phases(), in_xml(self._where())
        figures = f"start {round_bytes(tracker.start_bytes)},  still running"
        svg = memory_svg(
            self._curve,
            title="",
            figures=figures,
            brackets=brackets,
            peak=marker_of(tracker, "peak so far"),
            operators=tracker.operators,
            readout=(f"operator {tracker.operators:,}", f"now {now}", f"peak {peak}", phase),
        )
        words = f"Operator {tracker.operators:,}: now {now}{f' {phase}' if phase else ''}"
        self._output.frame(svg, f"{words}; start {round_bytes(tracker.start_bytes)}, peak {peak} so far")
        end = time.monotonic()
        # Of the last two frames the faster: one that was slow because something else had the machine says nothing.
        took, self._took = min(end - begun, self._took), end - begun
        self._due = end + max(_SECONDS_A_FRAME, took * _PAUSES_A_FRAME)

    def _where(self) -> str:
        """The phase and, where there were others of its name, which of them it is."""
        phase = self.tracker._phase
        before = self._ended[phase]
        return f"in {phase}" + (f", no. {before + 1:,}" if before else "") if phase else ""

    def _phases(self) -> list[Bracket]:
        """The outermost phases, of which only those that ended since the last frame are looked at, and the open one."""
        seen, tracker, outer = self._ended.total(), self.tracker, self._outer
        for (name, first, last), operators in zip(tracker.phases[seen:], tracker._spans[seen:]):
            self._ended[name] += 1
            if first < last:
                while outer and outer[-1][0] >= first:
                    outer.pop()  # it lies inside this one, which ended later
                outer.append((first, Bracket(name, *operators)))
        found = [bracket for _, bracket in outer]
        for name, first, noted in tracker._phases_open[:1]:
            if first < tracker._events:
                inside = sum(begun >= first - tracker._start for begun, _ in outer)
                found[len(found) - inside :] = [Bracket(name, tracker._begun_at(first, noted), tracker.operators)]
        return found
