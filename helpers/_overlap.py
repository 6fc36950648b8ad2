"""Which bytes does a tensor or an array reach, and do two of them reach the same one? Asked of addresses alone."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ._autograd import _PARTS

MAX_WORK = 10_000_000  # candidate solutions that NumPy may try for one pair; about a second
# Where a tensor's storage starts. Storage.data_ptr() counts as a write, and would end a copy-on-write alias.
start_of = getattr(torch._C, "_data_address", lambda tensor: tensor.untyped_storage().data_ptr())


@dataclass(frozen=True)
class Region:
    """Elements laid out over memory: the address of the first, the bytes of one, the shape, the strides in bytes."""

    device: str
    address: int
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def extent(self) -> tuple[int, int]:
        """The first address that is reached, and the one after the last."""
        reach = [(size - 1) * stride for size, stride in zip(self.shape, self.strides)]
        low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
        return self.address + low, self.address + high + self.itemsize


def checked(thing: Any, role: str) -> Any:
    """``thing``, if it is a tensor or an array; otherwise a TypeError which says what came and what to pass."""
    if isinstance(thing, (torch.Tensor, np.ndarray)):
        return thing
    if isinstance(thing, (torch.UntypedStorage, torch.storage.TypedStorage)):
        advice = "pass a tensor that lies over it"
    elif isinstance(thing, torch.nn.Module):
        advice = "pass its parameters, such as model.weight"
    elif isinstance(thing, (list, tuple, dict, set)):
        advice = "pass what is in it, one by one"
    else:
        advice = "a plain number or object owns no tensor memory"
    raise TypeError(f"{role} is {_article(type(thing).__name__)}, not a torch.Tensor or a numpy.ndarray: {advice}")


def _article(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def parts_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The strided tensors that hold the elements: itself, or the parts of a sparse, nested or wrapper tensor."""
    if type(tensor) is not torch.Tensor and is_traceable_wrapper_subclass(tensor):
        return [p for name in tensor.__tensor_flatten__()[0] for p in parts_of(getattr(tensor, name))]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sparse CSR and nested tensors announce that they are in beta
        if tensor.layout in _PARTS:
            return [p for part in _PARTS[tensor.layout] for p in parts_of(getattr(tensor, part)())]
        if tensor.is_nested:
            return list(tensor.unbind())
    return [tensor]


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether bytes were given to the storage: not on meta, not in a fake tensor, not once it is resized to nothing."""
    storage = tensor.untyped_storage()
    return storage.device.type != "meta" and storage.nbytes() > 0


def lacks_address(part: torch.Tensor) -> bool:
    """Whether a strided tensor with elements does not tell where they lie: in ``torch.func``, or a fake tensor."""
    if part.layout is not torch.strided or not part.numel():
        return False
    try:
        return part.untyped_storage().device.type == "meta" != part.device.type
    except (NotImplementedError, RuntimeError):
        return True


def no_address(thing: Any, role: str) -> TypeError:
    return TypeError(
        f"{role} is {_article(type(thing).__name__)} of layout {thing.layout}, whose memory has no address: "
        "pass x.to_dense() for an MKL-DNN tensor, and ask outside of torch.func's grad and vmap and of FakeTensorMode"
    )


def regions_of(thing: torch.Tensor | np.ndarray, role: str) -> list[Region]:
    """What ``thing`` reaches; nothing for an empty or meta tensor.

    Raises:
        TypeError: the memory cannot be addressed from Python (MKL-DNN and fake tensors, those in ``torch.func``).
    """
    if isinstance(thing, np.ndarray):
        address = thing.__array_interface__["data"][0]
        return [Region("cpu", address, thing.itemsize, thing.shape, thing.strides)] if thing.nbytes else []
    found = []
    for part in parts_of(thing):
        if not part.numel():
            continue
        if lacks_address(part):
            raise no_address(thing, role)
        try:
            if not has_memory(part):
                continue
            size = part.element_size()
            address = start_of(part) + part.storage_offset() * size
            strides = tuple(step * size for step in part.stride())
        except (NotImplementedError, RuntimeError) as error:
            raise no_address(thing, role) from error
        found.append(Region(str(part.device), address, size, tuple(part.shape), strides))
    return found


class _Addresses:
    """Makes NumPy see a region of untyped bytes without touching any of them."""

    def __init__(self, region: Region):
        # A dimension of size 1 or stride 0 reaches nothing new; without it NumPy's limits on shapes are never met.
        kept = [(size, stride) for size, stride in zip(region.shape, region.strides) if size > 1 and stride]
        self.__array_interface__ = {
            "version": 3,
            "data": (region.address, True),
            "shape": tuple(size for size, _ in kept),
            "strides": tuple(stride for _, stride in kept),
            "typestr": f"|V{region.itemsize}",
        }


def overlap(a: Region, b: Region) -> bool:
    """Whether a byte is reached by both; exact, from integers alone, so also for addresses on a GPU.

    Raises:
        RuntimeError: the strides are so tangled that the answer would take more than `MAX_WORK` attempts.
    """
    if a.device != b.device:  # equal addresses of two devices are two places
        return False
    if max(a.extent[0], b.extent[0]) >= min(a.extent[1], b.extent[1]):
        return False
    if a.address == b.address:  # the first elements meet, whatever the strides
        return True
    try:
        return bool(np.shares_memory(np.asarray(_Addresses(a)), np.asarray(_Addresses(b)), max_work=MAX_WORK))
    except (np.exceptions.TooHardError, ValueError) as error:  # ValueError: more elements than NumPy can count
        raise RuntimeError(
            f"whether shape {a.shape} with strides {a.strides} and shape {b.shape} with strides {b.strides} (in bytes) "
            f"meet in a byte was not settled within {MAX_WORK:,} attempts: ask about smaller slices of the two, "
            "or compare x.untyped_storage() if it is enough that they lie in one storage"
        ) from error
