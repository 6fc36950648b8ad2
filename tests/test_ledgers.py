"""The two ledgers: one scale up and down, words that say the numbers, and nothing drawn of nothing."""

from __future__ import annotations

import doctest
import re
import xml.etree.ElementTree as ET

import pytest

from helpers.ledgers import draw_ledgers

ENTRIES = [(1, 1_000_000, 0), (5, 3_000_000, 500_000), (6, 2_000_000, 1_000_000), (10, 500_000, 0)]


def paths(picture):
    """(lowest y, highest y) of each ledger: near, far."""
    svg = ET.fromstring(picture.svg)
    found = []
    for path in svg.findall("{*}path"):
        ys = [float(y) for y in re.findall(r"V([\d.]+)", path.get("d"))]
        found.append((min(ys), max(ys)))
    return found


def test_both_are_drawn_from_one_line_to_one_scale():
    (top, middle), (line, bottom) = paths(draw_ledgers(ENTRIES))
    assert middle == line
    assert (middle - top) / (bottom - line) == pytest.approx(3, abs=0.01)  # 3,000,000 B against 1,000,000 B


def test_words_say_what_is_drawn():
    picture = draw_ledgers(ENTRIES)
    for words in ("3,000,000 B", "1,000,000 B", "after operator 6", "10"):
        assert words in picture.alt and words in picture.svg
    assert "Never more than 2.86 MiB near, up to 976.56 KiB far" in picture.svg
    assert int(ET.fromstring(picture.svg).get("width")) <= 700


def test_the_example_is_true():
    test = doctest.DocTestFinder().find(draw_ledgers, globs={"draw_ledgers": draw_ledgers})[0]
    assert doctest.DocTestRunner().run(test) == (0, 1)


def test_other_entries_make_another_picture():
    assert draw_ledgers(ENTRIES).svg != draw_ledgers([(o, n, f // 2) for o, n, f in ENTRIES]).svg


def test_it_draws_a_run_of_nothing_and_refuses_no_run():
    near, far = paths(draw_ledgers([(0, 0, 0)]))
    assert near == far
    with pytest.raises(ValueError, match="at least one entry"):
        draw_ledgers([])
