"""Where does each cell stand, and what is written in it? Widths, folds and short numbers for `draw_storage`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .display import text_width

FOLD = 54  # px of a gap that stands for the cells left out


def short(value: Any) -> str:
    """A number in at most nine signs: whole numbers up to seven digits as they are, others to three digits."""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return str(value) if abs(value) < 10**7 else _tidy(f"{value:.2e}")
    if isinstance(value, float):
        plain = repr(value)
        return plain if len(plain) <= 6 else _tidy(f"{value:.3g}")
    if isinstance(value, complex):
        sign = "-" if math.copysign(1, value.imag) < 0 else "+"
        return f"{_whole(value.real)}{sign}{_whole(abs(value.imag))}j"
    return str(value)


def _whole(value: float) -> str:
    return (
        f"{value:.0f}" if math.isfinite(value) and value == int(value) and abs(value) < 1e6 else _tidy(f"{value:.3g}")
    )


def _tidy(number: str) -> str:
    """``1.50e-05`` as ``1.5e-5``."""
    digits, e, exponent = number.partition("e")
    return f"{digits.rstrip('0').rstrip('.') if '.' in digits else digits}e{int(exponent)}" if e else digits


def is_rounded(value: Any) -> bool:
    """Whether `short` says less than a reader could see in ``print(value)``."""
    if isinstance(value, complex):
        return is_rounded(value.real) or is_rounded(value.imag)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or (isinstance(value, float) and value != value):
        return False
    told = float(short(value))
    return told != value and abs(told - value) > 1e-6 * abs(value)


def chosen(total: int, wanted: Iterable[int], room: int) -> list[int]:
    """At most ``room`` of ``total`` places: those wanted, in order of urgency, then neighbours of what is there."""
    if total <= room:
        return list(range(total))
    kept: set[int] = set()
    for place in itertools.chain(wanted, range(total)):  # a range of a billion is not written out
        if len(kept) == room:
            break
        if 0 <= place < total:
            kept.add(place)
    return sorted(kept)


def with_gaps(places: Sequence[int], total: int) -> list[int | tuple[int, int]]:
    """The places in order, with (first, last) of those left out where they were."""
    line: list[int | tuple[int, int]] = []
    expected = 0
    for place in [*places, total]:
        if place > expected:
            line.append((expected, place - 1))
        if place < total:
            line.append(place)
        expected = place + 1
    return line


@dataclass
class Scale:
    """Cells of a strip set out from ``left``: which are shown, how wide, and where."""

    left: float
    cell: float
    line: list[int | tuple[int, int]]
    values: bool

    def __post_init__(self) -> None:
        self.at: dict[int, float] = {}
        self.gaps: list[tuple[int, int, float]] = []
        x = self.left
        for item in self.line:
            if isinstance(item, tuple):
                self.gaps.append((*item, x))
                x += FOLD
            else:
                self.at[item] = x
                x += self.cell
        self.right = x

    def edge(self, cell: int) -> float:
        """The left edge of a cell; of one left out, the middle of its gap."""
        if cell in self.at:
            return self.at[cell]
        return next((x + FOLD / 2 for first, last, x in self.gaps if first <= cell <= last), self.right)

    def middle(self, cell: int, span: int = 1) -> float:
        """The middle of the element that starts at ``cell``."""
        if cell in self.at:
            return self.at[cell] + self.cell * span / 2
        return self.edge(cell)


def scale(total: int, wanted: Sequence[int], width_of_value: float, left: float, width: float) -> Scale:
    """Chooses a width for the cells of a strip, or folds it.

    All cells with their values if that fits; else all without, down to 20 px a cell; else a fold, with values, around
    the cells in ``wanted``.
    """
    index = text_width(f"{max(total - 1, 0):,}") + 6
    need = max(width_of_value + 8, index, 22)
    if total * need <= width:
        return Scale(left, min(width / max(total, 1), max(need, 52)), list(range(total)), True)
    bare = max(index, 20)
    if total * bare <= width:
        return Scale(left, width / total, list(range(total)), False)
    need = min(need, 88)
    kept: list[int] = []
    for place in itertools.chain(wanted, range(total)):
        if place in kept or not 0 <= place < total:
            continue
        line = with_gaps(sorted([*kept, place]), total)
        gaps = sum(isinstance(item, tuple) for item in line)
        if (len(line) - gaps) * need + gaps * FOLD <= width:
            kept.append(place)
        elif place not in wanted:
            break
    line = with_gaps(sorted(kept), total)
    line = [item[0] if isinstance(item, tuple) and item[0] == item[1] and need <= FOLD else item for item in line]
    return Scale(left, need, line, width_of_value + 6 <= need)
