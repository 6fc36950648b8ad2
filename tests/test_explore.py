"""The slider over a run: each moment against the timeline, from the first to the last, and what a saved file keeps."""

from __future__ import annotations

import doctest
import re
import xml.etree.ElementTree as ET

import pytest
import torch

from helpers import explore
from helpers.display import exact_bytes, round_bytes
from helpers.exercises import WIDGET_VIEW
from helpers.explore import Moment, explore_memory, moment
from helpers.memory import MemoryTracker


def test_examples_of_the_docstrings():
    assert doctest.testmod(explore).attempted > 0
    assert doctest.testmod(explore).failed == 0


@pytest.fixture(scope="module")
def step() -> MemoryTracker:
    w, x = torch.rand(64, 64, requires_grad=True), torch.rand(64, 64)
    with MemoryTracker(w, x) as tracker:
        with tracker.phase("forward"):
            loss = (x * w).exp().tanh().sum()
        with tracker.phase("backward"):
            loss.backward()
        storage = torch.zeros(1000).untyped_storage()
        storage.resize_(8000)
        storage.resize_(2000)
    return tracker


def test_every_moment_is_its_event(step):
    explorer = explore_memory(step)
    for number, event in enumerate(step.timeline):
        seen = explorer.at(number)
        assert seen == moment(step, number) == Moment(number, len(step.timeline), event, step.alive_at(number)[:3])
        assert f"{round_bytes(event.live_bytes)} are live" in seen.sentence
        assert round_bytes(abs(event.delta_bytes)) in seen.sentence
        assert event.op in seen.sentence and event.phase in seen.sentence
        assert str(event.line) in seen.sentence
        assert seen.table.rows[-1] == ["all together", sum(n for _, n in seen.table.rows[:-1])]


def test_first_middle_and_last(step):
    explorer = explore_memory(step)
    last = len(step.timeline) - 1
    assert explorer.ranges["event"].ends == (0, last)
    source = open(__file__).read().splitlines()  # noqa: SIM115
    line = next(f"line {n}: {text.strip()}" for n, text in enumerate(source, 1) if "exp().tanh()" in text)
    first = explorer.set(event=0).result
    assert first.sentence == (
        f"Event 0 in forward: aten.mul takes 16.00 KiB; 48.00 KiB are live. The line: test_explore.py, {line}"
    )
    middle = explorer.set(event=last // 2).result
    assert middle.event == step.timeline[last // 2]
    assert "2.00 KiB" not in first.sentence, "a moment is its own"
    assert explorer.set(event=last).result.event.live_bytes == step.live_bytes
    assert explorer.before == middle
    with pytest.raises(ValueError, match=f"it goes from 0 to {last}"):
        explorer.set(event=last + 1)


def test_each_kind_of_event_has_its_words(step):
    said = [explore_memory(step).at(n).sentence for n in range(len(step.timeline))]
    assert any(re.match(r"Event \d+ in backward: .* are given back, after aten\.", s) for s in said)
    assert any("a storage grows by 3.91 KiB in UntypedStorage.resize_" in s for s in said)
    assert any("a storage shrinks by 5.86 KiB in UntypedStorage.resize_" in s for s in said)


def test_it_begins_at_the_peak(step):
    explorer = explore_memory(step)
    assert explorer.result.event == step.peak
    assert explorer.values["event"] == step.peak.index
    x = torch.zeros(10)
    with MemoryTracker(x) as falling:
        del x
    assert explore_memory(falling).values["event"] == 0, "nothing rose above the start"


def line_of(svg: str) -> float:
    """Where the line stands: the dark one that has a white one under it, down to the floor."""
    root = ET.fromstring(svg)
    [found] = [e.get("d") for e in root.iter() if e.get("d", "").endswith("V280") and e.get("stroke-width") == "1.6"]
    return float(re.match(r"M([\d.]+) ", found)[1])


def test_line_goes_to_the_right_with_the_operators(step):
    explorer = explore_memory(step)
    places = []
    for number, event in enumerate(step.timeline):
        explorer.set(event=number)
        # What is given back after an operator stands between it and the next.
        places.append(((event.operator, event.kind == "free"), line_of(explorer.picture.picture.svg)))
    assert [x for _, x in places] == sorted(x for _, x in places)
    assert len({x for _, x in places}) == len({place for place, _ in places}) > 5


def test_a_file_without_a_kernel_keeps_the_peak(step):
    bundle = explore_memory(step)._repr_mimebundle_()
    assert WIDGET_VIEW not in bundle
    assert bundle["text/html"].count("<img alt=") == 1
    assert "Run the cell to move the controls." in bundle["text/html"]
    for text in bundle.values():
        assert f"{round_bytes(step.peak_bytes)} are live" in text
        assert f"{step.peak_bytes:,}" in text
    assert exact_bytes(step.peak_bytes) in bundle["text/html"], "in the words of the picture"


def test_slider_moves_it(step, monkeypatch):
    widgets = pytest.importorskip("ipywidgets")
    explorer = explore_memory(step)
    slider = explorer.widgets["event"]
    assert isinstance(slider, widgets.IntSlider)
    assert (slider.min, slider.value, slider.max) == (0, step.peak.index, len(step.timeline) - 1)
    assert slider.continuous_update
    slider.value = 0
    assert explorer.result == explorer.at(0)
    assert "Event 0 in forward" in explorer.widgets[""].value
    explorer.at(5)
    assert (slider.value, explorer.result.number) == (0, 0), "to ask is not to move"
    monkeypatch.setattr("helpers.controls.in_notebook", lambda: True)
    assert WIDGET_VIEW in explorer._repr_mimebundle_()


def test_a_long_run_says_what_it_no_longer_knows():
    with MemoryTracker(max_events=64) as tracker:
        for size in range(1, 300):
            torch.zeros(size)
        held = [torch.zeros(10) for _ in range(20)]
    explorer = explore_memory(tracker)
    last = explorer.ranges["event"].greatest
    assert last + 1 == len(tracker.timeline) < 600
    first = explorer.set(event=0).result
    assert first.largest is None and "no longer known" in repr(first)
    assert first.event.live_bytes == sum(first.event.groups.values())
    assert len(explorer.set(event=last).result.largest) == 3
    del held


def test_what_comes_after_it_was_made_is_not_looked_at():
    with MemoryTracker() as tracker:
        early = torch.zeros(1024)
        explorer = explore_memory(tracker)
        late = torch.zeros(2**20)
        picture = explorer.set(event=0).picture.picture
    assert "at the line 4.00 KiB,  peak 4.00 KiB" in picture.svg and "MiB" not in picture.svg
    assert "peak 4.00 MiB" in explore_memory(tracker).picture.picture.svg, "the control"
    del early, late


def test_one_event_is_one_and_there_are_no_others():
    with MemoryTracker() as tracker:
        held = torch.zeros(4)
    explorer = explore_memory(tracker)
    assert "Live memory of 1 event, with a line at event 0: 16 B of 16 B" in explorer.picture.picture.alt
    for wrong in (-1, 1, 99):
        with pytest.raises(ValueError, match=f"there is no event {wrong}: pass a number from 0 to 0"):
            explorer.at(wrong)
    for wrong, name in (("x", "str"), (0.0, "float"), (True, "bool"), (None, "NoneType")):
        with pytest.raises(TypeError, match=f"an event has a number, got {name}: pass it, as in at"):
            explorer.at(wrong)
    assert explorer.at(0) == explorer.result
    del held


def test_words_of_the_reader_cannot_become_markup():
    with MemoryTracker() as tracker, tracker.phase("<b>&"):
        held = torch.zeros(4)
    shown = explore_memory(tracker)._repr_mimebundle_()["text/html"]
    assert "in &lt;b&gt;&amp;: " in shown and "<b>" not in shown
    del held


def test_only_a_run_can_be_explored():
    with pytest.raises(TypeError, match="expected a MemoryTracker, got int"):
        explore_memory(3)
    with MemoryTracker() as tracker:
        pass
    with pytest.raises(ValueError, match="nothing was allocated or freed"):
        explore_memory(tracker)
