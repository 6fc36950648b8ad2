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
RUN_AGAIN = "kept to run a checkpoint again"

Kept = tuple[str, Any, str]  # slot, tensor or None, note


def kept_by(node: Any, checkpoints: set[int]) -> tuple[list[Kept], bool]:
    """Returns what ``node`` keeps, slot by slot, and whether its backward has freed its saved tensors.

    ``self`` and ``other`` come first, as they are written, the rest by name. Each unpack hook runs once at most. What a
    custom Function has put on ``ctx`` comes last: autograd neither packs, checks nor frees it. The inputs of a
    checkpoint are told with the first node that needs it; ``checkpoints`` remembers which were told.
    """
    kept: list[Kept] = []
    held: list[torch.Tensor] = []
    freed = False
    try:
        for attribute in sorted(slots_of(node), key=lambda name: ("self" not in name, "other" not in name, name)):
            raw = getattr(node, attribute)
            slot = attribute.removeprefix("_raw_saved_")
            getter = "saved_tensors" if slot == "tensors" else attribute.removeprefix("_raw")
            for i, (value, note) in enumerate(_values(node, getter, raw)):
                kept.append((f"{slot}[{i}]" if isinstance(raw, (tuple, list)) else slot, value, note))
                if note == RECOMPUTED:
                    held += _held_by_checkpoint(raw[i] if isinstance(raw, (tuple, list)) else raw, checkpoints)
    except RuntimeError as error:
        if "already been freed" not in str(error) and "already been accessed" not in str(error):
            raise
        kept, freed = [], True
    kept += [(f"checkpoint input {i}", value, RUN_AGAIN) for i, value in enumerate(held, 1)]
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


def _held_by_checkpoint(raw: Any, told: set[int]) -> list[torch.Tensor]:
    """The inputs that a checkpoint keeps to run again. Its frame is known to the unpack hook alone."""
    found: list[torch.Tensor] = []
    for cell in getattr(raw.unpack_hook, "__closure__", None) or ():
        frame = cell.cell_contents
        if type(frame).__module__ != "torch.utils.checkpoint" or id(frame) in told:
            continue
        told.add(id(frame))
        saved = getattr(frame, "saved_args", None)
        if saved is None:  # before PyTorch 2.13 a node of its own holds them
            saved = getattr(getattr(frame, "input_saver", None), "_raw_saved_tensors", ())
        held = [getattr(one, "data", None) for one in saved]
        # Also a tensor without elements, which is there for requires_grad alone.
        found += [tensor for tensor in held if isinstance(tensor, torch.Tensor) and tensor.numel()]
    return found


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


def is_number(tensor: torch.Tensor) -> bool:
    """Whether this is a number that stood in the code, as in ``x * 3.0``; PyTorch wraps it, and no hook gets to see it.

    Only type promotion tells it from a tensor without dimensions: a number yields to any dtype of its kind.
    """
    weaker = {torch.int64: torch.int8, torch.float64: torch.float16, torch.complex128: torch.complex64}
    if tensor.dim() or tensor.dtype not in weaker or tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return False
    weak = weaker[tensor.dtype]
    return torch.result_type(torch.empty((), dtype=weak), tensor) is weak
