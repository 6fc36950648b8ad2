"""How does a model run without memory? A twin of it with the same shapes, and an account of what stops such a run."""

from __future__ import annotations

import copy
import logging
import traceback
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from ._graph_records import dtype_text, shape_text
from ._source import READER, Place, kind_of, place

_WITHOUT_VALUES = (DataDependentOutputException, DynamicOutputShapeException)
_NO_DATA = ("not allocated yet", "data pointer", "numpy()", "tolist()")
_LOG = logging.getLogger("torch._subclasses.fake_tensor")


class Twins:
    """Makes tensors that claim to lie on a CPU and hold nothing; one storage has one twin, so views stay views."""

    def __init__(self, mode: FakeTensorMode):
        self.mode = mode
        self._storages: dict[StorageWeakRef, torch.UntypedStorage] = {}

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return FakeTensor(self.mode, torch.empty(shape, dtype=dtype, device="meta"), torch.device("cpu"))

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The twin of ``tensor``, wherever that lies: same shape, strides, dtype, and a leaf where it is one."""
        if tensor.layout is not torch.strided or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return self.mode.from_tensor(tensor)
        storage = tensor.untyped_storage()
        key = StorageWeakRef(storage)
        if key not in self._storages:
            self._storages[key] = torch.UntypedStorage(storage.nbytes(), device="meta")
        shape = torch.empty(0, dtype=tensor.dtype, device="meta")
        shape.set_(self._storages[key], tensor.storage_offset(), tensor.shape, tensor.stride())
        twin = FakeTensor(self.mode, shape, torch.device("cpu"))
        if isinstance(tensor, torch.nn.Parameter):
            twin._is_param = True  # what nn.Parameter sets on a subclass, without its detach of each
        return twin.requires_grad_(tensor.requires_grad)

    def of_all(self, things: Any) -> Any:
        return tree_map(lambda thing: self.of(thing) if isinstance(thing, torch.Tensor) else thing, things)

    def of_model(self, model: torch.nn.Module) -> torch.nn.Module:
        """A copy of ``model`` whose tensors are twins, also those that are neither parameters nor buffers.

        Raises:
            TypeError: when something in the model cannot be copied.
            ValueError: when a lazy module has no shapes yet.
        """
        if any(torch.nn.parameter.is_lazy(t) for t in (*model.parameters(), *model.buffers())):
            raise ValueError(
                f"a lazy module in this {type(model).__name__} has no shapes yet: run it on one input first"
            )
        memo = {id(t): self.of(t) for t in (*model.parameters(), *model.buffers())}
        try:
            with _Copies(self):
                return copy.deepcopy(model, memo)
        except Exception as error:
            raise TypeError(
                f"cannot copy this {type(model).__name__} to run it without memory ({type(error).__name__}: {error}); "
                "take out what copy.deepcopy does not copy, or measure it: saved_tensors(lambda: model(x), model)"
            ) from error


class _Copies(TorchFunctionMode):
    """Answers each tensor's ``__deepcopy__`` with its twin."""

    def __init__(self, twins: Twins):
        super().__init__()
        self.twins = twins

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func is torch.Tensor.__deepcopy__:
            tensor, memo = args
            if id(tensor) not in memo:
                memo[id(tensor)] = self.twins.of(tensor)
            return memo[id(tensor)]
        if func is torch.Tensor.clone:  # how an nn.Parameter that is not registered copies itself
            return self.twins.of(args[0])
        return func(*args, **(kwargs or {}))


def told(tensors: list[tuple[str, torch.Tensor]]) -> str:
    """``input [2, 3] float32, mask [3] bool``."""
    return ", ".join(f"{name} {shape_text(t.shape)} {dtype_text(t.dtype)}" for name, t in tensors)


class Explained:
    """Notes the inputs on an error of the model's own, and says what to do where the run needs values.

    A class, as a generator would make a RuntimeError of the model's own StopIteration.
    """

    def __init__(self, model: torch.nn.Module, inputs: str):
        self.head = f"{type(model).__name__} on {inputs}"

    def __enter__(self) -> None:
        self._was = _LOG.disabled
        _LOG.disabled = True  # it prints the whole trace of an error that is about to be told

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        _LOG.disabled = self._was
        if not isinstance(error, Exception):
            return
        where = _reader_line(error)
        at = f" at {where}" if where else ""
        instead = "Measure a run instead: saved_tensors(lambda: model(x), model)."
        if isinstance(error, _WITHOUT_VALUES):
            raise RuntimeError(
                f"{self.head}: its forward depends on the values of a tensor{at} ({error.func}), and a prediction has "
                f"shapes alone. {instead}"
            ) from error
        if isinstance(error, UnsupportedOperatorException):
            raise RuntimeError(f"{self.head}: {error.func} has no shape function{at}. {instead}") from error
        if isinstance(error, RuntimeError) and any(word in str(error) for word in _NO_DATA):
            raise RuntimeError(
                f"{self.head}: its forward reads the values of a tensor{at}, which a prediction has not. {instead}"
            ) from error
        error.add_note(f"predict_saved: {self.head}{at}")


def _reader_line(error: BaseException) -> Place | None:
    """The reader's own innermost line on the error's way."""
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if kind_of(frame.f_code.co_filename) == READER:
            found = frame.f_code, line
    return place(found)
