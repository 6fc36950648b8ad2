"""What may leave the place where autograd saved it, and does backward get back what was saved?

A pair of saved-tensor hooks with the rules that are the same wherever the bytes go. PyTorch compares no versions under
hooks and runs the innermost pair only, so both are looked after here.
"""

from __future__ import annotations

import functools
import threading
import weakref
from typing import Any, Protocol

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from ._autograd import _PLAIN, Unseen, saved_slots
from ._blame import node_name
from ._hook_pairs import active_pair
from ._pieces import Geometry, Piece, bytes_of, geometry_of, laid_over, piece_of, room_for, seen_as, spread
from ._policy import Choice, Policy
from ._slots import first_sentence, is_output

MIN_BYTES = 4096  # a page. Moving less costs more time than its room is worth; nearly all small ones are statistics
_DEVICES = ("cpu", "cuda")
_sequence_number = torch._C._autograd._get_sequence_nr  # of the graph node that is being made in this thread


class Store(Protocol):
    """Where bytes go; what `put` returns keeps them, and they are gone when it is."""

    live_bytes: int

    def put(self, flat: torch.Tensor, piece: Piece, item: int) -> Any: ...

    def bring(self, place: Any, piece: Piece, item: int, device: torch.device) -> tuple[torch.Tensor, int]: ...

    def same(self, place: Any, flat: torch.Tensor) -> bool: ...


class Block:
    """A piece that was stored, for as long as a graph needs it; several saved tensors may share it.

    Attributes:
        place: what the store gave for it.
        storage, version: what it was made from, to know it again.
        users: how many saved tensors have shared it.
        near: a weak reference to the storage in which it lies while backward uses it, and where in it.
        held: the same storage, kept for a moment because the next to use it usually comes next.
    """

    __slots__ = ("place", "piece", "item", "device", "storage", "version", "users", "near", "held", "__weakref__")


class Kept:
    """Stands in the graph for a saved tensor.

    Attributes:
        alias: the tensor, detached (its graph would hold what holds it). Once it is stored, its version counter alone.
        version: when it was saved.
        block, geometry: None for a tensor that stays where it is.
    """

    __slots__ = ("alias", "version", "source", "original", "block", "geometry", "__weakref__")


class Passed:
    """Stands in the graph for a saved tensor that the pair around this one took."""

    __slots__ = ("packed", "unpack")


class Packer:
    """A pair of saved-tensor hooks as a context manager that can be entered again, also in several threads at once.

    Args:
        store: where the bytes go.
        model: its parameters and buffers stay where they are.
        min_bytes: what is smaller stays where it is.
        policy: which tensors to take; the pair of hooks around this one, if there is one, gets the others.

    Attributes:
        packed: how many saved tensors were taken.
        skipped: how many were not, for whatever reason; ``skipped_because`` has the reasons.
        unpacked: how often backward, or somebody else, asked for one that was taken.
        stored: how many pieces were written: fewer than ``packed``, as tensors share storages.
        bytes_packed: of the storages under those that were taken, a storage counted each time.
        bytes_written: bytes that went to the store.
        bytes_read: bytes that came back.
        peak_bytes: the most that there were in the store.
    """

    def __init__(self, store: Store, model: nn.Module | None, min_bytes: int, policy: Policy):
        if model is not None and not isinstance(model, nn.Module):
            raise TypeError(f"model= takes an nn.Module, whose parameters then stay where they are; got {model!r}")
        if isinstance(min_bytes, bool) or not isinstance(min_bytes, int) or min_bytes < 0:
            raise ValueError(f"min_bytes is a number of bytes, 0 or more; got {min_bytes!r}")
        self.store, self.model, self.min_bytes = store, model, min_bytes
        self.packed = self.skipped = self.unpacked = self.stored = 0
        self.bytes_packed = self.bytes_written = self.bytes_read = self.peak_bytes = 0
        self.skipped_because: dict[str, int] = {}
        self._choice = Choice(policy, model)
        self._here = threading.local()  # .entries: those of this thread, outermost first
        self._lock = threading.Lock()
        self._known: dict[tuple, weakref.ref[Block]] = {}
        self._staying: dict[int, tuple[weakref.ref, str]] = {}  # storages that stay, and why

    @property
    def bytes_live(self) -> int:
        """Bytes in the store now. They are freed when the graphs that need them are."""
        return self.store.live_bytes

    def __enter__(self) -> Packer:
        self._prepare()
        entries = self._entries()
        if not entries:
            self._look_at_model()
        entry = _Entry(active_pair(False))
        entry.hooks = saved_tensors_hooks(functools.partial(self._pack, entry), self._unpack)
        self._choice.enter(outermost=not entries)
        try:
            entry.hooks.__enter__()
        except BaseException:
            self._choice.leave()
            raise
        entries.append(entry)
        return self

    def __exit__(self, kind: Any, *exc: Any) -> None:
        entry = self._entries().pop()
        try:
            entry.hooks.__exit__(kind, *exc)
        finally:
            self._choice.leave()
        if kind is None:
            self._store_waiting(entry)

    def _prepare(self) -> None:
        """What has to be there before the first tensor is packed, or an error."""

    def _entries(self) -> list[_Entry]:
        if not hasattr(self._here, "entries"):
            self._here.entries = []
        return self._here.entries

    # What stays, and what is taken.

    def _look_at_model(self) -> None:
        for what, tensors in (("buffer", "buffers"), ("parameter", "parameters")):
            for tensor in getattr(self.model, tensors)() if self.model is not None else ():
                if tensor.layout is torch.strided and type(tensor) in _PLAIN:
                    self._stays(tensor.untyped_storage(), what)

    def _stays(self, storage: torch.UntypedStorage, why: str) -> None:
        self._staying[storage._cdata] = weakref.ref(storage), why

    def _reason_to_stay(self, tensor: torch.Tensor) -> str | None:
        if type(tensor) not in _PLAIN:
            return "subclass"
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type not in _DEVICES:
            return "layout or device"
        base = tensor if tensor._base is None else tensor._base
        storage = tensor.untyped_storage()
        if base.is_leaf and base.requires_grad:
            self._stays(storage, "leaf")
            return "leaf"
        if (known := self._staying.get(storage._cdata)) is not None and known[0]() is storage:
            return known[1]
        nbytes = storage.nbytes() if tensor.numel() else 0
        return "small" if nbytes < max(self.min_bytes, 1) else None

    # The hooks.

    def _pack(self, entry: _Entry, tensor: torch.Tensor) -> Kept | Passed:
        if entry.waiting and entry.sequence_number != _sequence_number():
            self._store_waiting(entry)
        with Unseen():
            reason = self._reason_to_stay(tensor)
        piece = None
        if reason is None:
            if not self._choice.takes(tensor):
                self._skip("policy")
                if entry.around is not None:
                    passed = Passed()
                    passed.packed, passed.unpack = entry.around[0](tensor), entry.around[1]
                    return passed
                reason = ""
            else:
                with Unseen():
                    piece = self._piece(tensor)
                if piece is None or piece.nbytes < self.min_bytes:
                    reason = "small" if piece is not None else "nothing to gain"
        if reason:
            self._skip(reason)
        with Unseen():
            kept = Kept()
            kept.alias, kept.version = tensor.detach(), tensor._version
            kept.source = (node_name(tensor.grad_fn), tensor.output_nr) if tensor.grad_fn is not None else None
            kept.original = weakref.ref(tensor)  # of an operator's own result it is a passing alias, soon gone
            kept.block = kept.geometry = None
        if reason is not None:
            return kept
        with self._lock:
            self.packed += 1
            self.bytes_packed += tensor.untyped_storage().nbytes()
        if tensor.grad_fn is None:
            # An operator may save a tensor that it has made and not filled yet (rrelu its noise). Nothing that an
            # operator recorded is one; the others wait until the operator has returned.
            entry.sequence_number = _sequence_number()
            entry.waiting.append((weakref.ref(kept), piece))
        else:
            self._move(kept, piece)
        return kept

    def _unpack(self, kept: Kept | Passed) -> torch.Tensor:
        if type(kept) is Passed:
            return kept.unpack(kept.packed)
        now = kept.alias._version
        if now != kept.version:
            raise RuntimeError(_sentence(kept, now))
        block, geometry = kept.block, kept.geometry
        if block is None:
            return kept.alias
        with self._lock:
            self.unpacked += 1
        # While it is back, others over the same storage look at the same memory, as they did before.
        storage = block.near[0]() if block.near is not None else None
        if storage is None:
            self._let_go()
            near, shift = self._bring(block, geometry)
            storage = near.untyped_storage()
            block.near = weakref.ref(storage), shift
            self._hold(block, storage)
            with self._lock:
                self.bytes_read += block.piece.nbytes
        with Unseen():
            return laid_over(storage, block.near[1], block.piece, geometry)

    def _hold(self, block: Block, storage: torch.UntypedStorage) -> None:
        """Keeps one storage in each thread: what ReLU saved, its result, is what the next layer saved, its input."""
        if block.users > 1:
            block.held = storage
            self._here.held = weakref.ref(block)

    def _let_go(self) -> None:
        before = self._here.held() if hasattr(self._here, "held") else None
        if before is not None:
            before.held = None

    def _skip(self, reason: str) -> None:
        with self._lock:
            self.skipped += 1
            self.skipped_because[reason] = self.skipped_because.get(reason, 0) + 1

    def _store_waiting(self, entry: _Entry) -> None:
        while entry.waiting:
            ref, piece = entry.waiting.pop(0)
            if (kept := ref()) is not None:
                self._move(kept, piece)

    # To the store and back; `compress` has its own ways.

    def _piece(self, tensor: torch.Tensor) -> Piece | None:
        """What to keep of the tensor's storage; None for one that cannot be kept in less."""
        return piece_of(tensor)

    def _put(self, alias: torch.Tensor, piece: Piece) -> Any:
        """Gives the piece to the store; None if it has to stay after all."""
        with Unseen():
            return self.store.put(bytes_of(alias, piece), _as_stored(piece), alias.element_size())

    def _bring(self, block: Block, geometry: Geometry) -> tuple[torch.Tensor, int]:
        """(New memory in which the tensor's piece lies, where in it the piece starts)."""
        near, shift = self.store.bring(block.place, _as_stored(block.piece), block.item, block.device)
        if block.piece.whole:
            return near, shift
        room, shift = room_for(block.piece, block.item, block.device)
        with Unseen():
            spread(seen_as(near, geometry.dtype), room, shift, geometry)
        return room, shift

    def _move(self, kept: Kept, piece: Piece) -> None:
        """Stores what ``kept`` stands for, unless it is stored already, and lets go of the memory."""
        alias = kept.alias
        with Unseen():
            geometry = geometry_of(alias)
            storage = alias.untyped_storage()
            key = storage._cdata, piece, None if piece.whole else geometry
        block = self._known_block(key, storage, kept)
        if block is None:
            place = self._put(alias, piece)
            if place is None:
                self._skip("not to be represented")
                with self._lock:
                    self.packed -= 1
                return
            block = Block()
            block.place, block.piece, block.item, block.device = place, piece, alias.element_size(), alias.device
            block.storage, block.version = weakref.ref(storage), kept.version
            block.users, block.near, block.held = 0, None, None
            self._known[key] = weakref.ref(block, functools.partial(_forget, self._known, key))
            with self._lock:
                self.stored += 1
                self.bytes_written += self._size_of(block)
                self.peak_bytes = max(self.peak_bytes, self.bytes_live)
        block.users += 1
        kept.geometry, kept.block = geometry, block
        with Unseen():
            alias.data = torch.empty(0, dtype=alias.dtype, device=alias.device)  # what is left is the version counter

    def _size_of(self, block: Block) -> int:
        return block.piece.nbytes

    def _known_block(self, key: tuple, storage: torch.UntypedStorage, kept: Kept) -> Block | None:
        ref = self._known.get(key)
        block = ref() if ref is not None else None
        if block is None or block.storage() is not storage or block.version != kept.version:
            return None
        if kept.source is None:
            # No operator recorded it: an input or a table, which may have been filled anew behind PyTorch's back.
            with Unseen():
                if not self._same(block, kept.alias):
                    return None
        return block

    def _same(self, block: Block, alias: torch.Tensor) -> bool:
        return self.store.same(block.place, bytes_of(alias, block.piece))


class _Entry:
    """One time that a packer was entered: its pair, the pair around it, and what waits for its operator to return."""

    def __init__(self, around: tuple | None):
        self.around = around
        self.hooks: saved_tensors_hooks | None = None
        self.waiting: list[tuple[weakref.ref[Kept], Piece]] = []
        self.sequence_number = -1


def _forget(known: dict[tuple, weakref.ref], key: tuple, ref: weakref.ref) -> None:
    if known.get(key) is ref:
        del known[key]


def _as_stored(piece: Piece) -> Piece:
    return piece if piece.whole else piece._replace(span=piece.nbytes, shift=0)


def _sentence(kept: Kept, now: int) -> str:
    """What PyTorch would say of a saved tensor that was written to."""
    node = torch._C._current_autograd_node()
    source, original = kept.source, kept.original()
    if original is not None:  # as PyTorch says it: the operator that wrote last
        source = (node_name(original.grad_fn), original.output_nr) if original.grad_fn is not None else None
    elif source is None and node is not None:
        slot = next((name for name, saved in saved_slots(node) if saved.data is kept), "")
        if is_output(node_name(node), slot) is not False:
            source = node_name(node), 0
    size = kept.geometry.size if kept.geometry is not None else tuple(kept.alias.size())
    return first_sentence(kept.alias.type(), size, source, kept.version, now)
