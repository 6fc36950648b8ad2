"""What does one graph node keep? Looked at where it lies, or unpacked once where there is no other way."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.utils._pytree import tree_leaves

from helpers._autograd import slots_of, storages_of

OVERWRITTEN = "overwritten"
PACKED = "packed by a hook"
RECOMPUTED = "recomputed by checkpoint"
FAILED = "unpack hook failed"
ON_CTX = "put on ctx by hand"

Kept = tuple[str, Any, str]  # slot, tensor or None, note


def kept_by(node: Any) -> tuple[list[Kept], bool]:
    """Returns what ``node`` keeps, slot by slot, and whether its backward has freed its saved tensors.

    ``self`` and ``other`` come first, as they are written, the rest by name. Each unpack hook runs once at most. What a
    custom Function has put on ``ctx`` comes last: autograd neither packs, checks nor frees it.
    """
    kept: list[Kept] = []
    freed = False
    try:
        for attribute in sorted(slots_of(node), key=lambda name: ("self" not in name, "other" not in name, name)):
            raw = getattr(node, attribute)
            slot = attribute.removeprefix("_raw_saved_")
            getter = "saved_tensors" if slot == "tensors" else attribute.removeprefix("_raw")
            for i, (value, note) in enumerate(_values(node, getter, raw)):
                kept.append((f"{slot}[{i}]" if isinstance(raw, (tuple, list)) else slot, value, note))
    except RuntimeError as error:
        if "already been freed" not in str(error) and "already been accessed" not in str(error):
            raise
        kept, freed = [], True
    if isinstance(node, BackwardCFunction):  # the node of a custom Function is its ctx
        kept += [
            (f"ctx.{name}", value, ON_CTX)
            for name, held in vars(node).items()
            for value in tree_leaves(held)
            if isinstance(value, torch.Tensor)
        ]
    return kept, freed


def _values(node: Any, getter: str, raw: Any) -> list[tuple[Any, str]]:
    """Returns (tensor or None, note) for each saved tensor of one slot."""
    several = isinstance(raw, (tuple, list))
    raws = list(raw) if several else [raw]
    # `unpack_hook` and `data` let us look at what a hook packed; a PyTorch without them is read the ordinary way.
    packed = [_packed(r) if getattr(r, "unpack_hook", None) is not None else None for r in raws]
    if all(p is not None and p[0] for p in packed):
        return [(value, note) for _, value, note in packed]  # type: ignore[misc]
    note = PACKED if any(p is not None for p in packed) else ""
    try:
        # As backward would: hooks run without recording a graph.
        with torch.no_grad():
            value = getattr(node, getter)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            if note:
                return [(None, f"{FAILED}: {_first_line(error)}")] * len(raws)
            raise
        return [(getattr(r, "data", None), OVERWRITTEN) for r in raws]
    except Exception as error:  # a reader's hook may raise anything, and reading goes on
        return [(None, f"{FAILED}: {_first_line(error)}")] * len(raws)
    return [(v, note) for v in (value if several else [value])]


def _packed(raw: Any) -> tuple[bool, Any, str]:
    """Looks at what a hook packed: (understood without unpacking?, tensor or None, note)."""
    data = raw.data
    if isinstance(data, torch.Tensor):
        return True, data, PACKED
    if isinstance(data, (tuple, list)):
        tensors = [item for item in data if isinstance(item, torch.Tensor)]
        if len(tensors) == 1:
            return True, tensors[0], PACKED
    if type(data).__module__ == "torch.utils.checkpoint":
        # Unpacking would run the whole forward once more for every saved tensor, batch norm's statistics included.
        return True, None, RECOMPUTED
    return False, None, ""


def _first_line(error: Exception) -> str:
    message = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {message}"[:80].rstrip(": ")


def whole_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the whole storage; of the parts together where a layout has no single storage."""
    return sum(storage.nbytes() for storage in storages_of(tensor)) or tensor.numel() * tensor.element_size()


def used_bytes(tensor: torch.Tensor) -> int:
    """Bytes that the tensor reads, an expanded dimension counted once."""
    if tensor.layout is not torch.strided:
        return whole_bytes(tensor)
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride()):
        elements *= size if stride or not size else 1
    return elements * tensor.element_size()
