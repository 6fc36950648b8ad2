"""Every cell of the comparison against what the operators are known to do, worked out by hand here."""

from __future__ import annotations

import copy
import gc
import weakref
import xml.etree.ElementTree as ElementTree

import pytest
import torch

from helpers.copies import Copied, compare_copies

WAYS = {
    "h": lambda h: h,
    "clone": lambda h: h.clone(),
    "detach": lambda h: h.detach(),
    "detach clone": lambda h: h.detach().clone(),
    ".data": lambda h: h.data,
    "tensor": lambda h: torch.tensor(h),
    "three times": lambda h: h * 3,
    "copy.copy": lambda h: copy.copy(h),
}


@pytest.fixture(scope="module")
def compared():
    return compare_copies(WAYS)


@pytest.mark.parametrize(
    ("way", "shares", "in_graph", "gradient", "version"),
    [
        ("h", True, True, 2.0, True),
        ("clone", False, True, 2.0, False),
        ("detach", True, False, None, True),
        ("detach clone", False, False, None, False),
        (".data", True, False, None, False),
        ("tensor", False, False, None, False),
        ("three times", False, True, 6.0, False),
    ],
)
def test_each_way_by_hand(compared, way, shares, in_graph, gradient, version):
    assert compared[way] == Copied(way, shares, in_graph, gradient, version)


def test_title_counts_and_names_the_silent_one(compared):
    assert compared.title.startswith("4 of 8 ways share memory")
    assert compared.title.endswith("; writes through .data and copy.copy go uncounted")
    assert "uncounted" not in compare_copies({"detach": WAYS["detach"]}).title


def test_the_advice_of_torch_tensor_does_not_get_out(recwarn):
    compare_copies({"tensor": WAYS["tensor"]})
    assert not recwarn.list
    with pytest.warns(UserWarning, match="clone"):
        torch.tensor(torch.ones(2))  # the control: asked for directly, it does warn


def test_picture_is_well_formed_and_says_every_row(compared):
    picture = compared.picture
    svg = ElementTree.fromstring(picture.svg)
    assert float(svg.get("width")) <= 700
    texts = "".join(svg.itertext())
    for way in WAYS:
        assert way in texts and f"{way}: " in picture.alt
    assert "one memory" in texts and "two memories" in texts  # colour is not the only sign
    assert "three times: memory of its own, in the graph, gradient 6, a version counter of its own." in picture.alt


def test_wrong_result_is_named():
    with pytest.raises(TypeError, match="the way 'list' returned list: it must return the copy, a tensor"):
        compare_copies({"list": lambda h: h.tolist()})


def test_unknown_way_is_named(compared):
    with pytest.raises(KeyError, match="'none' was not compared; there are h, clone"):
        compared["none"]


def test_keeps_nothing_alive():
    seen = []

    def remember(h):
        seen.append(weakref.ref(h))
        return h.clone()

    comparison = compare_copies({"remember": remember})
    gc.collect()
    assert seen[0]() is None and comparison.rows
