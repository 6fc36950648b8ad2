"""Who is asked when backward runs? Observers of forward step aside there, and hear of it when it fails.

Some of PyTorch's derivative formulas (that of ``prod``, for one) choose another way as soon as any dispatch mode is
active, and then gradients differ in their last bits. So a `ForwardMode` is taken off the stack while the engine runs,
and put back for what Python code calls in backward: hooks, custom Functions, a checkpoint that runs forward again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

from ._plain_call import plain_call

_get_mode = torch._C._get_dispatch_stack_at
_plain_run = torch.autograd._engine_run_backward
_listeners: list[Listener] = []
_lock = threading.Lock()


class Listener(Protocol):
    """What wants to hear of backward, in whichever thread it runs."""

    def backward_starts(self, keeps_graph: bool) -> None: ...

    def backward_failed(self, error: RuntimeError, outputs: Any) -> None: ...

    def backward_ends(self) -> None: ...


class ForwardMode(TorchDispatchMode):
    """A dispatch mode that does not see the formulas of backward, and so does not change them."""

    call = staticmethod(plain_call)


def listen(listener: Listener) -> None:
    """Tells ``listener`` of every backward of the process, until `unlisten`."""
    with _lock:
        _listeners.append(listener)
        torch.autograd._engine_run_backward = _run


def unlisten(listener: Listener) -> None:
    with _lock:
        _listeners.remove(listener)
        if not _listeners:
            torch.autograd._engine_run_backward = _plain_run


def _run(outputs: Any, grads: Any = None, keeps_graph: bool = False, *rest: Any, **named: Any) -> Any:
    """Stands in for the function through which PyTorch's Python code enters its engine."""
    __tracebackhide__ = True
    listeners = list(_listeners)
    for listener in listeners:
        listener.backward_starts(keeps_graph)
    try:
        with _modes_set_aside():
            return _plain_run(outputs, grads, keeps_graph, *rest, **named)
    except RuntimeError as error:
        for listener in reversed(listeners):  # the innermost explains first
            try:
                listener.backward_failed(error, outputs)
            except Exception as fault:  # the reader's error matters more than ours
                error.add_note(f"(explain_inplace could not explain this: {fault!r})")
        raise
    finally:
        for listener in listeners:
            listener.backward_ends()


@contextmanager
def _modes_set_aside() -> Iterator[None]:
    modes = [_get_mode(i) for i in range(torch._C._len_torch_dispatch_stack())]
    ours = [mode for mode in modes if isinstance(mode, ForwardMode)]
    if not ours:
        yield
        return
    above = modes[modes.index(ours[0]) :]
    others = [mode for mode in above if not isinstance(mode, ForwardMode)]
    _exchange(above, others)
    try:
        with _PythonInBackward(ours):
            yield
    finally:
        _exchange(others, above)


def _exchange(old: list[TorchDispatchMode], new: list[TorchDispatchMode]) -> None:
    for _ in old:
        _pop_mode()
    for mode in new:
        _push_mode(mode)


class _PythonInBackward(TorchFunctionMode):
    """Puts the modes back for each of PyTorch's functions that Python calls."""

    def __init__(self, modes: list[ForwardMode]):
        self.modes = modes

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        __tracebackhide__ = True
        _exchange([], self.modes)
        try:
            return func(*args, **(kwargs or {}))
        finally:
            _exchange(self.modes, [])
