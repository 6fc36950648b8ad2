"""Which saved tensors stay where they are, whatever the policy?"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch
from torch import nn

from ._autograd import _PLAIN

_DEVICES = ("cpu", "cuda")


class Staying:
    """Storages that must stay because of whose they are, and tensors that cannot move or are not worth it.

    Args:
        min_bytes: what lies in a smaller storage stays.
    """

    def __init__(self, min_bytes: int):
        self.min_bytes = min_bytes
        self._storages: dict[int, _Reason] = {}

    def look_at(self, model: nn.Module) -> None:
        """Parameters and buffers of ``model`` stay; by storage, as a Linear saves its weight transposed."""
        for what, tensors in (("buffer", model.buffers()), ("parameter", model.parameters())):
            for tensor in tensors:
                if tensor.layout is torch.strided and type(tensor) in _PLAIN:
                    self._stays(tensor.untyped_storage(), what)

    def _stays(self, storage: torch.UntypedStorage, why: str) -> None:
        known = self._storages.get(key := storage._cdata)
        if known is None or known() is not storage:
            known = self._storages[key] = _Reason(storage, functools.partial(forget, self._storages, key))
        known.why = why

    def reason(self, tensor: torch.Tensor) -> str | None:
        """Why ``tensor`` stays; None if it may go."""
        if type(tensor) not in _PLAIN:
            return "subclass"
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type not in _DEVICES:
            return "layout or device"
        if tensor._is_zerotensor():  # what forward-mode differentiation has for "no tangent": it has no memory
            return "no memory"
        base = tensor if tensor._base is None else tensor._base
        storage = tensor.untyped_storage()
        if base.is_leaf and base.requires_grad:
            self._stays(storage, "leaf")
            return "leaf"
        if (known := self._storages.get(storage._cdata)) is not None and known() is storage:
            return known.why
        nbytes = storage.nbytes() if tensor.numel() else 0
        return "small" if nbytes < max(self.min_bytes, 1) else None


class _Reason(weakref.ref):
    """A weak reference to a storage that stays, and ``why``."""

    __slots__ = ("why",)


def forget(known: dict[Any, weakref.ref], key: Any, ref: weakref.ref) -> None:
    """Takes out what ``ref`` stood for, when that is gone; by then ``key`` may be another's."""
    if known.get(key) is ref:
        known.pop(key, None)  # another thread may have been faster
