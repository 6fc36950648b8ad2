"""A drawing as PNG: the same picture, small, the same bytes each time, and nothing of matplotlib's moved."""

from __future__ import annotations

import io
import warnings

import numpy as np
import pytest
import torch

from helpers._memory_phases import Bracket
from helpers._memory_picture import HEIGHT, LEFT, RIGHT, TOP, WIDTH, Curve, Marker, memory_svg
from helpers._raster import _SCALE, png_of
from helpers.display import GROUPS, Picture, lasting
from helpers.live import draw_memory
from helpers.memory import MemoryTracker


def read(png: bytes) -> np.ndarray:
    from PIL import Image

    assert png.startswith(b"\x89PNG")
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def rgb(colour: str) -> np.ndarray:
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])


def bands(lines=(None, None), **more) -> str:
    """Five bands, each a fifth of 10 MiB; what is drawn of them can be found by hand."""
    curve = Curve()
    for operator in range(20):
        curve.add(operator, dict.fromkeys(GROUPS, 2 * 2**20), *lines)
    return memory_svg(curve, title="What is alive", figures="start 10 MiB", **more)


def at(pixels: np.ndarray, x: float, y: float) -> np.ndarray:
    """The pixels around a place of the drawing, as a list of colours."""
    x, y = int(x * _SCALE), int(y * _SCALE)
    return pixels[y - 6 : y + 7, x - 6 : x + 7].reshape(-1, 3)


def share(pixels: np.ndarray, colour: str, tolerance: int = 24) -> float:
    return float((np.abs(pixels - rgb(colour)).max(axis=1) < tolerance).mean())


def test_bands_have_their_colours_at_their_heights():
    pixels = read(png_of(bands()))
    assert pixels.shape == (HEIGHT * _SCALE, WIDTH * _SCALE, 3)
    floor, height = 280, (280 - TOP) / 11.2 * 2  # px of one band: 10 of 11.2 MiB are 206 px high
    for number, colour in enumerate(GROUPS.values()):
        place = at(pixels, LEFT + 60, floor - (number + 0.5) * height)
        assert share(place, colour) > 0.5, number
        assert share(at(pixels, LEFT + 60, floor - (number + 1.5) * height), colour) < 0.1, "the control"


def test_a_group_that_is_hardly_to_be_seen_keeps_its_colour():
    curve = Curve()
    for operator in range(2):
        curve.add(operator, {group: 10**6 if group == "other" else 10 for group in GROUPS})
    pixels = read(png_of(memory_svg(curve, title="t", figures="f"))).reshape(-1, 3)
    for colour in GROUPS.values():
        assert share(pixels, colour, 3) > 0.00005, "its swatch, in its own colour"


def test_hatches_repeat_the_colours():
    pixels = read(png_of(bands()))
    height = (280 - TOP) / 11.2 * 2
    plain, hatched = (pixels[int((280 - (n + 0.7) * height) * _SCALE)][150:400] for n in (0, 3))
    assert len(np.unique(plain, axis=0)) == 1, "parameters have none"
    assert len(np.unique(hatched, axis=0)) > 1


def test_title_words_and_frame_are_drawn():
    with_title, without = read(png_of(bands())), read(png_of(bands().replace("What is alive", "")))
    row = slice(int(10 * _SCALE), int(28 * _SCALE))
    assert (with_title[row, 20:300].min(axis=2) < 90).sum() > 200
    assert (without[row, 20:300].min(axis=2) < 90).sum() == 0
    assert share(read(png_of(bands()))[:, :2].reshape(-1, 3), "#8a8a8a", 60) > 0.4


def test_phases_peak_and_lines_of_the_allocator_are_drawn():
    plain = read(png_of(bands()))
    more = {
        "brackets": [Bracket("forward", 2, 9)],
        "peak": Marker(10, 10 * 2**20, "peak 10 MiB: aten.exp, In [3], line 1: y = $x$ + [i<j]"),
        "before": Curve([(0, (9 * 2**20, 0, 0, 0, 0)), (19, (9 * 2**20, 0, 0, 0, 0))]),
        "cursor": (5, 10 * 2**20),
    }
    for name, value in more.items():
        assert (read(png_of(bands(**{name: value}))) != plain).any(axis=2).sum() > 100, name
    with_lines = read(png_of(bands(lines=(10 * 2**20, 2**20))))
    assert (with_lines != plain).any(axis=2).sum() > 100


def test_the_same_run_gives_the_same_bytes_and_another_run_others():
    assert png_of(bands()) == png_of(bands())
    assert png_of(bands()) != png_of(bands(cursor=(3, 2**20)))


def test_a_training_step_is_small():
    w, x = torch.rand(64, 64, requires_grad=True), torch.rand(64, 64)
    with MemoryTracker(w, x) as tracker:
        with tracker.phase("forward"):
            loss = (x * w).exp().tanh().sum()
        with tracker.phase("backward"):
            loss.backward()
    picture = draw_memory(tracker)
    bundle = lasting(picture)
    assert list(bundle) == ["text/html", "image/png", "text/plain"]
    assert len(bundle["image/png"]) < 40_000
    assert bundle["text/html"].count("<img") == 1 and picture.alt.split(".")[0] in bundle["text/html"]
    assert bundle["image/png"] in bundle["text/html"], "what is left where the source is cleaned away"
    assert bundle["text/plain"] == picture.text


def test_the_worst_page_is_small():
    rng = np.random.default_rng(0)
    curve = Curve()
    for operator in range(20_000):
        totals = dict(zip(GROUPS, rng.integers(1, 10**9, 5).tolist()))
        curve.add(operator, totals, 6 * 10**9, int(rng.integers(6 * 10**9, 7 * 10**9)))
    brackets = [Bracket(f"p{i % 3}", 20 * i, 20 * i + 19) for i in range(1000)]
    bundle = lasting(Picture(memory_svg(curve, title="t", figures="f", brackets=brackets), alt="noise"))
    assert len(bundle["image/png"]) < 60_000
    assert sum(map(len, bundle.values())) < 200_000


def test_matplotlib_is_left_as_it_was():
    import matplotlib
    from matplotlib import pyplot

    before = dict(matplotlib.rcParams)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        png_of(bands(brackets=[Bracket("語 \U0001f600", 2, 9)]))
    assert pyplot.get_fignums() == []
    assert dict(matplotlib.rcParams) == before


SETTINGS = {
    "text.usetex": True,
    "path.snap": False,
    "path.sketch": (1, 100, 2),
    "text.hinting": "none",
    "text.antialiased": False,
    "patch.antialiased": False,
    "figure.autolayout": True,
    "figure.facecolor": "black",
    "axes.facecolor": "black",
    "hatch.color": "red",
}


@pytest.mark.parametrize("name", SETTINGS)
def test_no_setting_of_the_reader_shows(name):
    import matplotlib

    usual = png_of(bands(brackets=[Bracket("forward", 2, 9)]))
    with matplotlib.rc_context({name: SETTINGS[name]}):
        before, backend = dict(matplotlib.rcParams), matplotlib.rcParams._get("backend")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert png_of(bands(brackets=[Bracket("forward", 2, 9)])) == usual
        assert dict(matplotlib.rcParams) == before and matplotlib.rcParams._get("backend") is backend


@pytest.mark.parametrize("style", ["dark_background", "ggplot", "bmh", "xkcd"])
def test_no_style_of_the_reader_shows(style):
    from matplotlib import pyplot

    usual = png_of(bands())
    with pyplot.xkcd() if style == "xkcd" else pyplot.style.context(style):
        assert png_of(bands()) == usual


def test_what_stops_matplotlib_costs_no_more_than_the_png(monkeypatch):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    def draw(self):
        raise RuntimeError("no room for the pixels")

    picture = Picture(bands(), alt="five bands")
    monkeypatch.setattr(FigureCanvasAgg, "draw", draw)
    with pytest.raises(RuntimeError, match="no room"):  # the control
        png_of(picture.svg)
    assert lasting(picture) == picture._repr_mimebundle_()


def test_without_matplotlib_the_svg_and_the_words_remain(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    picture = Picture(bands(), alt="five bands")
    assert lasting(picture) == picture._repr_mimebundle_()


@pytest.mark.parametrize("part", ['<g><rect x="0"/></g>', '<path d="M0 0C1 1 2 2 3 3"/>', '<polygon points="0,0"/>'])
def test_what_cannot_be_drawn_is_refused(part):
    with pytest.raises(ValueError, match="is not drawn as PNG: only"):
        png_of(bands().replace("</svg>", f"{part}</svg>"))


def test_margins_are_those_of_the_drawing():
    assert (LEFT, RIGHT, TOP, HEIGHT - 50) == (66, 14, 74, 280), "what the places above are counted from"
