"""Which cells of memory does each tensor read, and what is in them? Read once, for `draw_storage`."""

from __future__ import annotations

import ctypes
import math
import weakref
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from ._memory_map import LENT, Memory, Seen, look
from ._overlap import has_memory
from ._storage_cells import Drawing, Row, Strip, compare

MAX_ROWS = 12
MAX_CELLS = 1_000_000
MAX_DIMENSIONS = 63  # NumPy has 64, and one counts the cells of an element


def read(things: dict[str, Any], before: Any = None) -> Drawing:
    """Reads the memory under ``things``; ``before`` is an earlier picture to compare with.

    Raises:
        TypeError: something has no cells of its own, or ``before`` is no picture of storages.
        ValueError: there is more than can be drawn.
    """
    if before is not None and not isinstance(getattr(before, "data", None), Drawing):
        raise TypeError(f"before is a {type(before).__name__}: pass a picture that draw_storage() returned")
    if len(things) > MAX_ROWS:
        raise ValueError(f"{len(things)} tensors were given and at most {MAX_ROWS} can be told apart: draw fewer")
    for name, thing in things.items():
        _drawable(name, thing)
    seen = look(things)
    drawing = Drawing([], [])
    strip_of: dict[str, int] = {}
    for number, group in enumerate(_groups(seen)):
        members = [s for s in seen if s.memories and s.memories[0] in group]
        drawing.strips.append(_strip(group, members))
        strip_of |= dict.fromkeys((m.letter for m in group), number)
    for s in seen:
        drawing.rows.append(_row(s, drawing.strips, strip_of))
    for row in drawing.rows:
        if row.strip is not None:
            drawing.strips[row.strip].readers[row.reached] += 1
    if before is not None:
        compare(drawing, before.data)
    return drawing


def _drawable(name: str, thing: Any) -> None:
    strides = _strides(name, thing)  # first, as a nested tensor has no shape
    if len(strides) > MAX_DIMENSIONS:
        raise ValueError(
            f"{name} has {len(strides)} dimensions and at most {MAX_DIMENSIONS} can be drawn: draw {name}.squeeze(), "
            "without those of size 1"
        )
    size = math.prod(n for n, s in zip(thing.shape, strides) if s)
    if size > MAX_CELLS:
        raise ValueError(
            f"{name} has {size:,} elements and at most {MAX_CELLS:,} can be drawn, as the picture keeps a copy of the "
            f"bytes to compare with later: draw a clone of a part, such as {name}[:10].clone()"
        )


def _strides(name: str, thing: Any) -> tuple[int, ...]:
    if isinstance(thing, np.ndarray):
        if thing.dtype.hasobject or thing.dtype.fields:
            raise TypeError(f"{name} is an array of {thing.dtype}, not of numbers: draw one of its fields, or a copy")
        return thing.strides
    if thing.layout is torch._mkldnn:
        raise TypeError(f"{name} has the layout {thing.layout}, whose memory has no address: draw {name}.to_dense()")
    if thing.is_nested and thing.layout is torch.strided:
        raise TypeError(f"{name} is a nested tensor, which has no one shape: draw its parts, {name}.unbind()")
    if thing.layout is not torch.strided:
        raise TypeError(
            f"{name} has the layout {thing.layout}, whose elements are in several storages: draw its parts, such as "
            f"{name}.values() and {name}.indices()"
        )
    try:
        memory = has_memory(thing) or not thing.numel()
    except (NotImplementedError, RuntimeError):
        memory = False
    if not memory or (thing.device.type == "meta"):
        raise TypeError(f"{name} has no memory that could be drawn (device {thing.device}): draw a tensor with values")
    last = thing.storage_offset() + sum((n - 1) * s for n, s in zip(thing.shape, thing.stride()))
    needed, there = (last + 1) * thing.element_size(), thing.untyped_storage().nbytes()
    if thing.numel() and needed > there:
        raise ValueError(
            f"{name} reads up to byte {needed:,} of a storage that has {there:,} bytes: a part was freed, as by "
            "untyped_storage().resize_(); draw it before, or a slice that is still there"
        )
    return thing.stride()


def _groups(seen: list[Seen]) -> list[list[Memory]]:
    """Memories that lie over the same bytes belong together, also through a third."""
    groups: list[list[Memory]] = []
    for memory in {m.letter: m for s in seen for m in s.memories}.values():
        joined = [g for g in groups if any(m.meets(memory) for m in g)]
        merged = [m for g in joined for m in g] + [memory]
        groups = [g for g in groups if g not in joined]
        groups.append(merged)
    by_letter = [sorted(g, key=_order) for g in groups]
    return sorted(by_letter, key=lambda g: _order(g[0]))


def _order(memory: Memory) -> tuple[bool, int, str]:
    return not memory.is_storage, len(memory.letter), memory.letter


def _strip(group: list[Memory], members: list[Seen]) -> Strip:
    low = min(m.address for m in group)
    nbytes = max(m.address + m.nbytes for m in group) - low
    parts = [m.address - low for m in group]
    for s in members:
        size = _itemsize(s.thing)
        parts += [size, s.memories[0].address - low + _bytes(s.offset, size), *(_bytes(x, size) for x in s.stride)]
    unit = math.gcd(*parts) or 1
    if nbytes // unit > MAX_CELLS:
        raise ValueError(
            f"the storage under {members[0].name} has {nbytes // unit:,} cells and at most {MAX_CELLS:,} can be drawn, "
            f"as the picture keeps a copy of the bytes to compare with later: draw a part of {members[0].name}.clone()"
        )
    # Cells hold numbers where one dtype fits (float32 under a complex tensor and its real part), else bytes in hex.
    fitting = {s.dtype: s.thing for s in members if _itemsize(s.thing) == unit}
    dtype, model = fitting.popitem() if len(fitting) == 1 else ("byte" if unit == 1 else f"{unit} bytes", None)
    owners = list(dict.fromkeys(m.owner for m in group))
    return Strip(
        extents={m.letter: ((m.address - low) // unit, -(-m.nbytes // unit)) for m in group},
        nbytes=nbytes,
        unit=unit,
        owner=", ".join(owners) if LENT not in owners or len(owners) == 1 else owners[0],
        kind=dtype,
        raw=_bytes_of(group, low, nbytes),
        readers=np.zeros(-(-nbytes // unit), int),
        decoder=bytes.hex if model is None else _decoder(model),
        held={m.letter: m.held for m in group},
    )


def _itemsize(thing: Any) -> int:
    return thing.itemsize if isinstance(thing, np.ndarray) else thing.element_size()


def _bytes(count: Any, itemsize: int) -> int:
    return int(count.split()[0]) if isinstance(count, str) else count * itemsize


def _bytes_of(group: list[Memory], low: int, nbytes: int) -> bytes:
    if group[0].device == "cpu":
        # Straight from the address: an operator would be seen by a reader's own tracker or mode.
        return ctypes.string_at(low, nbytes)
    found = bytearray(nbytes)
    with torch.no_grad(), _disable_current_modes():
        for memory in group:
            flat = torch.empty(0, dtype=torch.uint8, device=memory.device).set_(memory.held())
            found[memory.address - low : memory.address - low + memory.nbytes] = flat.cpu().numpy().tobytes()
    return bytes(found)


def _decoder(thing: Any) -> Any:
    """A function from the bytes of one element to a Python number."""
    if isinstance(thing, np.ndarray):
        array_dtype = thing.dtype
        return lambda raw: np.frombuffer(raw, array_dtype)[0].item()
    if thing.is_quantized:  # torch.frombuffer would end the process
        return bytes.hex
    dtype = thing.dtype

    def decode(raw: bytes) -> Any:
        with _disable_current_modes():
            try:
                return torch.frombuffer(bytearray(raw), dtype=dtype)[0].item()
            except (RuntimeError, NotImplementedError):  # sub-byte dtypes: their bits, as they are
                return raw.hex()

    return decode


def _row(seen: Seen, strips: list[Strip], strip_of: dict[str, int]) -> Row:
    thing = seen.thing
    is_array = isinstance(thing, np.ndarray)
    letter = seen.memories[0].letter if seen.memories else ""
    number = strip_of.get(letter) if letter else None
    first, span, steps = 0, 1, tuple(0 for _ in seen.shape)
    if number is not None:
        unit, size = strips[number].unit, _itemsize(thing)
        first = strips[number].extents[letter][0] + _bytes(seen.offset, size) // unit
        span, steps = size // unit, tuple(_bytes(s, size) // unit for s in seen.stride)
    return Row(
        name=seen.name,
        is_array=is_array,
        strip=number,
        letter=letter,
        shape=seen.shape,
        stride=seen.stride,
        offset=seen.offset,
        dtype=seen.dtype,
        span=span,
        first=first,
        steps=steps,
        version=seen.version,
        conj=not is_array and thing.is_conj(),
        neg=not is_array and thing.is_neg(),
        decoder=_decoder(thing),
        root=weakref.ref(thing if is_array or thing._base is None else thing._base),
    )
