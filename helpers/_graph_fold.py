"""How do a thousand operators fit into sixty boxes? Ways to fold a graph, from the whole to a single box.

Works on plain records alone, so that nothing here can keep a graph alive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from helpers._graph_records import Graph, Leaf, Operator, Storage, count, dtype_text, human_bytes, part_of, shape_text


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


_LEAVES = "leaves of the outputs"


@dataclass
class Plan:
    """One way to draw a graph; ``how`` says how it was folded, empty for a graph drawn whole."""

    how: str
    nodes: list[GraphNode]
    edges: list[GraphEdge]


def plans(graph: Graph) -> Iterator[Plan]:
    """Yields ways to draw ``graph``, whole and in ever fewer boxes; the last has one for outputs, one for the rest."""
    yield _plan(graph, {}, {}, "", absorb=False)
    yield _plan(graph, {}, _leaf_siblings(graph), "Tensors that one operator uses folded", absorb=False)
    if graph.model_name:
        yield from _by_module(graph)
    if groups := _chains(graph):
        yield _plan(graph, groups, {}, "Runs of operators folded", absorb=False)
        yield _plan(graph, groups, _leaf_siblings(graph), "Runs of operators folded", absorb=False)
    for boxes in (40, 24, 12, 6, 3, 1):
        yield _plan(graph, _by_level(graph, boxes), {}, "Neighbouring operators folded", absorb=True)
    rest, how = ("slice 1", "Neighbouring operators folded") if graph.operators else (_LEAVES, "Outputs folded")
    together = {leaf: rest for leaf, users in _users(graph).items() if not users}
    yield _plan(graph, _by_level(graph, 1), together, how, absorb=True, most_outputs=1)


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


def _plan(
    graph: Graph,
    groups: dict[str, str],
    leaf_groups: dict[str, str],
    how: str,
    *,
    absorb: bool,
    most_outputs: int = 4,
) -> Plan:
    """Builds boxes and lines: an operator in ``groups`` joins that box, with whatever only that box uses.

    ``absorb`` also takes in what several boxes use; it is counted once, in the box that ran first. More outputs than
    ``most_outputs`` share a box once anything is folded.
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
    if how and len(outputs) > most_outputs:
        name = count(len(outputs), "output")
        nodes["outputs"] = GraphNode("outputs", "output", name, (name,))
        for output in outputs:
            if output.target:
                if output.target in graph.leaves:
                    _leaf_node(graph, output.target, box, titles, inside, nodes, how)
                if GraphEdge("outputs", box[output.target], "input") not in edges:
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
