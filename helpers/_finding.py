"""What did a run show, in one sentence? The titles of pictures of memory, worked out from the figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .display import exact_bytes, round_bytes

if TYPE_CHECKING:
    from ._timeline import Replay
    from .memory import MemoryTracker


class Nested(NamedTuple):
    """A phase in which something happened: its events ``first`` to ``last - 1``, and how many phases lie around it."""

    name: str
    first: int
    last: int
    depth: int
    operators: tuple[int, int]


def nested(tracker: MemoryTracker) -> list[Nested]:
    """The phases of a run, outer before inner."""
    found: list[Nested] = []
    ends: list[int] = []
    # A phase is noted when it ends, so of two with the same events the one noted later lies around the other.
    outer_first = list(reversed(list(zip(tracker.phases, tracker._spans))))
    outer_first.sort(key=lambda p: (p[0][1], -p[0][2]))
    for (name, first, last), operators in outer_first:
        ends = [end for end in ends if end > first]
        if first < last:
            found.append(Nested(name, first, last, len(ends), operators))
            ends.append(last)
    return found


def finding(tracker: MemoryTracker) -> str:
    """The title of a finished picture: what the run showed, worked out from its figures."""
    if tracker._state == "new":  # nothing has run, so there is no start that a peak could lie over
        return f"The block has not begun; {round_bytes(tracker.live_bytes)} are tracked for it"
    # A run so long that it was thinned has more phases than a sentence can tell of.
    freed = _what_was_freed(tracker) if tracker._history is None else ""
    if freed:
        return freed
    peak = tracker.peak
    if peak is None:
        return f"Nothing rises above the {round_bytes(tracker.start_bytes)} of the start"
    where = f" in {peak.phase}" if peak.phase else ""
    rise = round_bytes(tracker.peak_bytes - tracker.start_bytes)
    return f"The peak is {round_bytes(tracker.peak_bytes)}{where}, {rise} over the start"


def _what_was_freed(tracker: MemoryTracker) -> str:
    """The first phase that frees what the phase before it saved; "" if none does."""
    replay, start, before = tracker._replay(), tracker._start, ""
    at_start = set(replay.state_after(start - 1).alive)
    held: dict[int, int] = {}  # storage -> bytes, of what the phase before saved
    for name, first, last, depth, _ in nested(tracker):
        if depth:
            continue
        replay.state_after(start + first - 1)
        there, saved_before = set(replay.alive), _saved(replay)
        replay.state_after(start + last - 1)
        left, saved = {n: nbytes for n, (nbytes, _, _) in replay.alive.items()}, _saved(replay)
        if there >= held.keys() and sum(held.values()) > 2 * sum(held[n] for n in held if n in saved):
            freed = sum(nbytes - min(nbytes, left.get(n, 0)) for n, nbytes in held.items() if n not in at_start)
            if freed:
                all_of, of = round_bytes(sum(held.values())), round_bytes(freed)
                share = f"the {all_of}" if of == all_of else f"{of} of the {all_of}"
                return f"{name[:1].upper()}{name[1:]} frees {share} that {before} saved for it"
        held, before = {n: nbytes for n, nbytes in saved.items() if n not in saved_before}, name
    return ""


def _saved(replay: Replay) -> dict[int, int]:
    """Storage number -> bytes of what serves as a saved activation and as nothing before it in rank."""
    return {n: nbytes for n, (nbytes, group, _) in replay.alive.items() if group == "saved activations"}


def comparison(tracker: MemoryTracker, before: MemoryTracker) -> str:
    """The title of a picture that has an earlier run laid over it."""
    now, then = tracker.peak_bytes, before.peak_bytes
    if now == then:
        return f"The peak stays at {round_bytes(now)}"
    told = round_bytes if round_bytes(now) != round_bytes(then) else exact_bytes
    return f"The peak {'falls' if now < then else 'rises'} from {told(then)} to {told(now)}"
