"""How can a reader run a measured call again? Three lines that make inputs, run it, and assert what it returned."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import torch

from ._atlas_probe import Call, tensors_in

NAMES = ("x", "y", "z", "u", "v", "w", "p", "q", "r", "s")
OUTS = ("a", "b", "c", "d")
_NOT_RUN = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, AssertionError, AttributeError)


class Unwritable(Exception):
    """A value has no short source text."""


def source(value: Any, make: str = "rand") -> str:
    """Returns an expression for a value of this kind: for a tensor the dtype, shape and stride, not the values."""
    if isinstance(value, torch.Tensor):
        return _tensor_source(value, make)
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple, torch.Size):
        parts = ", ".join(source(v, make) for v in value)
        return f"[{parts}]" if isinstance(value, list) else f"({parts}{',' * (len(value) == 1)})"
    if isinstance(value, slice):
        return f"slice({value.start}, {value.stop}, {value.step})"
    if value is ...:
        return "..."
    if isinstance(value, float) and not np.isfinite(value):
        return f'float("{value}")'
    if value is None or isinstance(
        value, (bool, int, float, complex, str, torch.dtype, torch.layout, torch.memory_format)
    ):
        return repr(value)
    if isinstance(value, torch.device):
        return repr(str(value))
    raise Unwritable(type(value).__name__)


def _tensor_source(t: torch.Tensor, make: str) -> str:
    if t.layout is not torch.strided:
        raise Unwritable("not a strided tensor")
    if t.is_conj():
        return f"{_tensor_source(t.conj(), make)}.conj()"
    if t.is_neg():
        return f"torch._neg_view({_tensor_source(torch._neg_view(t), make)})"
    shape, stride = tuple(t.shape), t.stride()
    if not t.is_contiguous():
        if t.dim() == 2 and t.t().is_contiguous():
            return f"{_dense_source(shape[::-1], t.dtype, make)}.t()"
        if stride[0] == 0 and t[0].is_contiguous():
            return f"{_dense_source((1, *shape[1:]), t.dtype, make)}.expand({', '.join(map(str, shape))})"
        reach = 1 + sum((n - 1) * s for n, s in zip(shape, stride))
        return f"{_dense_source((reach,), t.dtype, make)}.as_strided({shape}, {stride})"
    return _dense_source(shape, t.dtype, make)


def _dense_source(shape: tuple, dtype: torch.dtype, make: str) -> str:
    sizes = ", ".join(map(str, shape)) or "()"
    if dtype is torch.float32:
        return f"torch.eye({shape[0]})" if make == "eye" and len(shape) == 2 else f"torch.rand({sizes})"
    if dtype.is_floating_point or dtype.is_complex:
        if dtype.itemsize == 1:
            return f"torch.rand({sizes}).to({dtype})"
        return f"torch.rand({sizes}, dtype={dtype})"
    # zero is an index that is always there; an all-true mask keeps something
    return f"torch.{'ones' if dtype is torch.bool else 'zeros'}({sizes}, dtype={dtype})"


def spellings(name: str) -> list[str]:
    """How an operator can be written, most usual first; ``.name`` is a method, ``.name!`` an attribute."""
    found = []
    if name.startswith("torch."):
        found.append(name)
    target: Any = torch
    for part in name.split("."):
        target = getattr(target, part, None)
    if callable(target) and not isinstance(target, (torch.dtype, type)):
        found.append(f"torch.{name}")
    for method in (name, f"{name}_"):
        own = getattr(torch.Tensor, method, None)
        if callable(own):
            found.append(f".{method}")
        elif own is not None:
            found.append(f".{method}!")
    if hasattr(torch.ops.aten, name):
        found.append(f"torch.ops.aten.{name}")
    return [_SWAPPED[name]] if name in _SWAPPED else found


# Entries that the catalogue calls with their arguments in another order.
_SWAPPED = {
    "einsum": "torch.einsum({1}, {0})",
    "nn.functional.embedding": "torch.nn.functional.embedding({1}, {0})",
    "polygamma": "torch.polygamma({1}, {0})",
    "special.polygamma": "torch.special.polygamma({1}, {0})",
}


def _path(result: Any) -> tuple[str, Any]:
    """Where in a result its first tensor is."""
    if isinstance(result, (torch.Tensor, np.ndarray)):
        return "", result
    for number, part in enumerate(result):
        if tensors_in(part):
            path, tensor = _path(part)
            return f"[{number}]{path}", tensor
    raise Unwritable("no tensor")


class Shown(NamedTuple):
    """A call in source text: the inputs in order, the expression over their names, and the names."""

    inputs: list[str]
    expression: str
    names: list[str]
    imports: str = ""


def written(spelling: str, call: Call, names: list[str], make: str = "rand") -> Shown:
    """Writes a call out, its tensors as ``names``.

    Raises:
        Unwritable: if an argument has no short source text.
    """
    inputs: list[str] = []
    used: list[str] = []

    def text(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            if len(inputs) == len(names):
                raise Unwritable("too many tensors")
            inputs.append(source(value, make))
            used.append(names[len(inputs) - 1])
            return used[-1]
        if type(value) in (list, tuple) and tensors_in(value):
            parts = ", ".join(text(v) for v in value)
            return f"[{parts}]" if isinstance(value, list) else f"({parts}{',' * (len(value) == 1)})"
        return source(value, make)

    parts = [text(a) for a in call.args] + [f"{k}={text(v)}" for k, v in call.kwargs.items()]
    if "{" in spelling:
        if len(parts) != 2:
            raise Unwritable("more arguments than the two that are swapped")
        expression = spelling.format(*parts)
    elif spelling.endswith("!"):
        expression = f"{parts[0]}{spelling[:-1]}"
    elif spelling.startswith("."):
        if not re.fullmatch(r"\w+", parts[0]):
            raise Unwritable("no tensor to call a method of")
        expression = f"{parts[0]}{spelling}({', '.join(parts[1:])})"
    else:
        expression = f"{spelling}({', '.join(parts)})"
    return Shown(inputs, expression, used)


def proof_of(shown: list[tuple[str, Shown, Any, Any]], *, copies: bool = False) -> str:
    """Returns three lines that make inputs, run each call, and assert its outcome.

    Args:
        shown: outcome, call, inputs and result of each example.
        copies: whether new memory is to hold the input's values too.

    Raises:
        Unwritable: if that cannot be said in three lines.
    """
    names, made = [n for _, s, _, _ in shown for n in s.names], [i for _, s, _, _ in shown for i in s.inputs]
    calls, claims = [], []
    for out, (outcome, call, given, result) in zip(OUTS, shown):
        if outcome == "no tensor":
            calls.append(call.expression)
            claims.append(f"not isinstance({out}, torch.Tensor)")
            continue
        path, first = _path(result)
        calls.append(call.expression + path)
        if not call.names:
            break
        tensors = tensors_in(given)
        if not tensors:  # a list of numbers has no memory to share
            claims.append(f"{out}.tolist() == {call.names[0]}")
            continue
        claims.append(_claim(outcome, out, first, list(zip(call.names, tensors)), copies=copies))
    if not made and len(shown) == 1 and shown[0][0] == "new memory":  # made of nothing: two calls give two memories
        calls *= 2
        claims = [f"{_memory('a', first)} != {_memory('b', first)}"]
    lines = [f"{', '.join(names)} = {', '.join(made)}"] if made else []
    lines += [f"{', '.join(OUTS[: len(calls)])} = {', '.join(calls)}", f"assert {' and '.join(claims)}"]
    return "\n".join([*filter(None, [shown[0][1].imports]), *lines])


def _memory(name: str, value: Any, *, storage: bool = True) -> str:
    if isinstance(value, np.ndarray):
        return f"{name}.ctypes.data"
    return f"{name}.untyped_storage().data_ptr()" if storage else f"{name}.data_ptr()"


def _claim(outcome: str, out: str, result: Any, given: list[tuple[str, Any]], *, copies: bool) -> str:
    names = ", ".join(name for name, _ in given)
    if outcome == "same object":
        return f"{out} is {names}" if len(given) == 1 else f"any({out} is t for t in ({names}))"
    storage = not any(isinstance(v, np.ndarray) for v in (result, *(v for _, v in given)))
    own, theirs = _memory(out, result, storage=storage), [_memory(n, v, storage=storage) for n, v in given]
    if outcome == "view":
        other = f"{out} is not {names} and {own}" if len(given) == 1 else own
        return f"{other} == {theirs[0]}" if len(given) == 1 else f"{own} in ({', '.join(theirs)})"
    if outcome != "new memory":
        raise Unwritable(outcome)
    held = ""
    if copies and storage and not result.is_complex():
        sources = [n for n, v in given if v.dtype is result.dtype]
        if len(sources) == 1:
            held = f" and set({out}.flatten().tolist()) <= set({sources[0]}.flatten().tolist())"
    return (f"{own} != {theirs[0]}" if len(given) == 1 else f"{own} not in ({', '.join(theirs)})") + held


def holds(proof: str) -> bool:
    """Runs a proof apart from everything else and returns whether it stands."""
    try:
        exec(proof, {"torch": torch})
    except Exception:  # whatever is wrong with it, it proves nothing
        return False
    return True


def prove(target: Any, seen: dict[str, list[tuple[Call, Any]]], copies: bool) -> str:
    """Returns a proof of every outcome that was seen, from the shortest calls that have it; or ""."""
    kinds = [kind for kind in seen if " and " not in kind]
    if not kinds:
        return ""
    order = sorted(kinds, key=("same object", "view", "new memory", "no tensor").index)
    for spelling in ["added"] if target.added is not None else spellings(target.name):
        shown, names = [], list(NAMES)
        for kind in order:
            found = _writable(target, spelling, kind, seen[kind], names, copies)
            if found is None:
                break
            shown.append(found)
            names = names[len(found[1].names) :]
        else:
            proof = proof_of(shown, copies=copies)
            if holds(proof):
                return proof
    return ""


def _writable(target: Any, spelling: str, kind: str, found: list, names: list[str], copies: bool) -> Any:
    """The shortest call of a kind that can be written out and then still has this outcome."""
    options = []
    for call, _ in found[:24]:
        tensors = tensors_in(call[:2])
        first = tensors[0] if tensors else None
        unlike = 30 if first is None else 20 * (first.ndim != 2) + 60 * (first.ndim == 0 or 1 in first.shape)
        for make in (
            ("rand", "eye") if first is not None and first.ndim >= 2 and target.entry is not None else ("rand",)
        ):
            try:
                if target.added is not None:
                    said = re.sub(r"\bx\b", names[0], target.added.expression)
                    shown = Shown([call.text], said, names[:1], target.added.imports)
                else:
                    shown = written(spelling, call, names, make)
            except Unwritable:
                break
            length = len(shown.expression) + sum(map(len, shown.inputs))
            options.append((unlike - 60 * bool(call.text) + 100 * (make == "eye") + length, len(options), call, shown))
    for _, _, call, shown in sorted(options, key=lambda o: o[:2])[:8]:
        try:
            shown_call = call if target.added is not None else call.fresh()
            one = (kind, shown, shown_call[:2], target.run(*shown_call.args, **shown_call.kwargs))
            if holds(proof_of([one], copies=copies)):
                return one
        except (Unwritable, *_NOT_RUN):
            continue
    return None
