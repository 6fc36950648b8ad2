"""Bytes out of a strided tensor, and the same tensor out of the bytes."""

from __future__ import annotations

import random

import pytest
import torch

from helpers import _pieces
from helpers._pieces import (
    Piece,
    _overlaps,
    bytes_of,
    elements_of,
    geometry_of,
    laid_over,
    piece_of,
    room_for,
    same_bytes,
    seen_as,
    spread,
)

CPU = torch.device("cpu")


def of_numbers(count=120, dtype=torch.float32):
    return torch.arange(count).to(dtype)


def back(tensor, *, alone=False):
    """The tensor made anew from a copy of its piece."""
    piece, geometry = piece_of(tensor, alone=alone), geometry_of(tensor)
    flat = bytes_of(tensor, piece).clone()
    room, shift = room_for(piece, tensor.element_size(), CPU)
    if piece.whole:
        room[shift : shift + piece.nbytes].copy_(flat)
    else:
        room.fill_(0xAA)  # what no element stands on may be anything
        spread(seen_as(flat, tensor.dtype), room, shift, geometry)
    return laid_over(room.untyped_storage(), shift, piece, geometry), piece


# name: (tensor, whole?, start, bytes kept, bytes from its first to its last)
PIECES = {
    "contiguous": (of_numbers(), True, 0, 480, 480),
    "transposed": (of_numbers().view(8, 15).t(), True, 0, 480, 480),
    "just over half": (of_numbers()[5:66], True, 0, 480, 480),
    "half": (of_numbers()[5:65], False, 20, 240, 240),
    "every second": (of_numbers()[::2], False, 0, 240, 476),
    "a column": (of_numbers().view(8, 15)[:, 4], False, 16, 32, 424),
    "a box, permuted": (of_numbers().view(4, 5, 6)[1:3, 2:4, 1:4].permute(2, 0, 1), False, 172, 48, 156),
    "expanded": (of_numbers()[4:7].view(3, 1).expand(3, 9), False, 16, 12, 12),
    "one element": (of_numbers()[9], False, 36, 4, 4),
    "windows": (of_numbers().as_strided((6, 4), (2, 1), 10), True, 40, 56, 56),
    "windows that touch": (of_numbers().as_strided((6, 2), (2, 1), 10), False, 40, 48, 48),
    "windows over most of it": (of_numbers().as_strided((57, 8), (2, 1)), True, 0, 480, 480),
    "seen backwards": (of_numbers().as_strided((2, 3), (1, 2), 7), False, 28, 24, 24),
    "bfloat16": (of_numbers(dtype=torch.bfloat16)[3:7], False, 6, 8, 8),
    "complex": (of_numbers(dtype=torch.complex64)[3:7].conj(), False, 24, 32, 32),
}


@pytest.mark.parametrize("tensor, whole, start, nbytes, span", PIECES.values(), ids=PIECES)
def test_what_is_kept_by_hand(tensor, whole, start, nbytes, span):
    again, piece = back(tensor)
    assert piece[:4] == (whole, start, nbytes, span)
    assert piece.shift == (tensor.untyped_storage().data_ptr() + start) % 64
    assert geometry_of(again)[:3] == geometry_of(tensor)[:3] and again.is_conj() == tensor.is_conj()
    assert torch.equal(again, tensor)
    assert again.data_ptr() % 64 == tensor.data_ptr() % 64


@pytest.mark.parametrize("tensor", [case[0] for case in PIECES.values()], ids=PIECES)
def test_alone_no_neighbour_is_kept(tensor):
    again, piece = back(tensor, alone=True)
    assert torch.equal(again, tensor) and again.stride() == tensor.stride()
    indices = torch.arange(tensor.untyped_storage().nbytes() // tensor.element_size())
    standing = indices.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()).unique().numel()
    assert piece.nbytes == standing * tensor.element_size()  # counted element by element


def test_random_strides_against_a_count_of_elements():
    draw, wholes = random.Random(0), 0
    for _ in range(500):
        dims = draw.randrange(0, 4)
        size = [draw.randrange(1, 5) for _ in range(dims)]
        stride = [draw.choice((0, 1, 2, 3, 5, 12)) for _ in range(dims)]
        tensor = of_numbers(200).as_strided(size, stride, draw.randrange(0, 60))
        own = torch.arange(200).as_strided(size, stride).reshape(-1).tolist()
        again, piece = back(tensor)
        assert torch.equal(again, tensor) and again.stride() == tensor.stride()
        wholes += piece.whole
        if piece.nbytes < 800:
            assert piece.span == 4 * (max(own) + 1)
            assert piece.nbytes == (piece.span if piece.whole else 4 * len(set(own)))
        moving = [(n, s) for n, s in zip(size, stride) if s and n > 1]
        if _overlaps(size, stride) is False:  # it may be too careful, never too bold
            assert len(set(own)) == torch.tensor([n for n, _ in moving]).prod().item()
    assert 20 < wholes < 480


def test_a_piece_of_something_else_is_not_the_same():
    tensor = of_numbers()[10:20]
    again, _ = back(tensor)
    tensor[-1] += 1
    assert not torch.equal(again, tensor)


def test_bytes_are_a_view_where_they_lie_side_by_side():
    tensor = of_numbers()
    assert bytes_of(tensor, piece_of(tensor)).data_ptr() == tensor.data_ptr()
    side_by_side = tensor[10:20]
    assert bytes_of(side_by_side, piece_of(side_by_side)).data_ptr() == side_by_side.data_ptr()
    apart = tensor[::2]
    assert bytes_of(apart, piece_of(apart)).data_ptr() != apart.data_ptr()
    assert seen_as(bytes_of(apart, piece_of(apart)), torch.float32).tolist() == apart.tolist()


def test_elements_in_the_order_of_memory():
    box = of_numbers().view(4, 5, 6)
    assert elements_of(box.permute(2, 0, 1)).tolist() == list(range(120))
    assert elements_of(box[1, 2:4, :2].t()).tolist() == [42, 43, 48, 49]
    assert elements_of(of_numbers()[3].expand(5)).tolist() == [3]
    odd = torch.tensor([1 + 2j, 3 - 4j]).conj()
    assert elements_of(odd).tolist() == [1 + 2j, 3 - 4j] and elements_of(odd.imag).tolist() == [2, -4]


def test_a_shift_that_the_elements_cannot_have_is_dropped():
    piece = Piece(True, 0, 16, 16, 12)
    assert room_for(piece, 4, CPU)[1] == 12 and room_for(piece, 8, CPU)[1] == 0
    room, shift = room_for(piece, 4, CPU)
    assert room.numel() == 28 and room.dtype is torch.uint8 and (room.data_ptr() + shift) % 64 == 12


@pytest.mark.parametrize("with_memcmp", [True, False])
def test_bytes_are_compared_to_the_last(with_memcmp, monkeypatch):
    if not with_memcmp:
        monkeypatch.setattr(_pieces, "_memcmp", None)
    a = torch.randint(0, 256, (1001,), dtype=torch.uint8)
    b = torch.cat([torch.zeros(3, dtype=torch.uint8), a])[3:]
    assert same_bytes(a, b) and not same_bytes(a, a[:-1])
    b[-1] ^= 1
    assert not same_bytes(a, b) and same_bytes(a[:-1], b[:-1])
