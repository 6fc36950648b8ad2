"""Which saved tensor made backward fail? Found again by asking the nodes that backward was to walk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from ._autograd import saved_slots, slots_of
from ._overlap import Region
from ._overlap import overlap as exact_overlap

CHANGED = "modified by an inplace operation"
CHECKPOINT = "checkpoint"
FREED = "backward through the graph a second time"


class Slot(NamedTuple):
    """A saved tensor, in words and numbers; no tensor is kept."""

    node: str
    sequence: int
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    address: int  # of the storage, which lives as long as the graph
    geometry: tuple  # (offset, size, stride, bytes an element)


def node_name(node: Any) -> str:
    """``MulBackward0``. Asked of the class: a custom Function's node is its ctx, which may have its own ``name``."""
    return type(node).name(node)


def node_number(node: Any) -> int:
    """The number that the node got when it was recorded; asked of the class, as `node_name`."""
    return type(node)._sequence_nr(node)


def nodes_under(outputs: Any) -> list[Any]:
    """The nodes that a backward from ``outputs`` may run, in the order in which it does: the last recorded first."""
    outputs = (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)
    roots = [out.grad_fn if isinstance(out, torch.Tensor) else out.node for out in outputs]
    seen: set[Any] = set()
    stack = [node for node in roots if node is not None]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack += [after for after, _ in node.next_functions if after is not None]
    return sorted(seen, key=lambda node: -node_number(node))


def failed_slot(outputs: Any, message: str) -> Slot | None:
    """The first slot, in the order of backward, that PyTorch's own check refuses in the words of ``message``."""
    words = message.split(" Hint:")[0]
    for node in nodes_under(outputs):
        for owner, kind, name, held in _checkable(node):
            if words in _refusal(owner, name, held):
                tensor = held.data
                shape, address, geometry = tuple(tensor.shape), 0, ()
                if tensor.layout is torch.strided:
                    address = tensor.untyped_storage()._cdata
                    geometry = tensor.storage_offset(), shape, tuple(tensor.stride()), tensor.element_size()
                return Slot(kind, node_number(owner), name, shape, tensor.dtype, address, geometry)
    return None


def _checkable(node: Any) -> Iterator[tuple[Any, str, str, Any]]:
    """What PyTorch itself checks when ``node`` runs: (the node, what it is called, slot, SavedTensor).

    Those are the slots without hooks; and where they have the hooks of a checkpoint, the inputs that it keeps.
    """
    for name, held in saved_slots(node):
        hook = getattr(held, "unpack_hook", None)
        if hook is None:
            if isinstance(held.data, torch.Tensor):
                yield node, node_name(node), name, held
            continue
        for inner, slot in inputs_of_checkpoint(hook):
            if isinstance(slot.data, torch.Tensor) and slot.unpack_hook is None:
                yield node, CHECKPOINT, inner, slot


def inputs_of_checkpoint(hook: Any) -> Iterator[tuple[str, Any]]:
    """The inputs that a checkpoint keeps behind its unpack hook: (name, SavedTensor); none behind other hooks."""
    for cell in getattr(hook, "__closure__", None) or ():
        saver = getattr(cell.cell_contents, "input_saver", None)  # how older versions keep them
        kept = getattr(cell.cell_contents, "saved_args", ()) if saver is None else [s for _, s in saved_slots(saver)]
        for number, slot in enumerate(kept):
            if hasattr(slot, "unpack_hook"):
                yield f"inputs[{number}]", slot


def _refusal(node: Any, name: str, held: Any) -> str:
    """What PyTorch says when this slot is read, or nothing."""
    try:
        if hasattr(held, "unpack"):
            held.unpack()
    except RuntimeError as error:
        if CHANGED in str(error):
            return str(error)
    else:
        return ""
    if name.startswith("inputs["):
        return ""
    # An operator's own result can only be read through its node; a list of tensors only as a whole.
    if any(getattr(slot, "unpack_hook", None) is not None for _, slot in saved_slots(node)):
        return ""
    try:
        getattr(node, f"_saved_{name.split('[')[0]}")
    except RuntimeError as error:
        return str(error)
    return ""


def freed_node(outputs: Any, before: int) -> Any:
    """The first node, in the order of backward, that has a number under ``before`` and whose saved tensors are gone.

    Those that the failed backward itself has run are gone too.
    """
    for node in nodes_under(outputs):
        if node_number(node) >= before:
            continue
        for slot in slots_of(node):
            try:
                raw = getattr(node, slot)
                parts = raw if isinstance(raw, (tuple, list)) else (raw,)
                if any(getattr(held, "unpack_hook", None) is not None for held in parts):
                    continue  # reading on would call it
                getattr(node, slot.replace("_raw", ""))
            except RuntimeError as error:
                if FREED in str(error):
                    return node
    return None


_ANYWHERE = 2**20  # as address of the storage: NumPy takes 0 for no memory


def overlap(one: tuple, other: tuple) -> bool | None:
    """Whether two geometries over one storage have a byte in common; None where that takes too long to tell."""
    if not one or not other:
        return None
    if 0 in one[1] or 0 in other[1]:
        return False
    regions = (
        Region("", _ANYWHERE + offset * width, width, tuple(size), tuple(s * width for s in stride))
        for offset, size, stride, width in (one, other)
    )
    try:
        return exact_overlap(*regions)
    except RuntimeError:
        return None
