"""What will backward walk, and what does it keep until then? The autograd graph as a picture.

`draw_graph` reads a graph once into plain records, then draws those: the output on top, operators by their plain name,
the reader's own tensors in blue, and in vermilion every tensor that an operator keeps for backward, with its bytes. The
same graph gives the same picture and the same text on every run, with or without a program that lays graphs out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.multiprocessing.reductions import StorageWeakRef

from helpers import _graph_layout as layout
from helpers._graph_layout import (
    Graph,
    GraphEdge,
    GraphNode,
    Leaf,
    Operator,
    Output,
    Plan,
    SavedSlot,
    Storage,
    count,
    dtype_text,
    human_bytes,
    part_of,
    shape_text,
)
from helpers.display import Picture

__all__ = ["GraphEdge", "GraphNode", "GraphPicture", "SavedSlot", "draw_graph"]

FREED = "saved tensors already freed: draw before backward()"
NO_GRAPH = "no graph: requires_grad is False"

_DEEPEST = 20  # levels of indentation before the text tree starts again at the left, so that lines stay readable


class GraphPicture(Picture):
    """A drawn graph: plain data only, so keeping it keeps no tensor and no graph alive.

    Attributes:
        title: the finding, in one sentence.
        nodes: the boxes, from the output down (`GraphNode`); folded ones have kind ``"group"``.
        edges: the lines between them (`GraphEdge`), of kind ``"input"`` or ``"saved"``.
        saved: one `SavedSlot` for each tensor that an operator keeps, also of folded operators.
        saved_bytes: bytes kept for backward alone, each distinct storage once and whole.
        parameter_bytes: bytes of saved storages that exist anyway: parameters, buffers and the reader's own leaves.
        operators: number of operators in the graph, drawn or folded.
        folded: how boxes were joined, and the limit; empty when every operator has its own box.
        dot: the picture in the DOT language, the same text on every run.
        renderer: what drew it: ``"dot"``, ``"graphviz-pure"`` or ``"text"``.
        text, alt, svg: the text tree, the sentence for those who cannot see the picture, and the picture.
    """

    def __init__(self, graph: Graph, plan: Plan, *, title: str, folded: str, svg: str, renderer: str, text: str):
        super().__init__(svg, alt=_alt(graph, title, folded), text=text)
        self.title, self.folded, self.renderer = title, folded, renderer
        self.nodes, self.edges = plan.nodes, plan.edges
        self.dot = layout.dot_source(plan)
        self.operators = len(graph.operators)
        self.saved = [slot for op in graph.operators.values() for slot in op.slots if slot.storage]
        self.saved_bytes = sum(s.nbytes for s in graph.storages.values() if not s.leaf)
        self.parameter_bytes = sum(s.nbytes for s in graph.storages.values() if s.leaf)


def draw_graph(
    output: Any,
    model: torch.nn.Module | None = None,
    show_saved: bool = True,
    max_nodes: int = 60,
    names: Mapping[str, torch.Tensor] | None = None,
) -> GraphPicture:
    """Draws the graph that backward would walk from ``output``, and what its operators keep until then.

    Look at it before ``backward()``, which frees what was saved. Reading leaves no trace: no version, gradient or
    hook changes, nothing is kept alive. What a saved-tensor hook packed is looked at, not unpacked, where it is a
    tensor or holds one; any other packed object is unpacked once, but a checkpoint's never, as that runs forward again.

    Args:
        output: a tensor, or a tuple, list or dict of tensors (nested as you like; None is skipped).
        model: names parameters and buffers, recognised by their memory, and lets a large graph fold by module. The
            graph does not record modules: an operator belongs to the module whose parameter or buffer it reads, and one
            that reads none (a ReLU, an addition, the loss) is counted with the last such module before it.
        show_saved: draw saved tensors. False reads none of them.
        max_nodes: the most boxes in the picture, at least 2; above it, or where the picture would need more than 700 px
            of width, boxes are folded together and the picture says so.
        names: your names for your tensors, ``{"a": a}``; without them leaves are ``leaf 1``, ``leaf 2``, ...

    Raises:
        TypeError: if ``output``, ``model`` or ``names`` hold something else.
        ValueError: for a ``max_nodes`` below 2, or an unknown renderer in ``TENSOR_LAB_RENDERER`` (auto, dot,
            graphviz-pure, text).

    Example:
        >>> a = torch.ones(5, requires_grad=True)
        >>> draw_graph(a * a, names={"a": a})
        1 operator keeps 1 leaf (20 B, there anyway): 0 B extra
        output [5] float32
          mul [5]
            keeps self: a [5] float32, 20 B
            keeps other: a [5] float32, 20 B
            a: leaf [5], 20 B
            a: see above

    Known limits: tensors that a custom ``autograd.Function`` puts on ``ctx`` by hand, and memory inside a hook's own
    store, are not part of the graph and are not seen. What a hook makes anew on each unpack counts each time.
    """
    _check(model, max_nodes, names)
    layout.wanted_renderer()  # a mistyped renderer is said before the work, not after
    outputs = list(_flatten(output, ""))
    if not outputs:
        raise TypeError(f"no tensor in this {type(output).__name__}: pass the tensor that you would call backward() on")
    graph = _Reader(model, names or {}, show_saved).read(outputs)
    title = _title(graph, show_saved)
    plan, coarser = layout.choose(graph, max_nodes)
    folded = _folded(graph, plan, max_nodes)
    text = _text(graph, plan, title, folded)
    note = lambda drawn: _note(graph, drawn, _folded(graph, drawn, max_nodes), show_saved)  # noqa: E731 - one use
    svg, renderer = layout.draw(plan, coarser, title, note, text)
    return GraphPicture(graph, plan, title=title, folded=folded, svg=svg, renderer=renderer, text=text)


def _check(model: Any, max_nodes: Any, names: Any) -> None:
    if model is not None and not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}; name tensors with names={{...}}")
    if not isinstance(max_nodes, int) or isinstance(max_nodes, bool) or max_nodes < 2:
        raise ValueError(
            f"max_nodes must be a whole number of at least 2 (the output and one box for the rest), got {max_nodes!r}"
        )
    if names is not None and not isinstance(names, Mapping):
        raise TypeError(f"names must map names to tensors, as {{'a': a}}, got {type(names).__name__}")
    for name, tensor in (names or {}).items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"names[{name!r}] must be a tensor, got {type(tensor).__name__}; pass {{'a': a}}")


def _flatten(thing: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields (name, tensor) pairs of nested tuples, lists and dicts; a lone tensor has no name of its own."""
    if isinstance(thing, torch.Tensor):
        yield name, thing
    elif isinstance(thing, Mapping):
        for key, value in thing.items():
            yield from _flatten(value, f"{name}.{key}" if name else str(key))
    elif isinstance(thing, (tuple, list)):
        for i, value in enumerate(thing, 1):
            yield from _flatten(value, f"{name} {i}" if name else f"output {i}")
    elif thing is not None:
        raise TypeError(
            f"expected a tensor, or a tuple, list or dict of tensors, got {type(thing).__name__}: "
            "pass the result of your forward, draw_graph(loss)"
        )


def plain_name(node: Any) -> str:
    """Returns the operator's plain name: ``mul`` for MulBackward0; a custom Function keeps the name of its class.

    Example:
        >>> x = torch.ones(1, 1, 4, 4, requires_grad=True)
        >>> plain_name(torch.nn.functional.max_pool2d(x, 2).grad_fn)
        'max_pool2d_with_indices'
    """
    name = re.sub(r"Backward\d*$", "", node.name().rpartition("::")[2])
    if isinstance(node, BackwardCFunction):
        return name
    name = re.sub(r"(\d)([A-Z])(?=[A-Z]|$)", lambda m: m[1] + m[2].lower(), name)  # MaxPool2DWith -> MaxPool2dWith
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


class _Reader:
    """Reads one graph into plain records. Lives for one call: its dicts hold nodes and tensors, its result does not."""

    def __init__(self, model: torch.nn.Module | None, names: Mapping[str, torch.Tensor], show_saved: bool):
        self.graph = Graph(model_name=type(model).__name__ if model is not None else "")
        self.show_saved = show_saved
        self.ids: dict[Any, str] = {}  # autograd node -> id; holding the node keeps its identity
        self.numbers: Counter[str] = Counter()
        self.lettered = 0
        self.letters: dict[Any, str] = {}  # storage -> letter; weak, yet a dead storage's address is not used again
        self.leaf_at: dict[Any, list[tuple[str, torch.Tensor]]] = {}
        self.output_at: dict[Any, str] = {}
        self.aliases: dict[Any, str] = {}
        self.keep: list[torch.Tensor] = []
        self.slots_of: dict[type, list[str]] = {}
        # The reader's own names come first; the first name wins, as in `named_parameters`.
        self.known: dict[Any, list[tuple[str, str, torch.Tensor]]] = {}
        for name, tensor in names.items():
            self._know(name, "leaf", tensor)
            if tensor.grad_fn is not None:
                self.aliases.setdefault(tensor.grad_fn, name)
        if model is not None:
            self.graph.module_types = {path: type(module).__name__ for path, module in model.named_modules()}
            for name, tensor in model.named_parameters(remove_duplicate=False):
                self._know(name, "parameter", tensor)
            for name, tensor in model.named_buffers(remove_duplicate=False):
                self._know(name, "buffer", tensor)

    def _know(self, name: str, kind: str, tensor: torch.Tensor) -> None:
        self.known.setdefault(self._key(tensor), []).append((name, kind, tensor))

    def _key(self, tensor: torch.Tensor) -> Any:
        """What tells storages apart. Not the address: an unpack hook's tensor may be dead before the next is made."""
        try:
            return StorageWeakRef(tensor.untyped_storage())
        except (RuntimeError, NotImplementedError):  # sparse and other layouts have no storage of their own
            self.keep.append(tensor)
            return id(tensor)

    def _named(self, tensor: torch.Tensor) -> tuple[str, str]:
        """Returns (name, kind) of a tensor named by reader or model: the very tensor, else one that shares."""
        found = self.known.get(self._key(tensor), [])
        name, kind, _ = next((f for f in found if f[2] is tensor), found[0] if found else ("", "leaf", None))
        return name, kind

    def _number(self, word: str) -> str:
        self.numbers[word] += 1
        return f"{word}_{self.numbers[word]}"

    def read(self, outputs: list[tuple[str, torch.Tensor]]) -> Graph:
        """Walks from the outputs down without recursion, as deep as the graph goes."""
        roots = []
        for name, tensor in outputs:
            mine = [n for n, _, other in self.known.get(self._key(tensor), []) if other is tensor]
            label = name or "output"
            entry = Output(self._number("output"), label, _shape(tensor), dtype_text(tensor.dtype))
            if mine and mine[0] != label:
                entry.name = f"{label}: {mine[0]}"
            self.output_at.setdefault(self._key(tensor), "the output" if len(outputs) == 1 else label)
            # A leaf has no grad_fn; an operator's input finds its AccumulateGrad through a view, so do we.
            node = tensor.grad_fn
            if node is None and tensor.requires_grad:
                entry.target, entry.note = self._leaf(tensor).id, "itself a leaf"
            elif node is None:
                entry.note = NO_GRAPH
            else:
                roots.append((entry, node))
            self.graph.outputs.append(entry)
        finished = self._walk([node for _, node in roots])
        for entry, node in roots:
            entry.target = self.ids[node]
        self._order(finished)
        return self.graph

    def _walk(self, roots: list[Any]) -> list[str]:
        """Visits each node once, children in order; returns operator ids in the order in which they are finished."""
        finished: list[str] = []
        nodes: dict[str, Any] = {}
        for root in roots:
            stack = [(root, False)]
            while stack:
                node, leaving = stack.pop()
                if leaving:
                    finished.append(self.ids[node])
                elif node not in self.ids:
                    variable = getattr(node, "variable", None)
                    if isinstance(variable, torch.Tensor):  # AccumulateGrad, drawn as the leaf it fills
                        self.ids[node] = self._leaf(variable).id
                        continue
                    operator = self._operator(node)
                    self.ids[node] = operator.id
                    nodes[operator.id] = node
                    stack.append((node, True))
                    stack += [(child, False) for child, _ in reversed(node.next_functions) if child is not None]
        for name, node in nodes.items():
            children = (child for child, _ in node.next_functions if child is not None)
            self.graph.operators[name].inputs = [self.ids[child] for child in children]
        if self.show_saved:  # after the walk: which storages belong to leaves is known only then
            for name, node in nodes.items():
                self._read_saved(self.graph.operators[name], node)
        return finished

    def _operator(self, node: Any) -> Operator:
        name = plain_name(node)
        shapes = []
        for meta in getattr(node, "_input_metadata", ()):  # gradients flowing in have the shapes of what flowed out
            try:
                shapes.append(shape_text(meta.shape))
            except (RuntimeError, NotImplementedError, TypeError):  # nested tensors have no single shape
                continue
        shape = shapes[0] if shapes else ""
        if len(shapes) > 1:
            shape = f"{len(shapes)} outputs, {shapes[0]}" + ("" if len(set(shapes)) == 1 else ", ...")
        operator = Operator(self._number(name), name, shape, alias=self.aliases.get(node, ""))
        self.graph.operators[operator.id] = operator
        return operator

    def _leaf(self, tensor: torch.Tensor) -> Leaf:
        key = self._key(tensor)
        for leaf_id, other in self.leaf_at.get(key, []):
            if other is tensor:
                return self.graph.leaves[leaf_id]
        leaf_id = self._number("leaf")
        name, kind = self._named(tensor)
        sharing = self.leaf_at.setdefault(key, [])
        leaf = self.graph.leaves[leaf_id] = Leaf(
            leaf_id,
            name or leaf_id.replace("_", " "),
            kind,
            _shape(tensor),
            _whole_bytes(tensor),
            storage=sharing[0][0] if sharing else leaf_id,
            requires_grad=tensor.requires_grad,
        )
        sharing.append((leaf_id, tensor))
        return leaf

    # --- saved tensors ---

    def _read_saved(self, operator: Operator, node: Any) -> None:
        kind = type(node)
        if kind not in self.slots_of:
            if isinstance(node, BackwardCFunction):
                names = ["_raw_saved_tensors"]
            else:
                names = sorted(name for name in dir(kind) if name.startswith("_raw_saved_"))
                # "self" first and "other" second, as they are written; the rest by name.
                names.sort(key=lambda name: ("self" not in name, "other" not in name))
            self.slots_of[kind] = names
        for attribute in self.slots_of[kind]:
            try:
                raw = getattr(node, attribute)
                getter = "saved_tensors" if attribute == "_raw_saved_tensors" else attribute.removeprefix("_raw")
                values = self._values(node, getter, raw)
            except RuntimeError as error:
                if "already been freed" not in str(error) and "already been accessed" not in str(error):
                    raise
                operator.freed = True
                return
            slot = attribute.removeprefix("_raw_saved_")
            for i, (value, note) in enumerate(values):
                self._slot(operator, f"{slot}[{i}]" if isinstance(raw, (tuple, list)) else slot, value, note)

    def _values(self, node: Any, getter: str, raw: Any) -> list[tuple[Any, str]]:
        """Returns (tensor or None, note) for each saved tensor of one slot, running each unpack hook once at most."""
        several = isinstance(raw, (tuple, list))
        raws = list(raw) if several else [raw]
        # `unpack_hook` and `data` let us look at what a hook packed; a PyTorch without them is read the ordinary way.
        packed = [_packed(r) if getattr(r, "unpack_hook", None) is not None else None for r in raws]
        if all(p is not None and p[0] for p in packed):
            return [(value, note) for _, value, note in packed]  # type: ignore[misc]
        note = "packed by a hook" if any(p is not None for p in packed) else ""
        try:
            # As backward would: hooks run without recording a graph.
            with torch.no_grad():
                value = getattr(node, getter)
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error):
                if note:
                    return [(None, f"unpack hook failed: {_first_line(error)}")] * len(raws)
                raise
            return [(getattr(r, "data", None), "overwritten") for r in raws]
        except Exception as error:  # a reader's hook may raise anything, and drawing goes on
            return [(None, f"unpack hook failed: {_first_line(error)}")] * len(raws)
        return [(v, note) for v in (value if several else [value])]

    def _slot(self, operator: Operator, slot: str, value: Any, note: str) -> None:
        if not isinstance(value, torch.Tensor):
            if note:  # something is kept, but nobody can say how many bytes
                operator.slots.append(
                    SavedSlot(operator.name, slot, (), None, 0, 0, "", 0, "activation", "", note, operator.id)
                )
            return
        key = self._key(value)
        letter = self.letters.get(key)
        if letter is None:
            made = self._storage(key, value)
            letter = made.leaf or _letter(self.lettered)
            self.lettered += not made.leaf
            self.letters[key] = made.letter = letter
            self.graph.storages[letter] = made
        storage = self.graph.storages[letter]
        leaf = self.graph.leaves.get(storage.leaf)
        record = SavedSlot(
            op=operator.name,
            slot=slot,
            shape=tuple(value.shape),
            dtype=value.dtype,
            nbytes=value.numel() * value.element_size(),
            used_bytes=min(_used_bytes(value), storage.nbytes),
            storage=letter,
            storage_nbytes=storage.nbytes,
            kind=leaf.kind if leaf else "activation",
            name=leaf.name if leaf else storage.name,
            note=note,
            node=operator.id,
        )
        operator.slots.append(record)
        storage.slots.append(record)

    def _storage(self, key: Any, value: torch.Tensor) -> Storage:
        """A storage met for the first time: a leaf's, or memory kept for backward alone, which gets the next letter."""
        storage = Storage("", _whole_bytes(value), same_as=self.output_at.get(key, ""))
        leaves = self.leaf_at.get(key)
        if leaves:
            at = value.storage_offset() if value.layout is torch.strided else 0
            fits = [leaf_id for leaf_id, t in leaves if t.layout is torch.strided and t.storage_offset() == at]
            storage.leaf = (fits or [leaves[0][0]])[0]
            return storage
        for name, kind, tensor in self.known.get(key, []):
            if kind != "leaf":  # a frozen parameter or a buffer: no gradient goes there, yet it exists anyway
                storage.leaf = self._leaf(tensor).id
            storage.name = name
            return storage
        return storage

    def _order(self, finished: list[str]) -> None:
        """Gives each operator its place in forward, its distance from the output, and its module."""
        ops, graph = self.graph.operators, self.graph
        for order, name in enumerate(finished):  # inputs are finished before what reads them
            ops[name].order = order
        parameters = {leaf.id: leaf.name for leaf in graph.leaves.values() if leaf.kind in ("parameter", "buffer")}
        for name in finished:
            op = ops[name]
            kept = [graph.storages[slot.storage].leaf for slot in op.slots if slot.storage]
            own = [parameters[i] for i in (*op.inputs, *kept) if i in parameters]
            before = [ops[i] for i in op.inputs if i in ops and ops[i].module is not None]
            if own:
                op.module = own[0].rpartition(".")[0]
            elif before:
                op.module = max(before, key=lambda other: other.order).module
        for name in reversed(finished):
            for target in ops[name].inputs:
                if target in ops:
                    ops[target].level = max(ops[target].level, ops[name].level + 1)


def _packed(raw: Any) -> tuple[bool, Any, str]:
    """Looks at what a hook packed: (understood without unpacking?, tensor or None, note)."""
    data = raw.data
    if isinstance(data, torch.Tensor):
        return True, data, "packed by a hook"
    if isinstance(data, (tuple, list)):
        tensors = [item for item in data if isinstance(item, torch.Tensor)]
        if len(tensors) == 1:
            return True, tensors[0], "packed by a hook"
    if type(data).__module__ == "torch.utils.checkpoint":
        # Unpacking would run the whole forward once more for every saved tensor, batch norm's statistics included.
        return True, None, "recomputed by checkpoint"
    return False, None, ""


def _first_line(error: Exception) -> str:
    message = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {message}"[:80].rstrip(": ")


def _shape(tensor: torch.Tensor) -> str:
    try:
        return shape_text(tensor.shape)
    except (RuntimeError, NotImplementedError):  # nested tensors
        return ""


def _whole_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the whole storage; of the parts together where a layout has no single storage."""
    try:
        return tensor.untyped_storage().nbytes()
    except (RuntimeError, NotImplementedError):
        pass
    parts = ("crow_indices", "col_indices", "ccol_indices", "row_indices", "values")
    total = 0
    for part in ("_indices", "_values") if tensor.layout is torch.sparse_coo else parts:
        try:
            piece = getattr(tensor, part)()
            total += piece.numel() * piece.element_size()
        except (RuntimeError, NotImplementedError, AttributeError):  # not a part of this layout
            continue
    return total or tensor.numel() * tensor.element_size()


def _used_bytes(tensor: torch.Tensor) -> int:
    """Bytes that the tensor reads, an expanded dimension counted once."""
    if tensor.layout is not torch.strided:
        return _whole_bytes(tensor)
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride()):
        elements *= size if stride or not size else 1
    return elements * tensor.element_size()


def _letter(i: int) -> str:
    """A, B, ..., Z, AA, AB, ... as the columns of a spreadsheet."""
    word = ""
    while i >= 0:
        word = chr(ord("A") + i % 26) + word
        i = i // 26 - 1
    return word


# --- words -----------------------------------------------------------------------------------------------------------


def _title(graph: Graph, show_saved: bool) -> str:
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


def _folded(graph: Graph, plan: Plan, max_nodes: int) -> str:
    if not plan.how:
        return ""
    sentence = (
        f"{plan.how}: {count(len(graph.operators), 'operator')} in {count(len(plan.nodes), 'box', 'boxes')} "
        f"(limits: {max_nodes:,} boxes, 700 px wide)."
    )
    if plan.how == "Folded by module":
        sentence += " An operator without parameters is counted with the module before it."
    return sentence


def _note(graph: Graph, plan: Plan, folded: str, show_saved: bool) -> str:
    if not graph.operators:
        return "backward() has nothing to walk." if not graph.leaves else "backward() would only fill the leaf's .grad."
    note = "Top: the output. Arrows: the way backward walks. Blue: exists without the graph."
    if show_saved and any(edge.kind == "saved" for edge in plan.edges):
        note += " Dashed lines: kept for backward, in the slot named."
    return f"{note} {folded}".strip()


def _alt(graph: Graph, title: str, folded: str) -> str:
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


def _text(graph: Graph, plan: Plan, title: str, folded: str) -> str:
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
