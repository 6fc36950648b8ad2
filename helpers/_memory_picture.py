"""How does live memory look? Draws the bands of a `MemoryTracker` as SVG, the same while it moves and at the end.

Across runs the number of the operator, so the picture is the same on every run; up go the bytes, stacked by group from
the floor: parameters, optimizer state, gradients, saved activations, other.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field

from .display import FONT, GROUPS, INK, MAX_WIDTH, PAPER, clip, in_xml, round_bytes, text_width

WIDTH, HEIGHT = MAX_WIDTH, 330
LEFT, RIGHT, TOP, BOTTOM = 66, 14, 74, 50  # margins of the plot, in px
_PLOT_W, _PLOT_H = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
_MAX_POINTS = 4096
_BOLD_14 = 16  # px: bold letters of 14 px are no wider than ordinary ones of this size
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
        points: (operator number, bytes of each group in the order of `GROUPS`).
        device_lines: (operator number, allocated, reserved) where CUDA's allocator was asked.
    """

    points: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    device_lines: list[tuple[int, int, int]] = field(default_factory=list)

    def add(self, operator: int, groups: dict[str, int], allocated: int | None = None, reserved: int | None = None):
        self.points.append((operator, tuple(groups[g] for g in GROUPS)))
        if allocated is not None and reserved is not None:
            self.device_lines.append((operator, allocated, reserved))
        if len(self.points) > _MAX_POINTS:
            self.points = _halved(self.points, key=lambda p: sum(p[1]))
        if len(self.device_lines) > _MAX_POINTS:
            self.device_lines = _halved(self.device_lines, key=lambda p: p[2])

    @property
    def top(self) -> int:
        return max((sum(p[1]) for p in self.points), default=0)


def _halved(points: list, key) -> list:
    """Keeps the first, which is the start, and the last, and the higher of every two neighbours between them."""
    inner = points[1:-1]
    return [points[0], *(max(inner[i : i + 2], key=key) for i in range(0, len(inner), 2)), points[-1]]


@dataclass(frozen=True)
class Marker:
    """The peak: where, how much, and the sentence beside it."""

    operator: int
    nbytes: int
    text: str


@dataclass(frozen=True)
class Bracket:
    """A phase: its name and the operators it spans; ``depth`` 0 is outermost."""

    name: str
    first: int
    last: int
    depth: int = 0


def memory_svg(
    curve: Curve,
    *,
    title: str,
    figures: str,
    brackets: Sequence[Bracket] = (),
    peak: Marker | None = None,
    before: Curve | None = None,
) -> str:
    """Returns the picture as one ``<svg>``, `WIDTH` by `HEIGHT` px.

    Args:
        title: the finding, in one sentence.
        figures: the line of figures under the picture.
        before: the curve of an earlier run, drawn as an outline.
    """
    last = max([p[0] for c in (curve, before) if c for p in c.points] + [1])
    lead = max(1.0, last * 0.03)  # room at the left, where only what existed before is to be seen
    top = max([c.top for c in (curve, before) if c] + [r for _, _, r in curve.device_lines] + [1]) * 1.12

    def x(operator: float) -> float:
        return LEFT + (operator + lead) / (last + lead) * _PLOT_W

    def y(nbytes: float) -> float:
        return TOP + _PLOT_H * (1 - nbytes / top)

    columns = _columns(curve.points, x)
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
        f'<text x="14" y="23" font-size="14" font-weight="bold">{_escape(clip(title, WIDTH - 28, _BOLD_14))}</text>',
    ]
    parts += _grid(y, top)
    if peak:
        parts.append(
            f'<path d="M{x(peak.operator):.1f} 48V{y(peak.nbytes):.1f}" stroke="{INK}" stroke-dasharray="2 2"/>'
        )
    parts += _phases(brackets, x)
    present = []
    for number, group in enumerate(GROUPS):
        path, label = _band(columns, number, y, group)
        parts += path + label
        if path:
            present.append(group)
    if before:
        parts.append(_outline(_columns(before.points, x), y))
    for number, (name, dash) in enumerate((("allocated", "none"), ("reserved", "5 3"))):
        line = [(x(o), y(values[number])) for o, *values in curve.device_lines]
        if line:
            parts.append(
                f'<path d="M{_steps(line, x(last))}" fill="none" stroke="{INK}" stroke-width="1.4" '
                f'stroke-dasharray="{dash}"/>'
                f'<text x="{WIDTH - RIGHT - 4}" y="{line[-1][1] - 4:.1f}" text-anchor="end">{name}</text>'
            )
    if peak:
        parts += _peak(peak, x, y)
    parts += _legend(present)
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 12}">{_escape(clip(figures, WIDTH - LEFT - 20))}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{TOP + _PLOT_H + 16}" text-anchor="end">operators 0 to {last:,}</text>')
    return "".join(parts) + "</svg>"


def _escape(text: str) -> str:
    return html.escape(in_xml(text), quote=False)


def _pattern(group: str) -> str:
    return "hatch-" + group.replace(" ", "-")


def _columns(points, x) -> list[tuple[float, tuple[int, ...]]]:
    """One point for each px: where several events share a px, the highest, so that no peak is lost."""
    columns: list[tuple[float, tuple[int, ...]]] = []
    for operator, values in points:
        at = round(x(operator) * 2) / 2
        if columns and columns[-1][0] == at and len(columns) > 1:
            if sum(values) >= sum(columns[-1][1]):
                columns[-1] = at, values
        else:
            columns.append((at if columns else float(LEFT), values))
    return columns


def _steps(line: Sequence[tuple[float, float]], end: float) -> str:
    """A staircase through the points: memory stays as it is until the next event."""
    path = f"{line[0][0]:.1f} {line[0][1]:.1f}"
    for px, py in line[1:]:
        path += f"H{px:.1f}V{py:.1f}"
    return path + f"H{end:.1f}"


def _band(columns, number: int, y, group: str) -> tuple[list[str], list[str]]:
    if not columns or not any(values[number] for _, values in columns):
        return [], []
    right = float(WIDTH - RIGHT)
    floor = [(px, y(sum(values[:number]))) for px, values in columns]
    roof = [(px, y(sum(values[: number + 1]))) for px, values in columns]
    back = f"L{right:.1f} {floor[-1][1]:.1f}"
    for (px, _), (_, previous) in zip(reversed(floor[1:]), reversed(floor[:-1])):
        back += f"H{px:.1f}V{previous:.1f}"
    outline = f"M{_steps(roof, right)}{back}H{floor[0][0]:.1f}Z"
    drawn = [f'<path d="{outline}" fill="{GROUPS[group]}" stroke="{INK}" stroke-width=".8" stroke-linejoin="round"/>']
    if group in _HATCH:
        drawn.append(f'<path d="{outline}" fill="url(#{_pattern(group)})" fill-opacity=".55"/>')
    return drawn, _label(group, floor, roof, right)


def _label(group: str, floor, roof, right: float) -> list[str]:
    """The name inside the band, at the place where a box of its size fits best; nothing if it fits nowhere."""
    need = text_width(group) + 8
    best, place = 0.0, None
    if len(floor) > 120:  # a place for a word needs no finer look, and a live frame no slower one
        step = -(-len(floor) // 120)
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


def _phases(brackets: Sequence[Bracket], x) -> list[str]:
    drawn = []
    spans = [(b.name, x(b.first), x(max(b.last, b.first))) for b in brackets if b.depth == 0]
    for number, (_, left, right) in enumerate(spans):
        if number % 2 == 0:
            drawn.append(
                f'<rect x="{left:.1f}" y="{TOP}" width="{max(right - left, 1):.1f}" height="{_PLOT_H}" fill="#f1f1f1"/>'
            )
        drawn.append(
            f'<path d="M{left + 1:.1f} {TOP - 2}v-6H{max(right - 1, left + 2):.1f}v6" fill="none" stroke="#555"/>'
        )
    return drawn + _names(spans)


def _names(spans: Sequence[tuple[str, float, float]]) -> list[str]:
    """The names of phases, each over its own or, where that is short, as near as the names beside it let it be."""
    drawn, end = [], 0.0
    for i, (name, left, right) in enumerate(spans):
        limit = float(WIDTH - 8)
        if i + 1 < len(spans):
            following, begin, last = spans[i + 1]
            limit = max(right, (begin + last - text_width(clip(following, last - begin))) / 2 - 6)
        shown = clip(name, limit - end - 6)
        half = text_width(shown) / 2
        if shown == "…" or end + 6 + 2 * half > limit:
            continue
        middle = min(max((left + right) / 2, end + 6 + half), limit - half)
        end = middle + half
        drawn.append(
            f'<text x="{middle:.1f}" y="{TOP - 12}" text-anchor="middle" stroke="{PAPER}" stroke-width="3" '
            f'paint-order="stroke">{_escape(shown)}</text>'
        )
    return drawn


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
