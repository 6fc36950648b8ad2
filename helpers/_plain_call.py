"""How does an operator give, called from inside a dispatch mode, the results that it has without one?"""

from __future__ import annotations

from typing import Any

import torch


def plain_call(func: Any, args: tuple, kwargs: dict | None) -> Any:
    """Runs an operator so that it does what it does without a mode; two kinds do something else inside one."""
    kind = _kinds.get(id(func))
    if kind is None:
        kind = kind_of(func)
    if kind == ON_LISTS:
        return _counted(func, args, kwargs or {})
    if kind == COMPOSED:
        for arg in args:  # no generator: this stands in the way of most operators
            if isinstance(arg, torch.Tensor) and arg.is_complex():
                return _with_lazy_bits(func, args, kwargs or {})
    return func(*args, **kwargs) if kwargs else func(*args)


def _with_lazy_bits(func: Any, args: tuple, kwargs: dict) -> Any:
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in _LAZY_BITS:
        excluded = excluded.remove(key)
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
        return func(*args, **kwargs)


def _counted(func: Any, args: tuple, kwargs: dict) -> Any:
    """Operators on lists, which optimizers step with, are loops of operators on tensors on a CPU.

    Inside a mode such a loop passes by PyTorch's own version counter, and its check would miss every step.
    """
    before = [None if tensor.is_inference() else tensor._version for tensor in args[0]]
    out = func(*args, **kwargs)
    for tensor, version in zip(args[0], before):
        if version is not None and tensor._version == version:
            torch.autograd.graph.increment_version(tensor)
    return out


# Inside a mode PyTorch does not look at the bits that say "conjugate me" and "negate me", and operators that are
# composed of others, `linalg_pinv` for one, set them on the way: with complex numbers their results would be wrong.
_LAZY_BITS = (torch._C.DispatchKey.Conjugate, torch._C.DispatchKey.Negative)
ORDINARY, ON_LISTS, COMPOSED = range(3)
_kinds: dict[int, int] = {}  # by id of the operator, as its own hash is slow
_asked: list[Any] = []  # the operators themselves, so that no other can get the id of one


def kind_of(func: Any) -> int:
    """What has to be minded about ``func`` inside a mode: nothing, its version counts, or its lazy bits."""
    kind = _kinds.get(id(func))
    if kind is None:
        kind = _kinds[id(func)] = _decide(func)
        _asked.append(func)
    return kind


def _decide(func: Any) -> int:
    if not isinstance(func, torch._ops.OpOverload):
        return ORDINARY
    name, arguments = func.name(), func._schema.arguments
    if name.startswith("aten::_foreach_"):
        writes = arguments[0].alias_info is not None and arguments[0].alias_info.is_write
        return ON_LISTS if writes else ORDINARY
    has_kernel = torch._C._dispatch_has_kernel(name)  # some of TorchScript's have none, and must not be asked for more
    composes = torch._C._dispatch_has_kernel_for_dispatch_key
    composed = has_kernel and any(composes(name, f"CompositeExplicitAutograd{kind}") for kind in ("", "NonFunctional"))
    return COMPOSED if composed else ORDINARY
