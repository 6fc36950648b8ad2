"""What lies under a tensor and behind a graph node? Read without running a hook or leaving a trace."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_PARTS = {  # a sparse tensor has no storage of its own, its parts have
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_slots: dict[type, tuple[str, ...]] = {}


def storages_of(tensor: torch.Tensor) -> list[torch.UntypedStorage]:
    """The storages that hold the elements of ``tensor``: one, or one for each part of a sparse or wrapper tensor."""
    if type(tensor) not in _PLAIN and is_traceable_wrapper_subclass(tensor):
        return [s for name in tensor.__tensor_flatten__()[0] for s in storages_of(getattr(tensor, name))]
    layout = tensor.layout
    if layout is torch.strided:
        try:
            return [tensor.untyped_storage()]
        except (NotImplementedError, RuntimeError):
            return []  # wrappers of torch.func have none
    # MKL-DNN tensors are opaque: their memory has no storage
    return [s for part in _PARTS.get(layout, ()) for s in storages_of(getattr(tensor, part)())]


def slots_of(node: Any) -> tuple[str, ...]:
    """The names of the attributes through which ``node`` shows what it saved; the same for all nodes of a type."""
    slots = _slots.get(type(node))
    if slots is None:
        slots = _slots[type(node)] = tuple(name for name in dir(type(node)) if name.startswith("_raw_saved_"))
    return slots


def saved_slots(node: Any) -> list[tuple[str, Any]]:
    """The slots of a graph node and what each holds: (``self``, SavedTensor), never unpacked.

    ``SavedTensor.data`` is the tensor, or what a pack hook made of it; ``unpack_hook`` is None without hooks.
    A node whose backward has freed its tensors yields nothing, or slots whose ``data`` is None.
    """
    found = []
    for slot in slots_of(node):
        try:
            held = getattr(node, slot)
        except RuntimeError:  # the saved tensors of a custom Function, freed by its backward
            continue
        name = slot[len("_raw_saved_") :]
        if isinstance(held, (tuple, list)):
            found += [(f"{name}[{number}]", saved) for number, saved in enumerate(held)]
        else:
            found.append((name, held))
    return found


class Unseen:
    """Keeps what is done inside from every mode and subclass: bookkeeping that is none of an observer's business."""

    def __enter__(self) -> None:
        self._held = torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction()

    def __exit__(self, *exc: Any) -> None:
        del self._held
