"""Which saved tensor made backward fail? Found again by asking the nodes that backward was to walk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from ._autograd import saved_slots, slots_of
from ._overlap import Region
from ._overlap import overlap as exact_overlap

CHANGED = "modified by an inplace operation"
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
    return sorted(seen, key=lambda node: -node._sequence_nr())


def failed_slot(outputs: Any, message: str) -> Slot | None:
    """The first slot, in the order of backward, that PyTorch's own check refuses in the words of ``message``."""
    words = message.split(" Hint:")[0]
    for node in nodes_under(outputs):
        for owner, name, held in _checkable(node):
            if words in _refusal(owner, name, held):
                tensor = held.data
                strided = tensor.layout is torch.strided
                geometry = (tensor.storage_offset(), tuple(tensor.size()), tuple(tensor.stride())) if strided else ()
                return Slot(
                    owner.name(),
                    owner._sequence_nr(),
                    name,
                    tuple(tensor.shape),
                    tensor.dtype,
                    tensor.untyped_storage()._cdata if strided else 0,
                    (*geometry, tensor.element_size()) if strided else (),
                )
    return None


def _checkable(node: Any) -> Iterator[tuple[Any, str, Any]]:
    """The slots that PyTorch itself checks: those without hooks, and the inputs that a checkpoint keeps."""
    for name, held in saved_slots(node):
        hook = getattr(held, "unpack_hook", None)
        if hook is None:
            if isinstance(held.data, torch.Tensor):
                yield node, name, held
            continue
        for cell in getattr(hook, "__closure__", None) or ():
            saver = getattr(cell.cell_contents, "input_saver", None)
            if saver is not None:
                yield from ((saver, inner, slot) for inner, slot in saved_slots(saver) if slot.unpack_hook is None)


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
        if node._sequence_nr() >= before:
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


def overlap(one: tuple, other: tuple) -> bool | None:
    """Whether two geometries over one storage have a byte in common; None where that takes too long to tell."""
    if not one or not other:
        return None
    if 0 in one[1] or 0 in other[1]:
        return False
    regions = (
        Region("", offset * width, width, tuple(size), tuple(s * width for s in stride))
        for offset, size, stride, width in (one, other)
    )
    try:
        return exact_overlap(*regions)
    except RuntimeError:
        return None
