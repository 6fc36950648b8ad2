"""A run drawn: the curve against bytes counted by hand, the picture against the curve, the live plot against a clock.

Covers helpers/live.py and its drawer, helpers/_memory_picture.py.
"""

from __future__ import annotations

import doctest
import gc
import re
import threading
import weakref
import xml.etree.ElementTree as ET
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from wcag import contrast

from helpers import display, live
from helpers._memory_picture import HEIGHT, LEFT, WIDTH, Bracket, Curve, Marker, memory_svg
from helpers.display import GROUPS, round_bytes, text_width
from helpers.explore import explore_memory
from helpers.live import LiveMemoryPlot, brackets_of, comparison, curve_of, draw_memory, finding
from helpers.memory import MemoryTracker

KIB = 1024


def test_examples_of_the_docstrings():
    assert doctest.testmod(live).attempted > 0
    assert doctest.testmod(live).failed == 0


@pytest.fixture(scope="module")
def step():
    """A training step of one layer: w and x 4 MiB each; mul keeps x, exp and tanh their results, 4 MiB each."""
    w, x = torch.rand(KIB, KIB, requires_grad=True), torch.rand(KIB, KIB)
    optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)
    with MemoryTracker(w, optimizer, x) as tracker:
        with tracker.phase("forward"):
            loss = (x * w).exp().tanh().sum()
        with tracker.phase("backward"):
            loss.backward()
        with tracker.phase("update"):
            optimizer.step()
    return tracker


def zeros(*sizes: int) -> MemoryTracker:
    """A run that allocates zeros of so many KiB one after the other and frees all but the last."""
    with MemoryTracker() as tracker:
        for size in sizes:
            kept = torch.zeros(size * KIB, dtype=torch.uint8)  # noqa: F841
    return tracker


# ---------------------------------------------------------------------------------------------------- the curve


def test_curve_is_what_was_counted_by_hand():
    existing = torch.zeros(2 * KIB, dtype=torch.uint8)
    weight = torch.nn.Parameter(torch.zeros(KIB, dtype=torch.uint8), requires_grad=False)
    module = torch.nn.Module()
    module.weight = weight
    with MemoryTracker(existing, module) as tracker:
        a = torch.zeros(3 * KIB, dtype=torch.uint8)
        b = torch.zeros(4 * KIB, dtype=torch.uint8)
        del a
        del b
    by_hand = [(0, 1, 2), (1, 1, 5), (2, 1, 9), (2.5, 1, 6), (2.5, 1, 2)]  # operator, KiB of parameters, KiB of others
    groups = list(GROUPS)
    assert curve_of(tracker).points == [
        (op, tuple({"parameters": p * KIB, "other": o * KIB}.get(g, 0) for g in groups)) for op, p, o in by_hand
    ]
    assert curve_of(tracker).top == 10 * KIB == tracker.peak_bytes
    assert curve_of(tracker).device_lines == []


def test_curve_is_the_timeline(step):
    points = curve_of(step).points
    assert points[0] == (0, tuple({"parameters": 2**22, "other": 2**22}.get(g, 0) for g in GROUPS))
    between = {"free": 0.5, "alloc": 0, "resize": 0}  # what is given back falls behind the operator, in its own place
    expected = [(e.operator + between[e.kind], e.live_bytes) for e in step.timeline]
    assert [(p[0], sum(p[1])) for p in points[1:]] == expected
    assert [dict(zip(GROUPS, p[1])) for p in points[1:]] == [e.groups for e in step.timeline]


def test_curve_of_a_long_run_is_small_and_keeps_start_peak_and_end():
    curve = Curve()
    for i in range(100_000):
        total = 10**9 if i == 31_337 else 500 + i % 7
        curve.add(i, dict.fromkeys(GROUPS, 0) | {"other": total}, allocated=total, reserved=2 * total)
    assert len(curve.points) <= 2048 and len(curve.device_lines) <= 2048
    assert curve.top == 10**9
    assert (31_337, 10**9) in [(p[0], sum(p[1])) for p in curve.points]
    assert max(r for _, _, r in curve.device_lines) == 2 * 10**9
    assert curve.points[0][0] == 0 and sum(curve.points[0][1]) == 500, "what existed before the start"
    assert curve.points[-1][0] == 99_999
    operators = [p[0] for p in curve.points]
    assert operators == sorted(set(operators))
    assert len(curve.points) > 1000, "thinned, and not thrown away"
    assert max(b - a for a, b in pairwise(operators)) < 300, "as evenly over the first half as over the last"
    assert Curve().top == 0


def test_peak_of_a_long_run_is_in_the_picture():
    curve = Curve()
    for i in range(100_000):
        curve.add(i, dict.fromkeys(GROUPS, 0) | {"other": 10**9 if i == 31_337 else 500})
    picture = Drawn(memory_svg(curve, title="t", figures="f"))
    assert max(height for _, height in picture.tops["other"]) == pytest.approx(picture.scale * 10**9, abs=0.2)


# ---------------------------------------------------------------------------------------------------- phases


def test_brackets_span_the_operators_of_their_phase():
    with MemoryTracker() as tracker:
        with tracker.phase("one"):
            a = torch.zeros(4)
            b = torch.zeros(4)
        with tracker.phase("nothing happens"):
            pass
        with tracker.phase("two"):
            c = torch.zeros(4)
            with tracker.phase("inner"):
                d = torch.zeros(4)
    assert brackets_of(tracker) == [Bracket("one", 1, 2), Bracket("two", 3, 4), Bracket("inner", 4, 4, depth=1)]
    del a, b, c, d


def test_phase_around_another_with_the_same_events_is_the_outer_one():
    with MemoryTracker() as tracker, tracker.phase("epoch"), tracker.phase("step"):
        kept = torch.zeros(4)
    assert brackets_of(tracker) == [Bracket("epoch", 1, 1), Bracket("step", 1, 1, depth=1)]
    assert "epoch" in Drawn(draw_memory(tracker).svg).words
    del kept


# ---------------------------------------------------------------------------------------------------- titles


def test_title_of_a_training_step(step):
    """Of the 12 MiB forward saved x, 4 MiB, which was there at the start and stays: the live bytes fall by 8."""
    assert finding(step) == "Backward frees 8.00 MiB of the 12.00 MiB that forward saved for it"
    backward = [e for e in step.timeline if e.phase == "backward"]
    freed = -sum(e.delta_bytes for e in backward if e.kind == "free" and e.delta_bytes == -(2**22))
    made = sum(e.delta_bytes for e in backward if e.kind == "alloc" and e.delta_bytes == 2**22)
    assert freed - made == 2**23 - 2**22, "8 MiB of saved results freed, 4 MiB of gradient made"


def test_title_counts_what_the_phase_before_saved_and_no_more():
    w = torch.rand(64, 64, requires_grad=True)
    with MemoryTracker(w) as tracker:
        with tracker.phase("first"):
            one = w.exp().sum()
        with tracker.phase("second"):
            two = w.exp().exp().sum()
        with tracker.phase("backward"):
            (one + two).backward()
    assert finding(tracker) == "Backward frees the 32.00 KiB that second saved for it"


def test_title_does_not_say_that_what_existed_before_is_freed():
    w, x = torch.rand(64, 64, requires_grad=True), torch.rand(64, 64)
    with MemoryTracker(w, x) as tracker:
        with tracker.phase("forward"):
            loss = (w * x).sum()
        with tracker.phase("backward"):
            loss.backward()
    assert finding(tracker).startswith("The peak is "), "only x was saved, and x stays"


def test_title_does_not_say_that_backward_frees_what_it_keeps():
    w, x = torch.rand(64, 64, requires_grad=True), torch.rand(64, 64)
    with MemoryTracker(w, x) as tracker:
        with tracker.phase("forward"):
            y = w.exp()
            loss = y.sum()
        with tracker.phase("backward"):
            loss.backward(retain_graph=True)
    assert "frees" not in finding(tracker)
    with MemoryTracker(w, x) as tracker:
        with tracker.phase("forward"):
            loss = w.exp().sum()
        with tracker.phase("backward"):
            loss.backward()
    assert finding(tracker) == "Backward frees the 16.00 KiB that forward saved for it", "the control"
    del y


def test_title_keeps_the_readers_spelling():
    w = torch.rand(64, 64, requires_grad=True)
    with MemoryTracker(w) as tracker:
        with tracker.phase("my GPU step"):
            loss = w.exp().sum()
        with tracker.phase("bACK"):
            loss.backward()
    assert finding(tracker) == "BACK frees the 16.00 KiB that my GPU step saved for it"


def test_title_of_a_long_step_is_exact():
    w = torch.rand(64, 64, requires_grad=True)
    with MemoryTracker(w) as tracker:
        with tracker.phase("forward"):
            for _ in range(5000):  # far more events than the curve keeps
                torch.zeros(4)
            loss = w.exp().sum()
        with tracker.phase("backward"):
            loss.backward()
        with tracker.phase("after"):
            for _ in range(5000):
                torch.zeros(4)
    assert len(tracker.timeline) > 20_000
    assert finding(tracker) == "Backward frees the 16.00 KiB that forward saved for it"


def test_title_of_a_run_in_which_nothing_rises():
    x = torch.zeros(KIB)
    with MemoryTracker(x) as tracker:
        x.add_(1)
    assert finding(tracker) == "Nothing rises above the 4.00 KiB of the start"
    picture = draw_memory(tracker)
    assert "peak 4.00 KiB" in picture.alt and picture.data["peak"] is None
    Drawn(picture.svg).check()


def test_title_of_any_other_run():
    x = torch.zeros(2 * KIB, dtype=torch.uint8)
    with MemoryTracker(x) as tracker, tracker.phase("making"):
        y = torch.zeros(3 * KIB, dtype=torch.uint8)
    assert finding(tracker) == "The peak is 5.00 KiB in making, 3.00 KiB over the start"
    del y


@pytest.mark.parametrize(
    ("before", "now", "title", "change"),
    [
        (8, 4, "The peak falls from 8.00 KiB to 4.00 KiB", "-4.00 KiB"),
        (4, 8, "The peak rises from 4.00 KiB to 8.00 KiB", "+4.00 KiB"),
        (4, 4, "The peak stays at 4.00 KiB", "0 B"),
    ],
)
def test_title_of_a_comparison(before, now, title, change):
    before, now = zeros(before), zeros(now)
    assert comparison(now, before) == title
    picture = draw_memory(now, before=before)
    assert picture.alt.startswith(title + ". ")
    assert f", {change} at the peak against the run before." in picture.alt
    drawn = Drawn(picture.svg)
    drawn.check()
    assert title in drawn.words and "before" in drawn.words
    assert "before" not in Drawn(draw_memory(now).svg).words


def test_a_run_that_has_not_begun_has_no_peak():
    x = torch.zeros(KIB)
    picture = draw_memory(MemoryTracker(x))
    assert picture.alt == (
        "The block has not begun; 4.00 KiB are tracked for it. Live memory over 0 operators: start 0 B, peak 4.00 KiB, "
        "now 4.00 KiB. Alive at the peak: other 4,096 B."
    )
    Drawn(picture.svg).check()


def test_a_peak_that_no_operator_made_is_told():
    x = torch.zeros(KIB)
    with MemoryTracker() as tracker:
        tracker.track(x)
    alt = draw_memory(tracker).alt
    assert "Peak 4.00 KiB: counted by track, test_live.py, line " in alt and ": tracker.track(x). Alive" in alt
    assert "Event 0: 4.00 KiB that exist are tracked; 4.00 KiB are live." in explore_memory(tracker).at(0).sentence


def test_title_of_a_comparison_is_exact_where_rounding_hides_the_change():
    runs = []
    for size in (4096, 4100):
        with MemoryTracker() as tracker:
            torch.zeros(size, dtype=torch.uint8)
        runs.append(tracker)
    assert comparison(runs[1], runs[0]) == "The peak rises from 4,096 B to 4,100 B"
    assert comparison(runs[0], runs[1]) == "The peak falls from 4,100 B to 4,096 B"


def test_own_title_is_taken():
    picture = draw_memory(zeros(4), title="Zeros <cost> & stay")
    assert picture.alt.startswith("Zeros <cost> & stay. ")
    assert "Zeros <cost> & stay" in Drawn(picture.svg).words


# ---------------------------------------------------------------------------------------------------- words


def test_peak_is_told_with_operator_and_line(step):
    peak = step.peak
    told = f"peak {round_bytes(step.peak_bytes)}: {peak.op}, {peak.line}"
    assert told in Drawn(draw_memory(step).svg).words
    source = open(__file__).read().splitlines()  # noqa: SIM115
    assert str(peak.line).split(": ", 1)[1] in {line.strip() for line in source}


def test_alt_text_carries_the_numbers(step):
    alt = draw_memory(step).alt
    assert alt.startswith(finding(step))
    assert f"over {step.operators:,} operators" in alt
    for word, nbytes in (("start", step.start_bytes), ("peak", step.peak_bytes), ("end", step.live_bytes)):
        assert f"{word} {round_bytes(nbytes)}" in alt
    for group, nbytes in step.at_peak.items():
        assert (f"{group} {nbytes:,} B" in alt) == bool(nbytes)
    assert step.start_bytes == 2**23, "by hand: w and x"
    assert "start 8.00 MiB" in alt


def test_axis_does_not_say_that_the_shorter_run_ran_as_long_as_the_longer():
    longer, shorter = zeros(1, 2, 3, 4, 5), zeros(8)
    picture = draw_memory(shorter, before=longer)
    assert "over 1 operator:" in picture.alt
    assert "operators 0 to 5" in Drawn(picture.svg).words
    assert "over 5 operators:" in draw_memory(longer).alt


def test_axis_reaches_the_operators_that_changed_no_memory(clock, shown):
    with MemoryTracker() as tracker, tracker.phase("writing"):
        x = torch.zeros(KIB)
        for _ in range(1000):
            x.add_(1)
        with LiveMemoryPlot(tracker):
            pass
    picture = draw_memory(tracker)
    assert "over 1,001 operators:" in picture.alt
    assert "operators 0 to 1,001" in Drawn(picture.svg).words
    assert "operators 0 to 1,001" in Drawn(explore_memory(tracker).picture.picture.svg).words
    frame = Drawn(shown[0]["text/html"])
    assert "operators 0 to 1,001" in frame.words and "writing" in frame.words
    [bracket] = [e.get("d") for e in frame.root.iter(f"{NS}path") if e.get("stroke") == "#555"]
    assert float(re.search(r"H([\d.]+)v", bracket)[1]) == WIDTH - 14 - 1, "the phase ends where the plot does"


def test_a_bracket_stays_within_the_plot():
    curve = Curve()
    curve.add(5, dict.fromkeys(GROUPS, 1))
    drawn = Drawn(memory_svg(curve, title="t", figures="f", brackets=[Bracket("far", 1, 9000)]))
    [bracket] = [e.get("d") for e in drawn.root.iter(f"{NS}path") if e.get("stroke") == "#555"]
    assert float(re.search(r"H([\d.]+)v", bracket)[1]) == WIDTH - 14 - 1


def test_a_run_that_goes_on_is_drawn_as_it_is_now():
    with MemoryTracker() as tracker:
        with tracker.phase("load"):
            a = torch.zeros(KIB)
        with tracker.phase("epoch"):
            with tracker.phase("forward"):
                b = torch.zeros(KIB)
            with tracker.phase("nothing yet"):
                a.add_(1)
                picture = draw_memory(tracker)
                brackets = brackets_of(tracker)
    assert brackets == [Bracket("load", 1, 1), Bracket("epoch", 2, 3), Bracket("forward", 2, 2, depth=1)]
    assert "start 0 B, peak 8.00 KiB, now 8.00 KiB." in picture.alt and "end" not in picture.alt.split("Peak")[0]
    assert {"load", "epoch"} <= set(Drawn(picture.svg).words)
    assert "start 0 B, peak 8.00 KiB, end 8.00 KiB." in draw_memory(tracker).alt, "the control"
    del a, b


def test_alt_text_of_an_empty_run():
    with MemoryTracker() as tracker:
        pass
    picture = draw_memory(tracker)
    assert "over 0 operators:" in picture.alt and "operators 0 to 0" in Drawn(picture.svg).words
    assert picture.alt.endswith("Alive at the peak: nothing.")
    Drawn(picture.svg).check()


# ---------------------------------------------------------------------------------------------------- the drawing

NS = "{http://www.w3.org/2000/svg}"


class Drawn:
    """A picture read back: its texts with their extent, and the bands as heights over x."""

    def __init__(self, svg: str):
        self.root = ET.fromstring(svg)  # raises unless it is well-formed
        self.texts = []
        for e in self.root.iter(f"{NS}text"):
            size = float(e.get("font-size", self.root.get("font-size")))
            # Bold letters are a seventh wider; tests/test_display.py compares ordinary ones with the fonts.
            width = text_width(e.text, size) * (1.14 if e.get("font-weight") == "bold" else 1)
            x = float(e.get("x")) - {"start": 0, "middle": width / 2, "end": width}[e.get("text-anchor", "start")]
            self.texts.append((e.text, x, x + width, float(e.get("y")), size))
        self.words = [t[0] for t in self.texts]
        self.bands = {
            group: next((e for e in self.root.iter(f"{NS}path") if e.get("fill") == colour), None)
            for group, colour in GROUPS.items()
        }
        # Each band is drawn down to the floor of the plot, and those under it over it: its own floor is their roof.
        self.outlines, below = {}, None
        for group, e in self.bands.items():
            if e is not None:
                roof = self._read(e.get("d"), self.floor)
                self.outlines[group] = roof, below or [(x, self.floor) for x, _ in roof]
                below = roof
        self.tops = {g: [(x, self.floor - y) for x, y in roof] for g, (roof, _) in self.outlines.items()}

    # The plot's floor is the grid line that is labelled 0; the scale follows from the next line up and its label.
    @property
    def floor(self) -> float:
        return next(y for text, _, right, y, _ in self.texts if text == "0" and right < LEFT) - 4

    @property
    def scale(self) -> float:
        """px for each byte."""
        units = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
        best = max(
            (self.floor + 4 - y, text)
            for text, _, right, y, _ in self.texts
            if right < LEFT and re.fullmatch(r"[\d.,]+ \w+", text)
        )
        figure, unit = best[1].split()
        return best[0] / (float(figure.replace(",", "")) * units[unit])

    @staticmethod
    def _read(path: str, floor: float) -> list:
        """The roof of a band as points from the left; the rest of its outline is the floor of the plot."""
        roof = [tuple(map(float, re.match(r"M([\d.]+) ([\d.]+)", path).groups()))]
        roof += [(float(px), float(py)) for px, py in re.findall(r"H([\d.]+)V([\d.]+)", path)]
        right, bottom = roof.pop()
        assert (right, bottom) == (686, pytest.approx(floor, abs=0.06))
        assert path.endswith(f"H{roof[0][0]:g}Z")
        return roof

    def check(self) -> None:
        assert (float(self.root.get("width")), float(self.root.get("height"))) == (700, HEIGHT)
        assert WIDTH == 700
        for text, left, right, y, size in self.texts:
            assert left >= 0 and right <= 700, f"{text!r} reaches from {left:.0f} to {right:.0f} px"
            assert size <= y <= HEIGHT - 2
            assert size >= 11
        colours = set(GROUPS.values())
        named = {c for c in colours if any(e.get("fill") == c for e in self.root.iter(f"{NS}path"))}
        for group, colour in GROUPS.items():
            if colour in named:
                assert group in self.words, f"{group} is told by its colour alone"
        for group, band in self.bands.items():
            assert band is None or contrast(band.get("stroke"), display.PAPER) >= 3, f"{group} has no outline"
            assert band is None or contrast(band.get("stroke"), band.get("fill")) >= 3, f"{group} swallows its outline"
        # What lies behind is the picture's own paper, so both themes show the same.
        first = self.root.find(f"{NS}rect")
        assert first.get("fill") == display.PAPER
        assert float(first.get("width")) >= 698


def test_picture_fits_and_is_legible(step):
    drawn = Drawn(draw_memory(step).svg)
    drawn.check()
    assert {"forward", "backward", "update"} <= set(drawn.words)


def test_a_text_that_leaves_the_picture_would_be_seen(step):
    svg = draw_memory(step).svg.replace('text-anchor="end">operators 0', ">operators 0")
    with pytest.raises(AssertionError, match=r"'operators 0 to .*' reaches from 686"):
        Drawn(svg).check()


@pytest.mark.parametrize("length", [10, 80, 400])
def test_long_words_are_cut_to_fit(length):
    with MemoryTracker() as tracker, tracker.phase("W" * length):
        kept = torch.zeros(KIB)
    curve = curve_of(tracker)
    words = "MW@% " * (length // 5)
    svg = memory_svg(
        curve,
        title=words,
        figures=words,
        brackets=brackets_of(tracker),
        peak=Marker(tracker.peak.operator, tracker.peak_bytes, words),
        before=curve,
    )
    Drawn(svg).check()
    del kept


def test_names_of_phases_are_whole_where_there_is_room_and_never_overlap():
    curve = Curve()
    for i in range(1001):
        curve.add(i, dict.fromkeys(GROUPS, 0) | {"other": 100})

    def names(*brackets):
        drawn = Drawn(memory_svg(curve, title="t", figures="f", brackets=[Bracket(*b) for b in brackets]))
        drawn.check()
        return [t for t in drawn.texts if t[3] == 62]

    assert [t[0] for t in names(("forward", 1, 500), ("backward", 501, 990), ("update", 992, 995))] == [
        "forward",
        "backward",
        "update",
    ]
    many = names(*((f"step number {i}", i, i) for i in range(1, 1000, 9)))
    assert all(one[2] <= other[1] for one, other in pairwise(many))
    crowded = names(("a rather long name", 400, 404), ("and one more of these", 405, 409), ("last", 410, 999))
    assert all(one[2] <= other[1] for one, other in pairwise(crowded))


def test_source_lines_cannot_become_markup():
    svg = memory_svg(curve_of(zeros(4)), title="a < b & c", figures="</svg>", peak=Marker(1, 4 * KIB, "x[i<j] & '\"'"))
    assert {"a < b & c", "</svg>", "x[i<j] & '\"'"} <= set(Drawn(svg).words)


def test_control_characters_and_lone_surrogates_are_left_out(clock, shown):
    junk = "".join(map(chr, (*range(0x20), 0xD800, 0xDFFF, 0xFFFE, 0xFFFF)))
    name = f"for{junk}ward é 😀"
    with MemoryTracker() as tracker, LiveMemoryPlot(tracker, title=f"all{junk} of it") as plot, tracker.phase(name):
        clock.now += 1
        kept = torch.zeros(KIB)
    drawn = Drawn(plot.picture.svg)
    assert "all\t\n\n of it" in drawn.words, "a carriage return is read as the end of a line"
    assert "for\t\n\nward é 😀" in drawn.words
    for bundle in shown:
        for text in bundle.values():
            assert not set(text) & set(junk) - set("\t\n\r")
            text.encode()  # which is how it leaves the kernel
    assert "in for\t\n\rward é 😀" in draw_memory(tracker).alt
    del kept


def test_bands_are_stacked_to_the_total(step):
    drawn = Drawn(draw_memory(step).svg)
    present = [g for g in GROUPS if any(e.groups[g] for e in step.timeline) or g in ("parameters", "other")]
    assert list(drawn.outlines) == present
    # Each band stands on the one before it, which is drawn later and so over it.
    order = [e.get("fill") for e in drawn.root.iter(f"{NS}path") if e.get("fill") in GROUPS.values()]
    assert order == [GROUPS[g] for g in reversed(present)]
    for group in present:
        roof, floor = drawn.outlines[group]
        assert [x for x, _ in roof] == [x for x, _ in floor]
        assert all(high <= low for (_, high), (_, low) in zip(roof, floor))
    # The heights are the bytes: of every operator with one event alone, as where several share a px one is drawn.
    heights = {g: {round(x, 1): f - r for (x, r), (_, f) in zip(*drawn.outlines[g])} for g in present}
    points = curve_of(step).points
    xs = sorted(heights["other"])
    assert xs[0] == LEFT
    for group in present:
        number = list(GROUPS).index(group)
        assert heights[group][LEFT] == pytest.approx(points[0][1][number] * drawn.scale, abs=0.3)
        at_peak = max(points, key=lambda p: sum(p[1]))[1]
        top = min(drawn.tops[present[-1]], key=lambda p: -p[1])[0]
        assert heights[group][top] == pytest.approx(at_peak[number] * drawn.scale, abs=0.3)
    assert drawn.tops[present[-1]][-1][1] == pytest.approx(step.live_bytes * drawn.scale, abs=0.5)


def test_colour_is_repeated_by_a_pattern(step):
    drawn = Drawn(draw_memory(step).svg)
    patterns = {e.get("id") for e in drawn.root.iter(f"{NS}pattern")}
    for group in ("optimizer state", "gradients", "saved activations"):
        twin = next(
            e for e in drawn.root.iter(f"{NS}path") if e.get("fill") == f"url(#hatch-{group.replace(' ', '-')})"
        )
        assert twin.get("d") == drawn.bands[group].get("d")
        assert f"hatch-{group.replace(' ', '-')}" in patterns


def test_legend_lists_every_group_that_occurs_from_the_floor_up(step):
    def legend(svg):
        drawn = Drawn(svg)
        texts = sorted((left, text) for text, left, _, y, _ in drawn.texts if y == HEIGHT - 50 + 17 and text in GROUPS)
        swatches = [e for e in drawn.root.iter(f"{NS}rect") if e.get("height") == "10" and e.get("fill") in colours]
        assert [colours[e.get("fill")] for e in swatches] == [text for _, text in texts]
        end = max(
            (right for text, _, right, y, _ in drawn.texts if y == HEIGHT - 50 + 17 and text in GROUPS), default=0
        )
        assert end <= next(left for text, left, *_ in drawn.texts if text.startswith("operators 0"))
        return [text for _, text in texts]

    colours = {colour: group for group, colour in GROUPS.items()}
    assert legend(draw_memory(step).svg) == list(GROUPS)
    assert legend(draw_memory(zeros(4)).svg) == ["other"]
    curve = Curve()
    for i in range(0, 10_000_000, 100_000):
        curve.add(i, dict.fromkeys(GROUPS, 100))
    assert legend(memory_svg(curve, title="t", figures="f")) == list(GROUPS)


def test_the_same_run_gives_the_same_picture():
    assert draw_memory(zeros(4, 8, 2)).svg == draw_memory(zeros(4, 8, 2)).svg
    assert draw_memory(zeros(4, 8, 2)).svg != draw_memory(zeros(4, 9, 2)).svg


def test_allocator_has_lines_with_names():
    curve = Curve()
    for i in range(20):
        curve.add(i, dict.fromkeys(GROUPS, 0) | {"other": 100 * i}, allocated=120 * i, reserved=4096)
    drawn = Drawn(memory_svg(curve, title="t", figures="f"))
    drawn.check()
    assert {"allocated", "reserved"} <= set(drawn.words)
    assert "reserved" not in Drawn(draw_memory(zeros(4)).svg).words


# ---------------------------------------------------------------------------------------------------- live


class Clock:
    def __init__(self):
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(live, "time", clock)
    return clock


@pytest.fixture
def shown(monkeypatch):
    """Plays a notebook; returns the bundles that came to its one place."""
    import IPython
    import IPython.display

    bundles = []
    handle = SimpleNamespace(update=lambda bundle, raw: bundles.append(bundle))
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setattr(IPython.display, "display", lambda b, raw, display_id: bundles.append(b) or handle)
    return bundles


def test_frames_come_at_most_ten_times_a_second(clock):
    with MemoryTracker() as tracker, LiveMemoryPlot(tracker) as plot:
        for _ in range(1000):  # 2 s, with two events each 2 ms
            torch.zeros(4)
            clock.now += 0.002
    assert 15 <= plot.frames <= 21
    with MemoryTracker() as tracker, LiveMemoryPlot(tracker) as plot:
        for _ in range(10):  # the control: slow work gets a frame for each operator
            clock.now += 1
            kept = torch.zeros(4)
    assert plot.frames == 11
    del kept


def test_a_frame_tells_what_is_now(clock, shown):
    x = torch.zeros(2 * KIB, dtype=torch.uint8)
    with MemoryTracker(x) as tracker, LiveMemoryPlot(tracker):
        with tracker.phase("making"):
            clock.now += 1
            y = torch.zeros(3 * KIB, dtype=torch.uint8)
        clock.now += 1
        del y
        with tracker.phase("after"):
            pass
    said = [bundle["text/plain"] for bundle in shown]
    assert said[:3] == [
        "Operator 0: now 2.00 KiB; start 2.00 KiB, peak 2.00 KiB so far",
        "Operator 1: now 5.00 KiB in making; start 2.00 KiB, peak 5.00 KiB so far",
        "Operator 1: now 2.00 KiB in after; start 2.00 KiB, peak 5.00 KiB so far",
    ]
    for bundle in shown[:-1]:
        svg = bundle["text/html"]
        assert svg.startswith('<svg role="img" aria-label="Operator ')
        Drawn(svg).check()
    assert "<img alt=" in shown[-1]["text/html"], "the last is the picture that an untrusted file shows"
    assert said[-1] == draw_memory(tracker).alt


def test_no_frame_is_drawn_while_something_is_freed(clock):
    """Nothing can be raised from there, so an interrupt that comes while the frame is drawn would be lost."""
    with MemoryTracker() as tracker, LiveMemoryPlot(tracker) as plot:
        a, b = torch.zeros(KIB), torch.zeros(KIB)
        clock.now += 1
        del a
        frames = [plot.frames]
        c = torch.zeros(KIB)
        frames.append(plot.frames)
        clock.now += 1
        del b
        frames.append(plot.frames)
        with tracker.phase("one"):
            frames.append(plot.frames)
    assert frames == [1, 2, 2, 3], "one at the start, and what a free owes with the next memory or phase"
    del c


def test_no_frame_is_drawn_by_another_thread(clock):
    with MemoryTracker() as tracker, LiveMemoryPlot(tracker) as plot:
        storage = torch.zeros(KIB).untyped_storage()
        clock.now += 1
        other = threading.Thread(target=lambda: storage.resize_(8 * KIB))  # an event that is no free
        other.start()
        other.join()
        assert (tracker.timeline[-1].live_bytes, plot.frames) == (8 * KIB, 1)
        storage.resize_(16 * KIB)
        assert plot.frames == 2, "the control: the thread that entered draws"


def test_a_frame_reads_out_operator_bytes_peak_and_phase_each_at_its_place(clock, shown):
    with MemoryTracker() as tracker, LiveMemoryPlot(tracker):
        for size in (1, 50_000, 3):
            with tracker.phase("forward"), tracker.phase("layer"):
                clock.now += 1
                kept = torch.zeros(size)
    frames = [Drawn(bundle["text/html"]) for bundle in shown[:-1]]
    first_row = [[(text, left) for text, left, _, y, _ in drawn.texts if y == 23] for drawn in frames]
    words = [[text for text, _ in row] for row in first_row]
    assert words[0] == ["operator 0", "now 0 B", "peak 0 B"]
    assert words[1] == ["operator 1", "now 4 B", "peak 4 B", "in layer"]
    assert words[2] == ["operator 2", "now 195.32 KiB", "peak 195.32 KiB", "in layer, no. 2"], "4 B more, for a moment"
    assert words[-1][-1] == "in layer, no. 3"
    assert {tuple(left for _, left in row)[:3] for row in first_row} == {(14, 188, 332)}, "nothing jumps"
    for drawn in frames:
        drawn.check()
    assert not any(word.startswith("operator ") for word in Drawn(draw_memory(tracker).svg).words), "a title instead"
    del kept


def test_a_readout_of_large_figures_fits(shown):
    with MemoryTracker() as tracker, LiveMemoryPlot(tracker) as plot, tracker.phase("W" * 40):
        kept = torch.zeros(4)
        tracker.operators, tracker.live_bytes, tracker.peak_bytes = 99_999_999, 2**40 - 2**32, 2**40 - 2**32
        plot._frame()
        tracker.operators, tracker.live_bytes, tracker.peak_bytes = 1, 16, 16
    row = [(text, left, right) for text, left, right, y, _ in Drawn(shown[-2]["text/html"]).texts if y == 23]
    assert [text for text, _, _ in row[:3]] == ["operator 99,999,999", "now 1,020.00 GiB", "peak 1,020.00 GiB"]
    assert all(one[2] < other[1] for one, other in pairwise(row))
    del kept


def test_a_frame_marks_the_peak_so_far_and_the_phase_that_runs(clock, shown):
    with MemoryTracker() as tracker, LiveMemoryPlot(tracker):
        with tracker.phase("one"):
            large = torch.zeros(KIB)
        with tracker.phase("two"):
            del large
            clock.now += 1
            small = torch.zeros(1)
    words = Drawn(shown[-2]["text/html"]).words
    assert any(text.startswith("peak so far: aten.zeros, test_live.py, line ") for text in words)
    assert {"one", "two"} <= set(words)
    assert "two" not in Drawn(shown[0]["text/html"]).words
    del small


def test_outermost_phases_of_frames_are_those_of_the_finished_picture(clock):
    with MemoryTracker() as tracker, LiveMemoryPlot(tracker) as plot:
        for name in "abc":
            with tracker.phase(name):
                kept = torch.zeros(4)
                with tracker.phase("inside"):
                    kept = torch.zeros(8)
                    clock.now += 1
                    kept = torch.zeros(2)
        assert plot._phases() == [b for b in brackets_of(tracker) if b.depth == 0]
    assert [b.name for _, b in plot._outer] == ["a", "b", "c"]
    del kept


def test_frames_that_take_long_come_less_often(clock, monkeypatch):
    """A frame of 0.02 s each: the work gets 33 times that before the next."""
    with MemoryTracker() as tracker, LiveMemoryPlot(tracker) as plot:
        draw = plot._output.frame

        def slow(*args):
            clock.now += 0.02
            draw(*args)

        monkeypatch.setattr(plot._output, "frame", slow)
        started = clock.now
        while clock.now < started + 10:
            torch.zeros(4)
            clock.now += 0.01
    assert 12 <= plot.frames <= 18, "and not a hundred"


def test_many_short_phases_stand_together():
    curve = Curve()
    for i in range(10_001):
        curve.add(i, dict.fromkeys(GROUPS, 0) | {"other": 100})
    steps = [Bracket(("forward", "backward")[i % 2], 10 * i + 1, 10 * i + 10) for i in range(1000)]
    drawn = Drawn(memory_svg(curve, title="t", figures="f", brackets=steps))
    assert "500 x (forward, backward)" in drawn.words and "forward" not in drawn.words
    drawn = Drawn(memory_svg(curve, title="t", figures="f", brackets=[*steps[:500], Bracket("long", 5001, 9000)]))
    assert {"250 x (forward, backward)", "long"} <= set(drawn.words)
    mixed = [Bracket(name, 10 * i + 1, 10 * i + 10) for i, name in enumerate("aaaab" * 20)]
    assert "100 phases: a, b" in Drawn(memory_svg(curve, title="t", figures="f", brackets=mixed)).words
    few = Drawn(memory_svg(curve, title="t", figures="f", brackets=steps[:3]))
    assert not any(" x " in word for word in few.words), "the control: three are drawn each for itself"


@pytest.mark.parametrize("wide", [(6, 6, 6), (10, 10, 10), (30, 6, 6), (41, 41, 41)])
@pytest.mark.parametrize("before", [[], [Bracket("warm-up", 1, 10)], [Bracket("warm-up", 1, 100)]])
def test_names_that_come_again_and_do_not_fit_are_said_once(wide, before):
    """Each bracket can be seen, and still "f…" over each of them would say nothing."""
    turns, end = [], before[0].last if before else 0
    while end < 600:  # so that an operator is about a px wide; the last of the turns may be under way
        name, width = ("forward", "backward", "update")[len(turns) % 3], wide[len(turns) % 3]
        turns.append(Bracket(name, end + 1, end + width))
        end += width
    curve = Curve()
    for i in range(end + 1):
        curve.add(i, dict.fromkeys(GROUPS, 0) | {"other": 100})
    drawn = Drawn(memory_svg(curve, title="t", figures="f", brackets=[*before, *turns]))
    drawn.check()
    times = -(-len(turns) // 3)
    assert f"{times} x (forward, backward, update)" in drawn.words and "forward" not in drawn.words
    assert {b.name for b in before} <= set(drawn.words)
    brackets = [e for e in drawn.root.iter(f"{NS}path") if e.get("stroke") == "#555"]
    assert len(brackets) == len(before) + len(turns)


def test_frames_all_have_one_height(clock, shown):
    with MemoryTracker() as tracker, LiveMemoryPlot(tracker) as plot:
        kept = []
        for size in (1, 100, 10_000, 1_000_000):
            clock.now += 1
            kept.append(torch.zeros(size))
    frames = [ET.fromstring(bundle["text/html"]) for bundle in shown[:-1]]
    assert len(frames) == 5
    assert {(frame.get("width"), frame.get("height")) for frame in frames} == {("700", str(HEIGHT))}
    assert ET.fromstring(plot.picture.svg).get("height") == str(HEIGHT)


def test_outside_a_notebook_nothing_is_printed(capsys):
    with MemoryTracker() as tracker, LiveMemoryPlot(tracker) as plot:
        torch.zeros(4)
    assert capsys.readouterr() == ("", "")
    assert plot.picture.alt == draw_memory(tracker).alt


def test_title_and_run_before_reach_the_picture():
    before = zeros(8)
    with MemoryTracker() as tracker, LiveMemoryPlot(tracker, title="Half of it", before=before) as plot:
        kept = torch.zeros(KIB)
    assert plot.picture.alt.startswith("Half of it. ")
    assert "-4.00 KiB at the peak against the run before" in plot.picture.alt
    del kept


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_after_the_block_the_tracker_is_as_before_and_the_picture_finished(error, shown):
    listener = []
    tracker = MemoryTracker()
    tracker.listener = mine = lambda: listener.append(tracker.live_bytes)
    plot = LiveMemoryPlot(tracker)
    kept = []
    try:
        with tracker, plot:
            kept.append(torch.zeros(KIB))
            if error:
                raise error
    except BaseException as raised:
        assert type(raised) is error
    else:
        assert error is None
    assert tracker.listener is mine
    assert listener == [4 * KIB], "a listener that was there before is still called"
    assert plot.picture.alt.startswith("The peak is 4.00 KiB")
    assert shown[-1] == display.lasting(plot.picture)


def test_interrupt_while_a_frame_is_drawn_leaves_the_picture(clock, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    tracker = MemoryTracker()
    with pytest.raises(KeyboardInterrupt), tracker, LiveMemoryPlot(tracker) as plot:
        kept = torch.zeros(KIB)
        monkeypatch.setattr(plot._output, "frame", interrupted)
        clock.now += 1
        kept = torch.zeros(KIB)  # noqa: F841
    assert tracker.listener is None
    assert plot.picture.alt.startswith("The peak is 8.00 KiB")
    # No mode stays behind: what is made now is counted by nobody.
    count = tracker.operators
    torch.zeros(4)
    assert tracker.operators == count


def fails(*args):
    raise ValueError("no room to draw")


def test_a_frame_that_fails_is_the_last_and_lets_the_work_go_on(clock, monkeypatch):
    tracker = MemoryTracker()
    told = pytest.warns(RuntimeWarning, match="stopped moving.*no room to draw")
    with told, tracker, LiveMemoryPlot(tracker) as plot:
        with monkeypatch.context() as patch:
            patch.setattr(plot._output, "frame", fails)
            clock.now += 1
            kept = torch.zeros(KIB)
        clock.now += 1
        more = torch.zeros(KIB)
    assert (plot.frames, str(plot.error)) == (1, "no room to draw")
    assert plot.picture.alt.startswith("The peak is 8.00 KiB")
    assert tracker.listener is None
    del kept, more


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_picture_that_fails_does_not_hide_an_exception(clock, error):
    tracker = MemoryTracker()
    with pytest.raises(error, match="mine") as raised, tracker, LiveMemoryPlot(tracker) as plot:
        plot._output.frame = plot._output.finish = fails
        clock.now += 1
        kept = torch.zeros(KIB)
        raise error("mine")
    assert ["no room to draw" in note for note in raised.value.__notes__] == [True, True]
    with pytest.raises(ValueError, match="no room to draw"), MemoryTracker() as other, LiveMemoryPlot(other) as plot:
        plot._output.finish = fails
    assert tracker.listener is other.listener is None
    del kept


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_first_frame_that_fails_leaves_the_listener(error):
    def raises(*args):
        raise error("mine")

    with MemoryTracker() as tracker:
        tracker.listener = mine = lambda: None
        plot = LiveMemoryPlot(tracker)
        plot._output.frame = raises
        with pytest.raises(error, match="mine"):
            plot.__enter__()
        assert tracker.listener is mine


def test_plots_may_overlap_without_nesting(clock):
    with MemoryTracker() as tracker:
        first, second = LiveMemoryPlot(tracker).__enter__(), LiveMemoryPlot(tracker).__enter__()
        first.__exit__(None, None, None)
        clock.now += 1
        kept = torch.zeros(KIB)
        second.__exit__(None, None, None)
    assert (first.frames, second.frames) == (1, 2)
    assert tracker.listener is None, "the first, which left before, does not come back"
    del kept


def test_the_middle_one_of_three_plots_may_leave_first(clock):
    called = []
    with MemoryTracker() as tracker:
        tracker.listener = mine = lambda: called.append(tracker.live_bytes)
        first, second, third = (LiveMemoryPlot(tracker).__enter__() for _ in range(3))
        second.__exit__(None, None, None)
        clock.now += 1
        kept = torch.zeros(KIB)
        first.__exit__(None, None, None)
        third.__exit__(None, None, None)
        assert tracker.listener is mine
    assert (called, first.frames, second.frames, third.frames) == ([4 * KIB], 2, 1, 2)
    del kept


def test_a_plot_serves_one_block():
    with MemoryTracker() as tracker, LiveMemoryPlot(tracker) as plot:
        with pytest.raises(RuntimeError, match="entered before: make a new one for each block"), plot:
            pass
        kept = torch.zeros(KIB)
    assert "peak 4.00 KiB" in plot.picture.alt, "the outer block went on"
    with MemoryTracker() as tracker:
        with LiveMemoryPlot(tracker) as plot:
            pass
        with pytest.raises(RuntimeError, match="entered before"), plot:
            pass
        assert tracker.listener is None
    del kept


@pytest.mark.parametrize("wrong", [{"before": 3}, {"title": 3}])
def test_before_and_title_are_checked_at_once(wrong):
    tracker = zeros(4)
    for draw in (draw_memory, LiveMemoryPlot):
        with pytest.raises(TypeError, match=rf"got int: pass {next(iter(wrong))}="):
            draw(tracker, **wrong)
    with pytest.raises(TypeError, match="expected a MemoryTracker, got NoneType: pass the tracker"):
        draw_memory(None)


def test_plots_nest(clock):
    with MemoryTracker() as tracker, LiveMemoryPlot(tracker) as outer:
        clock.now += 1
        a = torch.zeros(KIB)
        with LiveMemoryPlot(tracker, title="inner") as inner:
            clock.now += 1
            b = torch.zeros(KIB)
        clock.now += 1
        c = torch.zeros(KIB)
    assert (outer.frames, inner.frames) == (4, 2)
    assert "peak 8.00 KiB" in inner.picture.alt and "peak 12.00 KiB" in outer.picture.alt
    assert tracker.listener is None
    del a, b, c


def test_plots_of_nested_trackers_each_draw_their_own(clock):
    with MemoryTracker() as one, LiveMemoryPlot(one) as outer:
        a = torch.zeros(KIB)
        with MemoryTracker() as two, LiveMemoryPlot(two) as inner:
            b = torch.zeros(2 * KIB)
    assert "peak 12.00 KiB" in outer.picture.alt
    assert "peak 8.00 KiB" in inner.picture.alt
    del a, b


def test_only_a_tracker_can_be_plotted():
    with pytest.raises(
        TypeError, match=r"expected a MemoryTracker, got Linear: with MemoryTracker\(model\) as tracker"
    ):
        LiveMemoryPlot(torch.nn.Linear(2, 2))


def test_only_a_running_tracker_can_be_plotted():
    tracker = MemoryTracker()
    with pytest.raises(RuntimeError, match=r"does not run yet.*with MemoryTracker\(...\) as tracker, LiveMemoryPlot"):
        LiveMemoryPlot(tracker).__enter__()
    assert tracker.listener is None
    with tracker:
        pass
    with pytest.raises(RuntimeError, match=r"has had its block: make a new one.*LiveMemoryPlot\(tracker\)"):
        LiveMemoryPlot(tracker).__enter__()


def test_nothing_is_kept_alive(clock, shown):
    w = torch.rand(64, 64, requires_grad=True)
    storages = []
    with MemoryTracker(w) as tracker, LiveMemoryPlot(tracker) as plot:
        clock.now += 1
        hidden = w.exp()
        storages.append(weakref.ref(hidden.untyped_storage()))
        clock.now += 1
        loss = hidden.sum()
        loss.backward()
        storages += [weakref.ref(w.grad.untyped_storage()), weakref.ref(w.untyped_storage())]
    assert all(ref() is not None for ref in storages), "the control: they are alive while the reader holds them"
    picture = plot.picture
    w.grad = None
    del hidden, loss, w
    gc.collect()
    assert [ref() for ref in storages] == [None, None, None]
    assert picture.alt and tracker.timeline and plot.frames
