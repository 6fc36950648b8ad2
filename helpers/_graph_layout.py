"""How does a graph become a picture that fits the page? Folding, DOT and the programs that lay it out.

Works on plain records alone (names, shapes, bytes), never on tensors or autograd nodes, so that nothing here can keep a
graph alive. `helpers.graph` fills the records in.
"""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from helpers.display import FONT, GROUPS, INK, MAX_WIDTH, PAPER, clip, round_bytes, text_width

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


@dataclass
class Operator:
    """One operator of the forward pass. ``order`` counts upwards the way forward ran."""

    id: str
    name: str
    shape: str
    inputs: list[str] = field(default_factory=list)
    slots: list[SavedSlot] = field(default_factory=list)
    alias: str = ""
    freed: bool = False
    order: int = 0
    level: int = 0
    module: str | None = None


@dataclass
class Leaf:
    """A tensor that exists without the graph: what the reader made, a parameter, or a buffer."""

    id: str
    name: str
    kind: str  # "leaf", "parameter" or "buffer"
    shape: str
    nbytes: int
    storage: str
    requires_grad: bool = True


@dataclass
class Storage:
    """Memory that the graph keeps; ``leaf`` is the id of the leaf that owns it, else it was kept for backward alone."""

    letter: str
    nbytes: int
    leaf: str = ""
    name: str = ""
    same_as: str = ""
    slots: list[SavedSlot] = field(default_factory=list)


@dataclass(frozen=True)
class SavedSlot:
    """One tensor that one operator keeps for backward, as plain data.

    Attributes:
        op: the operator's plain name, ``"mul"``.
        slot: PyTorch's name of the slot, ``"self"``, ``"other"``, ``"result"``, ``"indices[0]"``.
        shape: sizes of the tensor as it was saved.
        dtype: its ``torch.dtype``.
        nbytes: elements times element size, as ``tensor.nbytes``.
        used_bytes: bytes of the storage that the tensor really reads (a repeated element counts once).
        storage: letter of the storage, in order of appearance.
        storage_nbytes: bytes of that whole storage, which is what stays allocated.
        kind: ``"activation"``, ``"leaf"``, ``"parameter"`` or ``"buffer"``; the last three exist without the graph.
        name: the reader's, or the model's, name of the tensor; empty if it has none.
        note: empty, or what is special: ``"overwritten"``, ``"packed by a hook"``, ``"unpack hook failed: ..."``,
            ``"recomputed by checkpoint"``.
        node: id of the operator, ``"mul_1"``.
    """

    op: str
    slot: str
    shape: tuple[int, ...]
    dtype: object
    nbytes: int
    used_bytes: int
    storage: str
    storage_nbytes: int
    kind: str
    name: str
    note: str
    node: str


@dataclass
class Output:
    """One tensor that the reader passed in; ``target`` is the id of what made it, empty without a graph."""

    id: str
    name: str
    shape: str
    dtype: str
    target: str = ""
    note: str = ""


@dataclass
class Graph:
    """Everything that was read; operators and leaves in order of appearance, from the output down."""

    outputs: list[Output] = field(default_factory=list)
    operators: dict[str, Operator] = field(default_factory=dict)
    leaves: dict[str, Leaf] = field(default_factory=dict)
    storages: dict[str, Storage] = field(default_factory=dict)
    model_name: str = ""
    module_types: dict[str, str] = field(default_factory=dict)  # path -> class name


@dataclass(frozen=True)
class GraphNode:
    """One box: ``kind`` is "output", "operator", "leaf", "saved" or "group"; ``nbytes`` is what the box keeps or is."""

    id: str
    kind: str
    name: str
    lines: tuple[str, ...]
    shape: str = ""
    nbytes: int = 0
    operators: int = 0


@dataclass(frozen=True)
class GraphEdge:
    """A line; ``kind`` is "input" (backward walks from source to target) or "saved" (in slot ``label`` it is kept)."""

    source: str
    target: str
    kind: str
    label: str = ""


@dataclass
class Plan:
    """One way to draw a graph; ``how`` says how it was folded, empty for a graph drawn whole."""

    how: str
    nodes: list[GraphNode]
    edges: list[GraphEdge]


def count(n: int, noun: str, plural: str = "") -> str:
    """Returns ``"1 leaf"``, ``"1,940 operators"``."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def human_bytes(n: int) -> str:
    """Bytes to the byte while they are short enough to be read, binary units above."""
    return f"{n:,} B" if n < 10_000 else round_bytes(n)


def part_of(used: int, whole: int) -> str:
    """Returns ``"40 of 4,000 B"`` for a tensor that reads a part of its storage, else the whole alone."""
    if used >= whole:
        return human_bytes(whole)
    return f"{used:,} of {whole:,} B" if whole < 10_000 else f"{human_bytes(used)} of {human_bytes(whole)}"


# --- folding ---------------------------------------------------------------------------------------------------------


def plans(graph: Graph) -> Iterator[Plan]:
    """Yields ways to draw ``graph``, from the whole to ever fewer boxes; the last one is a single box."""
    yield _plan(graph, {}, {}, "", absorb=False)
    yield _plan(graph, {}, _leaf_siblings(graph), "Tensors that one operator uses folded", absorb=False)
    if graph.model_name:
        yield from _by_module(graph)
    if groups := _chains(graph):
        yield _plan(graph, groups, {}, "Runs of operators folded", absorb=False)
        yield _plan(graph, groups, _leaf_siblings(graph), "Runs of operators folded", absorb=False)
    for boxes in (40, 24, 12, 6, 3, 1):
        yield _plan(graph, _by_level(graph, boxes), {}, "Neighbouring operators folded", absorb=True)


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


def _by_module(graph: Graph) -> Iterator[Plan]:
    def title(path: str) -> str:
        kind = graph.module_types.get(path, "")
        return f"{path}: {kind}" if path and kind else path or graph.model_name

    paths = {op.module for op in graph.operators.values() if op.module}
    deepest = max((path.count(".") + 1 for path in paths), default=0)
    for depth in range(deepest, 0, -1):
        groups = {
            op.id: "before the first parameter" if op.module is None else title(".".join(op.module.split(".")[:depth]))
            for op in graph.operators.values()
        }
        yield _plan(graph, groups, {}, "Folded by module", absorb=True)


def _chains(graph: Graph, least: int = 8, ends: int = 2) -> dict[str, str]:
    """Groups the middle of each unbranched run of operators; both ends stay, to show where the run begins and stops."""
    ops = graph.operators
    below = {op.id: list(dict.fromkeys(i for i in op.inputs if i in ops)) for op in ops.values()}
    users = Counter(i for inputs in below.values() for i in inputs)
    groups: dict[str, str] = {}
    seen: set[str] = set()
    for op in ops.values():  # from the output down, so the first one met is the upper end of its run
        run: list[str] = []
        here = op.id
        while here not in seen and len(below[here]) <= 1 and users[here] <= 1:
            seen.add(here)
            run.append(here)
            if not below[here]:
                break
            here = below[here][0]
        if len(run) >= least:
            groups.update(dict.fromkeys(run[ends:-ends], f"run {len(set(groups.values())) + 1}"))
    return groups


def _leaf_siblings(graph: Graph, least: int = 2) -> dict[str, str]:
    """Groups the leaves that one operator alone uses (batch norm's four, or the forty tensors of a ``torch.stack``)."""
    users = _users(graph)
    only = [(next(iter(ops)), leaf) for leaf, ops in users.items() if leaf in graph.leaves and len(ops) == 1]
    many = Counter(op for op, _ in only)
    return {leaf: f"leaves of {op}" for op, leaf in only if many[op] >= least}


def _by_level(graph: Graph, boxes: int) -> dict[str, str]:
    """Groups operators by their distance from the output into at most ``boxes`` slices of about one size.

    Neighbouring levels make a path of boxes: never a cycle, and never wider than a box and the lines that pass it.
    """
    sizes = Counter(op.level for op in graph.operators.values())
    slices, done, total = {}, 0, sum(sizes.values())
    for level in sorted(sizes):
        slices[level] = min(boxes - 1, done * boxes // total)
        done += sizes[level]
    return {op.id: f"slice {slices[op.level] + 1}" for op in graph.operators.values()}


def _users(graph: Graph) -> dict[str, list[str]]:
    """Operators that read or keep each leaf, by leaf id."""
    users: dict[str, dict[str, None]] = {leaf: {} for leaf in graph.leaves}
    for op in graph.operators.values():
        kept = (graph.storages[s.storage].leaf for s in op.slots if s.storage)
        for target in (*op.inputs, *kept):
            if target in users:
                users[target][op.id] = None
    return {leaf: list(ops) for leaf, ops in users.items()}


def _plan(graph: Graph, groups: dict[str, str], leaf_groups: dict[str, str], how: str, *, absorb: bool) -> Plan:
    """Builds boxes and lines: an operator in ``groups`` joins that box, with whatever only that box uses.

    ``absorb`` also takes in what several boxes use; it is counted once, in the box that ran first.
    """
    ops = graph.operators
    keys = {key: f"group_{i + 1}" for i, key in enumerate(dict.fromkeys([*groups.values(), *leaf_groups.values()]))}
    box = {op: keys[groups[op]] if op in groups else op for op in ops}

    def home(users: Iterable[str]) -> str | None:
        """The folded box that takes in something these operators use; None if it stays a box of its own."""
        users = list(users)
        if not users or not all(op in groups for op in users) or (not absorb and len({box[op] for op in users}) > 1):
            return None
        return box[min(users, key=lambda op: ops[op].order)]

    inside: dict[str, list[Leaf]] = {}
    for leaf, users in _users(graph).items():
        where = keys[leaf_groups[leaf]] if leaf in leaf_groups else home(users)
        box[leaf] = where or leaf
        if where:
            inside.setdefault(where, []).append(graph.leaves[leaf])
    kept: dict[str, list[Storage]] = {}
    drawn: dict[str, list[Storage]] = {}  # boxes of saved tensors: one storage each, unless an operator's own share one
    for storage in graph.storages.values():
        if storage.leaf:
            box[storage.letter] = box[storage.leaf]
            continue
        keepers = {slot.node for slot in storage.slots}
        where = home(keepers)
        if where:
            kept.setdefault(where, []).append(storage)
        else:
            alone = leaf_groups and len(keepers) == 1 and not storage.same_as
            where = f"saved_by_{min(keepers)}" if alone else f"saved_{storage.letter}"
            drawn.setdefault(where, []).append(storage)
        box[storage.letter] = where

    members: dict[str, list[Operator]] = {}
    for op in ops.values():
        members.setdefault(box[op.id], []).append(op)
    titles = {node: key for key, node in keys.items()}
    nodes: dict[str, GraphNode] = {}
    edges: list[GraphEdge] = []

    def line(edge: GraphEdge) -> None:
        folded = edge.source in titles or edge.target in titles
        if edge.source != edge.target and not (folded and edge in edges):
            edges.append(edge)

    outputs = graph.outputs
    if how and len(outputs) > 4:
        name = count(len(outputs), "output")
        nodes["outputs"] = GraphNode("outputs", "output", name, (name,))
        for output in outputs:
            if output.target and GraphEdge("outputs", box[output.target], "input") not in edges:
                edges.append(GraphEdge("outputs", box[output.target], "input"))
    else:
        for output in outputs:
            lines = (output.name, f"{output.shape} {output.dtype}", *([output.note] if output.note else []))
            nodes[output.id] = GraphNode(output.id, "output", output.name, lines, output.shape)
            if output.target:
                if output.target in graph.leaves:
                    _leaf_node(graph, output.target, box, titles, inside, nodes, how)
                line(GraphEdge(output.id, box[output.target], "input"))
    for op in ops.values():
        node = box[op.id]
        if node not in nodes:
            nodes[node] = (
                _group_node(node, titles[node], members[node], inside.get(node, []), kept.get(node, []), how)
                if node in titles
                else GraphNode(op.id, "operator", op.name, _operator_lines(op), op.shape, operators=1)
            )
        for target in op.inputs:
            if target not in ops:
                _leaf_node(graph, target, box, titles, inside, nodes, how)
            line(GraphEdge(node, box[target], "input"))
        labels: dict[str, list[str]] = {}
        for slot in op.slots:
            if not slot.storage:
                continue
            storage, target = graph.storages[slot.storage], box[slot.storage]
            if storage.leaf:
                _leaf_node(graph, storage.leaf, box, titles, inside, nodes, how)
            if target in members:
                continue  # counted in a box of operators, on a line of its own
            if not storage.leaf and target not in nodes:
                nodes[target] = _saved_node(target, drawn[target])
            label = slot.slot
            if not storage.leaf and slot.shape != storage.slots[0].shape:
                label += f" as {shape_text(slot.shape)}"
            labels.setdefault(target, []).append("" if node in titles else label)
        for target, several in labels.items():
            if target in titles or len(drawn.get(target, [])) > 1:
                several = [several[0] if len(several) == 1 else f"{len(several)} slots"]
            for label in several:
                line(GraphEdge(node, target, "saved", label))
    return Plan(how, list(nodes.values()), edges)


def shape_text(shape: Iterable[int]) -> str:
    """Returns ``"[4, 8]"``, and ``"scalar"`` for no dimensions."""
    sizes = [str(size) for size in shape]
    return f"[{', '.join(sizes)}]" if sizes else "scalar"


def dtype_text(dtype: object) -> str:
    """Returns ``"float32"`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def _leaf_node(graph, leaf_id, box, titles, inside, nodes, how) -> None:
    """Adds the box of a leaf, or of the group of leaves it belongs to, when it is first met."""
    node = box[leaf_id]
    if node in nodes:
        return
    if node in titles:
        if titles[node].startswith("leaves of "):
            nodes[node] = _group_node(node, titles[node], [], inside[node], [], how)
        return  # inside a box of operators, which is added with its first operator
    leaf = graph.leaves[leaf_id]
    what = leaf.kind if leaf.requires_grad or leaf.kind == "buffer" else f"frozen {leaf.kind}"
    lines = (leaf.name, leaf.shape, f"{what}, {human_bytes(leaf.nbytes)}")
    nodes[node] = GraphNode(node, "leaf", leaf.name, lines, leaf.shape, leaf.nbytes)


def _operator_lines(op: Operator) -> tuple[str, ...]:
    first = f"{op.name} = {op.alias}" if op.alias else op.name
    notes = {s.note for s in op.slots if not s.storage and s.note}
    lines = [first, *([op.shape] if op.shape else []), *(["saved tensors freed"] if op.freed else []), *sorted(notes)]
    return tuple(lines)


def _saved_node(node: str, storages: list[Storage]) -> GraphNode:
    storage, *more = storages
    if more:
        nbytes = sum(s.nbytes for s in storages)
        name = f"saved {', '.join(s.letter for s in storages)}"
        lines = [name, *dict.fromkeys(shape_text(s.slots[0].shape) for s in storages)]
        return GraphNode(node, "saved", name, (*lines[:4], f"together {human_bytes(nbytes)}"), nbytes=nbytes)
    slot = storage.slots[0]
    used = max(s.used_bytes for s in storage.slots)
    name = f"{storage.name} (saved {storage.letter})" if storage.name else f"saved {storage.letter}"
    notes = list(dict.fromkeys(s.note for s in storage.slots if s.note))
    lines = (
        name,
        f"{shape_text(slot.shape)} {dtype_text(slot.dtype)}",
        part_of(used, storage.nbytes),
        *([f"same storage as {storage.same_as}"] if storage.same_as else []),
        *notes,
    )
    return GraphNode(node, "saved", storage.name or storage.letter, lines, shape_text(slot.shape), storage.nbytes)


def _group_node(
    node: str, key: str, ops: list[Operator], leaves: list[Leaf], kept: list[Storage], how: str
) -> GraphNode:
    lines: list[str] = []
    if how == "Folded by module":
        lines.append(key)
    if ops:
        common = Counter(op.name for op in ops).most_common(3)
        more = len({op.name for op in ops}) - len(common)
        names = ", ".join(name for name, _ in common) + (f" and {count(more, 'other kind')}" if more else "")
        if ops[0].shape and len(ops) == 1:
            names += f" {ops[0].shape}"
        lines += [count(len(ops), "operator"), names]
    nbytes = sum(storage.nbytes for storage in kept)
    if kept:
        lines.append(f"keep{'s' if len(ops) == 1 else ''} {count(len(kept), 'tensor')}, {human_bytes(nbytes)}")
    if any(op.freed for op in ops):
        lines.append("saved tensors freed")
    by_kind: dict[str, list[Leaf]] = {}
    for leaf in leaves:
        by_kind.setdefault(leaf.kind, []).append(leaf)
    for kind, some in by_kind.items():
        total = sum({leaf.storage: leaf.nbytes for leaf in some}.values())
        noun = count(len(some), kind, "leaves" if kind == "leaf" else "")
        if not ops and len(some) == 1:
            noun = some[0].name
        elif not ops and len(some) <= 3:
            noun = ", ".join(leaf.name for leaf in some)
        lines.append(f"{noun}, {human_bytes(total)}")
    if not ops and len({leaf.shape for leaf in leaves}) == 1:
        lines.append(f"each {leaves[0].shape}")
    return GraphNode(node, "group", lines[0], tuple(lines), nbytes=nbytes, operators=len(ops))


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
        label = "\\n".join(row.replace("\\", "\\\\").replace('"', '\\"') for row in rows)
        kind = "leaf" if node.kind == "group" and not node.operators else node.kind
        colours = f'fillcolor="{_FILLS[kind]}" color="{_STROKES[kind]}"'
        lines.append(f'  "{node.id}" [label="{label}" {colours} {_STYLES[node.kind]}]')
    spine = {node.id for node in plan.nodes if node.kind == "output" or node.operators}
    stroke = GROUPS["saved activations"]
    for edge, times in Counter(plan.edges).items():
        # Spaces around a label keep it off its line.
        if edge.kind == "saved":
            label = f' label="  {edge.label}   "' if edge.label else ""
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
        f'<text x="{_MARGIN}" y="{y + i * leading:.1f}" font-size="{size}"{extra}>{html.escape(row)}</text>'
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
