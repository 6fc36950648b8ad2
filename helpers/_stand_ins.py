"""What stands in the graph for a saved tensor, and what does PyTorch say if the tensor was written to?"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch

from ._autograd import _PLAIN, saved_slots
from ._blame import node_name, node_number
from ._pieces import Piece
from ._slots import first_sentence, is_output, kind_of


@dataclass(eq=False, slots=True, weakref_slot=True)
class Block:
    """A piece that was stored, for as long as a graph needs it; several saved tensors may share it.

    Attributes:
        place: what the store gave for it.
        storage, version, maker: what it was made from, to know it again.
        users: how many saved tensors have shared it.
        near: a weak reference to the storage in which it lies while backward uses it, and where in it.
        lent: the same for whoever reads it outside of backward.
        held: the same storage, kept for a moment because the next to use it usually comes next.
    """

    place: Any
    piece: Piece
    item: int
    device: torch.device
    storage: weakref.ref[torch.UntypedStorage]
    version: int
    maker: tuple[str, int] | None
    users: int = 0
    near: tuple[weakref.ref[torch.UntypedStorage], int] | None = None
    lent: tuple[weakref.ref[torch.UntypedStorage], int] | None = None
    held: torch.UntypedStorage | None = None


class Kept:
    """Stands in the graph for a saved tensor that the packer answers for.

    Attributes:
        alias: the tensor, detached (its graph would hold what holds it), or itself if it is a leaf that stays. Once the
            bytes are stored, its version counter alone.
        version: when it was saved.
        source: the (name, output) of what made the tensor, for the error; None of a leaf.
        maker: the (name, number) of the operator that filled the storage; None where none was recorded.
        is_view: whether an operator recorded it as a view.
        original: a weak reference to the tensor; of an operator's own result it may be a passing alias, soon gone.
        stays: whether it lies where it was and always will.
        block, geometry: where its bytes are, and how to look at them; None before they are moved.
    """

    __slots__ = (
        "alias",
        "version",
        "source",
        "maker",
        "is_view",
        "original",
        "stays",
        "block",
        "geometry",
        "__weakref__",
    )

    def __init__(self, tensor: torch.Tensor, *, stays: bool):
        # A leaf has no graph that could hold what holds it, so it is kept itself, as PyTorch does: then backward sees
        # what ``.data = ...`` makes of it, and its old memory is freed.
        itself = stays and tensor.is_leaf and tensor._base is None and type(tensor) in _PLAIN
        self.alias, self.version = tensor if itself else tensor.detach(), tensor._version
        self.original, self.stays = weakref.ref(tensor), stays
        self.source = self.maker = self.block = self.geometry = None
        node, base = tensor.grad_fn, tensor._base
        self.is_view = base is not None
        if node is not None:
            self.source = node_name(node), tensor.output_nr
            # A view has a node of its own, but not the memory.
            node = node if base is None or base.grad_fn is None else base.grad_fn
            self.maker = node_name(node), node_number(node)

    def refusal(self, now: int) -> str:
        """What PyTorch would say, as the saved tensor is at version ``now``."""
        node = torch._C._current_autograd_node()
        source, original = self.source, self.original()
        if node is not None and not self.is_view and self.maker == (node_name(node), node_number(node)):
            pass  # the operator's own result: PyTorch names the operator, whoever wrote to it
        elif original is not None:  # as PyTorch says it: the operator that wrote last
            source = (node_name(original.grad_fn), original.output_nr) if original.grad_fn is not None else None
        elif source is not None and self.is_view:
            source = "AsStridedBackward0", 0  # a view whose base was written to is recorded anew, as that
        elif source is None and node is not None:
            slot = next((name for name, saved in saved_slots(node) if saved.data is self), "")
            if is_output(node_name(node), slot) is not False:
                source = node_name(node), 0
        size = self.geometry.size if self.geometry is not None else tuple(self.alias.size())
        return first_sentence(kind_of(self.alias), size, source, self.version, now)


class Passed:
    """Stands in the graph for a saved tensor that the pair around this one took."""

    __slots__ = ("packed", "unpack")

    def __init__(self, packed: Any, unpack: Any):
        self.packed, self.unpack = packed, unpack
