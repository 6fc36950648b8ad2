"""Who shares memory with whom? Three questions, a card and a picture, for tensors and NumPy arrays in any mix.

The questions are different, and their answers differ: two slices ``x[::2]`` and ``x[1::2]`` lie in one storage and have
not one byte in common; two tensors imported from one NumPy array have every byte in common and two storages; ``x`` and
``x.data`` have all in common but the version counter. Asking changes nothing: no version, no graph, no storage.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ._autograd import storages_of
from ._memory_map import LENT, LENT_NOTE, Memory, Seen, look, named_things
from ._overlap import checked, lacks_address, no_address, overlap, parts_of, regions_of
from .display import Picture, Table, exact_bytes

__all__ = ["Cards", "describe", "draw_storage", "same_storage", "shares_memory", "shares_version_counter"]


def same_storage(a: torch.Tensor | np.ndarray, b: torch.Tensor | np.ndarray) -> bool:
    """Returns whether one PyTorch storage lies under both, whichever elements of it they reach.

    The question to ask when you want to know what keeps memory alive, or what a saved file will hold.

    A tensor without elements, and one on the meta device, has no memory and shares none. A NumPy array has no storage
    of PyTorch's, so the answer is False: ask `shares_memory`. A sparse, nested or wrapper tensor has several storages;
    one in common is enough.

    Example:
        >>> x = torch.arange(6)
        >>> same_storage(x[:3], x[3:]), same_storage(x, x.clone())
        (True, False)

    Raises:
        TypeError: one of them is neither a tensor nor an array, or is a fake tensor or one inside ``torch.func``.
    """
    ours, theirs = ({s._cdata for s in _live_storages(checked(t, r), r)} for t, r in ((a, "a"), (b, "b")))
    return not ours.isdisjoint(theirs)


def _live_storages(thing: torch.Tensor | np.ndarray, role: str) -> list[torch.UntypedStorage]:
    if isinstance(thing, np.ndarray) or not thing.numel():
        return []
    if any(map(lacks_address, parts_of(thing))):
        raise no_address(thing, role)
    return [s for s in storages_of(thing) if s.device.type != "meta" and s.nbytes()]


def shares_memory(a: torch.Tensor | np.ndarray, b: torch.Tensor | np.ndarray) -> bool:
    """Returns whether any byte belongs to an element of both: whether a write to one can show in the other.

    The question to ask before an in-place write. Exact at the level of elements, as ``numpy.shares_memory``:
    interleaved slices do not share although their address ranges do, and two tensors from one NumPy array share
    although their storages differ. Only addresses are compared, no memory is read, so it costs the same on a GPU;
    memory of two devices is never shared. Of a sparse, nested or wrapper tensor all parts count, indices too.

    Example:
        >>> x = torch.arange(6)
        >>> shares_memory(x, x[::2]), shares_memory(x[::2], x[1::2])
        (True, False)
        >>> shares_memory(x, x.numpy()[::-1])
        True

    Raises:
        TypeError: one of them is neither a tensor nor an array, or its memory cannot be addressed from Python.
        RuntimeError: the strides are so tangled that an exact answer would take more than 10,000,000 attempts (about a
            second). Ordinary views, whatever their dimensions, are settled at once.
    """
    ours, theirs = (regions_of(checked(t, r), r) for t, r in ((a, "a"), (b, "b")))
    return any(overlap(one, other) for one in ours for other in theirs)


def shares_version_counter(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Returns whether a write to one is counted for the other: whether autograd will notice it.

    The question to ask when a gradient is silently wrong. Views and ``detach()`` share the counter of their base;
    ``.data`` and a second import of a NumPy array share the memory only. The counter of ``a`` is moved by one, that of
    ``b`` is read, and both are put back, so nothing is left to see (another thread could see it for microseconds).

    Example:
        >>> x = torch.ones(3)
        >>> shares_version_counter(x, x.detach()), shares_version_counter(x, x.data)
        (True, False)

    Raises:
        TypeError: one of them is not a tensor; NumPy arrays have no version counter.
        RuntimeError: one of them is an inference tensor, which has no version counter either.
    """
    for tensor, role in ((a, "a"), (b, "b")):
        if isinstance(checked(tensor, role), np.ndarray):
            raise TypeError(
                f"{role} is a numpy.ndarray, and NumPy arrays have no version counter: nothing that is written through "
                f"one is ever counted. Ask shares_memory({'array, tensor' if role == 'a' else 'tensor, array'}) instead"
            )
        if tensor.is_inference():
            raise RuntimeError(
                f"{role} was made under torch.inference_mode() and has no version counter: clone it outside of that "
                "mode, or make it under torch.no_grad()"
            )
    before = a._version
    if b._version != before:
        return False
    try:
        torch.autograd.graph.increment_version(a)
        return b._version != before
    finally:
        torch._C._autograd._unsafe_set_version_counter((a,), (before,))


class Cards(Table):
    """What `describe` returns: a column for each tensor or array, a row for each fact.

    Attributes:
        facts: name -> fact -> value, as Python values; None where a fact does not apply.
    """

    def __init__(self, facts: dict[str, dict[str, Any]], caption: str):
        self.facts = facts
        lines = next(iter(facts.values()))
        rows = [[line, *(_shown(card[line]) for card in facts.values())] for line in lines]
        super().__init__(["", *facts], rows, caption=caption)


def describe(*tensors: torch.Tensor | np.ndarray, **named: torch.Tensor | np.ndarray) -> Cards:
    """Returns a card for each tensor or array: where its elements lie, how it counts to autograd, whose bytes they are.

    Storages get letters in order of appearance; equal letters are one storage. Where two letters lie over the same
    bytes (a NumPy array imported twice) the card says so. A NumPy array has no storage, and its card says whose bytes
    it reads: "none: the bytes of A", or "none: bytes a" where no tensor among those given lies over them. Offset and
    stride count elements, also for NumPy arrays.
    Nothing on a card changes from run to run, and nothing described is kept alive.

    Args:
        tensors: called t1, t2, ... in the order given.
        named: called by their keyword.

    Example:
        >>> x = torch.arange(12.).view(3, 4)
        >>> describe(x=x, row=x[1], copy=x[1].clone())
        3 tensors in 2 storages
                       x        row   copy
        storage        A        A     B
        offset         0        4     0
        shape          (3, 4)   (4,)  (4,)
        stride         (4, 1)   (1,)  (1,)
        dtype          float32  ...

    Owner is "torch" where PyTorch made the storage and may resize it, "NumPy" where an array among those given owns
    the bytes, else "torch or NumPy (lent)": once bytes have passed between the two, no tensor can tell whose they are.

    Raises:
        TypeError: one of them is neither a tensor nor an array, or nothing was given.
    """
    things = named_things(tensors, named, "describe")
    seen = look(things)
    letters = {m.letter for s in seen for m in s.memories if m.is_storage}
    nouns = {_noun(t) for t in things.values()}
    noun = nouns.pop() if len(nouns) == 1 else "tensors and array"
    caption = f"{_count(len(seen), noun)} in {_count(len(letters), 'storage') if letters else 'no storage'}"
    if any(m.owner == LENT for s in seen for m in s.memories):
        caption += f" ({LENT_NOTE})"
    return Cards({s.name: _card(s) for s in seen}, caption)


def _noun(thing: Any) -> str:
    return "array" if isinstance(thing, np.ndarray) else "tensor"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _card(seen: Seen) -> dict[str, Any]:
    memories, is_array = seen.memories, isinstance(seen.thing, np.ndarray)
    return {
        "storage": _storage(seen),
        "offset": seen.offset,
        "shape": seen.shape,
        "stride": seen.stride,
        "dtype": seen.dtype,
        "contiguous": seen.contiguous,
        "leaf": seen.leaf,
        "requires_grad": seen.requires_grad,
        "version": seen.version,
        "base": seen.base,
        "owner": ", ".join(dict.fromkeys(m.owner for m in memories)) or "none",
        "storage bytes": None if is_array or _opaque(seen.thing) else exact_bytes(sum(m.nbytes for m in memories)),
    }


def _storage(seen: Seen) -> str:
    def told(memory: Memory, before: str = "") -> str:
        return before + memory.letter + (f" ({memory.others})" if memory.others else "")

    if isinstance(seen.thing, np.ndarray) and seen.memories:
        (memory,) = seen.memories
        if memory.is_storage:
            return f"none: the bytes of {memory.letter}"
        return f"none: {memory.others if memory.in_storage else told(memory, 'bytes ')}"
    if seen.memories:
        return ", ".join(map(told, seen.memories))
    if isinstance(seen.thing, torch.Tensor) and seen.thing.device.type == "meta":
        return "none (meta)"
    if isinstance(seen.thing, torch.Tensor) and _opaque(seen.thing):
        return "none (no address here)" if lacks_address(seen.thing) else "none (opaque)"
    return "none (empty)"


def _opaque(thing: Any) -> bool:
    """Memory that no storage stands for, at least not one that could be asked here."""
    return isinstance(thing, torch.Tensor) and (thing.layout is torch._mkldnn or lacks_address(thing))


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def draw_storage(
    *tensors: torch.Tensor | np.ndarray, before: Picture | None = None, **named: torch.Tensor | np.ndarray
) -> Picture:
    """Returns the picture: memory as a strip of cells, and above it what each tensor or array reads of it, and how.

    Every row shows one tensor: at the left its logical shape with its values; at the right, in place over the strip,
    the cells it reads, each with the (row, column) it has there, and arrows for the offset and the stride of each
    dimension. Green cells are read by two or more. Storages over the same bytes are drawn as one strip. A cell is as
    wide as the smallest element, so a float32 seen through ``view(torch.uint8)`` spans four.

    Args:
        tensors: called t1, t2, ... in the order given.
        before: a picture of the same tensors, drawn earlier: cells whose bytes have changed since are yellow, with the
            old value struck and the new one under it. Only the bytes are kept in a picture, none of the tensors. What
            versions did is said only of a tensor that is there under the same name and counts with the same counter.
        named: called by their keyword; ``before`` is no name for a tensor.

    Example:
        >>> x = torch.arange(6)
        >>> first = draw_storage(x=x, odd=x[1::2])
        >>> x[3] = 100
        >>> draw_storage(x=x, odd=x[1::2], before=first)
        One write changed 1 cell, and x and odd both see it
        ...

    What autograd keeps is a tensor like any other: ``draw_storage(y=y, saved=y.grad_fn._saved_result)``. Long storages
    are folded, and say by how much. At most 12 tensors, and 1,000,000 cells or elements each, are drawn; the picture
    reads the memory, copied from the device where it is not the CPU's.

    Raises:
        TypeError: one of them is neither a tensor nor an array, or has no cells of its own (meta, sparse).
        ValueError: there is more than can be drawn, or a storage is too short for its tensor.
    """
    from ._storage_picture import picture
    from ._storage_read import read

    return picture(read(named_things(tensors, named, "draw_storage"), before))
