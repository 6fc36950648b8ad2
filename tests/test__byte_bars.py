"""Bars of bytes say the difference to the byte, and are as long as their bytes."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from helpers import draw_bytes
from helpers.display import GROUPS, MAX_WIDTH, text_width

SVG = "{http://www.w3.org/2000/svg}"


def bars(picture):
    """(fill or None, width) of every bar and outline, in order."""
    found = ET.fromstring(picture.svg).iter(f"{SVG}rect")
    return [(r.get("fill"), float(r.get("width"))) for r in found][1:]  # behind the paper


def test_alone_it_says_its_bytes():
    picture = draw_bytes({"saved activations": 4096, "parameters": 1024})
    assert picture.alt == "Saved activations: 4.00 KiB. saved activations 4,096 B; parameters 1,024 B."
    (colour, longest), (other, quarter) = bars(picture)
    assert (colour, other) == (GROUPS["saved activations"], GROUPS["parameters"])
    assert quarter == pytest.approx(longest / 4)


def test_the_run_before_is_an_outline_to_the_same_scale():
    picture = draw_bytes({"a": 1000}, {"a": 4000})
    (colour, now), (outline, then), _ = bars(picture)
    assert (colour, outline) == (GROUPS["other"], "none")
    assert now == pytest.approx(then / 4) and then == MAX_WIDTH - 28
    assert picture.data == {"now": {"a": 1000}, "before": {"a": 4000}}


@pytest.mark.parametrize(
    ("then", "title", "change"),
    [
        (1, "A: from 1 B to 5 B", "+4 B"),
        (5, "A: 5 B, as before", "±0 B"),
        (2005, "A: from 1.96 KiB to 5 B", "-2,000 B"),
    ],
)
def test_the_difference_is_written_out(then, title, change):
    picture = draw_bytes({"a": 5}, {"a": then})
    assert picture.alt == f"{title}. a 5 B, {change} against the run before."
    assert f"5 B, {change}</text>" in picture.svg and f">{title}</text>" in picture.svg


def test_nothing_is_a_bar_without_length():
    assert bars(draw_bytes({"a": 0}, {"a": 0}))[0] == (GROUPS["other"], 0)


def test_names_of_any_kind_stay_inside():
    picture = draw_bytes({"<b> & \x07" + "w" * 200: 2**60, "ok": 1})
    for text in ET.fromstring(picture.svg).iter(f"{SVG}text"):
        size = float(text.get("font-size", 12))
        assert float(text.get("x")) + text_width(text.text or "", size) <= MAX_WIDTH, text.text
    assert not re.search(r"\d+px", picture.svg)


@pytest.mark.parametrize(
    ("now", "before", "words"),
    [
        ({}, None, "the same names twice"),
        ({"a": 1}, {"b": 1}, r"\['a'\] and \['b'\]"),
        ({"a": -1}, None, "now: a: an amount of bytes is not negative, got -1"),
        ({"a": 5}, {"a": -5}, "before: a: an amount of bytes is not negative, got -5"),
    ],
)
def test_what_cannot_be_drawn_is_refused(now, before, words):
    with pytest.raises(ValueError, match=words):
        draw_bytes(now, before)


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (None, "expected a mapping of names to bytes, as in {'inputs': 4096}, got None"),
        ([("a", 5)], "expected a mapping of names to bytes"),
        ({1: 5}, "expected a string as the name of an amount, got 1"),
        ({"a": "5"}, "a: expected bytes as a whole number, got '5'"),
        ({"a": 5.0}, "a: expected bytes as a whole number, got 5.0"),
        ({"a": float("nan")}, "got nan"),
        ({"a": float("inf")}, "got inf"),
        ({"a": True}, "got True"),
    ],
)
def test_what_are_no_amounts_is_refused(now, words):
    with pytest.raises(TypeError, match=re.escape("now: ") + ".*" + re.escape(words)):
        draw_bytes(now)
    if now is not None:
        with pytest.raises(TypeError, match="before: .*" + re.escape(words)):
            draw_bytes({"a": 5}, now)
    assert "5 B" in draw_bytes({"a": np.int64(5)}).alt, "a whole number of another kind"
