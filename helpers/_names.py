"""What does the reader call this tensor? Found by storage in modules and live variables, else read off the line."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch

from ._autograd import storages_of
from ._source import READER, Place, kind_of

_NAMESPACES = ("torch", "F", "nn.functional", "torch.nn.functional", "functional", "init", "nn.init", "torch.nn.init")
_OPERATORS = {
    ast.Add: ("+", "add_"),
    ast.Sub: ("-", "sub_"),
    ast.Mult: ("*", "mul_"),
    ast.Div: ("/", "div_"),
    ast.Pow: ("**", "pow_"),
    ast.FloorDiv: ("//", "floor_divide_"),
    ast.Mod: ("%", "remainder_"),
    ast.MatMult: ("@", "matmul_"),
}


def name_of(address: int, shape: tuple, stride: tuple | None, model: Any, frame: FrameType | None) -> tuple[str, str]:
    """What a tensor over the storage at ``address`` is called.

    Args:
        model: a module whose parameters and buffers are asked first, or None.
        frame: its variables, and those of its callers as far as they are the reader's, are asked next.

    Returns:
        (name, role): the role is "parameter", "buffer", "variable", or "" with an empty name.
    """
    if not address:
        return "", ""
    if model is not None and (found := _in_module(address, shape, stride, model)):
        return found
    while frame is not None:
        if kind_of(frame.f_code.co_filename) == READER and (found := _in_frame(address, shape, stride, frame)):
            return found
        frame = frame.f_back
    return "", ""


def _in_module(address: int, shape: tuple, stride: tuple | None, module: Any, prefix: str = "") -> Any:
    for role, pairs in (("parameter", module.named_parameters()), ("buffer", module.named_buffers())):
        for name, tensor in pairs:
            if any(storage._cdata == address for storage in storages_of(tensor)):
                return f"{prefix}{name}{_as_seen(tensor, shape, stride)}", role
    return None


def _as_seen(tensor: torch.Tensor, shape: tuple, stride: tuple | None) -> str:
    """How what was saved lies over a tensor that has a name."""
    size, strides = tuple(tensor.shape), tuple(tensor.stride()) if tensor.layout is torch.strided else None
    if size == tuple(shape) and (stride is None or strides == tuple(stride)):
        return ""
    if len(size) == 2 and size[::-1] == tuple(shape) and (stride is None or strides[::-1] == tuple(stride)):
        return ", transposed"
    return ", a view of it" if len(shape) else ", an element of it"


def _in_frame(address: int, shape: tuple, stride: tuple | None, frame: FrameType) -> Any:
    variables = frame.f_locals
    try:
        views, modules = [], []
        for name, value in variables.items():
            if name.startswith("_"):  # a notebook keeps its last outputs under such names
                continue
            for spoken, tensor in _tensors_of(name, value):
                if any(storage._cdata == address for storage in storages_of(tensor)):
                    seen = _as_seen(tensor, shape, stride)
                    if not seen:
                        return spoken, "parameter" if isinstance(tensor, torch.nn.Parameter) else "variable"
                    views.append((spoken + seen, "variable"))
            if isinstance(value, torch.nn.Module):
                modules.append((name, value))
        for name, module in modules:
            if found := _in_module(address, shape, stride, module, f"{name}."):
                return found
        return views[0] if views else None
    finally:
        # Before Python 3.13 this is a copy of a function's variables, and the frame would keep it, and them, alive.
        optimized = frame.f_code.co_flags & inspect.CO_OPTIMIZED
        if optimized and type(variables) is dict and sys.getrefcount(variables) <= 3:
            variables.clear()


def _tensors_of(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, (list, tuple)) and len(value) <= 100:
        yield from ((f"{name}[{i}]", part) for i, part in enumerate(value) if isinstance(part, torch.Tensor))
    elif isinstance(value, dict) and len(value) <= 100:
        yield from ((f"{name}[{key!r}]", part) for key, part in value.items() if isinstance(part, torch.Tensor))
    elif name == "self" and hasattr(value, "__dict__"):
        yield from ((f"self.{key}", part) for key, part in vars(value).items() if isinstance(part, torch.Tensor))


@functools.lru_cache(maxsize=16)
def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except SyntaxError:  # a cell with magics, perhaps
        return None


def statements_at(place: Place | None) -> list[ast.stmt]:
    """The innermost statements that cover a line, parsed: one, or several behind semicolons; none without source."""
    lines = linecache.getlines(place.file) if place is not None else []
    if lines and lines[0].startswith("%%"):  # a cell magic, which is no Python
        lines = ["\n", *lines[1:]]
    tree = _parsed("".join(lines)) if lines else None
    if tree is None:
        return []
    covering = [n for n in ast.walk(tree) if isinstance(n, ast.stmt) and n.lineno <= place.line <= n.end_lineno]
    outer = {id(n) for n in covering for inner in ast.walk(n) if inner is not n and inner in covering}
    return [n for n in covering if id(n) not in outer]


def assigned(place: Place | None) -> str:
    """The variable that the statement at ``place`` gives its result to: ``y`` of ``y = x.exp()``."""
    found = statements_at(place)
    statement = found[0] if len(found) == 1 else None
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target, value = statement.targets[0], statement.value
        if isinstance(target, (ast.Name, ast.Attribute)) and isinstance(value, (ast.Call, ast.BinOp)):
            return ast.unparse(target)
    return ""


def target_of(place: Place | None, operator: str = "") -> tuple[str, str]:
    """What the statement at ``place`` writes into, and how it reads out of place.

    Returns:
        (expression that is written, the same without writing into it); either may be empty.

    Example:
        ``h += r`` gives ``("h", "h = h + r")``, ``h[0] = 1`` gives ``("h", "")``.
    """
    found: list[tuple[bool, str, str]] = []
    for statement, node in ((s, n) for s in statements_at(place) for n in ast.walk(s)):
        if isinstance(node, ast.AugAssign) and type(node.op) in _OPERATORS:
            sign, name = _OPERATORS[type(node.op)]
            target, value = ast.unparse(node.target), ast.unparse(node.value)
            value = f"({value})" if isinstance(node.value, (ast.BinOp, ast.IfExp, ast.BoolOp)) else value
            mend = f"{target} = {target} {sign} {value}" if isinstance(node.target, ast.Name) else ""
            found.append((name == operator, _base(node.target), mend))
        elif isinstance(node, ast.Assign):
            matches = operator in ("copy_", "fill_", "index_put_", "_index_put_impl_", "masked_fill_")
            found += [(matches, _base(t), "") for t in node.targets if isinstance(t, ast.Subscript)]
        elif isinstance(node, ast.Call):
            found += _written_by_call(node, operator, statement)
    exact = [entry for entry in found if entry[0]]
    if len(exact) == 1 or (not exact and len(found) == 1):
        return (exact or found)[0][1:]
    return "", ""


def _written_by_call(call: ast.Call, operator: str, statement: ast.stmt) -> Iterator[tuple[bool, str, str]]:
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    for keyword in call.keywords:
        if keyword.arg == "out":
            yield True, _base(keyword.value), f"{ast.unparse(keyword.value)} = {_without(call, 'out')}"
        elif keyword.arg == "inplace" and getattr(keyword.value, "value", False) is True and call.args:
            target, mend = _base(call.args[0]), _without(call, "inplace")
            if isinstance(statement, ast.Assign) and statement.value is call:
                mend = f"{ast.unparse(statement.targets[0])} = {mend}"
            elif isinstance(statement, ast.Expr) and target:
                mend = f"{target} = {mend}"
            yield True, target, mend
    if name.endswith("_") and not name.startswith("_"):
        called_on = ast.unparse(function.value) if isinstance(function, ast.Attribute) else ""
        if called_on in ("", *_NAMESPACES):
            if call.args and called_on:
                yield name == operator, _base(call.args[0]), ""
            return
        arguments = ", ".join(ast.unparse(part) for part in (*call.args, *call.keywords))
        plain = isinstance(function.value, ast.Name) and name not in ("copy_", "zero_", "fill_", "set_", "resize_")
        mend = f"{called_on} = {called_on}.{name.rstrip('_')}({arguments})" if plain else ""
        yield name == operator, _base(function.value), mend


def _without(call: ast.Call, keyword: str) -> str:
    rest = [k for k in call.keywords if k.arg != keyword]
    return ast.unparse(ast.Call(func=call.func, args=call.args, keywords=rest))


def _base(node: ast.expr) -> str:
    """``h`` for ``h``, ``h[0]``, ``h.data`` and ``h.detach()``: the variable behind the ways of writing to it."""
    while True:
        is_alias = isinstance(node, ast.Attribute) and node.attr in ("data", "T", "mT", "real", "imag")
        if is_alias or isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _VIEWS:
            node = node.func.value
        else:
            return ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""


_VIEWS = {"detach", "view", "t", "numpy", "flatten", "reshape", "unsqueeze", "squeeze", "transpose", "narrow", "select"}
_VIEWS |= {"untyped_storage", "diagonal", "expand", "permute", "view_as", "contiguous"}
