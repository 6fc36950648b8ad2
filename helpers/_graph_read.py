"""What does a graph hold? Walks it once, from the outputs down, and fills in plain records.

Reading leaves no trace and runs each unpack hook once at most, a checkpoint's never.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.multiprocessing.reductions import StorageWeakRef

from helpers._blame import node_name, node_number
from helpers._graph_records import Graph, Leaf, Operator, Output, SavedSlot, Storage, dtype_text, shape_text
from helpers._graph_slots import is_number, kept_by, used_bytes, whole_bytes

NO_GRAPH = "no graph: requires_grad is False"


def flatten(thing: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields (name, tensor) pairs of nested tuples, lists and dicts; a lone tensor has no name of its own."""
    if isinstance(thing, torch.Tensor):
        yield name, thing
    elif isinstance(thing, Mapping):
        for key, value in thing.items():
            yield from flatten(value, f"{name}.{key}" if name else str(key))
    elif isinstance(thing, (tuple, list)):
        for i, value in enumerate(thing, 1):
            yield from flatten(value, f"{name} {i}" if name else f"output {i}")
    elif thing is not None:
        raise TypeError(
            f"expected a tensor, or a tuple, list or dict of tensors, got {type(thing).__name__}: "
            "pass the result of your forward, draw_graph(loss)"
        )


def check_names(names: Any) -> None:
    """Raises TypeError unless ``names`` is None or maps names to tensors."""
    if names is not None and not isinstance(names, Mapping):
        raise TypeError(f"names must map names to tensors, as {{'a': a}}, got {type(names).__name__}")
    for name, tensor in (names or {}).items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"names[{name!r}] must be a tensor, got {type(tensor).__name__}; pass {{'a': a}}")


def plain_name(node: Any) -> str:
    """Returns the operator's plain name: ``mul`` for MulBackward0; a custom Function keeps the name of its class.

    Example:
        >>> x = torch.ones(1, 1, 4, 4, requires_grad=True)
        >>> plain_name(torch.nn.functional.max_pool2d(x, 2).grad_fn)
        'max_pool2d_with_indices'
    """
    name = re.sub(r"Backward\d*$", "", node_name(node).rpartition("::")[2])
    if isinstance(node, BackwardCFunction):
        return name
    name = re.sub(r"(\d)([A-Z])(?=[A-Z]|$)", lambda m: m[1] + m[2].lower(), name)  # MaxPool2DWith -> MaxPool2dWith
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


class Reader:
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
        self.checkpoints: set[int] = set()
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
                    # AccumulateGrad, drawn as the leaf it fills; what a custom Function calls so lies on its ctx.
                    variable = None if isinstance(node, BackwardCFunction) else getattr(node, "variable", None)
                    if isinstance(variable, torch.Tensor):
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
            for key, letter in self.letters.items():
                # Nobody holds it now that we have let go: an unpack hook made it for us.
                self.graph.storages[letter].made_anew = isinstance(key, StorageWeakRef) and key.expired()
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
        operator = Operator(
            self._number(name), name, shape, alias=self.aliases.get(node, ""), sequence=node_number(node)
        )
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
            whole_bytes(tensor),
            storage=sharing[0][0] if sharing else leaf_id,
            requires_grad=tensor.requires_grad,
            is_parameter=isinstance(tensor, torch.nn.Parameter),
        )
        sharing.append((leaf_id, tensor))
        return leaf

    # --- saved tensors ---

    def _read_saved(self, operator: Operator, node: Any) -> None:
        kept, operator.freed = kept_by(node, self.checkpoints)
        for slot, value, note in kept:
            self._slot(operator, slot, value, note)

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
            letter = made.leaf or letter_of(self.lettered)
            self.lettered += not made.leaf
            self.letters[key] = made.letter = letter
            self.graph.storages[letter] = made
        storage = self.graph.storages[letter]
        leaf = self.graph.leaves.get(storage.leaf)
        # A frozen parameter is no leaf of the graph; Linear keeps a transposed view of it.
        if isinstance(value, torch.nn.Parameter) or isinstance(value._base, torch.nn.Parameter):
            storage.is_parameter = True
        record = SavedSlot(
            op=operator.name,
            slot=slot,
            shape=tuple(value.shape),
            dtype=value.dtype,
            nbytes=value.numel() * value.element_size(),
            used_bytes=min(used_bytes(value), storage.nbytes),
            storage=letter,
            storage_nbytes=storage.nbytes,
            kind=leaf.kind if leaf else "activation",
            name=leaf.name if leaf else storage.name,
            note=note,
            node=operator.id,
            is_number=is_number(value),
            offset=value.storage_offset() if value.layout is torch.strided else 0,
        )
        operator.slots.append(record)
        storage.slots.append(record)

    def _storage(self, key: Any, value: torch.Tensor) -> Storage:
        """A storage met for the first time: a leaf's, or memory kept for backward alone, which gets the next letter."""
        storage = Storage("", whole_bytes(value), same_as=self.output_at.get(key, ""))
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
                op.module = op.owner = own[0].rpartition(".")[0]
            elif before:
                op.module = max(before, key=lambda other: other.order).module
        for name in reversed(finished):
            for target in ops[name].inputs:
                if target in ops:
                    ops[target].level = max(ops[target].level, ops[name].level + 1)


def _shape(tensor: torch.Tensor) -> str:
    try:
        return shape_text(tensor.shape)
    except (RuntimeError, NotImplementedError):  # nested tensors
        return ""


def letter_of(i: int) -> str:
    """A, B, ..., Z, AA, AB, ... as the columns of a spreadsheet."""
    word = ""
    while i >= 0:
        word = chr(ord("A") + i % 26) + word
        i = i // 26 - 1
    return word
