"""What does a picture of storages hold? Cells, their readers, their bytes, and what changed since; no tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np


@dataclass
class Row:
    """One tensor or array over its strip. Positions are counted in cells of the strip.

    Attributes:
        strip: the number of its strip in the drawing; None if it has no elements.
        first: the cell where its first element starts.
        steps: cells to the next element of each dimension.
        span: cells under one element.
        root: a weak reference to the tensor itself or to the one of which it is a view: both count with one counter.
        version_before: the version in the earlier picture, of the same name.
        same_counter: whether it is known to be the version of the same counter.
        rebound: whether the name stood for other memory in the earlier picture.
    """

    name: str
    is_array: bool
    strip: int | None
    letter: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: str
    span: int
    first: int
    steps: tuple[int, ...]
    version: int | None
    conj: bool = False
    neg: bool = False
    decoder: Any = field(default=None, repr=False)
    root: Any = field(default=None, repr=False)
    version_before: int | None = None
    same_counter: bool = False
    rebound: bool = False

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def repeats(self) -> bool:
        """Whether it has more elements than places for them: an expanded tensor, or one whose windows overlap."""
        return self.numel * self.span > self.reached.size

    @property
    def times(self) -> int:
        """How often the dimensions of stride 0 repeat every place."""
        return math.prod(size for size, step in zip(self.shape, self.steps) if size > 1 and not step)

    def cell(self, index: tuple[int, ...]) -> int:
        """The cell where the element at ``index`` starts."""
        return self.first + sum(i * step for i, step in zip(index, self.steps))

    @cached_property
    def reached(self) -> np.ndarray:
        """Every cell that it reads, once and in order."""
        return np.unique(self._starts[..., None] + np.arange(self.span))

    @cached_property
    def _starts(self) -> np.ndarray:
        """Where each element starts, over the dimensions that move; those of stride 0 are kept with size 1."""
        starts = np.array(self.first)
        for size, step in zip(self.shape, self.steps):
            starts = starts[..., None] + np.arange(size if step else min(size, 1)) * step
        return starts

    def places(self, cell: int) -> list[tuple[int, ...]]:
        """The logical indices of the elements over ``cell``; 0 where a dimension of stride 0 would repeat them."""
        here = (self._starts <= cell) & (cell < self._starts + self.span)
        return [tuple(map(int, index)) for index in np.argwhere(here)]

    def value(self, raw: bytes, unit: int, start: int) -> Any:
        """The element that starts at cell ``start``, as a Python number, its conjugate and negative bits applied."""
        value = self.decoder(raw[start * unit : (start + self.span) * unit])
        value = value.conjugate() if self.conj else value
        return -value if self.neg else value


@dataclass
class Strip:
    """One piece of memory: a storage, or several that lie over the same bytes.

    Attributes:
        extents: letter -> (first cell, cells) of each storage in it, and of the memory of arrays, in small letters.
        unit: bytes of one cell.
        raw: its bytes when it was read; ``raw_before`` those of the earlier picture.
        readers: how many tensors reach each cell.
        changed: the cells whose bytes are not what they were.
        kind: what a cell holds, in words.
    """

    extents: dict[str, tuple[int, int]]
    nbytes: int
    unit: int
    owner: str
    kind: str
    raw: bytes = field(repr=False)
    readers: np.ndarray = field(repr=False)
    decoder: Any = field(default=None, repr=False)
    held: dict[str, Any] = field(default_factory=dict, repr=False)
    raw_before: bytes | None = field(default=None, repr=False)
    changed: list[int] = field(default_factory=list)

    @property
    def storages(self) -> dict[str, tuple[int, int]]:
        """The extents of PyTorch's storages alone."""
        return {letter: extent for letter, extent in self.extents.items() if letter.isupper()}

    @property
    def one_storage(self) -> bool:
        """Whether a single storage lies under all of it."""
        return len(self.storages) == 1 and next(iter(self.storages.values()))[1] == self.cells

    @property
    def cells(self) -> int:
        return -(-self.nbytes // self.unit)

    @cached_property
    def changed_set(self) -> frozenset[int]:
        return frozenset(self.changed)

    @property
    def values(self) -> list[Any]:
        """What is in each cell, as Python numbers; as hexadecimal bytes where the readers differ in dtype."""
        return [self.value(cell) for cell in range(self.cells)]

    def value(self, cell: int, raw: bytes | None = None) -> Any:
        return self.decoder((self.raw if raw is None else raw)[cell * self.unit : (cell + 1) * self.unit])


@dataclass
class Drawing:
    """All that a picture shows, as plain data; no tensor is kept alive.

    Attributes:
        compared: whether it was read with an earlier picture.
    """

    strips: list[Strip]
    rows: list[Row]
    compared: bool = False

    def rows_of(self, number: int) -> list[Row]:
        return [row for row in self.rows if row.strip == number]


def compare(drawing: Drawing, earlier: Drawing) -> None:
    """Marks what differs from ``earlier``: bytes in storages that are the same, versions, and names that moved."""
    drawing.compared = True
    for strip in drawing.strips:
        for letter, (start, _) in strip.extents.items():
            then = _same_memory(strip.held[letter], earlier)
            if then is None:
                continue
            old, old_letter = then
            at = (
                start * strip.unit - old.extents[old_letter][0] * old.unit
            )  # where the earlier strip starts in this one
            common = range(max(0, at), min(strip.nbytes, at + old.nbytes))
            aligned = bytearray(strip.raw)
            aligned[common.start : common.stop] = old.raw[common.start - at : common.stop - at]
            strip.raw_before = bytes(aligned)
            differ = np.flatnonzero(np.frombuffer(strip.raw, np.uint8) != np.frombuffer(strip.raw_before, np.uint8))
            strip.changed = np.unique(differ // strip.unit).tolist()
            break
    was = {row.name: row for row in earlier.rows}
    for row in drawing.rows:
        old = was.get(row.name)
        if old is None or row.strip is None or old.strip is None:
            continue
        then = _same_memory(drawing.strips[row.strip].held[row.letter], earlier)
        row.rebound = then is None or then[0] is not earlier.strips[old.strip]
        row.same_counter = not row.rebound and row.root() is not None and row.root() is old.root()
        row.version_before = old.version if row.same_counter else None


def _same_memory(held: Any, earlier: Drawing) -> tuple[Strip, str] | None:
    """The strip and letter under which the same living storage was drawn before."""
    return next(
        ((strip, letter) for strip in earlier.strips for letter, ref in strip.held.items() if ref() is held()), None
    )
