"""Places in a file, against a model that knows the owner of every page."""

from __future__ import annotations

import random

import pytest

from helpers._file_room import PAGE, FileRoom, pages


class Pages:
    """The simple model: a set of pages in use, and nothing else."""

    def __init__(self):
        self.used: set[int] = set()

    def take(self, offset, nbytes):
        taken = self.of(offset, nbytes)
        assert not taken & self.used, "a page that somebody uses was given away"
        self.used |= taken

    def give_back(self, offset, nbytes):
        assert self.of(offset, nbytes) <= self.used
        self.used -= self.of(offset, nbytes)

    @staticmethod
    def of(offset, nbytes):
        assert offset % PAGE == 0
        return set(range(offset // PAGE, (offset + pages(nbytes)) // PAGE))


def gaps(used):
    """(Offset, length) of the runs of free pages below the last used one, counted page by page."""
    found, end = [], max(used, default=-1) + 1
    for page in range(end):
        if page in used:
            continue
        if found and sum(found[-1]) == page * PAGE:
            found[-1] = found[-1][0], found[-1][1] + PAGE
        else:
            found.append((page * PAGE, PAGE))
    return found, end * PAGE


@pytest.mark.parametrize("seed", range(20))
def test_no_page_has_two_owners_and_gaps_are_joined(seed):
    draw, room, model, held, highest = random.Random(seed), FileRoom(), Pages(), [], 0
    for _ in range(400):
        if held and draw.random() < 0.5:
            offset, nbytes = held.pop(draw.randrange(len(held)))
            room.give_back(offset, nbytes)
            model.give_back(offset, nbytes)
        else:
            nbytes = draw.choice((1, PAGE - 1, PAGE, PAGE + 1, draw.randrange(1, 20 * PAGE)))
            only_new = draw.random() < 0.1
            before = max(model.used, default=-1) + 1
            offset = room.take(nbytes, only_new=only_new)
            model.take(offset, nbytes)
            assert not only_new or offset == before * PAGE
            held.append((offset, nbytes))
        found, end = gaps(model.used)
        highest = max(highest, end)
        assert (room.free, room.end, room.length) == (found, end, highest)
    for offset, nbytes in held:
        room.give_back(offset, nbytes)
    assert (room.free, room.end, room.length) == ([], 0, highest)


def test_the_model_sees_a_page_that_is_given_twice():
    model = Pages()
    model.take(0, PAGE + 1)
    with pytest.raises(AssertionError, match="somebody uses"):
        model.take(PAGE, 1)


def test_the_same_sizes_again_and_again_need_no_new_room():
    room, sizes = FileRoom(), [5 * PAGE, 1, 3 * PAGE, 2 * PAGE]
    for _ in range(1000):
        for offset, nbytes in [(room.take(nbytes), nbytes) for nbytes in sizes]:
            room.give_back(offset, nbytes)
    assert room.length == 11 * PAGE


def test_the_first_gap_that_is_large_enough_is_used():
    room = FileRoom()
    a, b, c, d, _ = (room.take(nbytes) for nbytes in (PAGE, 1, 2 * PAGE, 1, 1))
    room.give_back(a, PAGE)
    room.give_back(c, 2 * PAGE)
    assert room.take(PAGE + 1) == c  # not a, which is too small
    assert room.take(1) == a
    room.give_back(b, 1)
    room.give_back(d, 1)
    assert room.free == [(b, PAGE), (d, PAGE)]


def test_whole_pages():
    assert [pages(n) for n in (0, 1, PAGE, PAGE + 1)] == [0, PAGE, PAGE, 2 * PAGE]
