"""What does a graph picture say? Its title, its notes, and the twins in words: the sentence and the text tree."""

from __future__ import annotations

from collections import Counter

from helpers._graph_fold import GraphEdge, GraphNode, Plan
from helpers._graph_read import NO_GRAPH
from helpers._graph_records import Graph, count, dtype_text, human_bytes, part_of, shape_text

FREED = "saved tensors already freed: draw before backward()"

_DEEPEST = 20  # levels of indentation before the text tree starts again at the left, so that lines stay readable


def title_of(graph: Graph, show_saved: bool) -> str:
    """The finding in one sentence, made from the records."""
    ops = graph.operators.values()
    if not ops:
        notes = {output.note for output in graph.outputs}
        if notes == {NO_GRAPH}:
            return NO_GRAPH
        return f"no operators: {'every' if len(graph.outputs) > 1 else 'the'} output is itself a leaf"
    if not show_saved:
        return f"{count(len(ops), 'operator')} and {count(len(graph.leaves), 'leaf', 'leaves')}; saved tensors not read"
    freed = sum(op.freed for op in ops)
    keepers = sum(bool(op.slots) for op in ops)
    if freed and not keepers:
        return FREED
    activations = [s for s in graph.storages.values() if not s.leaf]
    anyway = [s for s in graph.storages.values() if s.leaf]
    parts = []
    if activations:
        parts.append(f"{count(len(activations), 'tensor')}, {human_bytes(sum(s.nbytes for s in activations))}")
    if anyway:
        kinds = {graph.leaves[s.leaf].kind for s in anyway}
        noun, plural = ("parameter", "parameters") if kinds == {"parameter"} else ("leaf", "leaves")
        if "buffer" in kinds:
            noun = plural = "parameters and buffers"
        parts.append(f"{count(len(anyway), noun, plural)} ({human_bytes(sum(s.nbytes for s in anyway))}, there anyway)")
    who = f"{count(keepers, 'operator')} keep{'s' if keepers == 1 else ''}"
    if not keepers:
        title = f"{count(len(ops), 'operator')} keep{'s' if len(ops) == 1 else ''} no tensor"
    elif not parts:
        title = f"{who} nothing in memory"
    else:
        title = f"{who} {', and '.join(parts)}" + ("" if activations else ": 0 B extra")
    slots = [slot for op in ops for slot in op.slots]
    overwritten = sum(slot.note == "overwritten" for slot in slots)
    recomputed = sum(slot.note == "recomputed by checkpoint" for slot in slots)
    failed = sum(slot.note.startswith("unpack hook failed") for slot in slots)
    if overwritten:
        title += f"; {overwritten} overwritten since, backward() will raise"
    if recomputed:
        title += f"; {recomputed:,} more to be recomputed by checkpoint"
    if failed:
        title += f"; {failed} could not be unpacked"
    if freed:
        title += f"; {count(freed, 'operator')}: {FREED}"
    return title


def folded_of(graph: Graph, plan: Plan, max_nodes: int) -> str:
    if not plan.how:
        return ""
    sentence = (
        f"{plan.how}: {count(len(graph.operators), 'operator')} in {count(len(plan.nodes), 'box', 'boxes')} "
        f"(limits: {max_nodes:,} boxes, 700 px wide)."
    )
    if plan.how == "Folded by module":
        sentence += " An operator without parameters is counted with the module before it."
    return sentence


def note_of(graph: Graph, plan: Plan, folded: str, show_saved: bool) -> str:
    if not graph.operators:
        return "backward() has nothing to walk." if not graph.leaves else "backward() would only fill the leaf's .grad."
    note = "Top: the output. Arrows: the way backward walks. Blue: exists without the graph."
    if show_saved and any(edge.kind == "saved" for edge in plan.edges):
        note += " Dashed lines: kept for backward, in the slot named."
    return f"{note} {folded}".strip()


def alt_of(graph: Graph, title: str, folded: str) -> str:
    """The picture in words: what is computed from what, and every kept tensor while there are few."""
    common = Counter(op.name for op in graph.operators.values()).most_common(6)
    said = [f"Autograd graph of {', '.join(f'{o.name} {o.shape}' for o in graph.outputs[:4])}: {title}."]
    if common:
        kinds = len({op.name for op in graph.operators.values()})
        more = f" and {kinds - len(common)} more kinds" if kinds > len(common) else ""
        said.append(f"Operators: {', '.join(f'{n:,} {name}' for name, n in common)}{more}.")
    leaves = list(graph.leaves.values())
    if leaves:
        rest = f" and {len(leaves) - 6:,} more" if len(leaves) > 6 else ""
        said.append(f"Leaves: {', '.join(f'{leaf.name} {leaf.shape}' for leaf in leaves[:6])}{rest}.")
    storages = [s for s in graph.storages.values() if not s.leaf]
    if storages:
        each = [
            f"{s.name or s.letter} {part_of(max(k.used_bytes for k in s.slots), s.nbytes)} kept by "
            + " and ".join(dict.fromkeys(f"{k.op} ({k.slot})" for k in s.slots))
            for s in storages[:6]
        ]
        rest = f" and {len(storages) - 6:,} more" if len(storages) > 6 else ""
        said.append(f"Saved: {'; '.join(each)}{rest}.")
    return " ".join([*said, folded]).strip()


def text_of(graph: Graph, plan: Plan, title: str, folded: str) -> str:
    """The picture as an indented tree: under each box what it keeps, then what it was computed from."""
    nodes = {node.id: node for node in plan.nodes}
    below: dict[str, list[GraphEdge]] = {node: [] for node in nodes}
    for edge in plan.edges:
        below[edge.source].append(edge)
    same_name = Counter(node.name for node in plan.nodes if node.kind == "operator")
    lines = [title]
    shown: set[str] = set()

    def heading(node: GraphNode) -> str:
        if node.kind == "operator":
            first = node.lines[0]
            if same_name[node.name] > 1:
                first += f" #{node.id.rpartition('_')[2]}"
            return " ".join([first, *node.lines[1:2], *(f"({line})" for line in node.lines[2:])])
        if node.kind == "leaf":
            leaf = graph.leaves[node.id]
            return f"{leaf.name}: {' '.join(node.lines[2].split(', ')[:1])} {leaf.shape}, {human_bytes(leaf.nbytes)}"
        if node.kind == "output":
            return " ".join([*node.lines[:2], *(f"({line})" for line in node.lines[2:])])
        return "; ".join(node.lines).replace("; ", ": ", 1) if node.operators else "; ".join(node.lines)

    def reference(node: GraphNode) -> str:
        if node.kind == "operator":
            return heading(node).split(" (")[0]
        return node.name

    def kept(edge: GraphEdge) -> str:
        node = nodes[edge.target]
        what = f"keeps {edge.label}: " if edge.label else "keeps "
        if node.kind == "group":
            return f"{what}some of {node.lines[0]}"
        if node.kind == "leaf":
            leaf = graph.leaves[node.id]
            slots = graph.operators[edge.source].slots if edge.source in graph.operators else []
            record = next((slot for slot in slots if slot.slot == edge.label), None)
            if record is None:  # kept by operators that were folded together
                return f"{what}{leaf.name}"
            whole = part_of(record.used_bytes, record.storage_nbytes)
            # What no gradient flows to is no input of the graph and has no line of its own: its kind is said here.
            notes = [record.note] if record.note else []
            if not leaf.requires_grad:
                notes.append(node.lines[2].split(", ")[0])
            note = f" ({'; '.join(notes)})" if notes else ""
            return f"{what}{leaf.name} {shape_text(record.shape)} {dtype_text(record.dtype)}, {whole}{note}"
        if node.lines[-1].startswith("together"):
            return f"{what}{', '.join(node.lines)}"
        notes = f" ({'; '.join(node.lines[3:])})" if node.lines[3:] else ""
        return f"{what}{', '.join(node.lines[:1])} {node.lines[1]}, {node.lines[2]}{notes}"

    queue = [node for node in plan.nodes if node.kind == "output"]
    while queue:
        root = queue.pop(0)
        stack = [(root, 0)]
        while stack:
            node, depth = stack.pop()
            pad = "  " * depth
            if node.id in shown:
                lines.append(f"{pad}{reference(node)}: see above")
                continue
            if depth > _DEEPEST and below[node.id]:
                lines.append(f"{pad}{reference(node)}: continued below, at the left")
                if node not in queue:
                    queue.append(node)
                continue
            shown.add(node.id)
            lines.append(pad + heading(node))
            lines += [f"{pad}  {kept(edge)}" for edge in below[node.id] if edge.kind == "saved"]
            inputs = [nodes[edge.target] for edge in below[node.id] if edge.kind == "input"]
            stack += [(target, depth + 1) for target in reversed(inputs)]
    return "\n".join([*lines, *([folded] if folded else [])])
