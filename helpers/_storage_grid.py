"""How does one tensor look as the reader thinks of it? Its logical shape as a small grid of values, as SVG."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ._storage_cells import Row, Strip
from ._storage_layout import chosen, short, with_gaps
from .display import INK, SHARED, WRITTEN, in_xml, text_width

LINE, TALL = 18, 31  # px of a row of the grid, and of one where an old value stands over the new
MAX_GRID = 246  # px across; where the strip is long, it needs the room more
NARROW_GRID, LONG = 190, 16
MAX_LINES, MAX_BLOCKS = 6, 3
GREY = "#5a5a5a"
UNREAD = "#ededed"


def box(x: float, y: float, w: float, h: float, state: str) -> str:
    """One cell: read by ``one``, ``shared`` (a hatch repeats the green), ``changed`` since, or ``unread``."""
    place = f'x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}"'
    if state == "changed":
        return f'<rect {place} fill="{WRITTEN}" stroke="{INK}" stroke-width="2"/>'
    if state == "shared":
        return (
            f'<rect {place} fill="{SHARED}" fill-opacity=".3"/>'
            f'<rect {place} fill="url(#shared)" stroke="{SHARED}" stroke-width="1.4"/>'
        )
    fill, stroke = ("#ffffff", "#6b6b6b") if state == "one" else (UNREAD, "#b5b5b5")
    return f'<rect {place} fill="{fill}" stroke="{stroke}"/>'


def label(x: float, y: float, words: str, *, anchor: str = "middle", extra: str = "") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{html.escape(in_xml(words), quote=False)}</text>'
    )


def written(x: float, y: float, h: float, old: str, new: str) -> str:
    """The old value, struck, over the new one, in a cell of height ``h`` with its middle at ``x``."""
    return label(x, y + h / 2 - 3, old, extra=f' fill="{GREY}" text-decoration="line-through"') + label(
        x, y + h / 2 + 10.5, new, extra=' font-weight="bold"'
    )


def state_of(strip: Strip, start: int, span: int = 1) -> str:
    """How a cell, or the ``span`` cells of an element, is drawn."""
    cells = range(start, start + span)
    if not strip.changed_set.isdisjoint(cells):
        return "changed"
    readers = max(int(strip.readers[cell]) for cell in cells if cell < strip.cells)
    return "shared" if readers > 1 else "one" if readers else "unread"


@dataclass
class Grid:
    """A finished grid: its size, and a function that draws it at a place."""

    width: float
    height: float
    draw: Callable[[float, float], list[str]]
    rounded: bool = False


def grid(row: Row, strip: Strip | None) -> Grid:
    """Returns the values of ``row`` in its logical shape, folded to `MAX_GRID` px and `MAX_LINES` lines a block."""
    if strip is None or not row.numel:
        return Grid(90, LINE, lambda x, y: [label(x, y + 13, "no elements", anchor="start", extra=f' fill="{GREY}"')])
    shape = (1,) * (2 - len(row.shape)) + row.shape
    lead = shape[:-2]
    marked = _changed_index(row, strip, shape)
    blocks = list(itertools.islice(itertools.product(*map(range, lead)), MAX_BLOCKS))
    lines = _lines(shape[-2], [0, shape[-2] - 1, *(m[-2] for m in marked)], MAX_LINES)

    def element(index: Sequence[int]) -> tuple[str, str, str]:
        start = row.cell(tuple(index[len(index) - len(row.shape) :]))
        state = state_of(strip, start, row.span)
        value = row.value(strip.raw, strip.unit, start)
        if state != "changed":
            return state, "", short(value)
        return state, *told_apart(row.value(strip.raw_before, strip.unit, start), value)

    def texts(columns: Sequence[int]) -> float:
        shown = [element((*b, i, j)) for b in blocks for i in lines if isinstance(i, int) for j in columns]
        return max(max(text_width(old), text_width(new, 12)) for _, old, new in shown) + 8

    sample = chosen(shape[-1], [0, 1, shape[-1] - 1, *(m[-1] for m in marked[:4])], 12)
    wide = max(22.0, min(texts(sample), 150.0))
    width = (MAX_GRID if strip.cells <= LONG else NARROW_GRID) - 18
    room = shape[-1] if shape[-1] * wide <= width else max(2, int((width - 14) // wide))
    columns = _lines(shape[-1], [0, shape[-1] - 1, *(m[-1] for m in marked)], room)
    values = {
        (*b, i, j): element((*b, i, j))
        for b in blocks
        for i in lines
        if isinstance(i, int)
        for j in columns
        if isinstance(j, int)
    }
    left = 18  # also where there are no row numbers, so that grids stand under each other
    across = sum(wide if isinstance(j, int) else 14 for j in columns)
    heads = 13 if row.shape else 0
    tall = {(*b, i) for (*b, i, _), (state, _, _) in values.items() if state == "changed"}
    of_lines = {b: [_height(i, (*b, i) in tall) for i in lines] for b in blocks}
    more = math.prod(lead) - len(blocks)
    height = sum(sum(h) + (heads if n == 0 else 0) + (15 if lead else 0) for n, h in enumerate(of_lines.values()))

    def draw(x: float, y: float) -> list[str]:
        drawn = []
        for number, block in enumerate(blocks):
            if lead:
                drawn.append(label(x, y + 11, f"[{', '.join(map(str, block))}, :, :]", anchor="start", extra=_GREY))
                y += 15
            if number == 0 and heads:
                at = x + left
                for j in columns:
                    w = wide if isinstance(j, int) else 14
                    drawn.append(label(at + w / 2, y + 9, str(j) if isinstance(j, int) else "…", extra=_GREY))
                    at += w
                y += heads
            for i, h in zip(lines, of_lines[block]):
                if len(row.shape) > 1:
                    drawn.append(
                        label(
                            x + left - 5,
                            y + h / 2 + 4,
                            str(i) if isinstance(i, int) else "⋮",
                            anchor="end",
                            extra=_GREY,
                        )
                    )
                if isinstance(i, int):
                    drawn += _line(x + left, y, h, wide, columns, lambda j, b=block, i=i: values[(*b, i, j)])
                y += h
        if more > 0:
            drawn.append(label(x, y + 12, f"… {more:,} more", anchor="start", extra=_GREY))
        return drawn

    return Grid(left + across, height + (16 if more > 0 else 0), draw)


_GREY = f' fill="{GREY}"'


def _line(x, y, h, wide, columns, value) -> list[str]:
    plain, marked = [], []  # dark outlines are drawn last, over their neighbours' edges
    for j in columns:
        if not isinstance(j, int):
            plain.append(label(x + 7, y + h / 2 + 4, "…", extra=_GREY))
            x += 14
            continue
        state, old, new = value(j)
        drawn = box(x, y, wide, h, state)
        drawn += (
            written(x + wide / 2, y, h, old, new) if state == "changed" else label(x + wide / 2, y + h / 2 + 4, new)
        )
        (marked if state == "changed" else plain).append(drawn)
        x += wide
    return plain + marked


def told_apart(old, new) -> tuple[str, str]:
    """Short forms of two values that differ, longer where the short ones would look alike."""
    return (short(old), short(new)) if short(old) != short(new) else (str(old), str(new))


def _height(line, tall: bool) -> int:
    return 12 if not isinstance(line, int) else TALL if tall else LINE


def _lines(total: int, wanted: Sequence[int], room: int) -> list[int | tuple[int, int]]:
    places = chosen(total, wanted, room)
    line = with_gaps(places, total)
    # a gap of one line is no shorter than the line
    return [item[0] if isinstance(item, tuple) and item[0] == item[1] else item for item in line]


def _changed_index(row: Row, strip: Strip, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The logical places of the first few changed cells, so that folding does not hide them."""
    found = []
    for cell in strip.changed[:6]:
        matches = row.places(cell)
        if matches:
            found.append((0,) * (len(shape) - len(row.shape)) + matches[0])
    return found
