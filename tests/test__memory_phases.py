"""What stands together over a picture is counted truly: turns where phases take turns, else phases.

How they are drawn is tested with the pictures, in tests/test_live.py.
"""

from __future__ import annotations

import pytest

from helpers._memory_phases import _together


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["step"] * 7, "7 x step"),
        (["forward", "backward"] * 1000, "1,000 x (forward, backward)"),
        (["f", "b", "u"] * 20 + ["f"], "21 x (f, b, u)"),  # the last one is under way
        (["load", "forward", "backward", "forward", "save"], "5 phases: load, forward, backward, save"),
        (["warm-up", "step", "step", "check"], "4 phases: warm-up, step, check"),
        (["write"] * 300 + ["read"] * 300, "600 phases: write, read"),
        (["f", "b"] * 9 + ["validate"], "19 phases: f, b, validate"),
        (["a", "b", "c", "d"], "4 phases: a, b, c, d"),
        (list("abcde") * 3, "15 phases: a, b, c, d, ..."),
    ],
)
def test_turns_are_counted_only_where_phases_take_turns(names, said):
    assert _together([(name, float(i), float(i + 1)) for i, name in enumerate(names)]) == said
