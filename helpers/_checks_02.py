"""What the exercises of chapter 02 (view or copy?) ask for. Stubs, hints and solutions stand in the chapter itself."""

from __future__ import annotations

import numpy as np
import torch

from helpers._checks import Case, Exercise
from helpers._properties import (
    RETURNED,
    leaves_alone,
    returns_tensor,
    right_shape,
    right_values,
    shares_memory_with,
    writes_into,
)


def _zeroed(x: torch.Tensor, positions: torch.Tensor) -> dict[str, torch.Tensor]:
    after = x.numpy().copy()
    after[positions.numpy()] = 0
    return {"x": torch.from_numpy(after)}


ZERO_AT = Exercise(
    name="zero_at",
    task="set the elements of `x` at `positions` to zero, in `x` itself",
    parameters=("x", "positions"),
    cases=(
        Case("positions 1 and 3 of five", lambda: (torch.arange(1.0, 6.0, dtype=torch.float32), torch.tensor([1, 3]))),
        Case(
            "rows 0 and 2 of 3 x 4",
            lambda: (torch.arange(1.0, 13.0, dtype=torch.float32).reshape(3, 4), torch.tensor([0, 2])),
        ),
        Case(
            "a mask over four",
            lambda: (torch.arange(1.0, 5.0, dtype=torch.float32), torch.tensor([True, False, False, True])),
        ),
        Case(
            "every second of ten, as a view",
            lambda: (torch.arange(1.0, 11.0, dtype=torch.float32)[::2], torch.tensor([0, 4])),
        ),
    ),
    expect=_zeroed,
    properties=(
        writes_into(
            "x",
            "`x[positions]` makes a copy when it is read, so what a method does to it never reaches `x`. Nor does what "
            "is written into a clone of `x`.",
        ),
        leaves_alone("positions"),
    ),
)

FLAT_VIEW = Exercise(
    name="flat_view",
    task="return `x` in one dimension, over the same memory, or raise an error",
    parameters=("x",),
    cases=(
        Case("3 x 4, contiguous", lambda: (torch.arange(12.0, dtype=torch.float32).reshape(3, 4),)),
        Case(
            "2 x 3 x 1, every fourth number",
            lambda: (torch.arange(24.0, dtype=torch.float32).reshape(2, 3, 4)[:, :, :1],),
        ),
        Case(
            "a transposed matrix, which has no flat view",
            lambda: (torch.arange(12.0, dtype=torch.float32).reshape(3, 4).t(),),
            RuntimeError,
        ),
    ),
    expect=lambda x: {RETURNED: torch.from_numpy(x.numpy().ravel().copy())},
    properties=(
        returns_tensor(),
        right_shape(),
        right_values(),
        shares_memory_with("x", "`reshape`, `flatten` and `ravel` copy without a word where no view is possible."),
    ),
)


def _counted(counts: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    after = counts.numpy().copy()
    np.add.at(after, labels.numpy(), 1)
    return {"counts": torch.from_numpy(after)}


TALLY = Exercise(
    name="tally",
    task="raise `counts` by one for each of `labels`, in `counts` itself",
    parameters=("counts", "labels"),
    cases=(
        Case("labels 0, 0, 0, 1", lambda: (torch.zeros(3, dtype=torch.float32), torch.tensor([0, 0, 0, 1]))),
        Case(
            "a thousand labels for seven counts", lambda: (torch.zeros(7, dtype=torch.float32), torch.arange(1000) % 7)
        ),
        Case("whole-number counts", lambda: (torch.zeros(4, dtype=torch.int64), torch.tensor([3, 3, 2]))),
        Case("no labels at all", lambda: (torch.ones(2, dtype=torch.float32), torch.zeros(0, dtype=torch.int64))),
    ),
    expect=_counted,
    properties=(
        writes_into(
            "counts",
            "With a repeated label, `counts[labels] += 1` writes the same number several times instead of adding it.",
        ),
        leaves_alone("labels"),
    ),
)

EXERCISES = (ZERO_AT, FLAT_VIEW, TALLY)
