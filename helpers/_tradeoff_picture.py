"""How do time and memory trade? Draws a point for each policy, with the frontier and the budget, as SVG."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from .display import FONT, GROUPS, INK, MAX_WIDTH, PAPER, WRITTEN, clip, in_xml, round_bytes, text_width

_WIDTH, _HEIGHT = MAX_WIDTH, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 20, 44, 72
_PLOT_W, _PLOT_H = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
_POINT, _RING, _LINE = 6, 10, 14
_Box = tuple[float, float, float, float]  # left, top, right, bottom


class Point(NamedTuple):
    """A policy: its name, step time over plain, peak in bytes, error of the gradient in words, whether it fits."""

    name: str
    time: float
    nbytes: int
    error: str
    fits: bool


def tradeoff_svg(
    points: Sequence[Point], frontier: Sequence[tuple[float, int]], *, title: str, budget: float | None = None
) -> str:
    """Returns the picture as one ``<svg>``: step time across from the fastest, peak up from zero.

    Args:
        frontier: (time, bytes) of those that nobody beats in both, the fastest first.
        budget: bytes at which to draw a rule.
    """
    times = [p.time for p in points if math.isfinite(p.time)] or [1.0]
    low, high = min(times), max([*times, min(times) + 0.1])
    low, high = low - 0.06 * (high - low), high + 0.10 * (high - low)
    top = max([p.nbytes for p in points] + [budget or 0, 1]) * 1.12

    def x(ratio: float) -> float:
        return _LEFT + (ratio - low) / (high - low) * _PLOT_W if math.isfinite(ratio) else _LEFT + _PLOT_W / 2

    def y(nbytes: float) -> float:
        return _TOP + _PLOT_H * (1 - nbytes / top)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="{html.escape(FONT)}" font-size="11" fill="{INK}">',
        f'<rect x=".5" y=".5" width="{_WIDTH - 1}" height="{_HEIGHT - 1}" rx="4" fill="{PAPER}" stroke="#8a8a8a"/>',
        _text(14, 23, clip(title, _WIDTH - 28, 16), 'font-size="14" font-weight="bold"'),
    ]
    for step in _ticks(0, top / 2**20):
        height = y(step * 2**20)
        parts.append(f'<path d="M{_LEFT} {height:.1f}H{_WIDTH - _RIGHT}" stroke="#dddddd"/>')
        parts.append(_text(_LEFT - 8, height + 4, f"{step:g}", 'text-anchor="end"'))
    for step in _ticks(low, high):
        parts.append(f'<path d="M{x(step):.1f} {_TOP}V{_TOP + _PLOT_H}" stroke="#eeeeee"/>')
        parts.append(_text(x(step), _TOP + _PLOT_H + 18, f"{step:g}", 'text-anchor="middle"'))
    parts += [
        f'<path d="M{_LEFT} {_TOP}V{_TOP + _PLOT_H}H{_WIDTH - _RIGHT}" fill="none" stroke="{INK}"/>',
        _text(_LEFT + _PLOT_W / 2, _HEIGHT - 34, "step time, times the plain step (right is slower)", _MIDDLE),
        _text(
            0, 0, "peak over the start, MiB", f'{_MIDDLE} transform="translate(20 {_TOP + _PLOT_H / 2}) rotate(-90)"'
        ),
    ]
    taken = [(x(p.time) - _RING, y(p.nbytes) - _RING, x(p.time) + _RING, y(p.nbytes) + _RING) for p in points]
    if budget is not None:
        parts.append(f'<path d="M{_LEFT} {y(budget):.1f}H{_WIDTH - _RIGHT}" stroke="{INK}" stroke-dasharray="6 4"/>')
        words = f"budget {round_bytes(budget)}"
        width, rule = text_width(words), y(budget)
        ends = _WIDTH - _RIGHT - width - 4, _LEFT + 6
        places = [(left, rule - 17, left + width, rule - 2) for left in ends]
        box = next((box for box in places if not _covered(box, taken)), places[0])
        parts.append(_text(box[0], rule - 5, words, ""))
        taken += [box, (_LEFT, rule - 2, _WIDTH - _RIGHT, rule + 2)]
    if len(frontier) > 1:
        # A staircase: between two that were measured there is nothing that was.
        corners = [(x(t), y(n)) for t, n in frontier]
        path = f"M{corners[0][0]:.1f} {corners[0][1]:.1f}" + "".join(f"H{px:.1f}V{py:.1f}" for px, py in corners[1:])
        parts.append(f'<path d="{path}" fill="none" stroke="{_FRONTIER}" stroke-width="2"/>')
        for (left, upper), (right, lower) in pairwise(corners):
            taken += [(left, upper - 1, right, upper + 1), (right - 1, upper, right + 1, lower)]
    for point in points:
        px, py = x(point.time), y(point.nbytes)
        if point.error:
            parts.append(
                f'<circle cx="{px:.1f}" cy="{py:.1f}" r="{_RING}" fill="{WRITTEN}" fill-opacity=".6" stroke="{INK}"/>'
            )
        fill = GROUPS["saved activations"] if point.fits else PAPER
        parts.append(
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="{_POINT}" fill="{fill}" '
            f'stroke="{INK if point.fits else GROUPS["saved activations"]}" stroke-width="{1 if point.fits else 2}"/>'
        )
        parts += _label(point, px, py, taken)
    return "".join(parts + _legend(len(frontier) > 1, any(p.error for p in points))) + "</svg>"


_MIDDLE = 'text-anchor="middle"'
_FRONTIER = "#6b6b6b"


def _legend(with_line: bool, with_ring: bool) -> list[str]:
    """What line and ring mean, in a row under the picture."""
    parts, at, y = [], _LEFT, _HEIGHT - 16
    if with_line:
        words = "frontier: for these, nothing measured is both faster and smaller"
        parts += [
            f'<path d="M{at} {y}h18" stroke="{_FRONTIER}" stroke-width="2"/>',
            _text(at + 24, y + 4, words, ""),
        ]
        at += 24 + text_width(words) + 24
    if with_ring:
        parts += [
            f'<circle cx="{at + 7:.1f}" cy="{y}" r="7" fill="{WRITTEN}" fill-opacity=".6" stroke="{INK}"/>',
            _text(at + 20, y + 4, "ring: the gradient is not exact", ""),
        ]
    return parts


def _label(point: Point, px: float, py: float, taken: list[_Box]) -> list[str]:
    """The name beside its point, where nothing stands yet; far from it with a line to it, if need be."""
    words = f" {round_bytes(point.nbytes)}" + (f", error {point.error}" if point.error else "")
    words = clip(point.name, _PLOT_W / 2 - text_width(words)) + words
    width = text_width(words)
    near = _RING + 3
    places = [
        (px + near, py),
        (px - near - width, py),
        (px - width / 2, py - near - 4),
        (px - width / 2, py + near + 4),
        (px + 5, py - near - 4),
        (px + 5, py + near + 4),
    ]
    beside = len(places)
    for aside in (8, 120, 240):
        for away in range(1, 20):
            for height in (py - away * _LINE, py + away * _LINE):
                places += [(px + near + aside, height), (px - near - aside - width, height)]
    for left, middle in places:
        box = (left - 1, middle - 7, left + width + 1, middle + 7)
        if box[0] < _LEFT + 2 or box[2] > _WIDTH - 4 or box[1] < _TOP or box[3] > _TOP + _PLOT_H:
            continue
        if not _covered(box, taken):
            break
    else:  # no place is free: then over others, and inside
        left, middle = min(max(px + near, _LEFT + 3), _WIDTH - 5 - width), min(max(py, _TOP + 7), _TOP + _PLOT_H - 7)
        box = (left - 1, middle - 7, left + width + 1, middle + 7)
    taken.append(box)
    parts = []
    if (left, middle) in places[beside:]:
        near_end = left - 2 if left > px else left + width + 2
        parts.append(f'<path d="M{px:.1f} {py:.1f}L{near_end:.1f} {middle:.1f}" stroke="{INK}" stroke-width=".7"/>')
    # Letters are often narrower than the room kept for them: they stand at the end of it that is near the point.
    at, anchor = (left, "start") if left > px else (left + width, "end") if left + width < px else (px, "middle")
    halo = f'text-anchor="{anchor}" stroke="{PAPER}" stroke-width="3" paint-order="stroke"'
    return [*parts, _text(at, middle + 4, words, halo)]


def _covered(box: _Box, taken: Sequence[_Box]) -> bool:
    return any(box[0] < t[2] and t[0] < box[2] and box[1] < t[3] and t[1] < box[3] for t in taken)


def _text(x: float, y: float, words: str, attributes: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}"'
    return f"<text {place} {attributes}>{html.escape(in_xml(words))}</text>"


def _ticks(low: float, high: float) -> list[float]:
    """Four to nine round numbers from ``low`` to ``high``."""
    rough = (high - low) / 6
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= rough)
    first = math.ceil(low / step - 1e-9)
    return [round(n * step, 10) for n in range(first, math.floor(high / step + 1e-9) + 1)]
