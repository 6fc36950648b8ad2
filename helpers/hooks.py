"""Where else can saved tensors lie until backward needs them? Far away, on disk, or here in fewer bytes.

Each is a context manager for the forward pass; backward may run anywhere. They can be entered again and again, and by
several threads at once, and count what they did. Not seen by any saved-tensor hook of PyTorch: what a custom Function
puts on ``ctx`` itself, what is recorded in other threads, and what an inner pair of hooks takes.

    with offload_to_cpu(model) as hooks:
        loss = model(inputs).sum()
    loss.backward()
    hooks.bytes_written

Source: the tutorial's idea, https://docs.pytorch.org/tutorials/intermediate/autograd_saved_tensors_hooks_tutorial.html
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from ._compressing import Compressor
from ._disk_store import DiskStore
from ._far_store import FarStore
from ._ledger import hide_from_compiler
from ._offload_error import OffloadError as OffloadError
from ._packing import MIN_BYTES, Packer
from ._policy import Policy
from .display import exact_bytes


class _ToCpu(Packer):
    def _made_by(self) -> tuple:
        return offload_to_cpu, {"pin_memory": self.store.pin_memory}

    def __repr__(self) -> str:
        gained = "; nothing was gained, they were on the CPU before" if self.store.from_cpu else ""
        return f"offload_to_cpu: {_counts(self)}{gained}"


class _ToDisk(Packer):
    def _prepare(self) -> None:
        self.store.open()

    def _made_by(self) -> tuple:
        return offload_to_disk, {"folder": self.store.given_folder}

    @property
    def file_bytes(self) -> int:
        """How long the file is now, in whole pages."""
        return self.store.file_bytes

    def __repr__(self) -> str:
        return f"offload_to_disk: {_counts(self)}; the file has {exact_bytes(self.file_bytes)}"


class _Compress(Compressor):
    def _made_by(self) -> tuple:
        return compress, {"dtype": self.dtype}

    def __repr__(self) -> str:
        return f"compress to {str(self.dtype).removeprefix('torch.')}: {_counts(self)}"


def _counts(packer: Packer) -> str:
    return (
        f"{packer.packed} of {packer.packed + packer.skipped} saved tensors moved, "
        f"{exact_bytes(packer.bytes_written)} written, {exact_bytes(packer.bytes_read)} brought back, "
        f"{exact_bytes(packer.bytes_live)} there now"
    )


def offload_to_cpu(
    model: nn.Module | None = None,
    *,
    pin_memory: bool | None = None,
    min_bytes: int = MIN_BYTES,
    policy: Policy = None,
) -> Packer:
    """Moves saved tensors to the memory of the CPU, and brings each back when backward asks for it.

    Gradients are the same to the last bit, unless memory is written in a way that PyTorch does not count (``.data``,
    NumPy, the running statistics of a batch norm) between forward and backward: then backward gets what was saved,
    where without hooks it would get what was written. Give ``model`` for what is written so.

    A storage is moved once, however many saved tensors look at it, for as long as its bytes are the same (on a CUDA
    device: its version, and only of what operators have recorded). Where they are stay: leaves that require a gradient
    and views of them, and subclasses, sparse and quantised tensors. The check that PyTorch makes without hooks is made
    here: a saved tensor that was written to is a RuntimeError in backward.

    From a CUDA device copies go over a stream of their own into pinned buffers, and backward fetches the next piece
    while it works on this one. Tensors that are on a CPU are copied too: their copies lie in the same memory, but are
    far memory in the books: `MemoryTracker` counts what is near. So a laptop shows exactly what would move, and what
    would be left; nothing is gained there, as the repr says.

    Args:
        model: its parameters and buffers stay. Without it frozen parameters and buffers are moved as any other tensor.
        pin_memory: whether copies of CUDA tensors lie in pinned memory, 4 GiB at most; None is yes.
        min_bytes: what is smaller stays.
        policy: which tensors to move. A function of the (detached) tensor; or a module, or several, or their names in
            ``model``: what is saved while they run. The others go to the pair of hooks around this one, so that
            policies can be nested; without such a pair they stay.

    Returns:
        A context manager with counters: ``packed``, ``unpacked``, ``skipped`` and ``skipped_because``, ``stored``,
        ``bytes_written``, ``bytes_read``, ``bytes_live``, ``peak_bytes``.

    Raises:
        TypeError, ValueError: for a model, a min_bytes or a policy that is none.

    Example:
        >>> x = torch.randn(1000, requires_grad=True)
        >>> with offload_to_cpu(min_bytes=0) as hooks:
        ...     y = (2 * x).exp()
        >>> y.sum().backward()
        >>> hooks
        offload_to_cpu: 1 of 1 saved tensors moved, 4,000 B written, 4,000 B brought back, 0 B there now; nothing was \
gained, they were on the CPU before

    Source: torch.autograd.graph.save_on_cpu, which moves parameters too, a storage as often as it is saved, and drops
    the check.
    """
    return _ToCpu(FarStore(pin_memory), model, min_bytes, policy)


def offload_to_disk(
    folder: str | os.PathLike | None = None,
    model: nn.Module | None = None,
    *,
    min_bytes: int = MIN_BYTES,
    policy: Policy = None,
) -> Packer:
    """Moves saved tensors to one file on disk, and reads each back when backward asks for it.

    As `offload_to_cpu` in all else. The file has no name, so nothing is left behind whatever ends the process, and its
    places are used again: after a thousand steps it is as long as after one. It is open from the first ``with`` until
    this object and every graph that needs it are gone; share one object rather than make many.

    Args:
        folder: an existing folder on the disk to use; None is the system's folder for temporary files, which on some
            systems is memory.
        model, min_bytes, policy: as for `offload_to_cpu`.

    Raises:
        OffloadError: when the ``with`` is entered, if no file can be made there; in forward, if the disk is full; in
            backward, if somebody else cut the file short, wrote to it or closed it. It names folder, bytes wanted and
            bytes free. A stranger's write is told by the file's time, and so not within milliseconds of one of ours.
        TypeError, ValueError: for a folder, a model, a min_bytes or a policy that is none.

    Example:
        >>> x = torch.randn(1000, requires_grad=True)
        >>> with offload_to_disk(min_bytes=0) as hooks:
        ...     y = (2 * x).exp()
        >>> hooks.bytes_live
        4000
        >>> y.sum().backward()
        >>> hooks.bytes_live
        0

    Source: the tutorial (see the module) writes a file for each tensor with ``torch.save``.
    """
    if folder is not None and not isinstance(folder, (str, os.PathLike)):
        named = "; a model is named: offload_to_disk(model=...)" if isinstance(folder, nn.Module) else ""
        raise TypeError(
            f"folder= takes the path of an existing folder, or None for the system's; got {folder!r}{named}"
        )
    if folder is not None and (not os.fspath(folder) or "\0" in os.fspath(folder)):
        raise ValueError(f"folder= takes the path of an existing folder, such as '.'; got {folder!r}")
    return _ToDisk(DiskStore(folder), model, min_bytes, policy)


def compress(
    dtype: torch.dtype = torch.bfloat16,
    model: nn.Module | None = None,
    *,
    min_bytes: int = MIN_BYTES,
    policy: Policy = None,
) -> Packer:
    """Keeps saved floating-point tensors in a lower precision. Gradients change: measure by how much.

    As `offload_to_cpu` in all else. Whole numbers, booleans, complex tensors and those that are as small already stay;
    so do those with an element that ``dtype`` cannot hold (an infinity, or 70,000 in float16).

    Args:
        dtype: ``torch.bfloat16`` (8 bits of precision), ``torch.float16`` (11), or ``torch.int8``: whole numbers from
            -127 to 127 with a float32 scale for each 256 elements.
        model, min_bytes, policy: as for `offload_to_cpu`.

    Raises:
        TypeError, ValueError: for a dtype, a model, a min_bytes or a policy that is none.

    Example:
        >>> x = torch.randn(1000, requires_grad=True)
        >>> with compress(min_bytes=0) as hooks:
        ...     y = (2 * x).exp()
        >>> hooks.bytes_live
        2000

    Source: https://arxiv.org/abs/2110.02861 for the scales; the idea for activations is in
    https://arxiv.org/abs/2104.14129 (ActNN).
    """
    return _Compress(dtype, model, min_bytes, policy)


class WithSavedTensorHooks(nn.Module):
    """Runs a module under saved-tensor hooks, entered anew in each forward and thread.

    Hooks belong to a thread, so a ``with`` around `DataParallel` does not reach the threads that it starts; this module
    inside of it does. Whatever comes in is passed on, whatever comes out is passed back.

    Args:
        module: any module. Its parameters are named ``module.<name>`` here, as in DataParallel.
        hooks: a function without arguments that makes a context manager (``lambda: offload_to_disk(folder, model)``, or
            ``torch.autograd.graph.save_on_cpu``); or one object of `offload_to_cpu`, `offload_to_disk` or `compress`,
            to be shared by all calls, which then has the counters of all.

    Raises:
        TypeError: for something else.

    Example:
        >>> hooks = offload_to_cpu()
        >>> model = nn.Sequential(nn.Linear(64, 64), WithSavedTensorHooks(nn.Linear(64, 64), hooks))
        >>> model(torch.randn(256, 64)).sum().backward()
        >>> hooks.bytes_written  # the input of the second layer
        65536

    Source: the wrapper of one layer in the tutorial (see the module).
    """

    def __init__(
        self, module: nn.Module, hooks: Packer | Callable[[], AbstractContextManager] | type[AbstractContextManager]
    ):
        super().__init__()
        if not isinstance(module, nn.Module):
            raise TypeError(f"WithSavedTensorHooks wraps an nn.Module; got {module!r}")
        if not isinstance(hooks, Packer) and not callable(hooks):
            raise TypeError(
                f"hooks= takes a function that makes a context manager, such as `lambda: offload_to_cpu(model)`, or "
                f"one such object of this module; got {hooks!r}"
            )
        self.module = module
        self.hooks = hooks

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        hooks = self.hooks if isinstance(self.hooks, Packer) else self.hooks()
        if not hasattr(hooks, "__enter__"):
            raise TypeError(f"hooks() of WithSavedTensorHooks must make a context manager; it returned {hooks!r}")
        with hooks:
            return self.module(*args, **kwargs)


if hide_from_compiler is not None:  # or a compiled model would compile what its own operators call, and fail
    for _called in (WithSavedTensorHooks.forward, Packer.__enter__, Packer.__exit__, Packer._pack, Packer._unpack):
        hide_from_compiler(_called)
