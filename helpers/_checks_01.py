"""What the exercises of chapter 01 (storage and views) ask for. Stubs, hints and solutions stand in the chapter."""

from __future__ import annotations

import numbers

import torch

from helpers._checks import Case, Exercise
from helpers._properties import (
    RETURNED,
    Hint,
    Property,
    Trial,
    has_own_memory,
    leaves_alone,
    returns_tensor,
    right_dtype,
    right_number,
    right_shape,
    right_values,
    shares_memory_with,
)

COLUMN = Exercise(
    name="column_view",
    task="return column `j` of `x` as a view",
    parameters=("x", "j"),
    cases=(
        Case("column 2 of 3 x 4", lambda: (torch.arange(12.0, dtype=torch.float32).reshape(3, 4), 2)),
        Case("the last column, as -1", lambda: (torch.arange(10.0, dtype=torch.float32).reshape(2, 5), -1)),
        Case("column 0 of a transposed view", lambda: (torch.arange(6.0, dtype=torch.float32).reshape(2, 3).t(), 0)),
    ),
    expect=lambda x, j: {RETURNED: torch.from_numpy(x.numpy()[:, j].copy())},
    properties=(
        returns_tensor(),
        right_shape(
            lambda t: (
                "A column has one dimension; `x[:, [j]]` and `x[:, j:j+1]` keep two." if t.result.dim() == 2 else ""
            )
        ),
        right_values(),
        shares_memory_with(
            "x", "A list or a tensor as an index gathers the elements into new memory, and so does `clone()`."
        ),
        leaves_alone("x"),
    ),
)

# By shape, what lies under the inputs below: counted here by hand, from how each is made.
_KEPT = {(10,): 1000 * 4, (3, 4): 3 * 1 * 4, (2, 2): 2 * 2 * 8, (5,): 10 * 2}


def _what_was_counted(t: Trial) -> str:
    part = t.args["t"]
    if isinstance(t.result, numbers.Number):
        if t.result == part.nbytes:
            return (
                "`t.nbytes` and `t.numel() * t.element_size()` count what `t` describes. It keeps its whole storage "
                "alive."
            )
        if t.result in (part.numel(), _KEPT[tuple(part.shape)] // part.element_size()):
            return "That is a number of elements, and each has several bytes; and the storage stays as a whole."
    return "What stays allocated is a storage, whole. Ask `t` for it, and it for its bytes."


KEPT_ALIVE = Exercise(
    name="bytes_kept_alive",
    task="return how many bytes stay allocated as long as `t` lives",
    parameters=("t",),
    cases=(
        Case("ten of a thousand float32 numbers", lambda: (torch.zeros(1000, dtype=torch.float32)[:10],)),
        Case("3 x 1, expanded to 3 x 4", lambda: (torch.zeros(3, 1, dtype=torch.float32).expand(3, 4),)),
        Case("2 x 2 float64 numbers, whole", lambda: (torch.zeros(2, 2, dtype=torch.float64),)),
        Case("every second of ten float16 numbers", lambda: (torch.zeros(10, dtype=torch.float16)[::2],)),
    ),
    expect=lambda t: {},
    properties=(
        right_number(
            "return the bytes of everything that `t` keeps",
            lambda t: _KEPT[tuple(t.args["t"].shape)],
            _what_was_counted,
        ),
        leaves_alone("t"),
    ),
)


def _storage_fits(t: Trial) -> str | None:
    kept, needed = t.result.untyped_storage().nbytes(), t.result.numel() * t.result.element_size()
    return None if kept == needed else f"its storage has {kept:,} B where its elements need {needed:,} B"


def storage_just_fits(hint: Hint = "") -> Property:
    """The result's storage has as many bytes as its elements need."""
    return Property("keep no more alive than its own elements", _storage_fits, hint)


CUT_LOOSE = Exercise(
    name="cut_loose",
    task="return the values of `part` in a tensor that keeps nothing else alive",
    parameters=("part",),
    cases=(
        Case("ten of a thousand numbers", lambda: (torch.arange(1000.0, dtype=torch.float32)[:10],)),
        Case("a column of 100 x 100", lambda: (torch.arange(10_000.0, dtype=torch.float32).reshape(100, 100)[:, 7],)),
        Case(
            "two rows of 100 x 100 float64 numbers",
            lambda: (torch.arange(10_000.0, dtype=torch.float32).double().reshape(100, 100)[3:5],),
        ),
    ),
    expect=lambda part: {RETURNED: torch.from_numpy(part.numpy().copy())},
    properties=(
        returns_tensor(),
        right_shape(),
        right_dtype(),
        right_values(),
        has_own_memory(
            "part",
            "`detach()` is a view, and `contiguous()` and `reshape()` return a view where they can.",
            decisive=True,  # the storage of a view is too large as well, and the hint for that is about copies
        ),
        storage_just_fits("`copy.deepcopy` makes a copy of the whole storage and not only of the elements."),
        leaves_alone("part"),
    ),
)

EXERCISES = (COLUMN, KEPT_ALIVE, CUT_LOOSE)
