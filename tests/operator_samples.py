"""PyTorch's catalogue of operators with its sample inputs, for the sweeps of several test files."""

from __future__ import annotations

import itertools
import random
import sys
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map


def catalogue() -> list[Any]:
    """All entries of the catalogue; the module is skipped where it is not there."""
    op_db = pytest.importorskip("torch.testing._internal.common_methods_invocations").op_db
    # For each operator it looks for a unittest by reading the sources of the whole stack, which takes longest of all.
    sys.modules["torch.testing._internal.common_utils"].extract_test_fn = lambda: None
    return op_db


def differentiable(op_db: list[Any], dtype: torch.dtype, name: str = "") -> list[Any]:
    """The entries that have a gradient on a CPU in ``dtype``, and ``name`` in theirs."""
    return [op for op in op_db if name in op.name and op.supports_autograd and dtype in op.supported_dtypes("cpu")]


def samples_of(op: Any, dtype: torch.dtype, most: int | None, first: int | None = None) -> list[Any]:
    """The samples of an entry: all, or ``most`` drawn with a seed from the ``first``; none where a library lacks."""
    try:
        made = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=True), first))
    except RuntimeError:
        return []
    return random.Random(0).sample(made, most) if most is not None and len(made) > most else made


def on_non_leaves(sample: Any) -> tuple[list[torch.Tensor], tuple, dict[str, Any]]:
    """(New leaves, arguments and keyword arguments made of them): sample inputs are leaves, which hooks leave alone."""
    leaves: list[torch.Tensor] = []

    def lift(t: Any) -> Any:
        if not isinstance(t, torch.Tensor) or not t.requires_grad:
            return t
        leaves.append(t.detach().requires_grad_())
        return leaves[-1] * 1 if t.layout is torch.strided else leaves[-1]

    args, kwargs = tree_map(lift, ((sample.input, *sample.args), sample.kwargs))
    return leaves, args, kwargs
