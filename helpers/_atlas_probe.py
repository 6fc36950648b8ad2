"""What did one call do with memory? The questions of the atlas, each asked of one call on plain tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ._autograd import saved_slots, storages_of
from .memory import MemoryTracker


class Call(NamedTuple):
    """Arguments for an operator, and their source text where they were written by hand."""

    args: tuple
    kwargs: dict[str, Any]
    text: str = ""

    def fresh(self, change: Callable[[torch.Tensor], Any] = lambda t: t.detach().clone()) -> Call:
        """The same call on other tensors."""
        return Call(*_mapped((self.args, self.kwargs), change))


# torch's pytree knows more containers; over the whole catalogue these few lines save seconds.
def _mapped(thing: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    if isinstance(thing, torch.Tensor):
        return change(thing)
    if type(thing) in (list, tuple):
        return type(thing)([_mapped(part, change) for part in thing])
    if type(thing) is dict:
        return {key: _mapped(part, change) for key, part in thing.items()}
    return thing


def tensors_in(thing: Any) -> list[Any]:
    """The tensors and NumPy arrays in nested lists, tuples and dicts."""
    if isinstance(thing, (torch.Tensor, np.ndarray)):
        return [thing]
    if isinstance(thing, dict):
        thing = thing.values()
    elif not isinstance(thing, (list, tuple)):
        return []
    return [tensor for part in thing for tensor in tensors_in(part)]


def is_float(t: Any) -> bool:
    """Whether this is a tensor of real or complex floating-point numbers."""
    return isinstance(t, torch.Tensor) and (t.is_floating_point() or t.is_complex())


def spans_of(thing: Any) -> list[tuple[int, int]]:
    """First byte and the byte after the last of all memory behind a tensor or an array.

    By address and not by storage: a tensor from ``from_numpy`` has a storage of its own over the array's memory.
    """
    if isinstance(thing, np.ndarray):
        owner = thing
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        return [np.lib.array_utils.byte_bounds(owner)] if owner.size else []
    return [(s.data_ptr(), s.data_ptr() + s.nbytes()) for s in storages_of(thing) if s.nbytes()]


def outcomes(given: Iterable[Any], result: Any) -> list[tuple[str, Any]]:
    """What each tensor in ``result`` is to those in ``given``; tensors without memory are left out."""
    spans = [(g, spans_of(g)) for g in given]
    found = []
    for out in tensors_in(result):
        mine = spans_of(out)
        if any(out is g for g, _ in spans):
            found.append(("same object", out))
        elif any(a < d and c < b for a, b in mine for _, theirs in spans for c, d in theirs):
            found.append(("view", out))
        elif mine:
            found.append(("new memory", out))
    return found


# ------------------------------------------------------------------------------------------- changed inputs


def layouts(call: Call, dtype: torch.dtype | None) -> list[Call]:
    """The same call on the same shapes, laid out otherwise: what tells a maybe-copy from a copy.

    Expanded and every-second inputs are not contiguous and yet some of them can be viewed in another shape.
    """

    def every(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
        def one(t: torch.Tensor) -> torch.Tensor:
            if t.layout is not torch.strided or t.dtype is not dtype or not t.dim() or not t.numel():
                return t
            return change(t.detach())

        return one

    def transposed(t: torch.Tensor) -> torch.Tensor:
        order = tuple(reversed(range(t.dim())))
        return t.permute(order).contiguous().permute(order)

    changes = (
        lambda t: t.clone(memory_format=torch.contiguous_format),
        transposed,
        lambda t: torch.stack((t, t), -1)[..., 0],  # every second element
        lambda t: t[:1].clone().expand(t.shape),
    )
    return [call.fresh(every(change)) for change in changes]


# ------------------------------------------------------------------------------------- what backward will need


def _recording(call: Call) -> Call:
    """The call on tensors that require grad and are no leaves, as in the middle of a network."""

    def grown(t: torch.Tensor) -> torch.Tensor:
        t = t.detach()
        return t.requires_grad_().clone() if is_float(t) else t.clone()

    with torch.enable_grad():
        return call.fresh(grown)


def saves(run: Callable[..., Any], call: Call) -> frozenset[str] | None:
    """Which memory the graph of one call keeps, out of "input", "output", "other"; None if nothing was recorded."""
    call = _recording(call)
    given = [s.data_ptr() for t in tensors_in(call[:2]) for s in storages_of(t)]
    with torch.enable_grad():
        result = run(*call.args, **call.kwargs)
    outs = [t for t in tensors_in(result) if isinstance(t, torch.Tensor)]
    made = [s.data_ptr() for t in outs for s in storages_of(t)]
    todo = [t.grad_fn for t in outs if t.grad_fn is not None]
    if not todo:
        return None
    kept, seen = set(), set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        todo += [following for following, _ in node.next_functions]
        for _, saved in saved_slots(node):
            held = getattr(saved, "data", None)
            for storage in storages_of(held) if isinstance(held, torch.Tensor) else ():
                if storage.nbytes():
                    at = storage.data_ptr()
                    kept.add("input" if at in given else "output" if at in made else "other")
    return frozenset(kept)


# ------------------------------------------------------------------------------------------- in-place variants


class InPlace(NamedTuple):
    """What an in-place form did on one input of ``input_bytes``.

    Attributes:
        name: how it is written.
        returns_self: whether it returned the very object it was called on.
        keeps_storage: whether the tensor's memory stayed where it was.
        bumps_version: whether the version counter moved.
        bytes: the most it took beside its input for the time of the call, with no gradient recorded.
        recording_bytes: the same while autograd records; None where that is refused.
        recording_keeps: bytes that the graph still holds afterwards: autograd's clone of the old value, masks.
        input_bytes: the size of the input, to compare with.
    """

    name: str
    returns_self: bool
    keeps_storage: bool
    bumps_version: bool
    bytes: int
    recording_bytes: int | None
    recording_keeps: int | None
    input_bytes: int

    def __str__(self) -> str:
        told = (
            [] if " = " in self.name else ["returns its own object" if self.returns_self else "returns another object"]
        )
        told += [
            "keeps the storage" if self.keeps_storage else "moves to another storage",
            "moves the version on" if self.bumps_version else "leaves the version as it is",
            f"takes {self.bytes:,} B beside an input of {self.input_bytes:,} B",
        ]
        if self.recording_bytes is None:
            told.append("refused while autograd records")
        else:
            told.append(f"{self.recording_bytes:,} B while autograd records, of which {self.recording_keeps:,} B stay")
        return f"{self.name}: {'; '.join(told)}"


def _took(run: Callable[..., Any], call: Call) -> tuple[int, int, Any]:
    # What measure_memory does, without its collection of garbage: among the catalogue's objects one takes 0.1 s.
    with MemoryTracker(*tensors_in(call[:2]), lines=False, groups=False) as tracker:
        result = run(*call.args, **call.kwargs)
        end = tracker.live_bytes
    return tracker.peak_bytes - tracker.start_bytes, end - tracker.start_bytes, result


def in_place(name: str, run: Callable[..., Any], call: Call) -> InPlace:
    """Runs an in-place form on copies of the call's tensors and tells what it did. What ``run`` raises is passed on."""
    plain = call.fresh()
    x = tensors_in(plain.args)[0]
    at, version, size = x.data_ptr(), x._version, x.untyped_storage().nbytes()
    peak, _, result = _took(run, plain)
    keeps, bumps, itself = x.data_ptr() == at, x._version != version, result is x
    try:
        with torch.enable_grad():
            recording_peak, recording_end, _result = _took(run, _recording(call))
    except (RuntimeError, NotImplementedError):
        recording_peak = recording_end = None
    return InPlace(name, itself, keeps, bumps, peak, recording_peak, recording_end, size)


# ------------------------------------------------------------------------------------------- a second opinion


class DeclaredSharing(TorchDispatchMode):
    """Follows, by the schemas of the dispatched operators alone, which tensors may share memory with the given ones.

    No address is looked at. A return marked ``Tensor(a)`` shares with the argument marked ``(a)``; without a mark it is
    new.
    """

    def __init__(self, given: Iterable[Any]):
        super().__init__()
        self._known = list(given)  # kept alive, so that no id is used twice
        self._shared = {id(t) for t in self._known}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        schema = func._schema
        marks, lists = set(), False
        for number, argument in enumerate(schema.arguments):
            if argument.alias_info is not None:
                value = args[number] if number < len(args) else (kwargs or {}).get(argument.name)
                if any(id(t) in self._shared for t in tensors_in(value)):
                    marks |= argument.alias_info.before_set
                    lists |= "*" in argument.alias_info.after_set  # the mark of `split`: the parts of a list share
        outs = result if len(schema.returns) != 1 else (result,)
        for declared, out in zip(schema.returns, outs or ()):
            alias = declared.alias_info
            if alias is not None and (marks & alias.before_set or (lists and not alias.before_set)):
                self._known += (found := tensors_in(out))
                self._shared |= {id(t) for t in found}
            else:
                self._known += tensors_in(out)
        return result

    def shares(self, out: Any) -> bool:
        """Whether the schemas allow that ``out`` shares memory with a given tensor."""
        return id(out) in self._shared
