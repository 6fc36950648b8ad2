"""What can be asked of a reader's function? The properties, each with a sentence for what was seen when it fails.

A property looks at one `Trial`, a call that is over, and never calls the function itself.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from helpers.display import exact_bytes

RETURNED = "the returned tensor"
Limit = int | Callable[[dict[str, Any]], int]
Hint = str | Callable[["Trial"], str]


@dataclass(frozen=True)
class Property:
    """Something an exercise asks for.

    Attributes:
        says: what is asked, as "It should ..." continues: "return a tensor".
        test: given a `Trial`, None when it holds, else what was seen instead.
        hint: the misconception that usually stands behind a failure, in one sentence; or a function that chooses it by
            the `Trial`, so that nobody is told off for what was not done.
        decisive: whether the properties after it mean nothing once it failed (no tensor, no shape to look at).
    """

    says: str
    test: Callable[[Trial], str | None]
    hint: Hint = ""
    decisive: bool = False

    def hint_for(self, trial: Trial) -> str:
        """The hint that fits what was seen."""
        return self.hint(trial) if callable(self.hint) else self.hint


@dataclass
class Trial:
    """One call of the reader's function, with all that the properties look at."""

    args: dict[str, Any]  # the arguments, after the call
    before: dict[str, Any]  # copies of them, from before
    memory: dict[str, torch.Tensor]  # what lay in the arguments' memory: views taken before, so they show writes
    expected: dict[str, Any]  # what must be: RETURNED and the names of the arguments that change
    result: Any = None
    peak_bytes: int = 0
    retained_bytes: int = 0


def describe(value: Any) -> str:
    """Returns ``value`` in a few words; tensors by shape and dtype, never by content or address."""
    try:
        if isinstance(value, torch.Tensor):
            return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
    except Exception:  # a nested tensor has no shape, and a class of the reader's may refuse to tell
        pass
    return "nothing (`None`)" if value is None else f"a {type(value).__name__}"


def message_of(error: BaseException) -> str:
    """Returns what ``error`` says, ``""`` where it says nothing or cannot even be asked."""
    try:
        return str(error)
    except Exception:  # a `__str__` of the reader's that raises would hide the error it belongs to
        return ""


def typed(error: BaseException, text: str) -> str:
    """Returns the type of ``error`` and ``text``, what it says or a part of it; the type alone where that is empty."""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def difference(seen: torch.Tensor, wanted: torch.Tensor) -> str | None:
    """Returns the first value in which two tensors of one shape differ, in words, or None. Rounding is forgiven."""
    if freed(seen):  # to read it would be the end of the kernel
        return "its memory was freed"
    if seen.shape != wanted.shape:
        return f"shape {tuple(seen.shape)} instead of {tuple(wanted.shape)}"
    loose = {torch.float16: 1e-2, torch.bfloat16: 5e-2}.get(wanted.dtype, 1e-5)
    a, b = seen.detach().cpu().double(), wanted.detach().cpu().double()
    wrong = ~torch.isclose(a, b, rtol=loose, atol=loose / 10, equal_nan=True)
    if not wrong.any():
        return None
    place = tuple(wrong.nonzero()[0].tolist())
    pair = f"{a[place].item():g} instead of {b[place].item():g}"
    return f"at {list(place)} {pair}, {wrong.sum().item():,} of {a.numel():,} wrong"


def freed(tensor: torch.Tensor) -> bool:
    """Whether the storage under ``tensor`` is too small for its elements, so that reading it ends the process."""
    if tensor.layout != torch.strided or not tensor.numel() or hasattr(tensor, "__tensor_flatten__"):
        return False
    last = tensor.storage_offset() + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.untyped_storage().nbytes() < (last + 1) * tensor.element_size()


def first_freed(t: Trial) -> str | None:
    """Returns which tensor of a trial has lost its memory, in words, or None. No property may look at such a trial."""
    values = [("the result", t.result), *((f"`{name}`", a) for name, a in [*t.args.items(), *t.memory.items()])]
    lost = (name for name, value in values if any(map(freed, _tensors_in(value))))
    return next((f"{name} cannot be read, its memory was freed" for name in lost), None)


def _tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.nn.Module):
        return [*value.parameters(), *value.buffers()]
    try:
        return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    except RecursionError:  # a list that holds itself
        return []


def returns_tensor(hint: str = "Is the `return` missing?") -> Property:
    """It returns a tensor and not nothing."""

    def test(t: Trial) -> str | None:
        return None if isinstance(t.result, torch.Tensor) else f"it returned {describe(t.result)}"

    return Property("return a tensor", test, lambda t: hint if t.result is None else "", decisive=True)


def returns_two_functions() -> Property:
    """It returns a pair of functions, as saved-tensor hooks are."""

    def test(t: Trial) -> str | None:
        result = t.result
        if not isinstance(result, tuple) or len(result) != 2 or not all(map(callable, result)):
            return f"it returned {describe(result)}, not two functions"
        return None

    return Property("return two functions", test, "Return them as a pair: `return pack, unpack`.", decisive=True)


def right_shape(hint: Hint = "") -> Property:
    """The result has the expected shape."""

    def test(t: Trial) -> str | None:
        seen, wanted = tuple(t.result.shape), tuple(t.expected[RETURNED].shape)
        return None if seen == wanted else f"shape {seen} instead of {wanted}"

    return Property("return the right shape", test, hint, decisive=True)


def right_dtype(hint: str = "") -> Property:
    """The result has the expected dtype."""

    def test(t: Trial) -> str | None:
        seen, wanted = t.result.dtype, t.expected[RETURNED].dtype
        return None if seen == wanted else f"{seen} instead of {wanted}"

    return Property("return the right dtype", test, hint)


def right_values(hint: str = "") -> Property:
    """The result holds the expected values."""
    return Property("return the right values", lambda t: difference(t.result, t.expected[RETURNED]), hint)


def right_number(says: str, wanted: Callable[[Trial], float], hint: Hint = "", *, within: float = 0.0) -> Property:
    """The result is a number, no tensor, and the wanted one; or off by at most ``within`` of it."""

    def test(t: Trial) -> str | None:
        if isinstance(t.result, bool) or not isinstance(t.result, numbers.Number):
            return f"it returned {describe(t.result)}"
        right, form = wanted(t), ".6g" if within else ","
        if abs(t.result - right) <= within * abs(right):
            return None
        return f"{t.result:{form}} instead of {right:{form}}"

    return Property(says, test, hint)


def leaves_alone(
    *names: str, hint: str = "A method that ends in `_` writes into a tensor that is the caller's."
) -> Property:
    """The named arguments are as they were: values, shape, and the storage they lie in."""

    def test(t: Trial) -> str | None:
        for name in names:
            changed = difference(t.memory[name], t.before[name]) or difference(t.args[name], t.before[name])
            if changed is not None:
                return f"`{name}` was changed, {changed}"
            if _moved(t, name):
                return f"`{name}` was put into other memory, with the same values"
        return None

    def fitting(t: Trial) -> str:
        if any(_moved(t, name) for name in names):
            return "`set_` and an assignment to `.data` give the caller's tensor other memory than its views have."
        return hint

    them = " and ".join(f"`{name}`" for name in names)
    return Property(f"leave {them} as {'it was' if len(names) == 1 else 'they were'}", test, fitting)


def _moved(t: Trial, name: str) -> bool:
    return bool(t.memory[name].numel()) and not _one_storage(t.args[name], t.memory[name])


def writes_into(name: str, hint: str = "") -> Property:
    """The named argument's own memory holds the expected values afterwards; new memory does not count."""

    def test(t: Trial) -> str | None:
        wanted = t.expected[name]
        if t.args[name].shape != wanted.shape:
            return f"`{name}` now has shape {tuple(t.args[name].shape)} instead of {tuple(wanted.shape)}"
        wrong = difference(t.memory[name], wanted)
        if wrong is None:
            return None
        if difference(t.args[name], wanted) is None:
            return f"`{name}` has the right values, but in other memory; a view taken before still sees the old ones"
        if difference(t.memory[name], t.before[name]) is None:
            return f"`{name}` still holds its old values"
        return f"`{name}` holds {wrong}"

    return Property(f"write the right values into `{name}`", test, hint)


def peak_at_most(limit: Limit, hint: str = "", *, says: str = "") -> Property:
    """Never more than ``limit`` bytes beyond what was there at the start: a number, or made from the arguments."""
    says = says or ("need no new memory, not even for a moment" if limit == 0 else "keep its peak within the limit")
    return _bytes_at_most("peak_bytes", "of new memory at the peak", limit, says, hint)


def retains_at_most(limit: Limit, hint: str = "", *, says: str = "") -> Property:
    """No more than ``limit`` new bytes still alive after the call, the result's own among them."""
    says = says or "leave no more behind than its result"
    return _bytes_at_most("retained_bytes", "of new memory still alive afterwards", limit, says, hint)


def _bytes_at_most(counter: str, words: str, limit: Limit, says: str, hint: str) -> Property:
    def test(t: Trial) -> str | None:
        allowed, seen = limit(t.args) if callable(limit) else limit, getattr(t, counter)
        return None if seen <= allowed else f"{exact_bytes(seen)} {words}, {exact_bytes(allowed)} allowed"

    return Property(says, test, hint)


def shares_memory_with(name: str, hint: str = "") -> Property:
    """The result is a view of the named argument, or the argument itself."""

    def test(t: Trial) -> str | None:
        return (
            None
            if _one_storage(t.result, t.memory[name])
            else f"the result is a copy with memory other than `{name}`'s"
        )

    return Property(f"return a view of `{name}`", test, hint)


def has_own_memory(name: str, hint: Hint = "", *, decisive: bool = False) -> Property:
    """The result shares no storage with the named argument."""

    def test(t: Trial) -> str | None:
        return f"the result is a view of `{name}`" if _one_storage(t.result, t.memory[name]) else None

    return Property(f"return a tensor with memory of its own, apart from `{name}`", test, hint, decisive)


def same_object(name: str, hint: str = "") -> Property:
    """The result is the named argument itself."""

    def test(t: Trial) -> str | None:
        return None if t.result is t.args[name] else f"it returned {describe(t.result)}, another object than `{name}`"

    return Property(f"return `{name}` itself", test, hint)


def keeps_no_graph(*names: str, hint: str = "") -> Property:
    """Neither the result nor the named arguments hang on to an autograd graph."""

    def test(t: Trial) -> str | None:
        for name, value in ((RETURNED, t.result), *((f"`{n}`", t.args[n]) for n in names)):
            if isinstance(value, torch.Tensor) and value.grad_fn is not None:
                return f"{name} keeps a graph alive (its grad_fn is {type(value.grad_fn).__name__})"
        return None

    return Property("keep no graph", test, hint)


def _one_storage(a: Any, b: torch.Tensor) -> bool:
    if not isinstance(a, torch.Tensor) or not b.numel():
        return False
    if a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr():
        return True
    from helpers.storage import shares_memory  # a second import of one NumPy array has a storage of its own

    return a.layout == torch.strided and shares_memory(a.detach(), b)
