"""What does a storage serve as, and whose line is it? Follows autograd from outside, with no hook in its way.

A node takes its sequence number just before its operator comes by, so the numbers tie operators to the nodes that run
in backward. What a node saved is complete when the next operator takes its result as an input, and is read then.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ._autograd import slots_of
from ._ledger import Ledger
from ._source import Spot, reader_frame
from ._timeline import PRECEDENCE

_PARAMETERS, _STATE, _GRADIENTS, _SAVED = PRECEDENCE
_Tensor, _thread = torch.Tensor, threading.get_ident  # each step to a name costs, once for every operator
_current_node = torch._C._current_autograd_node
_current_task = torch._C._current_graph_task_id
_sequence_number = torch._C._autograd._get_sequence_nr
_keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph

# Nodes of which something is noted. Graphs that are dropped without a backward leave notes behind, so the oldest go.
_MOST_NODES = 2**17


class _Life:
    """Lies in the metadata of a graph node, and so dies with it: nothing else tells that a graph was dropped."""

    __slots__ = ("number", "roles")

    def __init__(self, roles: weakref.ref, number: int):
        self.roles, self.number = roles, number

    def __del__(self) -> None:
        roles = self.roles()
        if roles is not None:
            roles._forget(self.number)


class Roles:
    """Marks in what groups storages count, and from which event on; knows the lines that recorded the graph.

    Args:
        ledger: where storages have their numbers.
        lines: whether to note the line of each node.
        groups: whether to tell saved activations and gradients apart.

    Attributes:
        marks: as `Replay` takes them.
        results: what the last operators returned; perhaps none takes them as an input any more.
    """

    def __init__(self, ledger: Ledger, lines: bool, groups: bool):
        self.marks: list[tuple[int, int, str, int]] = []
        self.results: deque[weakref.ref] = deque(maxlen=8)
        self._ledger, self._lines, self._groups = ledger, lines, groups
        self._modules: list[weakref.ref] = []
        self._optimizers: list[weakref.ref] = []
        self._leaves: dict[int, weakref.ref] = {}
        self._hooks: list[Any] = []
        self._following = False
        self._named: set[tuple[int, str]] = set()
        self._outranked: set[int] = set()  # what serves as a parameter or state does so for good, saved or not
        self._spot: Spot | None = None  # the last, as most are the same again
        self._gradients: dict[int, list[int]] = {}  # id of a leaf -> numbers of the storages of its .grad
        # Graph nodes by sequence number, from when an operator records one until its backward has run or it is dropped.
        self._thread = threading.get_ident()
        self._first = self._sequence = 0
        self._node_lines: dict[int, Spot | None] = {}
        self._node_events: dict[int, int] = {}  # of those not read yet: how long the log was
        self._node_saves: dict[int, list[int]] = {}  # of those that were read and save any: the numbers of the storages
        # The nodes that run: one, or more where a backward runs inside another (a reentrant checkpoint).
        self._running: list[tuple[int, int, bool]] = []  # (graph task, number, whether the graph is kept)
        self._number = -1
        self._me, self._key = weakref.ref(self), f"{__name__} {id(self)}"

    # -- whom to follow ------------------------------------------------------------------------------------------------

    def add_module(self, module: torch.nn.Module) -> None:
        self._modules.append(weakref.ref(module))

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizers.append(weakref.ref(optimizer))

    def add_leaf(self, leaf: torch.Tensor) -> None:
        known = self._leaves.get(id(leaf))
        if known is not None and known() is leaf:
            return
        self._leaves[id(leaf)] = weakref.ref(leaf)
        if leaf.grad is not None:
            self._ledger._count(leaf.grad)
        if self._following:
            self._hook(leaf)

    def start(self) -> None:
        """Begins to follow the calling thread."""
        self._following = True
        self._thread = threading.get_ident()
        self._first = self._sequence = _sequence_number()
        for leaf in _alive(self._leaves.values()):
            self._hook(leaf)

    def stop(self) -> None:
        self._following = False
        while self._hooks:
            self._hooks.pop().remove()
        for nodes in (self._node_lines, self._node_events, self._node_saves):
            nodes.clear()

    def _hook(self, leaf: torch.Tensor) -> None:
        if self._groups and leaf.requires_grad:  # it may have been frozen since
            self._hooks.append(leaf.register_post_accumulate_grad_hook(self._gradient_arrived))

    # -- the graph -----------------------------------------------------------------------------------------------------

    def before(self, args: tuple) -> bool:
        """Looks around before an operator runs. Returns whether autograd recorded a node for it."""
        node = _current_node()
        if node is None:
            if self._running:
                self._leave(-1)
        elif (number := node._sequence_nr()) != self._number:
            self._enter(node, number)
        ledger = self._ledger
        ledger._op_line = None
        sequence = _sequence_number()
        if sequence == self._sequence or _thread() != self._thread:  # each thread has its own numbers
            return False
        if self._lines:
            line = ledger._op_line = self.line()
            self._node_lines.setdefault(sequence - 1, line)
            if len(self._node_lines) > _MOST_NODES:
                _drop_oldest(self._node_lines)
        if self._groups:
            events = self._node_events
            for number in range(self._sequence, sequence):  # more than one, where a node had no operator of its own
                events[number] = ledger._events
            for arg in args:
                if isinstance(arg, _Tensor):
                    if (node := arg.grad_fn) is not None:
                        self._read(node)
                elif isinstance(arg, (list, tuple)):
                    for part in arg:
                        if isinstance(part, _Tensor) and (node := part.grad_fn) is not None:
                            self._read(node)
            if len(events) > _MOST_NODES:
                _drop_oldest(events)
        self._sequence = sequence
        return True

    def line(self) -> Spot | None:
        """The reader's line that is running, or in backward the line whose node is running."""
        frame, backward = reader_frame(sys._getframe(1))
        if backward or frame is None:  # else also inside backward: a custom Function, or what a checkpoint runs again
            line = self._node_lines.get(self._number) if backward or _current_node() is not None else None
            if line is not None:
                return line
            if frame is None:  # backward on CUDA runs in a thread of its own, while its caller waits
                frame, _ = reader_frame(sys._current_frames().get(self._thread))
                if frame is None:
                    return None
        code, instruction, spot = frame.f_code, frame.f_lasti, self._spot
        if spot is None or spot[1] != instruction or spot[0] is not code:
            spot = self._spot = code, instruction
        return spot

    def _enter(self, node: Any, number: int) -> None:
        """A node runs. One that ran before it has finished, unless it waits for the graph task of this one."""
        task = _current_task()
        self._leave(task, number)
        if not self._running or self._running[-1][0] < task:
            self._running.append((task, number, _keeps_graph()))
            self._number = number
            if self._groups:
                self._read(node)

    def _leave(self, task: int, number: int = -1) -> None:
        """Nodes of ``task``, and of tasks inside it, have released what they kept, unless the graph is retained."""
        running = self._running
        while running and (running[-1][0] > task or (running[-1][0] == task and running[-1][1] != number)):
            _, left, kept = running.pop()
            if not kept:
                self._forget(left)
        self._number = running[-1][1] if running else -1

    def _read(self, node: Any) -> None:
        """Notes, once, which storages a node keeps for backward; they count as saved from when it was recorded."""
        number = node._sequence_nr()
        since = self._node_events.pop(number, None)
        if since is None:
            if number in self._node_saves or self._first <= number < self._sequence:
                return  # it was read before
            since = 0  # recorded before the block, or in another thread
        names = slots_of(node)
        if not names:
            return
        saved: list[int] = []
        for name in names:
            try:
                held = getattr(node, name)
            except RuntimeError:  # the saved tensors of a custom Function, freed by its backward
                continue
            for slot in held if isinstance(held, (tuple, list)) else (held,):
                data = getattr(slot, "data", None)  # an older torch may not show it: then nothing is told apart
                if isinstance(data, _Tensor):  # under hooks it is what the pack hook made
                    for known in self._ledger._numbers_of(data):
                        if known not in saved and known not in self._outranked:
                            saved.append(known)
                            self.marks.append((since, known, _SAVED, 1))
        if saved:
            self._node_saves[number] = saved
            metadata = node.metadata
            if self._key not in metadata:
                metadata[self._key] = _Life(self._me, number)

    def _forget(self, number: int) -> None:
        """A node has released what it kept, or is gone."""
        self._node_lines.pop(number, None)
        self._node_events.pop(number, None)
        now = self._ledger._events
        for storage in self._node_saves.pop(number, ()):
            self.marks.append((now, storage, _SAVED, -1))

    # -- parameters, optimizer state, gradients ------------------------------------------------------------------------

    def _gradient_arrived(self, leaf: torch.Tensor) -> None:
        numbers = self._ledger._numbers_of(leaf.grad) if leaf.grad is not None else []
        before = self._gradients.get(id(leaf), [])
        if numbers != before:
            now = self._ledger._events
            self.marks += [(now, number, _GRADIENTS, -1) for number in before]
            self.marks += [(now, number, _GRADIENTS, 1) for number in numbers]
            self._gradients[id(leaf)] = numbers

    def name_all(self) -> None:
        """Says which storages serve as parameters, optimizer state and gradients at this moment."""
        for module in _alive(self._modules):
            self._name(module.parameters(), _PARAMETERS)
        for optimizer in _alive(self._optimizers):
            for group in optimizer.param_groups:
                self._name(group["params"], _PARAMETERS)
            state = [t for t in tree_leaves(list(optimizer.state.values())) if isinstance(t, torch.Tensor)]
            for tensor in state:
                self._ledger._count(tensor)
            self._name(state, _STATE)
        for leaf in _alive(self._leaves.values()):
            self._gradient_arrived(leaf)

    def _name(self, tensors: Iterable[torch.Tensor], role: str) -> None:
        """Parameters and optimizer state are what they are from birth, however late they are recognised."""
        for tensor in tensors:
            for number in self._ledger._numbers_of(tensor):
                if (number, role) not in self._named:
                    self._named.add((number, role))
                    self._outranked.add(number)
                    self.marks.append((0, number, role, 1))

    def settle(self) -> None:
        """Reads what can be read only between operators: what the last results' nodes keep, and who serves as what."""
        if self._groups and self._following:
            if _current_node() is None:
                self._leave(-1)
            for result in list(_alive(self.results)):
                if result.grad_fn is not None:
                    self._read(result.grad_fn)
            self.name_all()


def _drop_oldest(notes: dict[int, Any]) -> None:
    for number in list(islice(notes, _MOST_NODES // 2)):
        del notes[number]


def _alive(refs: Iterable[weakref.ref]) -> Iterator[Any]:
    return (thing for ref in refs if (thing := ref()) is not None)
