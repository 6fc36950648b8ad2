"""How does a graph become a picture that fits the page? Its size, DOT, and the programs that lay it out."""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from helpers._graph_fold import GraphNode, Plan, plans
from helpers._graph_records import Graph
from helpers.display import FONT, GROUPS, INK, MAX_WIDTH, PAPER, clip, in_xml, text_width

RENDERERS = ("auto", "dot", "graphviz-pure", "text")
RENDERER_VARIABLE = "TENSOR_LAB_RENDERER"
TIMEOUT = 20  # s; sixty boxes take milliseconds, so this only ends a program that hangs

_FONT_SIZE = 12
_LEAST_FONT_SIZE = 11
_MARGIN = 12
_INNER = MAX_WIDTH - 2 * _MARGIN
_TALL = 1500  # px
_LINE = 190  # px; longer names are broken at a dot
_SAVED_INK = "#a84300"  # vermilion darkened until small text on white reads well (contrast 5.9 to 1)
_FILLS = {"output": PAPER, "operator": "#f1f1f1", "group": "#f1f1f1", "leaf": "#dcebf6", "saved": "#fcebe0"}
_STROKES = {
    "output": INK,
    "operator": "#6b6b6b",
    "group": "#6b6b6b",
    "leaf": GROUPS["parameters"],
    "saved": GROUPS["saved activations"],
}
# Colour is never alone: each kind of box has its own outline as well.
_STYLES = {
    "output": 'style="filled,bold"',
    "operator": 'style="filled,rounded"',
    "group": 'style="filled" peripheries=2',
    "leaf": 'style="filled"',
    "saved": 'style="filled,dashed"',
}


def choose(graph: Graph, max_nodes: int) -> tuple[Plan, list[Plan]]:
    """Returns the first plan that fits ``max_nodes`` boxes and the page by our own estimate, and the coarser ones.

    The estimate does not ask the layout program, so that the text of a picture is the same with every renderer.
    """
    fitting = [plan for plan in plans(graph) if len(plan.nodes) <= max_nodes]
    narrow = [i for i, plan in enumerate(fitting) if _width(plan) <= _INNER]
    # A graph within the limit is drawn whole, however long; once folding, two screens are better than six, and the
    # model's own modules better than slices.
    short = [i for i in narrow if not fitting[i].how or _height(fitting[i]) <= _TALL]
    modules = [i for i in narrow if fitting[i].how == "Folded by module"]
    if modules and (not short or short[0] > modules[-1]):
        short = modules[-1:]
    start = (short or narrow or [len(fitting) - 1])[0]
    return fitting[start], fitting[start + 1 :]


# --- how wide will it be? --------------------------------------------------------------------------------------------


def _wrapped(line: str) -> list[str]:
    """Breaks a long dotted name at its dots and anything else at spaces; a part too long even so is clipped."""
    rows = [""]
    for piece in re.findall(r"[^. ]*[. ]?", line):
        if rows[-1] and text_width(rows[-1] + piece, _FONT_SIZE) > _LINE:
            rows.append("")
        rows[-1] += piece
    return [clip(row.strip(), _LINE, _FONT_SIZE) for row in rows if row.strip()] or [" "]


def _box_width(node: GraphNode) -> float:
    return 22 + max(text_width(row, _FONT_SIZE) for line in node.lines for row in _wrapped(line))


def ranks(plan: Plan) -> dict[str, int]:
    """Distance from the top, by longest path. Folding by module can close a cycle; the closing line does not count."""
    below: dict[str, list[str]] = {node.id: [] for node in plan.nodes}
    for edge in plan.edges:
        below[edge.source].append(edge.target)
    done: list[str] = []
    state: dict[str, int] = {}  # 1 while its descendants are walked, 2 after
    back: set[tuple[str, str]] = set()
    for node in below:
        stack = [(node, False)]
        while stack:
            here, leaving = stack.pop()
            if leaving:
                state[here] = 2
                done.append(here)
            elif here not in state:
                state[here] = 1
                stack.append((here, True))
                for target in below[here]:
                    if state.get(target) == 1:
                        back.add((here, target))
                    elif target not in state:
                        stack.append((target, False))
    rank = dict.fromkeys(below, 0)
    for here in reversed(done):
        for target in below[here]:
            if (here, target) not in back:
                rank[target] = max(rank[target], rank[here] + 1)
    return rank


def _height(plan: Plan) -> float:
    """An estimate, in px: the tallest box of each row and the room between rows."""
    rank = ranks(plan)
    rows: dict[int, float] = {}
    for node in plan.nodes:
        tall = 14 + 16 * sum(len(_wrapped(line)) for line in node.lines)
        rows[rank[node.id]] = max(rows.get(rank[node.id], 0), tall + 26)
    return sum(rows.values())


def _width(plan: Plan) -> float:
    """An estimate, in px: the widest row of boxes, the lines that pass between them, or the labels on the lines."""
    rank = ranks(plan)
    rows: Counter[int] = Counter()
    labels: Counter[int] = Counter()
    for node in plan.nodes:
        rows[rank[node.id]] += _box_width(node) + 18
    for source, target in {(edge.source, edge.target) for edge in plan.edges}:
        for row in range(rank[source] + 1, rank[target]):
            rows[row] += 18
    for edge in plan.edges:
        labels[rank[edge.source]] += text_width(edge.label, _LEAST_FONT_SIZE) + 18
    return max([*rows.values(), *labels.values()])


# --- drawing ---------------------------------------------------------------------------------------------------------


def dot_source(plan: Plan) -> str:
    """Returns ``plan`` in the DOT language, the same text on every run."""
    lines = [
        "digraph graph_of_the_output {",
        '  graph [rankdir=TB nodesep=0.22 ranksep=0.32 margin=0 bgcolor="transparent"]',
        f'  node [shape=box margin="0.15,0.05" height=0.3 fontname="Helvetica" fontsize={_FONT_SIZE}'
        f' fontcolor="{INK}"]',
        f'  edge [fontname="Helvetica" fontsize={_LEAST_FONT_SIZE} arrowsize=0.6 color="#555555"]',
    ]
    for node in plan.nodes:
        rows = [row for line in node.lines for row in _wrapped(line)]
        label = "\\n".join(in_xml(row).replace("\\", "\\\\").replace('"', '\\"') for row in rows)
        kind = "leaf" if node.kind == "group" and not node.operators else node.kind
        colours = f'fillcolor="{_FILLS[kind]}" color="{_STROKES[kind]}"'
        lines.append(f'  "{node.id}" [label="{label}" {colours} {_STYLES[node.kind]}]')
    spine = {node.id for node in plan.nodes if node.kind == "output" or node.operators}
    stroke = GROUPS["saved activations"]
    for edge, times in Counter(plan.edges).items():
        # Spaces around a label keep it off its line.
        if edge.kind == "saved":
            label = f' label="  {in_xml(edge.label)}   "' if edge.label else ""
            look = f' [style=dashed color="{stroke}" fontcolor="{_SAVED_INK}" arrowhead=dot arrowsize=0.5{label}]'
        else:
            # Operators in a straight line down the page: without the weight the drawing drifts and gets a third wider.
            weight = " weight=6" if edge.source in spine and edge.target in spine else ""
            label = f' label="  \u00d7{times}  "' if times > 1 else ""  # x * x: one line that says "twice"
            look = f" [{(weight + label).strip()}]" if weight or label else ""
        lines.append(f'  "{edge.source}" -> "{edge.target}"{look}')
    return "\n".join([*lines, "}", ""])


def wanted_renderer() -> str:
    """Returns the value of ``TENSOR_LAB_RENDERER``, "auto" if it is unset.

    Raises:
        ValueError: for a value that names no renderer.
    """
    value = os.environ.get(RENDERER_VARIABLE) or "auto"
    if value not in RENDERERS:
        raise ValueError(
            f"{RENDERER_VARIABLE} is {value!r}; it must be one of {', '.join(RENDERERS)}. "
            "Unset it to let the lab choose the first that works."
        )
    return value


def _program(renderer: str) -> str | None:
    """The program's path, or None. pip puts the wheel's program beside the interpreter, which need not be on PATH."""
    found = shutil.which(renderer)
    if found is None and renderer == "graphviz-pure":
        found = shutil.which(renderer, path=str(Path(sys.executable).parent))
    return found


def _run(renderer: str, dot: str) -> str | None:
    """Returns the SVG that ``renderer`` makes of ``dot``; None if it is missing, fails or does not end."""
    program = _program(renderer)
    if program is None:
        return None
    try:
        done = subprocess.run([program, "-Tsvg"], input=dot.encode(), capture_output=True, timeout=TIMEOUT, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    svg = done.stdout.decode(errors="replace")
    return svg if "<svg" in svg and "</svg>" in svg else None


def draw(plan: Plan, coarser: list[Plan], title: str, note: Callable[[Plan], str], text: str) -> tuple[str, str]:
    """Returns ``(svg, renderer that drew it)``; never fails, the text itself is the last resort.

    Where a program needs more width than we estimated, the picture folds on to a coarser plan: letters under 11 px
    would be worse.
    """
    wanted = wanted_renderer()
    for renderer in RENDERERS[1:-1] if wanted == "auto" else [wanted]:
        for candidate in [plan, *coarser] if renderer != "text" else []:
            raw = _run(renderer, dot_source(candidate))
            if raw is None:
                break
            body = _body(raw, candidate)
            if body is None:
                break
            inner, width, height = body
            if width * _LEAST_FONT_SIZE / _FONT_SIZE <= _INNER:
                return _page(inner, width, height, title, note(candidate)), renderer
    return _text_page(text, title), "text"


def _body(raw: str, plan: Plan) -> tuple[str, float, float] | None:
    """The drawing alone, and its size in px: no prolog, comments, tooltips, ids, background, program's version."""
    size = re.search(r'viewBox="[-\d.]+ [-\d.]+ ([\d.]+) ([\d.]+)"', raw)
    start = re.search(r"<svg[^>]*>", raw)
    if not size or not start:
        return None
    inner = raw[start.end() : raw.rindex("</svg>")]
    rows = {node.id: len(_wrapped(node.lines[0])) for node in plan.nodes}
    for found in re.findall(r'class="node">\s*<title>(.*?)</title>(.*?)</g>', inner, flags=re.DOTALL):
        bold = re.sub("<text ", '<text font-weight="bold" ', found[1], count=rows.get(html.unescape(found[0]), 1))
        inner = inner.replace(found[1], bold, 1)
    for unwanted in (r"<!--.*?-->", r"<title>.*?</title>", r' (?:id|class|xml:space|font-family)="[^"]*"'):
        inner = re.sub(unwanted, "", inner, flags=re.DOTALL)
    background = r'<polygon fill="(?:none|white|transparent)" stroke="(?:none|transparent)"[^>]*/>'
    inner = re.sub(background, "", inner, count=1)
    return re.sub(r"\n\s*\n+", "\n", inner).strip(), float(size[1]), float(size[2])


def _rows(sentence: str, size: float) -> list[str]:
    rows = [""]
    for word in sentence.split():
        if rows[-1] and text_width(f"{rows[-1]} {word}", size) > _INNER:
            rows.append("")
        rows[-1] = f"{rows[-1]} {word}".strip()
    return [clip(row, _INNER, size) for row in rows]


def _frame(width: float, height: float, content: list[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="{FONT}" fill="{INK}">\n'
        f'<rect x="0.5" y="0.5" width="{width - 1:.0f}" height="{height - 1:.0f}" fill="{PAPER}" stroke="#c8c8c8"/>\n'
        + "\n".join(content)
        + "\n</svg>"
    )


def _lines(rows: list[str], y: float, size: float, leading: float, extra: str = "") -> list[str]:
    return [
        f'<text x="{_MARGIN}" y="{y + i * leading:.1f}" font-size="{size}"{extra}>{html.escape(in_xml(row))}</text>'
        for i, row in enumerate(rows)
    ]


def _page(inner: str, width: float, height: float, title: str, note: str) -> str:
    """Title above, drawing in the middle, and under it how to read it and what was folded."""
    scale = min(1.0, _INNER / width)
    heads, notes = _rows(title, 15), _rows(note, 11)
    texts = max(text_width(row, size) for rows, size in ((heads, 15), (notes, 11)) for row in rows)
    page = min(MAX_WIDTH, max(360, texts + 2 * _MARGIN, width * scale + 2 * _MARGIN))
    top = 12 + 19 * len(heads) + 8
    foot = top + height * scale + 20
    content = _lines(heads, 26, 14, 19, ' font-weight="bold"')
    x = (page - width * scale) / 2
    content.append(f'<g transform="translate({x:.2f} {top}) scale({scale:.4f})">\n{inner}\n</g>')
    content += _lines(notes, foot, 11, 15, ' fill="#4a4a4a"')
    return _frame(page, foot + 15 * len(notes) - 3, content)


def _text_page(text: str, title: str) -> str:
    """The text tree as a picture, for a machine without any layout program."""
    heads = _rows(title, 15)
    room = int(_INNER / (0.61 * 11))
    body = text.split("\n")[1:]  # the first line is the title, which stands above in its own size
    body = [row if len(row) <= room else row[: room - 1] + "…" for row in body]
    top = 12 + 19 * len(heads) + 14
    mono = ' font-family="\'DejaVu Sans Mono\', Menlo, Consolas, monospace" xml:space="preserve"'
    content = _lines(heads, 26, 14, 19, ' font-weight="bold"') + _lines(body, top + 4, 11, 15, mono)
    return _frame(MAX_WIDTH, top + 15 * len(body) + 4, content)
