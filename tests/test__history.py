"""A long run in bounded memory: what is kept of it against a tracker beside it that keeps everything."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from helpers._history import History
from helpers._timeline import ALLOC, FREE
from helpers.live import LiveMemoryPlot, brackets_of, curve_of, draw_memory
from helpers.memory import MemoryTracker


def train(tracker, whole, steps: int, names=("forward", "backward")):
    """Steps with what a step has: saved activations, gradients, phases; the 7th holds a large tensor for a moment."""
    w = torch.rand(32, 32, requires_grad=True)
    with whole, tracker:
        [each.track(w) for each in (tracker, whole)]  # in one line, which their events tell of
        for step in range(steps):
            with tracker.phase(names[0]), whole.phase(names[0]):
                hidden = w
                for _ in range(8):
                    hidden = (hidden * 1.1).sigmoid()
                if step == 7:
                    torch.zeros(300, 300)
            with tracker.phase(names[1]), whole.phase(names[1]):
                hidden.sum().backward()
            w.grad = None
    return tracker, whole


@pytest.fixture(scope="module")
def both() -> tuple[MemoryTracker, MemoryTracker]:
    before = torch.zeros(100)
    return train(MemoryTracker(before, max_events=1200), MemoryTracker(before, max_events=None), 60)


def test_what_is_kept_is_a_part_of_the_whole(both):
    thinned, whole = both
    kept, everything = thinned.timeline, whole.timeline
    assert len(everything) > 2000 and whole.dropped == 0
    assert 700 <= len(kept) <= 1200
    assert thinned.dropped == len(everything) - len(kept)
    assert [event for event in kept if event != everything[event.index]] == []
    assert [event.index for event in kept[-520:]] == list(range(len(everything)))[-520:], "the newest are all there"
    gaps = [after.index - before.index for before, after in pairwise(kept)]
    assert max(gaps) <= 32, "and the older ones lie evenly"


def test_figures_are_those_of_the_whole(both):
    thinned, whole = both
    for name in ("start_bytes", "peak_bytes", "live_bytes", "operators", "phases", "peak", "at_peak", "groups"):
        assert getattr(thinned, name) == getattr(whole, name), name
    assert thinned.peak.index < thinned._history.state.next_event, "it is no longer in the log"
    assert thinned.peak in thinned.timeline
    by_size = [sorted(map(str, t.alive_at(t.peak.index))) for t in both]
    assert by_size[0] == by_size[1] and len(by_size[0]) > 5
    assert thinned.alive_at(-1) == whole.alive_at(-1)
    last = whole.timeline[-1].index
    assert thinned.alive_at(last - 50) == whole.alive_at(last - 50)


def test_what_is_no_longer_known_is_said(both):
    thinned, whole = both
    with pytest.raises(ValueError, match=r"alive at event 3 is no longer known: of 4,\d+ events .* larger max_events"):
        thinned.alive_at(3)
    assert whole.alive_at(3)


def test_borders_of_phases_are_kept(both):
    thinned, whole = both
    assert brackets_of(thinned) == brackets_of(whole)
    kept = {event.index for event in thinned.timeline}
    borders = {edge for _, first, last in whole.phases for edge in (first, last - 1)}
    early = {edge for edge in borders if edge < min(first for _, first, _ in whole.phases[-6:])}
    assert early <= kept
    assert not {edge + 3 for edge in early} <= kept, "the control: what stands elsewhere is not"


def test_more_borders_than_there_is_room_for_are_let_go():
    with MemoryTracker(max_events=64) as tracker:
        for _ in range(500):
            with tracker.phase("short"):
                torch.zeros(8)
        held = torch.zeros(64)
    assert len(tracker.timeline) <= 64
    assert tracker.peak_bytes == tracker.peak.live_bytes == max(event.live_bytes for event in tracker.timeline)
    assert len(tracker.phases) == len(brackets_of(tracker)) == 500
    del held


@pytest.mark.parametrize("most", [64, 100, 1000])
@pytest.mark.parametrize("between", [1, 2, 3, 5])
def test_events_between_borders_do_not_keep_the_run_from_going_on(most, between):
    """One row between each two borders is as few as there can be, and may be more than the room."""
    with MemoryTracker(max_events=most) as tracker:
        for _ in range(1200):
            with tracker.phase("step"):
                for _ in range(between):
                    torch.empty(1)
    history = tracker._history
    assert most // 4 <= len(history.rows) <= most, "neither too many nor, for a run this long, next to none"
    events = 2 * 1200 * between  # each takes and gives back
    assert history._width <= 8 * events / most


def test_curve_and_picture_of_a_thinned_run(both):
    thinned, whole = both
    drawn, full = curve_of(thinned), curve_of(whole)
    events = {(e.operator + (0.5 if e.kind == "free" else 0), tuple(e.groups.values())) for e in whole.timeline}
    assert set(drawn.points[1:]) <= events
    assert (drawn.points[0], drawn.points[-1], drawn.top) == (full.points[0], full.points[-1], full.top)
    words, all_words = draw_memory(thinned).alt, draw_memory(whole).alt
    note = f", drawn from the highest {len(thinned.timeline):,} of {len(whole.timeline):,} events"
    assert note in words and "drawn from" not in all_words
    tail = all_words[all_words.index("Peak ") :]
    assert words.endswith(tail), "the peak, its line, and what was alive there"


def test_live_picture_misses_nothing_that_is_thinned_away(monkeypatch):
    """Between two of its frames the log is thinned many times."""
    thinned, whole = MemoryTracker(max_events=64), MemoryTracker(max_events=None)
    plot = LiveMemoryPlot(thinned)
    w = torch.rand(16, 16, requires_grad=True)
    with whole, thinned, plot:
        for _ in range(10):
            w.exp().sin().sum().backward()
        plot._due = float("inf")
        for _ in range(100):
            w.exp().sin().sum().backward()
        plot._catch_up()
        assert [(p[0], sum(p[1])) for p in plot._curve.points] == [(p[0], sum(p[1])) for p in curve_of(whole).points]
    assert thinned._followers == []
    assert plot.error is None


def test_a_picture_begun_late_has_what_came_before():
    with MemoryTracker(max_events=64) as tracker:
        for size in range(1, 200):
            torch.zeros(size)
        with LiveMemoryPlot(tracker) as plot:
            torch.zeros(500)
            plot._catch_up()
            points = plot._curve.points
    assert points[0][0] == 0 and len(points) > 40
    assert points[1][0] < 20, "it begins with the run"


def test_an_interrupt_while_the_log_is_thinned_leaves_it_whole(monkeypatch):
    tracker = MemoryTracker(max_events=64)
    with tracker:
        add, calls, kept = History._add, [], []

        def interrupted(self, row):
            add(self, row)
            calls.append(row)
            if len(calls) == 3:
                raise KeyboardInterrupt

        monkeypatch.setattr(History, "_add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            for size in range(1, 100):
                kept.append(torch.zeros(size))  # an interrupt in a free would be lost: Python calls that from afar
        seen = tracker._events
        assert [event.index for event in tracker.timeline] == list(range(seen))
        for size in range(1, 400):
            kept.append(torch.zeros(size))
    assert len(tracker.timeline) <= 64 and tracker.peak_bytes == sum(map(torch.Tensor.numel, kept)) * 4
    assert sum(tracker.timeline[-1].groups.values()) == tracker.live_bytes


# ---------------------------------------------------------------------------------------------------- bounded memory


def pretend(tracker: MemoryTracker, events: int) -> None:
    """Logs events as fast as a ledger can: every storage lives for 50 of them and is saved meanwhile."""
    for _ in range(events // 2):
        number = tracker._numbers = tracker._numbers + 1
        tracker.operators += 1
        tracker._event(ALLOC, None, 1000 + number % 7, SimpleNamespace(number=number, counted=1000 + number % 7), None)
        tracker._marks.append((tracker._events - 1, number, "saved activations", 1))
        old = number - 50
        if old > 0:
            tracker._event(FREE, None, -1000 - old % 7, SimpleNamespace(number=old, counted=0), None)
            tracker._marks.append((tracker._events, old, "saved activations", -1))


def traced(max_events: int | None, *counts: int) -> list[int]:
    """Bytes that Python held after so many events more each time."""
    tracker = MemoryTracker(lines=False, max_events=max_events)
    tracker._begun = True
    tracemalloc.start()
    try:
        found = []
        for count in counts:
            pretend(tracker, count)
            found.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    return found


def test_a_long_run_takes_no_more_than_a_bound():
    """1,000 B for each event that may be kept, however long it is; what it grows by would add up to less even then."""
    bound = 5_000
    early, late = traced(bound, 4 * bound, 80_000)
    assert late < 1000 * bound
    slope = (late - early) / 80_000
    assert early + slope * 10**6 < 1000 * bound
    early, late = traced(None, 10_000, 10_000)
    assert late > early * 1.8, "the control: without a bound it grows with the run"


def test_a_page_of_a_long_run_is_small():
    tracker = MemoryTracker(lines=False, max_events=20_000)
    tracker._begun = True
    for _ in range(300):
        with tracker.phase("forward"):
            pretend(tracker, 200)
        with tracker.phase("backward"):
            pretend(tracker, 100)
    from helpers.display import lasting

    bundle = lasting(draw_memory(tracker))
    assert sum(map(len, bundle.values())) < 200_000
    assert "300 x (forward, backward)" in draw_memory(tracker).svg


@pytest.mark.parametrize(
    ("wrong", "error"), [(10, ValueError), (1e6, TypeError), (True, TypeError), ("all", TypeError)]
)
def test_max_events_is_checked(wrong, error):
    with pytest.raises(error, match=r"max_events"):
        MemoryTracker(max_events=wrong)
