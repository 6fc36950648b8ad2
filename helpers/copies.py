"""What does each way of copying a tensor do? Memory, graph, gradient and version, measured and drawn a row each."""

from __future__ import annotations

import html
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import get_gradient_edge

from ._blame import nodes_under
from .display import FONT, INK, MAX_WIDTH, PAPER, SHARED, Picture, Table, clip, in_xml
from .storage import shares_memory, shares_version_counter

_ROW, _TOP = 46, 64
_COLUMNS = {"way": 14, "memory": 236, "graph": 400, "gradient": 522, "version": 612}


class Copied(NamedTuple):
    """What one way of copying did to ``h = leaf * 2``.

    Attributes:
        way: its name.
        shares_memory: whether a byte of the result is one of ``h``, whichever storages stand for it.
        in_graph: whether backward from the result reaches what ``h`` was made from.
        gradient: of the sum of the result with respect to one element of ``leaf``; None where none arrives.
        shares_version: whether a write into the result raises the version of ``h``; False without a version counter.
    """

    way: str
    shares_memory: bool
    in_graph: bool
    gradient: float | None
    shares_version: bool


class CopyComparison:
    """The rows of `compare_copies`, as a picture in a notebook and as a table everywhere else.

    Attributes:
        rows: a `Copied` for each way, in order.
    """

    def __init__(self, rows: list[Copied]):
        self.rows = rows

    def __getitem__(self, way: str) -> Copied:
        for row in self.rows:
            if row.way == way:
                return row
        raise KeyError(f"{way!r} was not compared; there are {', '.join(row.way for row in self.rows)}")

    @property
    def title(self) -> str:
        """The finding, in one sentence."""
        sharing = sum(row.shares_memory for row in self.rows)
        silent = [row.way for row in self.rows if row.shares_memory and not row.shares_version]
        title = f"{sharing} of {len(self.rows)} ways share memory"
        if silent:
            title += f"; writes through {' and '.join(silent)} go uncounted"
        return title

    @property
    def table(self) -> Table:
        rows = [
            [
                row.way,
                "shared" if row.shares_memory else "own",
                "in the graph" if row.in_graph else "alone",
                "none" if row.gradient is None else f"{row.gradient:g}",
                "shared" if row.shares_version else "own",
            ]
            for row in self.rows
        ]
        return Table(["way", "memory", "graph", "gradient", "version"], rows, caption=self.title)

    @property
    def picture(self) -> Picture:
        return Picture(_svg(self), alt=" ".join(f"{_in_words(row)}." for row in self.rows), text=repr(self))

    def __repr__(self) -> str:
        return repr(self.table)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self.picture._repr_mimebundle_()


def compare_copies(ways: Mapping[str, Callable[[torch.Tensor], torch.Tensor]]) -> CopyComparison:
    """Tries each way of copying on a tensor of its own, ``h = leaf * 2``, and looks at what came out.

    Nothing is read from names or documentation: memory is told by addresses, the graph by walking it down to ``leaf``,
    the version by raising that of the result.

    Args:
        ways: name -> a function from ``h`` to its copy.

    Raises:
        TypeError: if ``ways`` is no mapping from names to functions, or a way returns anything but a tensor.
        ValueError: if ``ways`` is empty.
        RuntimeError: if a way fails, or what it returns cannot be looked at; it names the way.

    Example:
        >>> compare_copies({"clone": lambda h: h.clone(), "detach": lambda h: h.detach()})
        1 of 2 ways share memory
        way     memory  graph         gradient  version
        clone   own     in the graph  2         own
        detach  shared  alone         none      shared
    """
    if not isinstance(ways, Mapping):
        raise TypeError(
            f"ways is a {type(ways).__name__}: pass a dict from names to functions, {{'clone': lambda h: h.clone()}}"
        )
    for name, way in ways.items():
        if not isinstance(name, str):
            raise TypeError(f"the name {name!r} of a way is no string: give it one, as 'clone'")
        if not callable(way):
            raise TypeError(f"the way {name!r} is a {type(way).__name__}: pass a function, lambda h: h.clone()")
    if not ways:
        raise ValueError("there is nothing to compare: pass at least one way, {'clone': lambda h: h.clone()}")
    return CopyComparison([_named(name, way) for name, way in ways.items()])


def _named(name: str, way: Callable[[torch.Tensor], torch.Tensor]) -> Copied:
    try:
        with torch.inference_mode(False), torch.enable_grad():  # a graph is asked for, wherever the reader stands
            row = _try(name, way)
    except Exception as error:
        raise RuntimeError(f"the way {name!r} failed with {type(error).__name__}: {error}") from error
    if isinstance(row, Copied):
        return row
    raise TypeError(f"the way {name!r} returned {row}: it must return the copy, a tensor")


def _try(name: str, way: Callable[[torch.Tensor], torch.Tensor]) -> Copied | str:
    """The row, or the class of what was returned in place of a tensor."""
    leaf = torch.ones(4, requires_grad=True)
    h = leaf * 2
    with warnings.catch_warnings():
        # torch.tensor(h) advises against itself, and here it is only looked at
        warnings.filterwarnings("ignore", "To copy construct from a tensor, it is recommended")
        result = way(h)
    if not isinstance(result, torch.Tensor):
        return type(result).__name__
    in_graph = get_gradient_edge(leaf).node in nodes_under(result)
    gradient = None
    if in_graph:
        total = result.sum()
        total = total.real if total.is_complex() else total
        (arrived,) = torch.autograd.grad(total, leaf, retain_graph=True, allow_unused=True)
        gradient = None if arrived is None else arrived[0].item()
    counted = not result.is_inference() and shares_version_counter(result, h)
    return Copied(name, shares_memory(result, h), in_graph, gradient, counted)


def _in_words(row: Copied) -> str:
    return (
        f"{row.way}: {'shares the memory of h' if row.shares_memory else 'memory of its own'}, "
        f"{'in the graph' if row.in_graph else 'alone'}, "
        f"gradient {'none' if row.gradient is None else f'{row.gradient:g}'}, "
        f"{'one version counter with h' if row.shares_version else 'a version counter of its own'}"
    )


def _svg(comparison: CopyComparison) -> str:
    rows = comparison.rows
    height = _TOP + _ROW * len(rows) + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{MAX_WIDTH}" height="{height}" '
        f'viewBox="0 0 {MAX_WIDTH} {height}" font-family="{html.escape(FONT)}" font-size="12" fill="{INK}">',
        f'<rect x=".5" y=".5" width="{MAX_WIDTH - 1}" height="{height - 1}" rx="4" fill="{PAPER}" stroke="#8a8a8a"/>',
        f'<text x="14" y="24" font-size="14" font-weight="bold">{_text(clip(comparison.title, 670, 14.5))}</text>',
    ]
    heads = {"way": "", "memory": "memory: h, copy", "graph": "graph", "gradient": "gradient", "version": "version"}
    parts += [f'<text x="{_COLUMNS[c]}" y="50" fill="#555">{head}</text>' for c, head in heads.items()]
    for number, row in enumerate(rows):
        y = _TOP + _ROW * number
        parts.append(f'<path d="M14 {y}H{MAX_WIDTH - 14}" stroke="#d5d5d5"/>')
        name = _text(clip(row.way, 210, 12))
        parts.append(f'<text x="{_COLUMNS["way"]}" y="{y + 28}" font-weight="bold">{name}</text>')
        parts += _memory(row, y)
        parts += _graph(row, y)
        gradient = "none" if row.gradient is None else f"{row.gradient:g}"
        parts.append(f'<text x="{_COLUMNS["gradient"]}" y="{y + 28}">{gradient}</text>')
        version = "shared" if row.shares_version else "own"
        parts.append(f'<text x="{_COLUMNS["version"]}" y="{y + 28}">{version}</text>')
    return "".join(parts) + "</svg>"


def _memory(row: Copied, y: int) -> list[str]:
    """One strip of cells with two brackets where memory is shared, else two strips."""

    def strip(left: float, top: float, fill: str) -> str:
        look = f'width="14" height="12" fill="{fill}" stroke="{INK}" stroke-width=".8"'
        return "".join(f'<rect x="{left + 14 * i}" y="{top}" {look}/>' for i in range(4))

    left = _COLUMNS["memory"]
    if row.shares_memory:
        label = f'<text x="{left + 64}" y="{y + 28}">one memory</text>'
        return [strip(left, y + 18, SHARED), label]
    label = f'<text x="{left + 64}" y="{y + 28}">two memories</text>'
    return [strip(left, y + 9, PAPER), strip(left, y + 26, "#cccccc"), label]


def _graph(row: Copied, y: int) -> list[str]:
    left = _COLUMNS["graph"]
    if not row.in_graph:
        return [
            f'<circle cx="{left + 6}" cy="{y + 24}" r="5" fill="{PAPER}" stroke="{INK}"/>',
            _at(left + 20, y, "alone"),
        ]
    return [
        f'<path d="M{left + 6} {y + 24}h34" stroke="{INK}"/><path d="M{left + 44} {y + 24}l-7 -4v8z"/>'
        f'<circle cx="{left + 6}" cy="{y + 24}" r="5" fill="{INK}"/>',
        _at(left + 52, y, "to leaf"),
    ]


def _at(x: float, y: int, text: str) -> str:
    return f'<text x="{x}" y="{y + 28}">{text}</text>'


def _text(text: str) -> str:
    return html.escape(in_xml(text), quote=False)
