"""Which module and which line recorded a graph node? Watched while forward runs, as the graph itself knows neither."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from ._source import Found, stack_lines

_sequence_number = torch._C._autograd._get_sequence_nr


class Recorder(TorchDispatchMode):
    """Notes module and line of every graph node that its thread makes inside the block.

    A node takes its sequence number just before its operator comes by, so the numbers tie nodes to operators, as in the
    memory tracker. No saved-tensor hook is set: autograd's version check stays on, and the reader's hooks run.

    Attributes:
        notes: sequence number of a node -> (module path or None, line or None).
    """

    def __init__(self, model: torch.nn.Module | None):
        super().__init__()
        self.notes: dict[int, tuple[str | None, Found | None]] = {}
        # The first path wins for a module that is registered twice, as in `named_modules`.
        self._paths = {id(module): path for path, module in model.named_modules()} if model is not None else {}
        self._running: list[str | None] = [None]
        self._thread = threading.get_ident()

    def __enter__(self) -> Recorder:
        self._next = _sequence_number()
        caller = stack_lines(sys._getframe(1))[0]
        self._caller = caller[0] if caller else None
        self._hooks = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        return super().__enter__()

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            for hook in self._hooks:
                hook.remove()
            self._note()

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        if threading.get_ident() == self._thread:
            self._note()
            # What runs in a module that the model does not list belongs to the one around it.
            self._running.append(self._paths.get(id(module), self._running[-1]))

    def _leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if threading.get_ident() == self._thread and len(self._running) > 1:
            self._note()
            self._running.pop()

    def _note(self) -> None:
        """Gives the nodes made since the last call to the module and the line that run now."""
        now = _sequence_number()
        if now != self._next:
            found = stack_lines(sys._getframe(1))[0]
            if found is not None and found[0] is self._caller:
                found = None  # the question itself, not a line that was asked about
            note = self._running[-1], found
            for number in range(self._next, now):
                self.notes[number] = note
            self._next = now

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if threading.get_ident() == self._thread:
            self._note()
        return func(*args, **(kwargs or {}))
