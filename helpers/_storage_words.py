"""What does a picture of storages say? The finding as a sentence, and the same numbers for those who cannot see it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ._storage_cells import Drawing, Row, Strip
from .display import exact_bytes

_WORDS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


def number_word(number: int) -> str:
    return _WORDS[number] if 0 <= number < len(_WORDS) else f"{number:,}"


def counted(number: int, noun: str, *, word: bool = False) -> str:
    """``3 cells``, ``1 cell``; with ``word`` ``three cells``."""
    return f"{number_word(number) if word else f'{number:,}'} {noun}{'' if number == 1 else 's'}"


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def things(rows: Sequence[Row]) -> str:
    """``three tensors``, ``two arrays``, ``two tensors and one array``."""
    arrays = sum(row.is_array for row in rows)
    parts = [counted(n, noun, word=True) for n, noun in ((len(rows) - arrays, "tensor"), (arrays, "array")) if n]
    return listed(parts)


def title(drawing: Drawing) -> str:
    """The finding, from the data: what is shared, or after a write what it changed and who sees it."""
    sentence = _after(drawing) if drawing.compared else _now(drawing)
    named = any(sentence.startswith(f"{row.name}{mark}") for row in drawing.rows for mark in " ,:")
    return sentence if named else sentence[:1].upper() + sentence[1:]  # x is not X


def _now(drawing: Drawing) -> str:
    rows = [row for row in drawing.rows if row.reached.size]
    if not rows:
        return f"{listed([r.name for r in drawing.rows])}: no elements, nothing to read"
    if len(rows) == 1:
        return _alone(rows[0], drawing.strips[rows[0].strip])
    shared = sum(int((strip.readers > 1).sum()) for strip in drawing.strips)
    strips = {row.strip for row in rows}
    if len(strips) == 1:
        strip = drawing.strips[rows[0].strip]
        where = f"one {'storage' if strip.storages else 'array'} of {_holding(strip)}"
        if not strip.one_storage and len(strip.extents) > 1:
            where = f"the same {exact_bytes(strip.nbytes)}"
            if len(strip.storages) > 1:
                where += f" through {counted(len(strip.storages), 'storage', word=True)}"
        if not shared:
            return f"{things(rows)} lie in {where}, and no cell is read by two of them"
        by = "both" if len(rows) == 2 else "two or more"
        if int((strip.readers == len(rows)).sum()) == strip.cells:
            by = "both" if len(rows) == 2 else "all"
        cells = "every cell is" if shared == strip.cells else _cells_are(shared)
        return f"{things(rows)} read {where}; {cells} read by {by}"
    where = counted(len(strips), "piece", word=True) + " of memory"
    if not shared:
        return f"{things(rows)} read {where}, and no cell is read by two of them"
    return f"{things(rows)} read {where}; {_cells_are(shared)} read by two or more"


def _holding(strip: Strip) -> str:
    noun = "byte" if strip.kind == "byte" else "cell" if strip.kind.endswith("bytes") else "number"
    return counted(strip.cells, noun)


def _cells_are(number: int) -> str:
    return f"{number:,} {'cell is' if number == 1 else 'cells are'}"


def _alone(row: Row, strip: Strip) -> str:
    reached = row.reached.size // row.span
    if row.numel > reached:
        times = row.numel / reached
        often = (
            f"each is seen {row.numel // reached:,} times" if times.is_integer() and _even(row) else "some twice over"
        )
        return f"{row.name} shows {counted(row.numel, 'element')}, but reads {counted(reached, 'cell')}: {often}"
    if row.reached.size == strip.cells:
        return f"{row.name} reads all {_holding(strip)} of its {'memory' if row.is_array else 'storage'}"
    return (
        f"{row.name} reads {reached * row.span:,} of the {_holding(strip)} in its "
        f"{'memory' if row.is_array else 'storage'}"
    )


def _even(row: Row) -> bool:
    """Whether all repetition comes from dimensions of stride 0, so that every cell is seen equally often."""
    once = math.prod(n for n, step in zip(row.shape, row.steps) if step)
    return once * row.span == row.reached.size


def _after(drawing: Drawing) -> str:
    changed = sum(len(strip.changed) for strip in drawing.strips)
    moved = [row for row in drawing.rows if row.rebound]
    # A name may stand for a tensor with another counter than before: only counters known to be the same are compared.
    writes = max((_moved(row) for row in drawing.rows if row.same_counter), default=0)
    if not changed:
        if moved:
            names = listed([row.name for row in moved])
            return f"{names} now {'reads' if len(moved) == 1 else 'read'} other memory: nothing was written to the old"
        if writes > 0:
            return f"{counted(writes, 'write', word=True)} left every value as it was"
        return "nothing has changed since the picture before"
    sees = [row for row in drawing.rows if row.strip is not None and touched(row, drawing.strips[row.strip])]
    blind = [row.name for row in drawing.rows if row.reached.size and row not in sees]
    who = _who(sees, drawing)
    if blind and len(blind) < 4 and len(sees) > 1:
        who += f", {listed(blind)} {'does' if len(blind) == 1 else 'do'} not"
    near = [row for row in drawing.rows if row.strip is not None and drawing.strips[row.strip].changed]
    writes = max((_moved(row) for row in near if row.same_counter), default=0)
    if writes > 0:
        sentence = f"{counted(writes, 'write', word=True)} changed {counted(changed, 'cell')}, and {who}"
        still = [row.name for row in sees if row.version is not None and row.version_before == row.version]
        return sentence + (f", but the version of {listed(still)} did not move" if still else "")
    counting = [row for row in near if row.version is not None]
    if not counting or not all(row.same_counter for row in counting):
        return f"{counted(changed, 'cell', word=True)} changed, and {who}"
    still = "no version counter moved"
    if any(_moved(row) for row in drawing.rows if row.same_counter):  # that of another storage
        still = f"{'its' if changed == 1 else 'their'} version counter did not move"
    return f"{counted(changed, 'cell', word=True)} changed and {still}: {who}, autograd does not"


def _moved(row: Row) -> int:
    return row.version - row.version_before if None not in (row.version, row.version_before) else 0


def _who(sees: Sequence[Row], drawing: Drawing) -> str:
    """``x and e both see it (e in 4 places)``."""
    if not sees:
        return "none of these sees it"
    if len(sees) == 1:
        return f"only {sees[0].name} sees it" if len(drawing.rows) > 1 else f"{sees[0].name} sees it"
    told = f"{listed([row.name for row in sees])} {'both' if len(sees) == 2 else 'all'} see it"
    smeared = [row for row in sees if row.repeats]
    if len(smeared) == 1:
        row, changed = smeared[0], drawing.strips[smeared[0].strip].changed
        if sum(len(row.places(cell)) for cell in changed[:100]) * row.times > len(changed) <= 100:
            places = sum(len(row.places(cell)) for cell in changed) * row.times
            told += f" ({row.name} in {places:,} places)"
    return told


def touched(row: Row, strip: Strip) -> bool:
    """Whether the row reads a cell that changed."""
    return bool(np.isin(row.reached, strip.changed).any())


def facts(row: Row, letter: bool) -> str:
    """The line beside the name: shape, stride, offset, version."""
    parts = [f"shape {row.shape}", f"stride {row.stride}", f"offset {row.offset}"]
    if letter and row.letter.isupper() and not row.is_array:
        parts.insert(0, f"storage {row.letter}")
    if row.is_array:
        parts.append("a NumPy array: no storage, no version")
    elif row.version is not None:
        moved = row.version_before is not None and row.version_before != row.version
        parts.append(f"version {row.version_before} → {row.version}" if moved else f"version {row.version}")
    if row.conj or row.neg:
        parts.append(f"read through its {'conjugate' if row.conj else 'negative'} bit")
    if row.rebound:
        parts.append("other memory than before")
    return " · ".join(parts)


def strip_label(drawing: Drawing, number: int) -> list[str]:
    """The lines beside a strip: letter and bytes, dtype and version, owner."""
    strip = drawing.strips[number]
    letters = list(strip.storages)
    what = f"{strip.cells:,} × {strip.kind}" if strip.kind != "byte" else f"{strip.cells:,} bytes"
    states = {(row.version_before, row.version) for row in drawing.rows_of(number) if row.version is not None}
    if len(states) == 1:
        old, new = states.pop()
        what += f" · version {old} → {new}" if old not in (None, new) else f" · version {new}"
    elif states:
        what += " · versions differ"
    name = f"storage{'' if len(letters) == 1 else 's'} {listed(letters)}" if letters else "no storage"
    if len(letters) == 1 and not strip.one_storage:
        name += " in an array"  # which has bytes beyond it
    return [f"{name} · {exact_bytes(strip.nbytes)}", what, f"owner: {strip.owner}"]


def text(drawing: Drawing) -> str:
    """The plain-text twin: the title, then a line for each storage, tensor and changed cell."""
    lines = [title(drawing)]
    for number, strip in enumerate(drawing.strips):
        lines.append(" · ".join(strip_label(drawing, number)))
        for row in drawing.rows_of(number):
            lines.append(f"  {row.name}: {facts(row, len(strip.storages) > 1)}; {_reads(row)}")
        shared = np.flatnonzero(strip.readers > 1)
        if len(drawing.rows) > 1:
            lines.append(f"  read by two or more: {ranges(shared) if shared.size else 'no cell'}")
        for cell in strip.changed[:8]:
            lines.append(f"  cell {cell:,}: {strip.value(cell, strip.raw_before)} became {strip.value(cell)}")
        if len(strip.changed) > 8:
            lines.append(f"  ... and {counted(len(strip.changed) - 8, 'more changed cell')}")
    lines += [f"{row.name}: {facts(row, False)}; no memory" for row in drawing.rows if row.strip is None]
    return "\n".join(lines)


def _reads(row: Row) -> str:
    return (
        f"reads {'cell' if row.reached.size == 1 else 'cells'} {ranges(row.reached)}"
        if row.reached.size
        else "no elements"
    )


def ranges(cells: Any) -> str:
    """``0 to 3, 8``: runs of neighbours, the first six of them."""
    cells = np.asarray(cells)
    runs = np.split(cells, np.flatnonzero(np.diff(cells) != 1) + 1)
    told = [f"{run[0]:,}" if len(run) == 1 else f"{run[0]:,} to {run[-1]:,}" for run in runs[:6]]
    return ", ".join(told) + (f", ... ({cells.size:,} in all)" if len(runs) > 6 else "")
