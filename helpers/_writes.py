"""Which line recorded which graph node, and which line wrote into which memory? The log behind `explain_inplace`.

A node takes its sequence number just before its operator comes by, and writes are told by the operators' own schemas.
Only numbers, operators and lines are kept, with weak references to storages: no tensor, no frame.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import torch

from ._autograd import storages_of
from ._backward import ForwardMode
from ._ledger import hide_from_compiler
from ._source import Found, stack_lines

_sequence_number = torch._C._autograd._get_sequence_nr
_current_node = torch._C._current_autograd_node
_apply = torch.autograd.function.Function.apply.__func__.__code__

_MOST_NODES = 2**17
_MOST_WRITES = 256  # of one storage: the latest
_NOTHING: tuple = ()
_written: dict[int, tuple] = {}  # by id of the operator, as its own hash is slow
_asked: list[Any] = []  # the operators themselves, so that no other can get the id of one


class Recorded(NamedTuple):
    """What is known of a graph node: when it was recorded, by which operator, at which line."""

    clock: int
    func: Any
    found: Found | None
    outer: Found | None  # of an operator inside a custom Function's forward: the line that called the Function


class Written(NamedTuple):
    """One write into a storage."""

    clock: int
    func: Any
    found: Found | None
    version: int | None  # of the tensor, once it was written; None where none is kept
    shape: tuple[int, ...]
    geometry: tuple  # (offset, size, stride) in elements, and bytes an element
    recorded: bool  # whether autograd followed it


class Read(NamedTuple):
    """An operator took memory as input after it was written."""

    clock: int
    func: Any
    found: Found | None
    write: Written


class Unmarked(NamedTuple):
    """A custom Function wrote into an input that has a history, or is a leaf, and that stayed as it was."""

    func: Any
    found: Found | None
    outer: Found | None  # the line that called the Function
    node: str  # the name of the input's graph node; empty for a leaf


class _History:
    """What happened to one storage."""

    __slots__ = ("storage", "writes", "is_copy", "read")

    def __init__(self, storage: weakref.ref):
        self.storage = storage
        self.writes: deque[Written] = deque(maxlen=_MOST_WRITES)
        self.is_copy = False  # made by indexing with a tensor or a list
        self.read = 0  # when it was last an input


def _writes_of(func: Any) -> tuple:
    """Where an operator's written arguments stand: (position, name) each."""
    found: list[tuple[int, str]] = []
    if isinstance(func, torch._ops.OpOverload):
        schema = func._schema
        unannotated = "batch_norm" in schema.name  # these say nothing of the statistics that they update in training
        for position, argument in enumerate(schema.arguments):
            if (argument.alias_info is not None and argument.alias_info.is_write) or (
                unannotated and argument.name in ("running_mean", "running_var")
            ):
                found.append((-1 if argument.kwarg_only else position, argument.name))
    _written[id(func)] = tuple(found) if found else _NOTHING
    _asked.append(func)
    return _written[id(func)]


class WriteLog(ForwardMode):
    """Follows what its thread records and writes.

    Args:
        reads: whether to note, too, which operators read what was written before.

    Attributes:
        nodes: sequence number of a graph node -> what is known of it.
        backwards: of each: the sequence number below which nodes were there, its line, whether the graph was kept.
        reads: what was read after it was written, if asked.
        lost: writes into copies that indexing made and nobody looked at afterwards, if reads are asked.
        unmarked: writes of a custom Function into an input that it did not mark dirty, if reads are asked.
    """

    def __init__(self, reads: bool = False):
        super().__init__()
        self.nodes: dict[int, Recorded] = {}
        self.backwards: deque[tuple[int, Found | None, bool]] = deque(maxlen=1024)
        self._histories: dict[int, _History] = {}
        self._reads = reads
        self._clock = 0
        self._thread = threading.get_ident()
        self._sequence = self.first = _sequence_number()
        self.reads: deque[Read] = deque(maxlen=10_000)
        self.lost: list[Written] = []
        self.unmarked: list[Unmarked] = []
        self._in_function: list[tuple[weakref.ref, Unmarked]] = []  # not yet known whether they will be marked

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return hide_from_compiler is None

    def __enter__(self) -> WriteLog:
        self._thread = threading.get_ident()
        self._sequence = self.first = _sequence_number()
        return super().__enter__()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        self._clock += 1
        sequence = _sequence_number()
        found = False
        if sequence != self._sequence and threading.get_ident() == self._thread:  # each thread has its own numbers
            found = self._line()
            self._record(sequence, func, found)
        where = _written.get(id(func))
        if where is None:
            where = _writes_of(func)
        if self._reads:
            if self._in_function and torch.is_grad_enabled():
                self.settle()
            self._note_reads(func, where, args, found)
        if where:
            self._note_writes(func, where, args, kwargs or {}, self._line() if found is False else found)
        out = self.call(func, args, kwargs)
        if self._reads and func is torch.ops.aten.index.Tensor:
            self._history(out.untyped_storage()).is_copy = True
        return out

    def _record(self, sequence: int, func: Any, found: Found | None) -> None:
        outer = None
        if found is not None and found[0].co_name == "forward":
            outer = _caller_of_function(sys._getframe(2))
        record = Recorded(self._clock, func, found, outer)
        # More than one, where a node had no operator of its own. A number comes again when a graph is copied by hand.
        for number in range(self._sequence, sequence):
            self.nodes[number] = record
        self._sequence = sequence
        if len(self.nodes) > _MOST_NODES:
            for number in list(islice(self.nodes, _MOST_NODES // 2)):
                del self.nodes[number]

    def _line(self) -> Found | None:
        """The reader's line that is running; in backward, where it has none, the line that called backward."""
        found, _, outer = stack_lines(sys._getframe(2))
        return found or outer

    def _note_writes(self, func: Any, where: tuple, args: tuple, kwargs: dict, found: Found | None) -> None:
        # Neither running statistics nor what fused optimizers write gets a new version.
        uncounted = "batch_norm" in func._schema.name or func._schema.name.startswith("aten::_fused_")
        if "batch_norm" in func._schema.name and not _trains(func, args, kwargs):
            return
        for position, name in where:
            target = args[position] if 0 <= position < len(args) else kwargs.get(name)
            for tensor in target if isinstance(target, (list, tuple)) else (target,):
                if isinstance(tensor, torch.Tensor):
                    # PyTorch counts the version up when the operator has returned.
                    version = None if uncounted or tensor.is_inference() else tensor._version + 1
                    self._note_write(func, tensor, found, version)

    def _note_write(self, func: Any, tensor: torch.Tensor, found: Found | None, version: int | None) -> None:
        strided = tensor.layout is torch.strided
        geometry = (tensor.storage_offset(), tensor.size(), tensor.stride(), tensor.element_size()) if strided else ()
        written = Written(self._clock, func, found, version, tuple(tensor.shape), geometry, tensor.grad_fn is not None)
        for storage in storages_of(tensor):
            self._history(storage).writes.append(written)
        if self._reads and tensor.requires_grad and not torch.is_grad_enabled():
            outer = _caller_of_function(sys._getframe(3))
            if outer is not None:
                node = tensor.grad_fn.name() if tensor.grad_fn is not None else ""
                self._in_function.append((weakref.ref(tensor), Unmarked(func, found, outer, node)))

    def settle(self) -> None:
        """Asks what custom Functions have written to whether it has got a new history since."""
        for ref, write in self._in_function:
            tensor = ref()
            if tensor is not None and (tensor.grad_fn.name() if tensor.grad_fn is not None else "") == write.node:
                self.unmarked.append(write)
        self._in_function.clear()

    def _history(self, storage: torch.UntypedStorage) -> _History:
        address = storage._cdata
        known = self._histories.get(address)
        if known is None or known.storage() is not storage:
            histories, lost = self._histories, self.lost

            def forget(ref: weakref.ref) -> None:
                if (known := histories.get(address)) is not None and known.storage is ref:
                    histories.pop(address, None)
                    if known.is_copy and known.writes and known.read <= known.writes[-1].clock:
                        lost.append(known.writes[-1])

            known = self._histories[address] = _History(weakref.ref(storage, forget))
        return known

    def _note_reads(self, func: Any, where: tuple, args: tuple, found: Any) -> None:
        """Notes which inputs were written before, by code that autograd follows."""
        followed = torch.is_grad_enabled() and _current_node() is None
        positions = {position for position, _ in where}
        for position, argument in enumerate(args):
            for tensor in argument if isinstance(argument, (list, tuple)) else (argument,):
                if position in positions or not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
                    continue
                storage = tensor.untyped_storage()
                known = self._histories.get(storage._cdata)
                if known is None or known.storage() is not storage or not known.writes:
                    continue
                known.read = self._clock
                # What optimizers and statistics write is meant to be read afterwards.
                if followed and known.writes[-1].recorded and not func.is_view:
                    line = self._line() if found is False else found
                    self.reads.append(Read(self._clock, func, line, known.writes[-1]))

    def writes_into(self, storage: torch.UntypedStorage | int) -> list[Written]:
        """What was written into a storage, in order; the storage itself, or its address while it lives."""
        address = storage if isinstance(storage, int) else storage._cdata
        known = self._histories.get(address)
        if known is None or (not isinstance(storage, int) and known.storage() is not storage):
            return []
        return list(known.writes)

    def all_writes(self) -> Iterator[Written]:
        """Every write into memory that is still there."""
        for history in list(self._histories.values()):
            yield from history.writes

    def backward_started(self, keeps_graph: bool) -> None:
        """Notes where in the order of nodes a backward was called, and by which line."""
        if threading.get_ident() == self._thread:
            self.backwards.append((_sequence_number(), stack_lines(sys._getframe(2))[0], keeps_graph))

    def backward_ended(self) -> None:
        """Gives the nodes that a backward with ``create_graph=True`` recorded the line that called it."""
        sequence = _sequence_number()
        if sequence != self._sequence and threading.get_ident() == self._thread:
            self._record(sequence, None, stack_lines(sys._getframe(2))[0])

    def close(self) -> None:
        """Drops the weak references; what a report needs has been read."""
        self._histories.clear()
        self.nodes.clear()


if hide_from_compiler is not None:
    hide_from_compiler(WriteLog.__torch_dispatch__)


def _trains(func: Any, args: tuple, kwargs: dict) -> bool:
    """Whether this call of a batch norm updates its running statistics."""
    for position, argument in enumerate(func._schema.arguments):
        if argument.name in ("training", "train"):
            return bool(args[position] if position < len(args) else kwargs.get(argument.name))
    return True  # _batch_norm_with_update


def _caller_of_function(frame: Any) -> Found | None:
    """The reader's line that called ``apply`` of the custom Function whose forward is running."""
    while frame is not None:
        if frame.f_code is _apply:
            return stack_lines(frame.f_back)[0]
        frame = frame.f_back
    return None
