"""Does backward get what forward saved? `guard_saved_tensors` puts a check under every saved tensor that it can reach.

Saved-tensor hooks switch PyTorch's own check off, so the pair here keeps the version (and, if asked, the `fingerprint`)
and compares when backward asks. Only the innermost pair of hooks runs: this one calls on to the pair under it, and lays
itself over each pair that is entered later.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections import deque
from typing import Any

import torch

from ._autograd import _PLAIN, saved_slots
from ._backward import ForwardMode, listen, unlisten
from ._blame import CHECKPOINT, inputs_of_checkpoint, node_name, node_number
from ._fingerprint import fingerprint
from ._hook_pairs import active_pair, cover, pop_pair, push_pair, uncover
from ._ledger import hide_from_compiler
from ._slots import first_sentence, is_output, kind_of, operator_of
from ._source import Found, place, stack_lines

# These operators change what they have packed, without a new version: found by a sweep over PyTorch's catalogue, which
# tests repeat. The value that counts is the one when they return.
CHANGES_WHAT_IT_PACKED = frozenset(
    {
        "aten::native_batch_norm",
        "aten::_native_batch_norm_legit",
        "aten::_batch_norm_with_update",
        "aten::cudnn_batch_norm",
        "aten::miopen_batch_norm",
        "aten::rrelu_with_noise",
        "aten::rrelu_with_noise_",
    }
)


class SavedTensorChanged(RuntimeError):
    """Backward asked for a tensor that is no longer what forward saved; raised by `guard_saved_tensors`.

    Attributes:
        change: a `Change`; it holds no tensor.
    """

    def __init__(self, change: Change):
        how = ""
        if change.exchanged:
            how = "It was given other memory with .data = ...\n"
        elif change.silent:
            how = "Written to without a new version: through .data, NumPy, DLPack, a storage or another library\n"
        line = f" at {place(change.found)}" if change.found else ""
        super().__init__(
            f"{change.sentence}\n"
            f"Saved by {operator_of(change.node)} (its {change.slot or 'saved tensor'}){line}\n{how}"
            "Wrap the code, forward and backward, in explain_inplace(check_values=True): it looks for the writing line."
        )
        self.change = change


class Change:
    """What the guard saw: words and numbers only, as an exception may be kept for long.

    Attributes:
        sentence: what PyTorch would say, with operator, shape and versions.
        node, sequence, slot: who asked for the tensor, the number of that graph node, and under what name it saved it.
        shape, dtype, version_then, version_now: of the tensor.
        silent: whether the version is as expected, so that PyTorch itself would have raised nothing.
        exchanged: whether the tensor was given other memory, by ``.data = ...``.
        address, geometry: the storage, and (offset, size, stride, bytes an element) over it.
        found: the reader's line that saved it.
    """

    sentence: str
    node: str
    sequence: int
    slot: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    version_then: int
    version_now: int
    silent: bool
    exchanged: bool
    address: int
    geometry: tuple
    found: Found | None


class _Record:
    """What stands in the graph in place of a saved tensor."""

    __slots__ = ("alias", "packed", "inner", "original", "storage", "offset", "version", "print", "source", "found")
    __slots__ += ("__weakref__",)


class Guard:
    """The pair of hooks, and what it needs to know; see `guard_saved_tensors`."""

    def __init__(self, check_values: bool):
        self.check_values = check_values
        self.checked = 0
        self.pushed: list[tuple] = []
        self._mode = _ReprintMode() if check_values else None
        self._state = "new"

    def __enter__(self) -> Guard:
        if self._state != "new":
            raise RuntimeError("this guard has had its block: call guard_saved_tensors() again for another")
        self._state = "running"
        self._base = False
        cover(self)
        listen(self)
        try:
            # Versions alone: PyTorch checks those by itself, unless somebody else's hooks keep it from doing so.
            self._base = self.check_values or active_pair(False) is not None
            if self._base:
                self.push()
            if self._mode is not None:
                self._mode.__enter__()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, *exc: Any) -> None:
        try:
            if self._mode is not None:
                self._mode.__exit__(*exc)
        finally:
            self._leave()

    def _leave(self) -> None:
        self._state = "done"
        try:
            if self._base and self.pushed:
                self.pop()
        finally:
            unlisten(self)
            uncover(self)

    def backward_starts(self, keeps_graph: bool) -> None:
        """Nothing to do: backward is heard of so that the mode steps aside."""

    def backward_failed(self, error: RuntimeError, outputs: Any) -> None:
        """The error says what there is to say."""

    def backward_ends(self) -> None:
        """Nothing to do either."""

    def push(self) -> None:
        """Lays this guard over the pair that is active now."""
        pair = functools.partial(self._pack, active_pair(False)), self._unpack
        push_pair(*pair)
        self.pushed.append(pair)

    def pop(self) -> None:
        self.pushed.pop()
        pop_pair()

    def _pack(self, inner: tuple | None, tensor: torch.Tensor) -> _Record:
        record = _Record()
        record.inner = inner[1] if inner is not None else None
        record.packed = record.storage = record.print = None
        record.original = weakref.ref(tensor)  # of an operator's own result it is a passing alias, soon gone
        with _Unseen(tensor):
            alias = tensor.detach()
            if self.check_values:
                record.print = fingerprint(alias)
            record.version = None if tensor.is_inference() else alias._version
            record.source = (node_name(tensor.grad_fn), tensor.output_nr) if tensor.grad_fn is not None else None
            found, _, caller = stack_lines(sys._getframe(1))
            record.found = found or caller
            if inner is None:
                record.alias = alias
            else:
                # What the other pair makes of the tensor is kept, and nothing else: it may be there to save memory.
                if tensor.layout is torch.strided and type(tensor) in _PLAIN:
                    storage = alias.untyped_storage()
                    record.storage = weakref.ref(storage) if storage.nbytes() else None
                    record.offset = alias.storage_offset()
                    alias.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
                    record.alias = alias  # only the version counter is left of it
        mode = self._mode
        if inner is not None:
            packing = mode.packing if mode is not None else False
            if mode is not None:
                mode.packing = True
            try:
                record.packed = inner[0](tensor)
            finally:
                if mode is not None:
                    mode.packing = packing
        if mode is not None:
            mode.packed.append(weakref.ref(record))
        return record

    def _unpack(self, record: _Record) -> torch.Tensor:
        tensor = record.alias if record.inner is None else record.inner(record.packed)
        with torch._C.DisableTorchFunction():  # else each attribute that is read here calls on the modes of backward
            change = self._compare(record, tensor)
        if change is not None:
            del tensor, record  # the traceback of the error keeps this frame
            raise SavedTensorChanged(change)
        return tensor

    def _compare(self, record: _Record, tensor: torch.Tensor) -> Change | None:
        """None if ``tensor`` is what was saved, or if its memory is another's affair."""
        self.checked += 1
        if record.inner is not None:
            # A copy, on disk or made again: then nobody can have written to it through the original.
            if record.storage is None or type(tensor) not in _PLAIN or tensor.layout is not torch.strided:
                return None
            if tensor.untyped_storage() is not record.storage() or tensor.storage_offset() != record.offset:
                return None
        now = record.alias._version if record.version is not None else None
        exchanged = False
        silent = now == record.version
        if silent:
            if not self.check_values:
                return None
            with _Unseen(tensor):
                alias = tensor.detach()
                if record.print == fingerprint(alias):
                    original = record.original()
                    if original is None or not _exchanged(original, alias):
                        return None
                    exchanged = True
        node = torch._C._current_autograd_node()
        owner, slot = _slot_of(node, record)
        if silent and not _is_read(node, slot):
            return None
        change = Change()
        change.node = owner
        change.sequence = node_number(node) if node is not None else -1
        change.slot, change.shape, change.dtype = slot, tuple(tensor.shape), tensor.dtype
        original = record.original()
        source = record.source
        if original is not None:  # as PyTorch says it: the operator that wrote last
            source = (node_name(original.grad_fn), original.output_nr) if original.grad_fn is not None else None
        elif source is None and owner != CHECKPOINT and is_output(owner, slot) is not False:
            source = (change.node, 0)
        change.sentence = first_sentence(kind_of(tensor), change.shape, source, record.version, now)
        change.version_then, change.version_now = record.version, now
        change.silent, change.exchanged = silent, exchanged
        change.address, change.geometry = 0, ()
        if tensor.layout is torch.strided and type(tensor) in _PLAIN:
            change.address = tensor.untyped_storage()._cdata
            change.geometry = tensor.storage_offset(), tuple(tensor.size()), tensor.stride(), tensor.element_size()
        change.found = record.found
        return change


class _Unseen:
    """Keeps what is done to a plain tensor from other observers; a subclass needs its own handler."""

    def __init__(self, tensor: torch.Tensor):
        self._plain, self._held = type(tensor) in _PLAIN, None

    def __enter__(self) -> None:
        if self._plain:
            self._held = torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction()

    def __exit__(self, *exc: Any) -> None:
        self._held = None


def _argument_over(storage: weakref.ref | None, args: tuple) -> torch.Tensor | None:
    storage = storage() if storage is not None else None
    tensors = (arg for arg in args if isinstance(arg, torch.Tensor) and arg.layout is torch.strided)
    return next((arg for arg in tensors if arg.untyped_storage() is storage), None)


def _slot_of(node: Any, record: _Record) -> tuple[str, str]:
    """(Who saved what ``record`` stands for, under what name): a graph node, or the checkpoint behind one."""
    for name, slot in saved_slots(node) if node is not None else ():
        held, hook = slot.data, slot.unpack_hook
        while isinstance(held, _Record):  # of a guard around this one, perhaps
            if held is record:
                return node_name(node), name
            held, hook = held.packed, held.inner
        for name, kept in inputs_of_checkpoint(hook):
            held = kept.data
            while isinstance(held, _Record):
                if held is record:
                    return CHECKPOINT, name
                held = held.packed
    return node_name(node) if node is not None else "", ""


def _is_read(node: Any, slot: str) -> bool:
    """Whether the backward of ``node`` reads this slot. In training it passes over the running statistics."""
    if slot not in ("running_mean", "running_var"):
        return True
    training = getattr(node, "_saved_training", None)
    return not (training or getattr(node, "_saved_update", None) or node_name(node).startswith("BatchNormWithUpdate"))


def _exchanged(original: torch.Tensor, alias: torch.Tensor) -> bool:
    """Whether a tensor lies over other memory than when it was saved, with other values in it."""
    if original.layout is not torch.strided or type(original) not in _PLAIN:
        return False
    if original.untyped_storage() is alias.untyped_storage() and original.storage_offset() == alias.storage_offset():
        return False
    now = original.detach()
    if now.shape != alias.shape or now.dtype != alias.dtype or now.device != alias.device:
        return True
    return fingerprint(now.contiguous()) != fingerprint(alias.contiguous())


class _ReprintMode(ForwardMode):
    """Takes fingerprints again when an operator returns that changes what it packed."""

    def __init__(self) -> None:
        super().__init__()
        self.packed: deque[weakref.ref] = deque(maxlen=64)  # since the last operator returned
        self.packing = False  # whether another pack hook is running, whose operators are none of these

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return hide_from_compiler is None

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = self.call(func, args, kwargs)
        if self.packed and not self.packing:
            if isinstance(func, torch._ops.OpOverload) and func._schema.name in CHANGES_WHAT_IT_PACKED:
                for ref in self.packed:
                    if (record := ref()) is not None:
                        tensor = record.alias if record.inner is None else _argument_over(record.storage, args)
                        if tensor is not None:
                            with _Unseen(tensor):
                                record.print = fingerprint(tensor.detach())
            self.packed.clear()
        return out


if hide_from_compiler is not None:
    hide_from_compiler(_ReprintMode.__torch_dispatch__)
