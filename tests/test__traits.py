"""What is read from an operator before it runs, against operators whose nature is known."""

from __future__ import annotations

import pytest
import torch

from helpers._traits import COMPOSES, EXCHANGES, FRESH, MIND, WRITES, known_traits, traits_of

aten = torch.ops.aten
NAMED = {"COMPOSES": COMPOSES, "EXCHANGES": EXCHANGES, "FRESH": FRESH, "WRITES": WRITES}


@pytest.mark.parametrize(
    ("func", "traits"),
    [
        (aten.mm.default, set()),
        (aten.view.default, set()),
        (aten.relu_.default, {"WRITES"}),
        (aten.copy_.default, {"WRITES"}),
        (aten.add.out, {"EXCHANGES"}),
        (aten.resize_.default, {"EXCHANGES"}),
        (aten.set_.source_Tensor, {"EXCHANGES"}),
        (aten.lift_fresh.default, {"FRESH"}),
        (aten.reshape.default, {"COMPOSES"}),
        (aten.einsum.default, {"COMPOSES"}),
    ],
    ids=str,
)
def test_traits_of_operators(func, traits):
    found = traits_of(func)
    assert {name for name, trait in NAMED.items() if found & trait} == traits


def test_what_acts_otherwise_inside_a_mode_is_minded():
    assert traits_of(aten._foreach_add_.Scalar) & MIND  # its version would not be counted
    assert traits_of(aten.linalg_pinv.atol_rtol_tensor) & MIND  # composed, and wrong for complex numbers
    assert not traits_of(aten.view.default) & MIND


def test_traits_are_decided_once():
    func = aten.cosh.default
    assert traits_of(func) == known_traits[id(func)] == traits_of(func)


def test_what_is_no_overload_has_no_traits():
    assert traits_of(len) == 0
