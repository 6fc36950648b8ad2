"""Which saved tensors does a pair of hooks take? By a function of the tensor, or by the module that is running."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from ._locks import new_lock

Policy = Callable[[torch.Tensor], bool] | nn.Module | str | Iterable[nn.Module | str] | None


class Choice:
    """A policy, and where in the model each thread is.

    Modules are asked by forward hooks on them, for as long as anybody is inside; replicas, which share the hooks of the
    module that they were made from, count as that module.
    """

    def __init__(self, policy: Policy, model: nn.Module | None):
        self._chooses, self._modules = _read_policy(policy, model)
        self._here = threading.local()  # .depth: in how many of the modules this thread is
        self._lock = new_lock()
        self._inside, self._handles = 0, []

    @property
    def policy(self) -> Policy:
        """The policy, with modules for their names."""
        return self._chooses if self._modules is None else self._modules

    def enter(self, *, outermost: bool) -> None:
        """From now on modules are listened to; ``outermost`` if this thread was not inside before."""
        if self._modules is None:
            return
        if outermost:
            self._here.depth = 0
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                enter, leave = _ModuleHook(self._enter_module), _ModuleHook(self._leave_module)
                for module in self._modules:
                    self._handles.append(module.register_forward_pre_hook(enter))
                    self._handles.append(module.register_forward_hook(leave, always_call=True))

    def leave(self) -> None:
        """The opposite of `enter`."""
        if self._modules is None:
            return
        with self._lock:
            self._inside -= 1
            while self._inside == 0 and self._handles:
                self._handles.pop().remove()

    def takes(self, tensor: torch.Tensor) -> bool:
        """Whether ``tensor``, which is being saved by this thread, is one to take."""
        if self._modules is not None and getattr(self._here, "depth", 0) < 1:
            return False
        if self._chooses is None:
            return True
        with torch.no_grad():  # else what it computes would be saved, and asked about in turn
            answer = self._chooses(tensor.detach())
        if isinstance(answer, torch.Tensor) and answer.numel() != 1:
            raise TypeError(
                f"policy has to say whether to move a tensor, True or False; it returned a tensor of shape "
                f"{tuple(answer.shape)}. Make one answer of it, as with .any() or .all()"
            )
        return bool(answer)

    def _enter_module(self, module: nn.Module, args: Any) -> None:
        self._here.depth = getattr(self._here, "depth", 0) + 1

    def _leave_module(self, module: nn.Module, args: Any, out: Any) -> None:
        # It runs also where a hook of the module raised before `_enter_module` could.
        self._here.depth = max(getattr(self._here, "depth", 0) - 1, 0)


class _ModuleHook:
    """A hook on a module, of which a copy of the module gets one that does nothing: nobody is inside the copy."""

    def __init__(self, call: Callable):
        self._call = call

    def __call__(self, *args: Any) -> None:
        self._call(*args)

    def __reduce__(self) -> tuple:
        return _ModuleHook, (_nothing,)


def _nothing(*args: Any) -> None:
    """What the hook on a copy calls."""


def _read_policy(policy: Policy, model: nn.Module | None) -> tuple[Callable | None, list[nn.Module] | None]:
    """(Which tensors, in which modules); None is all."""
    if policy is None:
        return None, None
    if isinstance(policy, (nn.Module, str)):
        policy = [policy]
    elif callable(policy):
        return policy, None
    try:
        chosen = list(policy)
    except TypeError:
        chosen = [policy]
    modules = []
    for item in chosen:
        if isinstance(item, str):
            names = [] if model is None else [name for name, _ in model.named_modules()]
            if item not in names:
                shown = ", ".join(map(repr, names[1:9])) + (", ..." if len(names) > 9 else "")
                where = f"the model has {shown}" if model is not None else "names need the model: give model="
                raise ValueError(f"policy names a module {item!r}; {where}")
            item = model.get_submodule(item)
        if not isinstance(item, nn.Module):
            raise TypeError(
                f"policy takes a function of a tensor that returns whether to move it, or modules, or their names; got "
                f"{item!r}"
            )
        modules.append(item)
    return None, modules
