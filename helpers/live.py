"""What does memory do while the cell runs? Draws a `MemoryTracker` as it moves, and leaves a finished picture."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

from ._memory_picture import Bracket, Curve, Marker, memory_svg
from ._timeline import Replay
from .display import LiveOutput, Picture, exact_bytes, in_xml, round_bytes
from .memory import MemoryTracker

_SECONDS_A_FRAME = 0.1


def curve_of(tracker: MemoryTracker) -> Curve:
    """Live bytes by group of a whole run, from what existed before its first event on."""
    curve, replay = Curve(), tracker._replay()
    _begin(curve, replay, tracker)
    _extend(curve, replay)
    return curve


def _begin(curve: Curve, replay: Replay, tracker: MemoryTracker) -> None:
    curve.add(0, replay.state_after(tracker._start - 1).totals)


def _extend(curve: Curve, replay: Replay) -> None:
    for event in replay.events():
        curve.add(event.operator, event.groups, event.allocated, event.reserved)


def _nested(tracker: MemoryTracker) -> list[tuple[str, int, int, int]]:
    """(name, first event, last event + 1, depth) of the phases in which anything happened, outer before inner."""
    found: list[tuple[str, int, int, int]] = []
    ends: list[int] = []
    # A phase is noted when it ends, so of two with the same events the one noted later lies around the other.
    outer_first = list(reversed(tracker.phases))
    outer_first.sort(key=lambda p: (p[1], -p[2]))
    for name, first, last in outer_first:
        ends = [end for end in ends if end > first]
        if first < last:
            found.append((name, first, last, len(ends)))
            ends.append(last)
    return found


def brackets_of(tracker: MemoryTracker) -> list[Bracket]:
    """The phases of a run as operator numbers, outermost first."""
    log, start = tracker._log, tracker._start
    return [
        Bracket(name, log[start + first][1], log[start + last - 1][1], depth)
        for name, first, last, depth in _nested(tracker)
    ]


def finding(tracker: MemoryTracker) -> str:
    """The title of a finished picture: what the run showed, worked out from its figures."""
    replay, start, before = tracker._replay(), tracker._start, ""
    at_start = set(replay.state_after(start - 1).alive)
    held: dict[int, int] = {}  # storage -> bytes, of what the phase before saved
    for name, first, last, depth in _nested(tracker):
        if depth:
            continue
        replay.state_after(start + first - 1)
        there, saved_before = set(replay.alive), _saved(replay)
        replay.state_after(start + last - 1)
        left, saved = {n: nbytes for n, (nbytes, _, _) in replay.alive.items()}, _saved(replay)
        if there >= held.keys() and sum(held.values()) > 2 * sum(held[n] for n in held if n in saved):
            freed = sum(nbytes - min(nbytes, left.get(n, 0)) for n, nbytes in held.items() if n not in at_start)
            if freed:
                all_of, of = round_bytes(sum(held.values())), round_bytes(freed)
                share = f"the {all_of}" if of == all_of else f"{of} of the {all_of}"
                return f"{name[:1].upper()}{name[1:]} frees {share} that {before} saved for it"
        held, before = {n: nbytes for n, nbytes in saved.items() if n not in saved_before}, name
    peak = tracker.peak
    if peak is None:
        return f"Nothing rises above the {round_bytes(tracker.start_bytes)} of the start"
    where = f" in {peak.phase}" if peak.phase else ""
    return f"The peak is {round_bytes(tracker.peak_bytes)}{where}, {round_bytes(_rise(tracker))} over the start"


def _saved(replay: Replay) -> dict[int, int]:
    """Storage number -> bytes of what serves as a saved activation and as nothing before it in rank."""
    return {n: nbytes for n, (nbytes, group, _) in replay.alive.items() if group == "saved activations"}


def comparison(tracker: MemoryTracker, before: MemoryTracker) -> str:
    """The title of a picture that has an earlier run laid over it."""
    now, then = tracker.peak_bytes, before.peak_bytes
    if now == then:
        return f"The peak stays at {round_bytes(now)}"
    return f"The peak {'falls' if now < then else 'rises'} from {round_bytes(then)} to {round_bytes(now)}"


def _rise(tracker: MemoryTracker) -> int:
    return tracker.peak_bytes - tracker.start_bytes


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
    curve, peak = curve_of(tracker), tracker.peak
    old = curve_of(before) if before is not None else None
    heading = title or (finding(tracker) if before is None else comparison(tracker, before))
    figures = (
        f"start {round_bytes(tracker.start_bytes)},  peak {round_bytes(tracker.peak_bytes)},  "
        f"end {round_bytes(tracker.live_bytes)}"
    )
    if before is not None:
        change = tracker.peak_bytes - before.peak_bytes
        figures += f",  {'+' if change > 0 else ''}{round_bytes(change)} at the peak against the run before"
    marker = None
    if peak is not None:
        line = f", {peak.line}" if peak.line else ""
        marker = Marker(peak.operator, tracker.peak_bytes, f"peak {round_bytes(tracker.peak_bytes)}: {peak.op}{line}")
    brackets = brackets_of(tracker)
    svg = memory_svg(curve, title=heading, figures=figures, brackets=brackets, peak=marker, before=old)
    return Picture(svg, alt=in_xml(_in_words(tracker, heading, figures, marker)), data={"curve": curve, "peak": peak})


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
    thread's drawings are not shown (Colab), and a frame never tells of a moment that was not. Interrupting the kernel
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
        RuntimeError: at the start of the block, if the tracker does not run.

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
        self._output = LiveOutput()
        self._curve = Curve()
        self._replay = Replay(tracker._log, tracker._marks)
        self._due = 0.0
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
        self._previous, self.tracker.listener = self.tracker.listener, self._event
        try:
            _begin(self._curve, self._replay, self.tracker)
            self._frame()
        except BaseException:
            self._let_go()
            raise
        return self

    def __exit__(self, kind: Any = None, under_way: BaseException | None = None, traceback: Any = None) -> None:
        self._let_go()
        try:
            self.picture = draw_memory(self.tracker, title=self.title, before=self.before)
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
        if self.tracker.listener == self._event:  # else another hangs over this one, and still calls it
            self.tracker.listener = self._previous

    def _event(self) -> None:
        if self._previous is not None:
            self._previous()
        if time.monotonic() >= self._due:
            try:
                self._frame()
            except Exception as error:  # the work that is measured is not to fail by its picture
                self.error, self._due = error, float("inf")

    def _frame(self) -> None:
        _extend(self._curve, self._replay)
        tracker = self.tracker
        phase = tracker._phase
        figures = f"start {round_bytes(tracker.start_bytes)},  peak {round_bytes(tracker.peak_bytes)} so far"
        words = in_xml(f"Now {round_bytes(tracker.live_bytes)}" + (f" in {phase}" if phase else ""))
        svg = memory_svg(self._curve, title=words, figures=figures, brackets=brackets_of(tracker))
        self._output.frame(svg, f"{words}; {' '.join(figures.split())}")
        self._due = time.monotonic() + _SECONDS_A_FRAME
