"""Every cell of the comparison against what the operators are known to do, worked out by hand here."""

from __future__ import annotations

import copy
import gc
import warnings
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


OTHER = torch.ones(4, requires_grad=True)


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        (lambda h: torch.from_numpy(h.detach().numpy()[1:]), (True, False, None, False)),
        (lambda h: h.detach().requires_grad_() * 3, (False, False, None, False)),  # has a graph, not that of leaf
        (lambda h: h.detach() * OTHER, (False, False, None, False)),
        (lambda h: h.expand(2, 4), (True, True, 4.0, True)),
        (lambda h: h.to(torch.complex64), (False, True, 2.0, False)),
        (lambda h: torch.empty(0), (False, False, None, False)),
    ],
)
def test_what_only_looks_like_it(way, expected):
    assert compare_copies({"w": way})["w"][1:] == expected
    with torch.no_grad():
        assert compare_copies({"w": way})["w"][1:] == expected
    assert OTHER.grad is None


def test_inference_mode_has_no_version_to_share():
    def way(h):
        with torch.inference_mode():
            return h.clone()

    assert compare_copies({"w": way})["w"][1:] == (False, False, None, False)
    with torch.inference_mode():
        assert compare_copies({"clone": WAYS["clone"]})["clone"].in_graph


def test_what_cannot_be_compared_is_refused_in_words():
    with pytest.raises(TypeError, match="ways is a list: pass a dict"):
        compare_copies([torch.clone])
    with pytest.raises(TypeError, match="the way 'clone' is a str: pass a function"):
        compare_copies({"clone": "clone"})
    with pytest.raises(TypeError, match="the name 1 of a way is no string"):
        compare_copies({1: torch.clone})
    with pytest.raises(ValueError, match="nothing to compare"):
        compare_copies({})
    with pytest.raises(RuntimeError, match="the way 'bad' failed with ZeroDivisionError: division by zero") as caught:
        compare_copies({"bad": lambda h: 1 / 0})
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_the_warnings_of_the_reader_get_out():
    def way(h):
        warnings.warn("mine", UserWarning, stacklevel=1)
        return h.clone()

    with pytest.warns(UserWarning, match="mine"):
        compare_copies({"way": way})
