"""How does a list of a thousand saved tensors read? One row for each storage, by bytes, folded by module."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ._graph_records import SavedSlot, count, dtype_text, human_bytes, shape_text
from .display import GROUPS

if TYPE_CHECKING:
    from .saved import SavedTensors

_TEXT_ROWS = 12
_ROWS = 10  # in each table of the HTML form
_BRANCHES = 12  # modules listed under one
_WHOLE = 24  # up to so many storages are one table, not folded further
_BAR = 90  # px


@dataclass
class Row:
    """One storage, and every slot that holds it."""

    records: list[SavedSlot] = field(default_factory=list)
    nbytes: int = 0
    module: str | None = None

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """Bytes, tensor, who keeps it, and the line of the first who does."""
        first = self.records[0]
        shapes = list(dict.fromkeys(f"{shape_text(r.shape)} {dtype_text(r.dtype)}" for r in self.records))
        more = f" and {len(shapes) - 2} more" if len(shapes) > 2 else ""
        named = f"{first.name} " if first.name else ""
        keepers = Counter(f"{record.op} ({record.slot})" for record in self.records)
        who = [name if n == 1 else f"{name} ×{n}" for name, n in keepers.items()]
        if len(who) > 3:
            who[2:] = [f"{len(who) - 2} more"]
        notes = dict.fromkeys(r.note for r in self.records if r.note)
        said = f" ({'; '.join(notes)})" if notes else ""
        line = next((r.line for r in self.records if r.line), None)
        tensor = f"{named}{' as '.join(shapes[:2])}{more}"
        read = sum({(r.offset, r.shape): r.used_bytes for r in self.records}.values())
        if read < self.nbytes:  # a small view keeps all that it is a view of
            tensor += f", reads {human_bytes(read)}"
        return human_bytes(self.nbytes), tensor, ", ".join(who) + said, line.text if line else ""


def rows_of(saved: SavedTensors, kinds: Sequence[str]) -> list[Row]:
    """The storages of these kinds, the largest first, then in the order of forward."""
    rows: dict[str, Row] = {}
    for record in saved:
        if record.kind in kinds and record.storage in saved.storages:
            row = rows.setdefault(record.storage, Row(nbytes=saved.storages[record.storage]))
            row.records.append(record)
            if row.module is None:
                row.module = record.module
    return sorted(rows.values(), key=lambda row: -row.nbytes)


ACTIVATIONS, ANYWAY = ("activation", "leaf"), ("parameter", "buffer")


def text_of(saved: SavedTensors) -> str:
    """The plain-text form: the title, the largest storages, the modules, the notes."""
    lines = [saved.title]
    rows = rows_of(saved, ACTIVATIONS)
    if rows:
        columns = 4 if any(row.module is not None for row in rows) else 3
        table = [[*row.cells[:3], _module_text(row.module)][:columns] for row in rows[:_TEXT_ROWS]]
        lines += _aligned([["bytes", "tensor", "kept by", "module"][:columns], *table])
        if rest := rows[_TEXT_ROWS:]:
            lines.append(f"and {len(rest):,} more, {human_bytes(sum(row.nbytes for row in rest))}")
        branches = _branches(rows, "")
        if len(rows) > _TEXT_ROWS and len(branches) > 1:
            lines += _aligned(
                [human_bytes(_sum(some)), count(len(some), "storage"), f"in {_module_text(path)}"]
                for path, some in branches[:_TEXT_ROWS]
            )
            if len(branches) > _TEXT_ROWS:
                lines.append(f"and {len(branches) - _TEXT_ROWS} more modules")
    return "\n".join([*lines, *saved.notes])


def _aligned(table: Iterable[Sequence[str]]) -> list[str]:
    table = list(table)
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return [
        "  ".join([row[0].rjust(widths[0]), *(c.ljust(w) for c, w in zip(row[1:], widths[1:]))]).rstrip()
        for row in table
    ]


def _module_text(path: str | None) -> str:
    return "module unknown" if path is None else path or "the model itself"


def _sum(rows: Iterable[Row]) -> int:
    return sum(row.nbytes for row in rows)


def _branches(rows: list[Row], path: str) -> list[tuple[str | None, list[Row]]]:
    """Splits rows by the next part of their module's path below ``path``, the largest branch first."""
    parts: dict[str | None, list[Row]] = {}
    prefix = f"{path}." if path else ""
    for row in rows:
        key = row.module
        if key is not None and key != path:
            key = prefix + key.removeprefix(prefix).split(".")[0]
        parts.setdefault(key, []).append(row)
    return sorted(parts.items(), key=lambda item: -_sum(item[1]))


# --- HTML ------------------------------------------------------------------------------------------------------------


def html_of(saved: SavedTensors) -> str:
    """The table for a notebook: no colours of its own but the bars, so it follows the reader's theme."""
    parts = [f"<p><b>{html.escape(saved.title)}</b></p>"]
    rows = rows_of(saved, ACTIVATIONS)
    if rows:
        parts.append(_node(saved, rows, "", _sum(rows), is_top=True))
    anyway = rows_of(saved, ANYWAY)
    if anyway:
        said = f"exist without the graph: {human_bytes(_sum(anyway))} in {count(len(anyway), 'storage')}"
        parts.append(f"<details><summary>{said}</summary>{_table(anyway, '')}</details>")
    if saved.notes:
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in saved.notes)
        parts.append(f'<ul style="font-size:90%">{notes}</ul>')
    return f"<div>{''.join(parts)}</div>"


def _node(saved: SavedTensors, rows: list[Row], path: str, total: int, *, is_top: bool = False) -> str:
    """What one module keeps: a table while that is short, else its own modules, each to be unfolded."""
    branches = _branches(rows, path)
    while len(branches) == 1 and branches[0][0] not in (None, path):  # a module that holds a single one
        path = branches[0][0]
        branches = _branches(rows, path)
    if len(rows) <= _WHOLE or len(branches) == 1:
        return _table(rows, path)
    parts = []
    for below, some in branches[:_BRANCHES]:
        name = _module_text(below) if below is None or below == path else below
        kind = saved.module_types.get(below or "", "") if below else ""
        inner = _table(some, path) if below is None or below == path else _node(saved, some, below, total)
        parts.append(f"<details><summary>{_summary(name, kind, some, total)}</summary>{inner}</details>")
    if rest := branches[_BRANCHES:]:
        some = [row for _, rows in rest for row in rows]
        parts.append(f'<div style="margin-left:1em">{_summary(f"and {len(rest)} more modules", "", some, total)}</div>')
    indent = "" if is_top else ' style="margin-left:1.5em"'
    return f"<div{indent}>{''.join(parts)}</div>"


def _summary(name: str, kind: str, rows: list[Row], total: int) -> str:
    """A bar for the module's share, the same width for all so that the names stand in line, then the numbers."""
    nbytes = _sum(rows)
    share = nbytes / total if total else 0
    bar = (
        f'<span style="display:inline-block;width:{_BAR}px">'
        f'<span style="display:inline-block;width:{max(1, round(share * _BAR))}px;height:0.7em;'
        f'background-color:{GROUPS["saved activations"]}"></span></span>'
    )
    named = f"<b>{html.escape(name)}</b>" + (f" {html.escape(kind)}" if kind else "")
    percent = f"{share:.0%}" if share >= 0.005 else "under 1%"
    return f"{bar} {named}: {human_bytes(nbytes)} in {count(len(rows), 'storage')}, {percent}"


def _table(rows: list[Row], path: str) -> str:
    shown = rows[:_ROWS]
    heads = ["bytes", "tensor", "kept by"]
    with_modules = any(row.module is not None for row in shown)
    with_lines = len({row.cells[3] for row in shown} - {""}) > 1  # one line for all says nothing
    heads += ["module"] * with_modules + ["line"] * with_lines
    body = []
    for row in shown:
        nbytes, tensor, who, line = row.cells
        module = row.module
        if path and module is not None:
            module = module.removeprefix(path).lstrip(".") or path
        cells = [html.escape(cell) for cell in (nbytes, tensor, who)]
        cells += [html.escape(_module_text(module))] * with_modules
        cells += [f"<code>{html.escape(line)}</code>"] * with_lines
        body.append(_line("td", cells))
    if rest := rows[_ROWS:]:
        said = f"and {len(rest):,} more, {human_bytes(_sum(rest))}"
        body.append(f'<tr><td colspan="{len(heads)}" style="text-align:left">{said}</td></tr>')
    return f"<table><thead>{_line('th', heads)}</thead><tbody>{''.join(body)}</tbody></table>"


def _line(tag: str, cells: Sequence[str]) -> str:
    """Bytes stand to the right, words to the left."""
    scope = ' scope="col"' if tag == "th" else ""
    sides = ["right", *["left"] * (len(cells) - 1)]
    inside = "".join(f'<{tag}{scope} style="text-align:{side}">{c}</{tag}>' for side, c in zip(sides, cells))
    return f"<tr>{inside}</tr>"
