"""Which storages lie under these tensors and arrays, and whose are they? Looked up without leaving a trace."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ._overlap import checked, has_memory, parts_of, start_of

LENT = "torch or NumPy (lent)"
LENT_NOTE = "lent: passed between PyTorch and NumPy, and no tensor can tell which of them owns the bytes"


@dataclass
class Memory:
    """One storage of PyTorch, or the memory under one NumPy array.

    Attributes:
        letter: A, B, C for the storages in order of appearance; a, b, c for the memory of arrays, which is no storage.
        owner: whose bytes they are, as far as anyone can know.
        nbytes: its size.
        others: how it lies to another which holds some of the same bytes ("the same bytes as A"): of an array, to a
            storage where there is one, and then ``in_storage`` is true.
        address: of its first byte; for comparing, never for showing.
        held: a weak reference, which tells a living storage from another that got its address.
    """

    letter: str
    owner: str
    nbytes: int
    device: str
    address: int
    held: Any = field(repr=False)
    others: str = ""
    is_storage: bool = True
    in_storage: bool = False

    def meets(self, other: Memory) -> bool:
        """Whether the two lie over some of the same bytes, which makes them one place with two names."""
        ends = min(self.address + self.nbytes, other.address + other.nbytes)
        return self.device == other.device and max(self.address, other.address) < ends


@dataclass
class Seen:
    """What is known about one tensor or array. ``None`` is what does not apply: an array has no version.

    Attributes:
        offset: elements before its first, from the start of its storage.
        stride: elements to the next of each dimension.
        base: the name of the one among them of which this is a view; "a tensor not shown here" if it is of another; or
            "none".
    """

    name: str
    thing: Any = field(repr=False)
    memories: list[Memory]
    offset: Any
    shape: tuple[int, ...]
    stride: Any
    dtype: str
    contiguous: bool | None
    leaf: bool | None
    requires_grad: bool | None
    version: int | None
    base: str


def named_things(things: Iterable[Any], named: dict[str, Any], asker: str) -> dict[str, Any]:
    """Names for all: those of the keywords, and t1, t2, ... for what came without."""
    found = {f"t{number}": thing for number, thing in enumerate(things, 1)}
    both = sorted(found.keys() & named.keys())
    if both:
        raise ValueError(f"{asker}() calls what comes without a name t1, t2, ...: {both[0]} is taken, use another name")
    found |= named
    if not found:
        raise TypeError(f"{asker}() has nothing to look at: pass tensors or arrays, best by name, as {asker}(x=x, y=y)")
    for name, thing in found.items():
        checked(thing, name)
    return found


def look(things: dict[str, Any]) -> list[Seen]:
    """Finds the storages and the arrays' memory under ``things`` and letters them in order of appearance."""
    keys: list[Any] = []  # the living storages and arrays themselves: compared by identity, let go at the end
    memories: list[Memory] = []
    seen = []
    for name, thing in things.items():
        own = []
        for key, address in _under(thing):
            known = next((m for k, m in zip(keys, memories) if k is key), None)
            if known is None:
                is_array = isinstance(key, np.ndarray)
                letter = _letter(sum(m.is_storage != is_array for m in memories))
                known = _memory(letter.lower() if is_array else letter, key, address)
                keys.append(key)
                memories.append(known)
            if known not in own:
                own.append(known)
        seen.append(_seen(name, thing, own, things))
    for number, memory in enumerate(memories):
        memory.others = _others(memory, memories, number)
    for memory in memories:  # what one storage cannot know, an array beside it may tell
        if memory.owner == LENT:
            memory.owner = next((m.owner for m in memories if m.owner != LENT and m.meets(memory)), LENT)
    return seen


def _letter(number: int) -> str:
    first, last = divmod(number, 26)
    return (_letter(first - 1) if first else "") + chr(ord("A") + last)


def _others(memory: Memory, memories: list[Memory], number: int) -> str:
    """How ``memory`` lies to one before it; an array to any storage, best to one of just the same bytes."""
    if memory.is_storage:
        return next((_relation(memory, m) for m in memories[:number] if m.is_storage and m.meets(memory)), "")
    storages = [m for m in memories if m.is_storage and m.meets(memory)]
    if storages:
        memory.in_storage = True
        same = next((m for m in storages if (m.address, m.nbytes) == (memory.address, memory.nbytes)), storages[0])
        return _relation(memory, same).replace("the same bytes as", "the bytes of")
    return next((_relation(memory, m) for m in memories[:number] if m.meets(memory)), "")


def _relation(new: Memory, old: Memory) -> str:
    if (new.address, new.nbytes) == (old.address, old.nbytes):
        return f"the same bytes as {old.letter}"
    end, old_end = new.address + new.nbytes, old.address + old.nbytes
    if old.address <= new.address and end <= old_end:
        return f"part of the bytes of {old.letter}"
    if new.address <= old.address and old_end <= end:
        return f"the bytes of {old.letter} and more"
    return f"some of the bytes of {old.letter}"


def _under(thing: Any) -> list[tuple[Any, int]]:
    """The storages, or the root array, which hold the bytes, and where they start. Empty and meta things have none."""
    if isinstance(thing, torch.Tensor):
        storages = []
        for part in parts_of(thing):
            try:
                if has_memory(part):
                    storages.append((part.untyped_storage(), start_of(part)))
            except (NotImplementedError, RuntimeError):
                pass  # an MKL-DNN tensor, or one inside torch.func: there is memory, but no storage to point at
        return storages
    array, base = thing, thing.base
    while base is not None:
        base = getattr(base, "base", None) if type(base).__name__ == "DummyArray" else base  # left by as_strided()
        if not isinstance(base, np.ndarray):
            break
        array, base = base, base.base
    if isinstance(base, torch.Tensor):  # made by tensor.numpy()
        return [(base.untyped_storage(), start_of(base))] if has_memory(base) else []
    return [(array, np.lib.array_utils.byte_bounds(array)[0])] if array.nbytes else []


def _memory(letter: str, key: Any, address: int) -> Memory:
    if isinstance(key, np.ndarray):
        low, high = np.lib.array_utils.byte_bounds(key)
        base = key.base.obj if isinstance(key.base, memoryview) else key.base
        owner = "NumPy" if key.flags.owndata else type(base).__name__
        return Memory(letter, owner, high - low, "cpu", address, weakref.ref(key), is_storage=False)
    # resizable() is the only trace of an owner: from_numpy() makes a storage that is not, and numpy() makes it so.
    owner = "torch" if key.resizable() else LENT
    return Memory(letter, owner, key.nbytes(), str(key.device), address, weakref.ref(key))


def _seen(name: str, thing: Any, own: list[Memory], things: dict[str, Any]) -> Seen:
    if isinstance(thing, np.ndarray):
        start = thing.__array_interface__["data"][0] - own[0].address if own else 0
        steps = [_in_elements(step, thing.itemsize) for step in thing.strides]
        return Seen(
            name,
            thing,
            own,
            offset=_in_elements(start, thing.itemsize),
            shape=thing.shape,
            stride=tuple(steps),
            dtype=str(thing.dtype),
            contiguous=thing.flags.c_contiguous,
            leaf=None,
            requires_grad=None,
            version=None,
            # what tensor.numpy() made stands on an alias of the tensor, which nobody can have named
            base="a tensor" if isinstance(thing.base, torch.Tensor) else _name_of(thing.base, things),
        )
    strided = thing.layout is torch.strided and not thing.is_nested
    return Seen(
        name,
        thing,
        own,
        offset=thing.storage_offset() if strided else None,
        shape=tuple(thing.shape) if not thing.is_nested else (thing.size(0), "nested"),
        stride=tuple(thing.stride()) if strided else None,
        dtype=str(thing.dtype).removeprefix("torch."),
        contiguous=thing.is_contiguous() if strided else None,
        leaf=thing.is_leaf,
        requires_grad=thing.requires_grad,
        version=None if thing.is_inference() else thing._version,
        base=_name_of(thing._base, things),
    )


def _in_elements(nbytes: int, itemsize: int) -> int | str:
    count, rest = divmod(nbytes, itemsize) if itemsize else (0, 0)
    return f"{nbytes} B" if rest else count  # a field of a structured array starts between two elements


def _name_of(base: Any, things: dict[str, Any]) -> str:
    if base is None:
        return "none"
    tensor = "a tensor" if isinstance(base, torch.Tensor) else f"a {type(base).__name__}"
    kind = "an array" if isinstance(base, np.ndarray) else tensor
    return next((name for name, thing in things.items() if thing is base), f"{kind} not shown here")
