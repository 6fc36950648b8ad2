"""How does memory look under several tensors? A strip of cells, and over it what each of them reads, as SVG."""

from __future__ import annotations

import html
import math

from ._storage_cells import Drawing, Row, Strip
from ._storage_grid import GREY, Grid, box, grid, label, state_of, told_apart, written
from ._storage_layout import FOLD, Scale, is_rounded, scale, short
from ._storage_words import facts, strip_label, text, title
from .display import FONT, INK, MAX_WIDTH, PAPER, SHARED, Picture, clip, text_width

MARGIN = 14
LEVEL = 15  # px for an arrow and its words
BOX = 21
_GREY = f' fill="{GREY}"'
_LEGEND = {
    "shared": "read by two or more",
    "changed": "changed since the picture before",
    "one": "read by one",
    "unread": "read by none",
}


def picture(drawing: Drawing) -> Picture:
    """Draws what `read` found."""
    words = text(drawing)
    return Picture(_svg(drawing), alt=" ".join(words.split()), text=words, data=drawing)


def _svg(drawing: Drawing) -> str:
    heading = _wrapped(title(drawing), MAX_WIDTH - 2 * MARGIN, 14.3)
    grids = [grid(row, drawing.strips[row.strip] if row.strip is not None else None) for row in drawing.rows]
    labels = [strip_label(drawing, number) for number in range(len(drawing.strips))]
    beside = max([g.width for g in grids] + [min(text_width(line, 12), 190) for lines in labels for line in lines])
    left = MARGIN + beside + 20
    y = 14 + 18 * len(heading)
    parts: list[str] = []
    states: set[str] = set()
    for number, strip in enumerate(drawing.strips):
        rows = [(row, g) for row, g in zip(drawing.rows, grids) if row.strip == number]
        if number:
            parts.append(f'<path d="M{MARGIN} {y + 4:.1f}H{MAX_WIDTH - MARGIN}" stroke="#cccccc"/>')
            y += 8
        along = _scale(strip, [row for row, _ in rows], left)
        states |= {state_of(strip, cell) for cell in along.at}
        drawn, y = _rows(rows, strip, along, y)
        parts += drawn
        drawn, y = _strip(strip, along, labels[number], y)
        parts += drawn
    for row, _ in zip(drawing.rows, grids):
        if row.strip is None:
            parts += [
                _name(row, y, False),
                label(MARGIN, y + 34, "no elements, no memory", anchor="start", extra=_GREY),
            ]
            y += 48
    drawn, y = _foot(drawing, states, y)
    parts += drawn
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{MAX_WIDTH}" height="{y:.0f}" '
        f'viewBox="0 0 {MAX_WIDTH} {y:.0f}" '
        f'font-family="{html.escape(FONT)}" font-size="11" fill="{INK}">',
        '<defs><pattern id="shared" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        f'<path d="M0 0V7" stroke="{SHARED}" stroke-width="1.6" stroke-opacity=".45"/></pattern></defs>',
        f'<rect x=".5" y=".5" width="{MAX_WIDTH - 1}" height="{y - 1:.0f}" rx="4" fill="{PAPER}" stroke="#8a8a8a"/>',
    ]
    for number, line in enumerate(heading):
        head.append(label(MARGIN, 23 + 18 * number, line, anchor="start", extra=' font-size="14" font-weight="bold"'))
    return "".join([*head, *parts, "</svg>"])


def _wrapped(words: str, width: float, size: float) -> list[str]:
    lines = [""]
    for word in words.split():
        longer = f"{lines[-1]} {word}".strip()
        if text_width(longer, size) > width and lines[-1]:
            lines.append(word)
        else:
            lines[-1] = longer
    return [clip(line, width, size) for line in lines]


def _scale(strip: Strip, rows: list[Row], left: float) -> Scale:
    rows = [row for row in rows if row.numel]
    wanted = [0, *strip.changed[:6], *(row.first for row in rows)]
    for turn in range(1, max((len(row.shape) for row in rows), default=0) + 1):  # innermost dimensions first
        wanted += [row.first + row.steps[-turn] for row in rows if len(row.shape) >= turn and row.shape[-turn] > 1]
    wanted.append(strip.cells - 1)
    wanted += [cell + near for near in (1, 2, -1) for cell in list(wanted)]
    few = [cell for cell in dict.fromkeys(wanted) if 0 <= cell < strip.cells]
    sample = range(strip.cells) if strip.cells <= 64 else few[:24]
    wide = max((text_width(short(strip.value(cell))) for cell in sample), default=0)
    for cell in strip.changed[:24]:
        wide = max(
            wide, *(text_width(t, 12) for t in told_apart(strip.value(cell, strip.raw_before), strip.value(cell)))
        )
    return scale(strip.cells, few, wide, left, MAX_WIDTH - MARGIN - left)


def _name(row: Row, y: float, letter: bool) -> str:
    name = clip(row.name, 220, 13.8)
    at = MARGIN + text_width(name, 13.8) + 12
    return label(MARGIN, y + 15, name, anchor="start", extra=' font-size="13" font-weight="bold"') + label(
        at, y + 15, clip(facts(row, letter), MAX_WIDTH - MARGIN - at), anchor="start", extra=_GREY
    )


def _rows(rows: list[tuple[Row, Grid]], strip: Strip, along: Scale, y: float) -> tuple[list[str], float]:
    parts, guides = [], []
    for row, beside in rows:
        parts.append(_name(row, y, len(strip.storages) > 1))
        top = y + 23
        arrows = _arrows(row, strip, along)
        deck = 6 if row.repeats else 0
        height = max(beside.height, len(arrows) * LEVEL + 3 + deck + BOX)
        parts += beside.draw(MARGIN, top)
        base = top + height - BOX
        for level, (start, stop, words) in enumerate(arrows):
            parts.append(_arrow(start, stop, words, base - 8 - deck - LEVEL * (len(arrows) - 1 - level), along))
        drawn, spots = _boxes(row, strip, along, base)
        parts += drawn
        guides += [(x, base + BOX) for x in spots]
        y = top + height + 9
    lines = [
        f'<path d="M{x:.1f} {start:.1f}V{y + 3:.1f}" stroke="#c9c9c9" stroke-dasharray="1 3"/>' for x, start in guides
    ]
    return lines + parts, y + 3


def _arrows(row: Row, strip: Strip, along: Scale) -> list[tuple[float, float, str]]:
    """The offset, then a step along each dimension: from where, to where, what it says."""
    if not row.numel:
        return []
    arrows = []
    if row.offset:
        arrows.append((along.edge(strip.extents[row.letter][0]), along.edge(row.first), f"offset {row.offset}"))
    here = along.middle(row.first, row.span)
    for dim, (size, stride, step) in enumerate(zip(row.shape, row.stride, row.steps)):
        if size <= 1:
            continue
        if step:
            arrows.append((here, along.middle(row.first + step, row.span), f"dim {dim}: stride {stride}"))
        else:
            arrows.append((here, here, f"dim {dim}: stride 0, the same cell {size:,} times"))
    return arrows


def _arrow(start: float, stop: float, words: str, y: float, along: Scale) -> str:
    if start == stop:  # a step that stays where it is
        shape = (
            f'<path d="M{start - 3:.1f} {y + 3:.1f}C{start - 13:.1f} {y - 11:.1f} {start + 13:.1f} {y - 11:.1f} '
            f'{start + 4:.1f} {y + 2:.1f}" fill="none" stroke="{INK}"/>{_head(start + 3.4, y + 3.5, 115)}'
        )
        end, begin = start + 10, start - 10
    else:
        tip = stop - math.copysign(5, stop - start)
        shape = (
            f'<path d="M{start:.1f} {y + 4:.1f}v-7M{stop:.1f} {y + 4:.1f}v-7M{start:.1f} {y:.1f}H{tip:.1f}" '
            f'fill="none" stroke="{INK}"/>{_head(stop, y, 0 if stop > start else 180)}'
        )
        begin, end = min(start, stop), max(start, stop)
    need = text_width(words)
    if end + 6 + need <= MAX_WIDTH - MARGIN:
        return shape + label(end + 6, y + 4, words, anchor="start")
    if begin - 6 - need >= along.left:
        return shape + label(begin - 6, y + 4, words, anchor="end")
    middle = f' stroke="{PAPER}" stroke-width="4" paint-order="stroke"'
    return shape + label((begin + end) / 2, y + 4, clip(words, MAX_WIDTH - along.left), extra=middle)


def _head(x: float, y: float, turn: int) -> str:
    return f'<path d="M0 0L-6 -3V3Z" transform="translate({x:.1f} {y:.1f}) rotate({turn})"/>'


def _boxes(row: Row, strip: Strip, along: Scale, y: float) -> tuple[list[str], list[float]]:
    """What the row reads, in place, each box with its (row, column); and where guides to the strip may start."""
    if not row.numel:
        return [label(along.left, y + 14, "reads no cell", anchor="start", extra=_GREY)], []
    plain, marked, spots = [], [], []
    for cell in along.at:
        places = [place for place in row.places(cell) if row.cell(place) == cell]
        if not places:
            continue
        x, w = along.at[cell] + 2, along.cell * row.span - 4
        often = len(places) * row.times
        state = state_of(strip, cell, row.span)
        drawn = "".join(
            f'<rect x="{x + d:.1f}" y="{y - d:.1f}" width="{w - 3:.1f}" height="{BOX}" fill="{PAPER}"/>'
            + box(x + d, y - d, w - 3, BOX, state)
            for d in ((6, 3) if often > 1 else ())
        )
        w -= 3 if often > 1 else 0
        drawn += f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{BOX}" fill="{PAPER}"/>'
        drawn += box(x, y, w, BOX, state)
        names = [f"{len(places)}×"] if len(places) > 1 else _index(places[0], row)
        name = next((n for n in names if text_width(n) <= w + 2), "")
        drawn += label(x + w / 2, y + 15, name)
        (marked if state == "changed" else plain).append(drawn)
        spots.append(along.at[cell] + along.cell * row.span / 2)
    for first, last, x in along.gaps:
        hidden = int(((row.reached >= first) & (row.reached <= last)).sum())
        if hidden:
            plain.append(label(x + FOLD / 2, y + 14, f"… {hidden:,}", extra=_GREY))
    return plain + marked, spots


def _index(place: tuple[int, ...], row: Row) -> list[str]:
    """``[1,2]``, then shorter forms; a dimension of stride 0 is ``:``, as every index along it is this cell."""
    if not place:
        return ["[]"]
    bare = ",".join(":" if size > 1 and not s else str(i) for i, size, s in zip(place, row.shape, row.steps))
    return [f"[{bare}]", bare]


def _strip(strip: Strip, along: Scale, lines: list[str], y: float) -> tuple[list[str], float]:
    changed = [cell for cell in along.at if cell in strip.changed_set]
    tall = 36 if changed else 26
    plain, marked = [], []
    every = math.ceil((text_width(f"{strip.cells - 1:,}") + 4) / along.cell)
    for cell, x in along.at.items():
        state = state_of(strip, cell)
        drawn = box(x, y, along.cell, tall, state)
        middle = x + along.cell / 2
        if state == "changed":
            drawn += written(middle, y, tall, *told_apart(strip.value(cell, strip.raw_before), strip.value(cell)))
        elif along.values:
            drawn += label(middle, y + tall / 2 + 4, short(strip.value(cell)), extra=_GREY if state == "unread" else "")
        (marked if state == "changed" else plain).append(drawn)
        if cell % every == 0 or along.gaps:
            plain.append(label(middle, y + tall + 12, f"{cell:,}", extra=_GREY))
    for first, last, x in along.gaps:
        plain.append(
            f'<path d="M{x:.1f} {y + 0.5:.1f}h{FOLD}M{x:.1f} {y + tall - 0.5:.1f}h{FOLD}" stroke="#6b6b6b" '
            f'stroke-dasharray="3 3"/>'
            + label(x + FOLD / 2, y + tall / 2 - 1, f"… {last - first + 1:,}")
            + label(x + FOLD / 2, y + tall / 2 + 10, "more")
        )
    bottom = y + tall + 16
    if strip.storages and not strip.one_storage:
        for letter, (first, cells) in strip.storages.items():
            a, b = along.edge(first), along.edge(first + cells - 1) + along.cell
            plain.append(
                f'<path d="M{a + 1:.1f} {bottom:.1f}v5H{b - 1:.1f}v-5" fill="none" stroke="{INK}"/>'
                + label(
                    (a + b) / 2,
                    bottom + 9,
                    f"storage {letter}",
                    extra=f' stroke="{PAPER}" stroke-width="5" paint-order="stroke"',
                )
            )
            bottom += 18
    beside = [
        label(
            MARGIN,
            y + 11 + 14 * n,
            clip(line, along.left - MARGIN - 8),
            anchor="start",
            extra=' font-size="12" font-weight="bold"' if n == 0 else "",
        )
        for n, line in enumerate(lines)
    ]
    return plain + marked + beside, max(bottom, y + 14 * len(lines)) + 8


def _foot(drawing: Drawing, states: set[str], y: float) -> tuple[list[str], float]:
    """What the colours mean, of those in the picture, and what was rounded."""
    drawn, at = [], float(MARGIN)
    for state, words in _LEGEND.items():
        if state in states and (state == "changed" or len(drawing.rows) > 1 or state == "unread"):
            drawn += [box(at, y, 16, 11, state), label(at + 21, y + 10, words, anchor="start", extra=_GREY)]
            at += 38 + text_width(words)
    if any(is_rounded(v) for strip in drawing.strips for v in _seen_values(strip)):
        drawn.append(label(MAX_WIDTH - MARGIN, y + 10, "values to three digits", anchor="end", extra=_GREY))
        at = max(at, MARGIN + 1)
    return drawn, y + (22 if at > MARGIN else 4)


def _seen_values(strip: Strip):
    return [strip.value(cell) for cell in range(min(strip.cells, 64))]
