"""What may leave the place where autograd saved it, and does backward get back what was saved?

A pair of saved-tensor hooks with the rules that are the same wherever the bytes go. PyTorch compares no versions under
hooks and runs the innermost pair only, so both are looked after here.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from ._autograd import Unseen
from ._hook_pairs import active_pair
from ._locks import new_lock
from ._pieces import Geometry, Piece, bytes_of, geometry_of, laid_over, piece_of, room_for, seen_as, spread
from ._policy import Choice, Policy
from ._stand_ins import Block, Kept, Passed
from ._staying import Staying, forget

MIN_BYTES = 4096  # a page. Moving less costs more time than its room is worth; nearly all small ones are statistics
_sequence_number = torch._C._autograd._get_sequence_nr  # of the graph node that is being made in this thread


class Store(Protocol):
    """Where bytes go; what `put` returns keeps them, and they are gone when it is."""

    live_bytes: int

    def put(self, flat: torch.Tensor, piece: Piece, item: int) -> Any: ...

    def bring(self, place: Any, piece: Piece, item: int, device: torch.device) -> tuple[torch.Tensor, int]: ...

    def same(self, place: Any, flat: torch.Tensor) -> bool | None: ...


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
        self._lock = new_lock()
        self._known: dict[tuple, weakref.ref[Block]] = {}
        self._staying = Staying(min_bytes)

    @property
    def bytes_live(self) -> int:
        """Bytes in the store now. They are freed when the graphs that need them are."""
        return self.store.live_bytes

    def __enter__(self) -> Packer:
        self._prepare()
        entries = self._entries()
        if not entries and self.model is not None:
            self._staying.look_at(self.model)
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
        if not self._entries():
            raise RuntimeError("hooks belong to a thread: this one leaves a `with` that it did not enter")
        entry = self._entries().pop()
        try:
            entry.hooks.__exit__(kind, *exc)
        finally:
            entry.hooks = None  # which holds `_pack`, which holds the entry
            self._choice.leave()
        if kind is None:
            # Those of other threads too: engine threads inherit the hooks, and are done when their backward is.
            for thread in list(entry.waiting):
                self._store_waiting(entry, thread)

    def __reduce__(self) -> tuple:
        """A copy, also in another process, has the same settings and has done nothing yet."""
        function, settings = self._made_by()
        shared = {"model": self.model, "min_bytes": self.min_bytes, "policy": self._choice.policy}
        return _make, (function, {**settings, **shared})  # as arguments, which deepcopy copies along with the model

    def _made_by(self) -> tuple[Callable[..., Packer], dict[str, Any]]:
        """The function that makes one like this, and what it takes beside what all take."""
        raise NotImplementedError

    def _prepare(self) -> None:
        """What has to be there before the first tensor is packed, or an error."""

    def _entries(self) -> list[_Entry]:
        if not hasattr(self._here, "entries"):
            self._here.entries = []
        return self._here.entries

    # The hooks.

    def _pack(self, entry: _Entry, tensor: torch.Tensor) -> Kept | Passed:
        thread, number = threading.get_ident(), _sequence_number()
        waiting = entry.waiting.get(thread)
        if waiting and waiting[-1][0] != number:
            self._store_waiting(entry, thread)
        with Unseen():
            reason = self._staying.reason(tensor)
        if reason is None and not self._choice.takes(tensor):
            self._skip("policy")
            if entry.around is not None:
                return Passed(entry.around[0](tensor), entry.around[1])
            reason = ""
        piece = None
        with Unseen():
            if reason is None:
                piece = self._piece(tensor)
                if piece is None or piece.nbytes < self.min_bytes:
                    reason = "small" if piece is not None else "nothing to gain"
        if reason:
            self._skip(reason)
        if reason == "subclass":
            return Kept(tensor, stays=True)  # its own detach, which may be made of other tensors
        with Unseen():
            kept = Kept(tensor, stays=reason is not None)
        if reason is not None:
            return kept
        nbytes = tensor.untyped_storage().nbytes()
        with self._lock:
            self.packed += 1
            self.bytes_packed += nbytes
        if _may_be_unfilled(tensor):
            entry.waiting.setdefault(thread, []).append((number, weakref.ref(kept), piece, nbytes))
        else:
            self._move(kept, piece, nbytes)
        return kept

    def _unpack(self, kept: Kept | Passed) -> torch.Tensor:
        if type(kept) is Passed:
            return kept.unpack(kept.packed)
        now = kept.alias._version
        if now != kept.version:
            raise RuntimeError(kept.refusal(now))
        if kept.stays:
            return kept.alias
        if kept.block is None:
            with Unseen():
                alias = kept.alias.detach()
            if kept.block is None:  # else another thread is moving it right now, and the alias may be empty
                return alias
        block = kept.block
        with self._lock:
            self.unpacked += 1
        # While it is back, others over the same storage look at the same memory, as they did before. But who may write
        # into it, unseen by any version, shares none with backward: readers of ``_saved_*``, and custom Functions.
        node = torch._C._current_autograd_node()
        where = "lent" if node is None else "near" if not isinstance(node, torch._C._FunctionBase) else None
        shared = getattr(block, where) if where is not None else None
        storage, shift = (shared[0](), shared[1]) if shared is not None else (None, 0)
        if storage is None:
            self._let_go()
            flat, shift = self._bring(block, kept.geometry)
            storage = flat.untyped_storage()
            if where is not None:
                setattr(block, where, (weakref.ref(storage), shift))
                self._hold(block, storage)
            with self._lock:
                self.bytes_read += block.piece.nbytes
        with Unseen():
            return laid_over(storage, shift, block.piece, kept.geometry)

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

    def _store_waiting(self, entry: _Entry, thread: int) -> None:
        waiting = entry.waiting[thread]
        while True:
            try:
                _, ref, piece, nbytes = waiting.pop(0)
            except IndexError:  # asked for, as the thread that leaves the `with` may be at another's list
                return
            if (kept := ref()) is not None:
                self._move(kept, piece, nbytes)
            else:
                self._count_out("gone before it was moved", nbytes)

    # To the store and back; `compress` has its own ways.

    def _piece(self, tensor: torch.Tensor) -> Piece | None:
        """What to keep of the tensor's storage; None for one that cannot be kept in less."""
        return piece_of(tensor)

    def _put(self, alias: torch.Tensor, piece: Piece) -> Any:
        """Gives the piece to the store; None if it has to stay after all."""
        with Unseen():
            return self.store.put(bytes_of(alias, piece), piece.as_stored(), alias.element_size())

    def _bring(self, block: Block, geometry: Geometry) -> tuple[torch.Tensor, int]:
        """(New memory in which the tensor's piece lies, where in it the piece starts)."""
        near, shift = self.store.bring(block.place, block.piece.as_stored(), block.item, block.device)
        if block.piece.whole:
            return near, shift
        room, shift = room_for(block.piece, block.item, block.device)
        with Unseen():
            spread(seen_as(near, geometry.dtype), room, shift, geometry)
        return room, shift

    def _move(self, kept: Kept, piece: Piece, nbytes: int) -> None:
        """Stores what ``kept`` stands for, unless it is stored already, and lets go of the memory."""
        alias = kept.alias
        with Unseen():
            geometry = geometry_of(alias)
            storage = alias.untyped_storage()
        if storage.nbytes() < piece.start + piece.span:
            # By its owner, who will fill it again before backward asks for it.
            return self._leave(kept, "freed", nbytes)
        # A shift can be kept for elements of one size only, see `room_for`.
        item = 0 if piece.shift % 16 == 0 else alias.element_size()
        key = storage._cdata, piece, item, None if piece.whole else geometry
        block = self._known_block(key, storage, kept)
        if block is None:
            place = self._put(alias, piece)
            if place is None:
                return self._leave(kept, "not to be represented", nbytes)
            origin = weakref.ref(storage), kept.version, kept.maker
            block = Block(place, piece, alias.element_size(), alias.device, *origin)
            self._known[key] = weakref.ref(block, functools.partial(forget, self._known, key))
            with self._lock:
                self.stored += 1
                self.bytes_written += self._size_of(block)
                self.peak_bytes = max(self.peak_bytes, self.bytes_live)
        block.users += 1
        kept.geometry, kept.block = geometry, block  # in this order, and before the memory goes: others may be reading
        with Unseen():
            alias.data = torch.empty(0, dtype=alias.dtype, device=alias.device)  # what is left is the version counter

    def _leave(self, kept: Kept, why: str, nbytes: int) -> None:
        kept.stays = True
        self._count_out(why, nbytes)

    def _count_out(self, why: str, nbytes: int) -> None:
        """One that was counted as taken has not been moved."""
        self._skip(why)
        with self._lock:
            self.packed -= 1
            self.bytes_packed -= nbytes

    def _size_of(self, block: Block) -> int:
        return block.piece.nbytes

    def _known_block(self, key: tuple, storage: torch.UntypedStorage, kept: Kept) -> Block | None:
        ref = self._known.get(key)
        block = ref() if ref is not None else None
        if block is None or block.storage() is not storage or block.version != kept.version:
            return None
        # Versions do not tell everything: a tensor can be filled anew behind PyTorch's back, and they start from 0
        # again where one is made of another's memory, by .data or by a custom Function. So the bytes are compared.
        with Unseen():
            same = self._same(block, kept.alias)
        if same is None:  # where that would be to wait for a device, it is believed of what one operator has made
            same = kept.maker is not None and kept.maker == block.maker
        return block if same else None

    def _same(self, block: Block, alias: torch.Tensor) -> bool | None:
        return self.store.same(block.place, bytes_of(alias, block.piece))


class _Entry:
    """One time that a packer was entered: its pair, the pair around it, and what waits for its operator to return."""

    def __init__(self, around: tuple | None):
        self.around = around
        self.hooks: saved_tensors_hooks | None = None
        # By thread, as numbers are: (number of the node to come, what waits for its operator, piece, storage's bytes).
        self.waiting: dict[int, list[tuple[int, weakref.ref[Kept], Piece, int]]] = {}


def _make(function: Callable[..., Packer], settings: dict[str, Any]) -> Packer:
    return function(**settings)


def _may_be_unfilled(tensor: torch.Tensor) -> bool:
    """Whether its operator may have made the tensor and not filled it yet, as rrelu its noise.

    Nothing that an operator recorded is one; the others wait until the operator that saves them has returned.
    """
    return tensor.grad_fn is None
