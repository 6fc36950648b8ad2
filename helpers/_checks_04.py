"""What do the exercises of chapter 04 (in-place memory) ask for? Stubs, hints and solutions stand in the chapter."""

from __future__ import annotations

import torch

from helpers._checks import Case, Exercise
from helpers._properties import (
    RETURNED,
    leaves_alone,
    peak_at_most,
    returns_tensor,
    right_dtype,
    right_shape,
    right_values,
    writes_into,
)


def _wave(*shape: int, start: float = 0.0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values of both signs with exact zeros among them, the same on every machine; no random numbers are drawn."""
    count = torch.Size(shape).numel()
    steps = (torch.arange(count, dtype=torch.float64) * 37 + start).remainder(101) - 50
    return (steps / 25).reshape(shape).to(dtype)


RELU = Exercise(
    name="relu_without_growth",
    task="return the ReLU of `x`, which its caller no longer needs, in no new memory",
    parameters=("x",),
    cases=(
        Case("a 64 x 64 float32 tensor", lambda: (_wave(64, 64),)),
        Case("a transposed view, 48 x 32", lambda: (_wave(32, 48, start=5).t(),)),
        Case("a float64 tensor of 1,000 values", lambda: (_wave(1000, start=9, dtype=torch.float64),)),
    ),
    expect=lambda x: {RETURNED: torch.where(x > 0, x, torch.zeros_like(x))},
    properties=(
        returns_tensor("Writing into `x` is not enough here: hand it back, with `return`."),
        right_shape(),
        right_dtype(),
        right_values(),
        peak_at_most(
            0,
            "`torch.relu(x)` makes a new tensor, also where it stands in `x[:] = torch.relu(x)`, and a comparison such "
            "as `x < 0` makes a mask. Only an operator that writes where it reads needs none.",
        ),
    ),
)

RUNNING_MEAN = Exercise(
    name="update_running_mean",
    task="turn `mean` into `(1 - momentum) * mean + momentum * x`, in the memory that `mean` has",
    parameters=("mean", "x", "momentum"),
    cases=(
        Case("4,096 values, momentum 0.1", lambda: (_wave(4096), _wave(4096, start=17), 0.1)),
        Case("32 x 48 float64 values, momentum 0.5", lambda: (*_rows(torch.float64), 0.5)),
        Case("`mean` is a row of a larger buffer, momentum 1", lambda: (_wave(3, 1024)[1], _wave(1024, start=3), 1.0)),
    ),
    expect=lambda mean, x, momentum: {
        "mean": torch.from_numpy((1 - momentum) * mean.numpy() + momentum * x.numpy()).to(mean.dtype)
    },
    properties=(
        writes_into(
            "mean",
            "`mean = ...` ties the name to a new tensor, and `mean.data = ...` ties the tensor to new memory; neither "
            "writes into the memory that the caller and its views look at.",
        ),
        leaves_alone("x", hint="`x` belongs to the caller. `x.mul_(momentum)` saves a temporary by spoiling it."),
        peak_at_most(
            lambda args: min(64, args["x"].nbytes - 1),  # room for a scalar that became a tensor, not for a copy of x
            "`momentum * x` is a tensor as large as `x`, even if it lives for one line only. Some operators scale and "
            "add in one go.",
            says="need no temporary as large as `x`",
        ),
    ),
)


def _rows(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return _wave(32, 48, dtype=dtype), _wave(32, 48, start=29, dtype=dtype)


def _with_sum(buffer: torch.Tensor, i: int, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    after = buffer.numpy().copy()
    after[i] = x.numpy() + y.numpy()
    return {"buffer": torch.from_numpy(after)}


ADD_INTO_ROW = Exercise(
    name="add_into_row",
    task="write `x + y` into row `i` of `buffer`",
    parameters=("buffer", "i", "x", "y"),
    cases=(
        Case("row 2 of 4 x 1,024", lambda: (_wave(4, 1024), 2, _wave(1024, start=7), _wave(1024, start=11))),
        Case("the last row, as -1", lambda: (_wave(3, 500), -1, _wave(500, start=1), _wave(500, start=2))),
        Case(
            "a buffer that is itself a view", lambda: (_wave(8, 256)[::2], 1, _wave(256, start=4), _wave(256, start=8))
        ),
    ),
    expect=_with_sum,
    properties=(
        writes_into(
            "buffer",
            "`buffer[i]` is a view, so writing into it reaches the buffer; `row = x + y` only renames `row`, and a "
            "copy of the row is not the row.",
        ),
        leaves_alone("x", "y", hint="`x.add_(y)` needs no new memory, but `x` is the caller's."),
        peak_at_most(
            0,
            "`buffer[i] = x + y` first makes `x + y` somewhere else and then copies it. Tell the addition where its "
            "result belongs.",
        ),
    ),
)

EXERCISES = (RELU, RUNNING_MEAN, ADD_INTO_ROW)
