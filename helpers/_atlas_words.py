"""How is a measured call told? In words, by dtype, shape and stride, without an address."""

from __future__ import annotations

import textwrap
from typing import Any, NamedTuple

import numpy as np
import torch

from ._atlas_probe import Call


class Example(NamedTuple):
    """One call that was measured.

    Attributes:
        outcome: what it returned: "view", "new memory", "same object", "no tensor"; two of them joined by "and" where
            the parts of one result differ.
        call: the operator and its arguments, tensors by dtype, shape and stride.
        result: the result, told in the same way.
        calls: how many calls had this outcome.
    """

    outcome: str
    call: str
    result: str
    calls: int

    def __str__(self) -> str:
        return f"{self.outcome}: {self.call} gave {self.result} ({self.calls} such call{'s' * (self.calls != 1)})"


def told(value: Any) -> str:
    """Returns a value in words: a tensor by dtype, shape and stride, a container by its parts, else its repr."""
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        if value.layout is not torch.strided:
            return f"{dtype} {tuple(value.shape)} {str(value.layout).removeprefix('torch.')}"
        return f"{dtype} {tuple(value.shape)} stride {value.stride()}"
    if isinstance(value, np.ndarray):
        steps = tuple(s // value.itemsize for s in value.strides)
        return f"array {value.dtype} {value.shape} stride {steps}"
    if isinstance(value, (list, tuple)):
        parts = [told(v) for v in value[:3]] + ["…"] * (len(value) > 3)
        return f"({', '.join(parts)}{',' * (len(value) == 1)})" if isinstance(value, tuple) else f"[{', '.join(parts)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {told(v)}" for k, v in value.items()) + "}"
    words = f"{value:g}" if isinstance(value, float) else repr(value)
    return type(value).__name__ if " at 0x" in words else textwrap.shorten(words, 60, placeholder="…")


def told_call(name: str, call: Call) -> str:
    """Returns a call in words, as ``flatten(float32 (2, 3) stride (3, 1))``."""
    parts = [told(a) for a in call.args] + [f"{k}={told(v)}" for k, v in call.kwargs.items()]
    return f"{name}({', '.join(parts)})"
