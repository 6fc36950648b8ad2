"""How does a folder fill and empty? Draws what a `DiskWatch` counted as SVG, a lane for each watch.

Across runs the number of the call of pack or unpack, so the picture is the same on every run; up go the bytes, to one
scale in all lanes. Under each lane stands, at the end of each phase, how many files have a name in the folder.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from .display import FONT, GROUPS, INK, MAX_WIDTH, PAPER, clip, in_xml, round_bytes, text_width

LEFT, RIGHT, TOP = 70, 18, 54  # px
PLOT, LANE = 66, 116  # height of the bytes of a lane, and of the lane with its words
_PLOT_W = MAX_WIDTH - LEFT - RIGHT
_SAVED = GROUPS["saved activations"]
_HATCH = {
    "named": '<path d="M0 0L6 6" stroke="#1a1a1a" stroke-width=".7"/>',
    "nameless": '<circle cx="3" cy="3" r=".9" fill="#1a1a1a"/>',
}
_LEGEND = {"named": "in files with a name", "nameless": "in use in a file without one"}
_LENGTH = "its length"


@dataclass(frozen=True)
class Point:
    """What lay on disk after so many calls: named files and their bytes, bytes in use and length of nameless ones."""

    call: int
    names: int
    named: int
    nameless: int
    length: int


@dataclass(frozen=True)
class Lane:
    """One watch: its name, its points, its phases as (name, first call, last call), and a sentence for the right."""

    name: str
    points: Sequence[Point]
    phases: Sequence[tuple[str, int, int]]
    figures: str


def height_of(lanes: int) -> int:
    """Height in px of a picture with so many lanes."""
    return TOP + lanes * LANE + 30


def disk_svg(lanes: Sequence[Lane], title: str) -> str:
    """Returns the picture as one ``<svg>``, `MAX_WIDTH` px wide."""
    last = max((p.call for lane in lanes for p in lane.points), default=0) or 1
    top = max((max(p.named + p.nameless, p.length) for lane in lanes for p in lane.points), default=0) or 1
    height = height_of(len(lanes))

    def x(call: float) -> float:
        return LEFT + call / last * _PLOT_W

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{MAX_WIDTH}" height="{height}" '
        f'viewBox="0 0 {MAX_WIDTH} {height}" font-family="{html.escape(FONT)}" font-size="11" fill="{INK}">',
        "<defs>"
        + "".join(
            f'<pattern id="disk-{kind}" width="6" height="6" patternUnits="userSpaceOnUse">{shape}</pattern>'
            for kind, shape in _HATCH.items()
        )
        + "</defs>",
        f'<rect x=".5" y=".5" width="{MAX_WIDTH - 1}" height="{height - 1}" rx="4" fill="{PAPER}" stroke="#8a8a8a"/>',
        f'<text x="14" y="23" font-size="14" font-weight="bold">{_text(clip(title, MAX_WIDTH - 28, 16))}</text>',
    ]
    if lanes:
        parts += _phase_names(lanes[0].phases, x)
    for number, lane in enumerate(lanes):
        parts += _lane(lane, TOP + number * LANE, x, top)
    parts += _legend(lanes, height - 12)
    return "".join(parts) + "</svg>"


def _text(words: str) -> str:
    return html.escape(in_xml(words), quote=False)


def _phase_names(phases, x) -> list[str]:
    drawn = []
    for name, first, last in phases:
        left, right = x(first), x(last)
        if text_width(name) + 4 <= right - left:
            drawn.append(f'<text x="{(left + right) / 2:.1f}" y="44" text-anchor="middle">{_text(name)}</text>')
    return drawn


def _lane(lane: Lane, y0: float, x, top: int) -> list[str]:
    roof, floor, end = y0 + 22, y0 + 22 + PLOT, MAX_WIDTH - RIGHT

    def y(nbytes: float) -> float:
        return floor - nbytes / top * PLOT

    room = end - LEFT - text_width(lane.figures) - 12
    parts = [
        f'<text x="{LEFT}" y="{y0 + 15}" font-weight="bold">{_text(clip(lane.name, room, 12))}</text>',
        f'<text x="{end}" y="{y0 + 15}" text-anchor="end">{_text(lane.figures)}</text>',
    ]
    for number, (_, first, last) in enumerate(lane.phases):
        if number % 2 == 0:
            width = max(x(last) - x(first), 1)
            parts.append(f'<rect x="{x(first):.1f}" y="{roof}" width="{width:.1f}" height="{PLOT}" fill="#efefef"/>')
    for nbytes in (0, top):
        words = round_bytes(nbytes).replace(" B", "") if not nbytes else rounded(nbytes)
        parts.append(
            f'<path d="M{LEFT} {y(nbytes):.1f}H{end}" stroke="#c4c4c4" stroke-width=".7"/>'
            f'<text x="{LEFT - 6}" y="{y(nbytes) + 4:.1f}" text-anchor="end">{words}</text>'
        )
    for kind in _HATCH:
        line = [(x(p.call), y(getattr(p, kind))) for p in lane.points]
        if any(getattr(p, kind) for p in lane.points):
            path = f"M{line[0][0]:.1f} {floor}V{line[0][1]:.1f}{_steps(line)}V{floor}Z"
            parts.append(f'<path d="{path}" fill="{_SAVED}" stroke="{INK}" stroke-width=".8"/>')
            parts.append(f'<path d="{path}" fill="url(#disk-{kind})" fill-opacity=".55"/>')
    if any(p.length for p in lane.points):
        line = [(x(p.call), y(p.length)) for p in lane.points]
        parts.append(
            f'<path d="M{line[0][0]:.1f} {line[0][1]:.1f}{_steps(line)}" fill="none" stroke="{INK}" '
            'stroke-width="1.4" stroke-dasharray="4 3"/>'
        )
    return parts + _names(lane, floor + 15, x)


def _names(lane: Lane, y: float, x) -> list[str]:
    """How many files have a name, at the end of each phase; every so many where there is no room for all."""
    parts = [f'<text x="{LEFT - 6}" y="{y:.1f}" text-anchor="end">files</text>']
    right = LEFT
    for _, _, last in lane.phases:
        at_end = [p.names for p in lane.points if p.call <= last]
        words = f"{at_end[-1]:,}" if at_end else "0"
        if x(last) - text_width(words) > right + 4:
            parts.append(f'<text x="{x(last):.1f}" y="{y:.1f}" text-anchor="end">{words}</text>')
            right = x(last)
    return parts


def rounded(nbytes: int) -> str:
    """Bytes with one decimal: what `torch.save` adds to a file differs between versions."""
    number, unit = round_bytes(nbytes).split(" ")
    return f"{float(number.replace(',', '')):,.1f} {unit}" if unit != "B" else f"{number} B"


def _steps(line) -> str:
    """A staircase through the points: the folder stays as it is until the next call."""
    return "".join(f"H{px:.1f}V{py:.1f}" for px, py in line[1:])


def _legend(lanes: Sequence[Lane], y: float) -> list[str]:
    at, drawn = float(LEFT), []
    for kind, words in _LEGEND.items():
        if any(getattr(p, kind) for lane in lanes for p in lane.points):
            box = f'x="{at:.1f}" y="{y - 9}" width="12" height="10"'
            drawn.append(f'<rect {box} fill="{_SAVED}" stroke="{INK}" stroke-width=".8"/>')
            drawn.append(f'<rect {box} fill="url(#disk-{kind})" fill-opacity=".55"/>')
            drawn.append(f'<text x="{at + 16:.1f}" y="{y}">{words}</text>')
            at += 30 + text_width(words)
    if any(p.length for lane in lanes for p in lane.points):
        drawn.append(f'<path d="M{at:.1f} {y - 4}h18" stroke="{INK}" stroke-width="1.4" stroke-dasharray="4 3"/>')
        drawn.append(f'<text x="{at + 22:.1f}" y="{y}">{_LENGTH}</text>')
        at += 40 + text_width(_LENGTH)
    last = max((p.call for lane in lanes for p in lane.points), default=0)
    words = f"{last:,} calls of pack and unpack"
    if at + text_width(words) < MAX_WIDTH - RIGHT:
        drawn.append(f'<text x="{MAX_WIDTH - RIGHT}" y="{y}" text-anchor="end">{words}</text>')
    return drawn
