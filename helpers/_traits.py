"""What has to be known of an operator before it runs? Read from its schema and its kernels once, then remembered."""

from __future__ import annotations

from typing import Any

import torch

from ._plain_call import ORDINARY, kind_of

COMPOSES = 1  # of other operators
EXCHANGES = 2  # may give an argument other memory, or resize it
FRESH = 4  # what it returns is new even if an argument lies over it
WRITES = 8  # gives only a sparse argument other memory
MIND = 16  # called as it is inside a mode it would give other results, or count no version
known_traits: dict[int, int] = {}  # by id, as an operator's own hash is slow; `traits_of` fills it
_asked: list[Any] = []  # the operators themselves, so that no other can get the id of one


def traits_of(func: Any) -> int:
    """The traits that hold of ``func``, added up; 0 for most."""
    traits = known_traits.get(id(func))
    if traits is None:
        traits = known_traits[id(func)] = _decide(func)
        _asked.append(func)
    return traits


def _decide(func: Any) -> int:
    traits = 0
    if isinstance(func, torch._ops.OpOverload):
        name, schema = func.name(), func._schema
        known = torch._C._dispatch_has_kernel(name)  # some of TorchScript's operators are not, and asking more raises
        if known and torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"):
            traits |= COMPOSES
        writes = [a for a in schema.arguments if a.alias_info and a.alias_info.is_write]
        if schema.name.endswith(("::resize_", "::resize_as_", "::resize_as_sparse_", "::set_")) or any(
            a.kwarg_only for a in writes
        ):
            traits |= EXCHANGES
        elif writes:
            traits |= WRITES
        if schema.name in ("aten::lift_fresh", "aten::lift"):
            traits |= FRESH  # torch.tensor(...) makes its memory unseen and hands it to one of these
    if kind_of(func) != ORDINARY:
        traits |= MIND
    return traits
