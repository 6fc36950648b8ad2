"""How does live memory look? Draws the bands of a `MemoryTracker` as SVG, the same while it moves and at the end.

Across runs the number of the operator, so the picture is the same on every run; up go the bytes, stacked by group from
the floor: parameters, optimizer state, gradients, saved activations, other.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from ._memory_phases import BOTTOM, HEIGHT, TOP, WIDTH, Bracket, phase_marks
from .display import FONT, GROUPS, INK, PAPER, clip, in_xml, round_bytes, text_width

LEFT, RIGHT = 66, 14  # margins of the plot, in px
_PLOT_W, _PLOT_H = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
_MAX_POINTS = 2048  # more than the plot has px, even when twice as many operators have just come to stand together
READOUT = (14, 188, 332, 482)  # px: where the words of a readout begin
# A pattern repeats what the colour says; parameters and other need none, they are told by being at the floor and grey.
_HATCH = {
    "optimizer state": '<path d="M0 6L6 0" stroke="#1a1a1a" stroke-width=".7"/>',
    "gradients": '<circle cx="3" cy="3" r=".9" fill="#1a1a1a"/>',
    "saved activations": '<path d="M0 0L6 6" stroke="#1a1a1a" stroke-width=".7"/>',
}


@dataclass
class Curve:
    """Live bytes by group over operators, thinned so that it stays small and keeps its peaks.

    Attributes:
        points: (operator number, or half a one more between two, bytes of each group in the order of `GROUPS`).
        device_lines: (operator number, allocated, reserved) where CUDA's allocator was asked.
    """

    points: list[tuple[float, tuple[int, ...]]] = field(default_factory=list)
    device_lines: list[tuple[int, int, int]] = field(default_factory=list)
    _width: int = 0  # for how many operators a point stands; 0: each for itself
    _line_width: int = 0

    def add(self, operator: float, groups: dict[str, int], allocated: int | None = None, reserved: int | None = None):
        point = operator, tuple([groups[g] for g in GROUPS])
        self._width = _added(self.points, point, self._width, _bytes_of)
        if allocated is not None and reserved is not None:
            point = operator, allocated, reserved
            self._line_width = _added(self.device_lines, point, self._line_width, _reserved_of)

    @property
    def top(self) -> int:
        return max((sum(p[1]) for p in self.points), default=0)


def _bytes_of(point: tuple) -> int:
    return sum(point[1])


def _reserved_of(point: tuple) -> int:
    return point[2]


def _added(points: list, point: tuple, width: int, height: Callable[[tuple], int]) -> int:
    """Adds a point. Returns for how many operators one stands, which is twice as many whenever there are too many.

    Of the points that stand together the highest stays. The first, which is the start, and the last always do. So the
    points lie evenly over the run, however long it is.
    """
    _put(points, point, width, height)
    while len(points) > _MAX_POINTS:
        width = max(2 * width, 1)
        old, points[:] = points[:], []
        for each in old:
            _put(points, each, width, height)
    return width


def _put(points: list, point: tuple, width: int, height: Callable[[tuple], int]) -> None:
    if width and len(points) > 2 and points[-1][0] // width == points[-2][0] // width:
        if height(points[-1]) >= height(points[-2]):
            points[-2] = points[-1]
        points[-1] = point
    else:
        points.append(point)


@dataclass(frozen=True)
class Marker:
    """The peak: where, how much, and the sentence beside it."""

    operator: int
    nbytes: int
    text: str


def memory_svg(
    curve: Curve,
    *,
    title: str,
    figures: str,
    brackets: Sequence[Bracket] = (),
    peak: Marker | None = None,
    before: Curve | None = None,
    readout: Sequence[str] = (),
    cursor: tuple[float, int] | None = None,
    operators: int = 0,
) -> str:
    """Returns the picture as one ``<svg>``, `WIDTH` by `HEIGHT` px.

    Args:
        title: the finding, in one sentence.
        figures: the line of figures under the picture.
        before: the curve of an earlier run, drawn as an outline.
        readout: in place of the title what is now; each word has its place, so nothing jumps when figures change.
        cursor: (operator, live bytes) of the moment that is spoken of.
        operators: how far the axis reaches at least; many may have run since the last that changed the memory.
    """
    end = max([p[0] for c in (curve, before) if c for p in c.points] + [operators])
    last = max(end, 1)
    lead = max(1.0, last * 0.03)  # room at the left, where only what existed before is to be seen
    top = max([c.top for c in (curve, before) if c] + [r for _, _, r in curve.device_lines] + [1]) * 1.12

    def x(operator: float) -> float:
        return LEFT + (operator + lead) / (last + lead) * _PLOT_W

    def y(nbytes: float) -> float:
        return TOP + _PLOT_H * (1 - nbytes / top)

    light = bool(readout)
    columns = _columns(curve.points, x, light)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="{html.escape(FONT)}" font-size="11" fill="{INK}">',
        "<defs>"
        + "".join(
            f'<pattern id="{_pattern(group)}" width="6" height="6" patternUnits="userSpaceOnUse">{shape}</pattern>'
            for group, shape in _HATCH.items()
        )
        + "</defs>",
        f'<rect x=".5" y=".5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="4" fill="{PAPER}" stroke="#8a8a8a"/>',
        *(_readout(readout) if readout else [_bold(14, WIDTH - 28, title, 14)]),
    ]
    parts += _grid(y, top)
    if peak:
        parts.append(
            f'<path d="M{x(peak.operator):.1f} 48V{y(peak.nbytes):.1f}" stroke="{INK}" stroke-dasharray="2 2"/>'
        )
    parts += phase_marks(brackets, lambda operator: x(min(operator, last)))
    present = [g for number, g in enumerate(GROUPS) if any(values[number] for _, values in columns)]
    # From the top down, each to the floor and the next one over it: half the page that bands with floors would take.
    levels = _levels(columns, y)
    for group in reversed(present):
        parts += _band(group, levels)
    for group in present:
        parts += _label(group, levels, 40 if light else 120)
    if before:
        parts.append(_outline(_columns(before.points, x, light), y))
    lines = _columns([(o, values) for o, *values in curve.device_lines], x, light, height=max)
    for number, (name, dash) in enumerate((("allocated", "none"), ("reserved", "5 3"))):
        line = [(px, y(values[number])) for px, values in lines]
        if line:
            parts.append(
                f'<path d="M{_steps(line, x(last))}" fill="none" stroke="{INK}" stroke-width="1.4" '
                f'stroke-dasharray="{dash}"/>'
                f'<text x="{WIDTH - RIGHT - 4}" y="{line[-1][1] - 4:.1f}" text-anchor="end">{name}</text>'
            )
    if peak:
        parts += _peak(peak, x, y)
    if cursor:
        parts += _cursor(x(cursor[0]), y(cursor[1]))
    parts += _legend(present)
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 12}">{_escape(clip(figures, WIDTH - LEFT - 20))}</text>')
    parts.append(
        f'<text x="{WIDTH - RIGHT}" y="{TOP + _PLOT_H + 16}" text-anchor="end">operators 0 to {int(end):,}</text>'
    )
    return "".join(parts) + "</svg>"


def _bold(at: float, width: float, text: str, size: int) -> str:
    # Bold letters are a seventh wider than ordinary ones at most.
    words = _escape(clip(text, width, size * 8 / 7))
    return f'<text x="{at}" y="23" font-size="{size}" font-weight="bold">{words}</text>'


def _readout(words: Sequence[str]) -> list[str]:
    edges = [*READOUT[: len(words)], WIDTH - 8]
    return [_bold(at, end - at - 6, word, 12) for at, end, word in zip(edges, edges[1:], words) if word]


def _cursor(px: float, py: float) -> list[str]:
    return [
        f'<path d="M{px:.1f} {TOP - 8}V{TOP + _PLOT_H}" fill="none" stroke="{PAPER}" stroke-width="4"/>'
        f'<path d="M{px:.1f} {TOP - 8}V{TOP + _PLOT_H}" fill="none" stroke="{INK}" stroke-width="1.6"/>'
        f'<circle cx="{px:.1f}" cy="{py:.1f}" r="4.5" fill="{INK}" stroke="{PAPER}" stroke-width="1.6"/>'
    ]


def _escape(text: str) -> str:
    return html.escape(in_xml(text), quote=False)


def _pattern(group: str) -> str:
    return "hatch-" + group.replace(" ", "-")


def _columns(points, x, light: bool, height: Callable = sum) -> list[tuple[float, tuple[int, ...]]]:
    """One point for each px or so: where several events share one, the highest, so that no peak is lost."""
    columns: list[tuple[float, tuple[int, ...]]] = []
    # Half a px where that cannot make the page large; two of them in a frame that lasts for a tenth of a second.
    fine = 2 if len(points) <= _PLOT_W / (4 if light else 1) else 0.5 if light else 1
    for operator, values in points:
        at = round(x(operator) * fine) / fine
        if columns and columns[-1][0] == at and len(columns) > 1:
            if height(values) >= height(columns[-1][1]):
                columns[-1] = at, values
        else:
            columns.append((at if columns else float(LEFT), values))
    # A column like the one before it is the same staircase.
    return [c for i, c in enumerate(columns) if i in (0, len(columns) - 1) or c[1] != columns[i - 1][1]]


def _steps(line: Sequence[tuple[float, float]], end: float) -> str:
    """A staircase through the points: memory stays as it is until the next event."""
    path = f"{line[0][0]:g} {line[0][1]:.1f}"
    for px, py in line[1:]:
        path += f"H{px:g}V{py:.1f}"
    return path + f"H{end:g}"


def _levels(columns, y) -> list[list[tuple[float, float]]]:
    """The floor of the plot and the roofs of the bands, from below, as points."""
    heights = [[y(total) for total in accumulate(values, initial=0)] for _, values in columns]
    return [[(px, ys[n]) for (px, _), ys in zip(columns, heights)] for n in range(len(GROUPS) + 1)]


def _band(group: str, levels) -> list[str]:
    floor, roof = levels[0], levels[list(GROUPS).index(group) + 1]
    outline = f"M{_steps(roof, WIDTH - RIGHT)}V{floor[0][1]:.1f}H{roof[0][0]:g}Z"
    drawn = [f'<path d="{outline}" fill="{GROUPS[group]}" stroke="{INK}" stroke-width=".8" stroke-linejoin="round"/>']
    if group in _HATCH:
        drawn.append(f'<path d="{outline}" fill="url(#{_pattern(group)})" fill-opacity=".55"/>')
    return drawn


def _label(group: str, levels, looks: int) -> list[str]:
    """The name inside the band, at the place where a box of its size fits best; nothing if it fits nowhere."""
    number, right = list(GROUPS).index(group), float(WIDTH - RIGHT)
    floor, roof = levels[number], levels[number + 1]
    need = text_width(group) + 8
    best, place = 0.0, None
    if len(floor) > looks:  # a place for a word needs no finer look, and a live frame no slower one
        step = -(-len(floor) // looks)
        floor, roof = (
            [(c[i][0], pick(py for _, py in c[i : i + step])) for i in range(0, len(c), step)]
            for c, pick in ((floor, min), (roof, max))
        )
    edges = [px for px, _ in floor] + [right]
    for i in range(len(floor)):
        low, high, j = floor[i][1], roof[i][1], i
        while j < len(floor):
            low, high = min(low, floor[j][1]), max(high, roof[j][1])
            if low - high < 15:
                break
            width = edges[j + 1] - edges[i]
            if width >= need and (low - high) * min(width, 3 * need) > best:
                best, place = (low - high) * min(width, 3 * need), ((edges[i] + edges[j + 1]) / 2, (low + high) / 2)
            j += 1
    if place is None:
        return []
    w = need - 2
    return [
        f'<rect x="{place[0] - w / 2:.1f}" y="{place[1] - 7:.1f}" width="{w:.1f}" height="14" rx="3" fill="{PAPER}" '
        f'fill-opacity=".88"/><text x="{place[0]:.1f}" y="{place[1] + 4:.1f}" text-anchor="middle">{group}</text>'
    ]


def _outline(columns, y) -> str:
    line = [(px, y(sum(values))) for px, values in columns]
    if not line:
        return ""
    end = max(px for px, _ in line)
    label_x, label_y = max(line, key=lambda p: -p[1])
    anchor = "start" if label_x < WIDTH / 2 else "end"
    return (
        f'<path d="M{_steps(line, end)}" fill="none" stroke="{PAPER}" stroke-width="3.2"/>'
        f'<path d="M{_steps(line, end)}" fill="none" stroke="{INK}" stroke-width="1.4" stroke-dasharray="4 3"/>'
        f'<text x="{label_x:.1f}" y="{label_y - 5:.1f}" text-anchor="{anchor}">before</text>'
    )


def _grid(y, top: float) -> list[str]:
    unit = next(size for size in (2**40, 2**30, 2**20, 2**10, 1) if top >= size or size == 1)
    raw = top / unit / 4
    power = 10.0 ** len(str(int(raw))) / 10 if raw >= 1 else 0.1
    step = next(power * f for f in (1, 2, 5, 10) if power * f >= raw) * unit
    lines = []
    for i in range(int(top / step) + 1):
        at = y(i * step)
        lines.append(
            f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#d5d5d5" stroke-width=".7"/>'
            f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{_tick(i * step)}</text>'
        )
    return lines


def _tick(nbytes: float) -> str:
    return "0" if not nbytes else round_bytes(nbytes).replace(".00", "")


def _peak(peak: Marker, x, y) -> list[str]:
    px, py = x(peak.operator), y(peak.nbytes)
    text = clip(peak.text, WIDTH - 40)
    width = text_width(text)
    left = min(max(px - width / 2, 14), WIDTH - 14 - width)
    return [
        f'<circle cx="{px:.1f}" cy="{py:.1f}" r="4" fill="{PAPER}" stroke="{INK}" stroke-width="1.6"/>'
        f'<rect x="{left - 3:.1f}" y="34" width="{width + 6:.1f}" height="15" fill="{PAPER}"/>'
        f'<text x="{left:.1f}" y="45">{_escape(text)}</text>'
    ]


def _legend(groups: Sequence[str]) -> list[str]:
    """Swatches for all groups that occur, in the order of their bands; many bands are too thin to carry a name."""
    at, drawn = float(LEFT), []
    for group in groups:
        swatch = f'x="{at:.1f}" y="{TOP + _PLOT_H + 8}" width="12" height="10"'
        drawn.append(f'<rect {swatch} fill="{GROUPS[group]}" stroke="{INK}" stroke-width=".8"/>')
        if group in _HATCH:
            drawn.append(f'<rect {swatch} fill="url(#{_pattern(group)})" fill-opacity=".55"/>')
        drawn.append(f'<text x="{at + 16:.1f}" y="{TOP + _PLOT_H + 17}">{group}</text>')
        at += 26 + text_width(group)
    return drawn
