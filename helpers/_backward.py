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

    @staticmethod
    def call(func: Any, args: tuple, kwargs: dict | None) -> Any:
        """Runs an operator so that it does what it does without a mode; two kinds do something else inside one."""
        kind = _kinds.get(id(func))
        if kind is None:
            kind = _kinds[id(func)] = _kind_of(func)
            _asked.append(func)
        if kind == _ON_LISTS:
            return _counted(func, args, kwargs or {})
        if kind == _COMPOSED and any(isinstance(arg, torch.Tensor) and arg.is_complex() for arg in args):
            excluded = torch._C._dispatch_tls_local_exclude_set()
            for key in _LAZY_BITS:
                excluded = excluded.remove(key)
            with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
                return func(*args, **(kwargs or {}))
        return func(*args, **kwargs) if kwargs else func(*args)


def _counted(func: Any, args: tuple, kwargs: dict) -> Any:
    """Operators on lists, which optimizers step with, are loops of operators on tensors on a CPU.

    Inside a mode such a loop passes by PyTorch's own version counter, and its check would miss every step.
    """
    before = [None if tensor.is_inference() else tensor._version for tensor in args[0]]
    out = func(*args, **kwargs)
    for tensor, version in zip(args[0], before):
        if version is not None and tensor._version == version:
            torch.autograd.graph.increment_version(tensor)
    return out


# Inside a mode PyTorch does not look at the bits that say "conjugate me" and "negate me", and operators that are
# composed of others, `linalg_pinv` for one, set them on the way: with complex numbers their results would be wrong.
_LAZY_BITS = (torch._C.DispatchKey.Conjugate, torch._C.DispatchKey.Negative)
_ORDINARY, _ON_LISTS, _COMPOSED = range(3)
_kinds: dict[int, int] = {}  # by id of the operator, as its own hash is slow
_asked: list[Any] = []  # the operators themselves, so that no other can get the id of one


def _kind_of(func: Any) -> int:
    if not isinstance(func, torch._ops.OpOverload):
        return _ORDINARY
    name, arguments = func.name(), func._schema.arguments
    if name.startswith("aten::_foreach_"):
        writes = arguments[0].alias_info is not None and arguments[0].alias_info.is_write
        return _ON_LISTS if writes else _ORDINARY
    has_kernel = torch._C._dispatch_has_kernel(name)  # some of TorchScript's have none, and must not be asked for more
    composes = torch._C._dispatch_has_kernel_for_dispatch_key
    composed = has_kernel and any(composes(name, f"CompositeExplicitAutograd{kind}") for kind in ("", "NonFunctional"))
    return _COMPOSED if composed else _ORDINARY


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
