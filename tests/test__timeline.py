"""A log that is played back: exact when its marks are in order, and catching up when they come late."""

from __future__ import annotations

import pytest

from helpers._timeline import ALLOC, FREE, RESIZE, Replay
from helpers.display import GROUPS

PARAMETERS, STATE, GRADIENTS, SAVED, OTHER = GROUPS


def log_of(*changes: tuple[str, int, int]) -> list[tuple]:
    """A tracker's log of (kind, storage, its bytes afterwards)."""
    log, sizes = [], {}
    for number, (kind, storage, nbytes) in enumerate(changes):
        delta = nbytes - sizes.get(storage, 0)
        sizes[storage] = nbytes
        log.append((kind, number, "op", None, "", sum(sizes.values()), delta, storage, nbytes, None))
    return log


def totals(log: list[tuple], marks: list[tuple]) -> list[dict[str, int]]:
    """Only the groups that hold something, after each event."""
    return [{group: n for group, n in event.groups.items() if n} for event in Replay(log, marks).events()]


def test_a_mark_counts_from_its_event_on():
    log = log_of((ALLOC, 1, 10), (ALLOC, 2, 5), (FREE, 1, 0))
    assert totals(log, []) == [{OTHER: 10}, {OTHER: 15}, {OTHER: 5}]
    assert totals(log, [(0, 1, SAVED, 1)]) == [{SAVED: 10}, {SAVED: 10, OTHER: 5}, {OTHER: 5}]
    assert totals(log, [(1, 1, SAVED, 1)]) == [{OTHER: 10}, {SAVED: 10, OTHER: 5}, {OTHER: 5}]
    assert totals(log, [(0, 1, SAVED, 1), (1, 1, SAVED, -1)]) == [{SAVED: 10}, {OTHER: 15}, {OTHER: 5}]


def test_a_storage_saved_twice_is_saved_until_the_second_lets_go():
    log = log_of((ALLOC, 1, 10), (ALLOC, 2, 1), (ALLOC, 3, 1), (ALLOC, 4, 1))
    marks = [(0, 1, SAVED, 1), (0, 1, SAVED, 1), (2, 1, SAVED, -1), (3, 1, SAVED, -1)]
    assert [total.get(SAVED, 0) for total in totals(log, marks)] == [10, 10, 10, 0]


@pytest.mark.parametrize(
    ("roles", "group"),
    [
        ((SAVED, PARAMETERS), PARAMETERS),
        ((SAVED, GRADIENTS), GRADIENTS),
        ((GRADIENTS, STATE), STATE),
        ((), OTHER),
    ],
)
def test_the_first_role_that_holds_names_the_group(roles, group):
    log = log_of((ALLOC, 1, 10), (RESIZE, 1, 30))
    assert totals(log, [(0, 1, role, 1) for role in roles]) == [{group: 10}, {group: 30}]


def test_a_growing_log_with_late_marks_catches_up():
    log, marks = [], []
    live = Replay(log, marks)
    whole = log_of((ALLOC, 1, 10), (ALLOC, 2, 5), (ALLOC, 3, 1))
    log.append(whole[0])
    assert [event.groups[OTHER] for event in live.events()] == [10]
    marks.append((0, 1, PARAMETERS, 1))  # recognised late, though it was one from birth
    log.append(whole[1])
    assert [event.groups[PARAMETERS] for event in live.events()] == [10]
    marks.append((2, 2, SAVED, 1))
    assert live.settled().totals[SAVED] == 5
    log.append(whole[2])
    last = [event.groups for event in live.events()]
    exact = [event.groups for event in Replay(log, sorted(marks)).events()]
    assert last == exact[-1:]
    assert exact[0][PARAMETERS] == 10  # played anew, it was one from birth


def test_state_after_stops_where_it_is_told():
    log = log_of((ALLOC, 1, 10), (ALLOC, 2, 50), (FREE, 1, 0))
    assert [alive.nbytes for alive in Replay(log, []).state_after(1).storages()] == [50, 10]
    assert [alive.nbytes for alive in Replay(log, []).state_after(2).storages()] == [50]
    assert Replay(log, []).state_after(-1).storages() == []
