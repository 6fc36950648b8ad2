"""Which phase is where? The brackets and names above a picture of memory; many short ones stand together."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .display import MAX_WIDTH, PAPER, clip, in_xml, text_width

WIDTH, HEIGHT = MAX_WIDTH, 330
TOP, BOTTOM = 74, 50  # margins of the plot, in px
_NARROW = 3  # px: what is narrower cannot be told from its neighbours
_FEW = 4  # fewer narrow ones are still drawn each for itself
_APART = 6  # px between two names
Span = tuple[str, float, float]  # a name, from px to px


@dataclass(frozen=True)
class Bracket:
    """A phase: its name and the operators it spans; ``depth`` 0 is outermost."""

    name: str
    first: int
    last: int
    depth: int = 0


def _told_apart(spans: Sequence[Span], narrow: Callable[[Span], bool], gap: float) -> list[Span]:
    """The spans; the narrow ones in a row, less than ``gap`` px apart, stand together as one, which counts them."""
    found: list[Span] = []
    run: list[Span] = []

    def end_run() -> None:
        found.extend(run if len(run) < _FEW else [(_together(run), run[0][1], run[-1][2])])
        run.clear()

    for span in sorted(spans, key=lambda s: s[1]):
        joins = narrow(span)
        if run and (not joins or span[1] - run[-1][2] >= gap):
            end_run()
        (run if joins else found).append(span)
    end_run()
    return found


def _unnamed(phases: Sequence[Span]) -> Callable[[Span], bool]:
    """What gets no name of its own: what comes again and again or, where nothing does, what its name does not fit."""
    times = Counter(name for name, _, _ in phases)
    if max(times.values()) >= _FEW:
        return lambda span: times[span[0]] >= _FEW
    return lambda span: span[2] - span[1] < text_width(span[0]) + _APART


def _together(run: Sequence[Span]) -> str:
    """``300 x (forward, backward)`` or, where they do not take turns, how many and the names of the first.

    The last turn may be under way, and so lack its end.
    """
    names = [name for name, _, _ in run]
    first = list(dict.fromkeys(names))
    said = ", ".join(first[:4])
    if len(names) > len(first) <= 4 and all(name == first[i % len(first)] for i, name in enumerate(names)):
        return f"{-(-len(names) // len(first)):,} x {said if len(first) == 1 else f'({said})'}"
    return f"{len(run):,} phases: {said}{', ...' if len(first) > 4 else ''}"


def phase_marks(brackets: Sequence[Bracket], x: Callable[[float], float]) -> list[str]:
    """The outermost phases: every other one shaded, each with its bracket and its name above the plot."""
    drawn = []
    phases = [(b.name, x(b.first), x(max(b.last, b.first))) for b in brackets if b.depth == 0]
    spans = _told_apart(phases, lambda span: span[2] - span[1] < _NARROW, _NARROW)
    for number, (_, left, right) in enumerate(spans):
        if number % 2 == 0:
            drawn.append(
                f'<rect x="{left:.1f}" y="{TOP}" width="{max(right - left, 1):.1f}" '
                f'height="{HEIGHT - TOP - BOTTOM}" fill="#f1f1f1"/>'
            )
        drawn.append(
            f'<path d="M{left + 1:.1f} {TOP - 2}v-6H{max(right - 1, left + 2):.1f}v6" fill="none" stroke="#555"/>'
        )
    names, short = _names(spans)
    if short >= _FEW:  # "f…" over each of many says nothing
        names, _ = _names(_told_apart(phases, _unnamed(phases), WIDTH))
    return drawn + names


def _names(spans: Sequence[Span]) -> tuple[list[str], int]:
    """The names of phases, each over its own or, where that is short, as near as the names beside it let it be.

    Returns them as SVG, and how many are not whole.
    """
    drawn, short, end = [], 0, 0.0
    for i, (name, left, right) in enumerate(spans):
        limit = float(WIDTH - 8)
        if i + 1 < len(spans):
            following, begin, last = spans[i + 1]
            limit = max(right, (begin + last - text_width(clip(following, last - begin))) / 2 - _APART)
        shown = clip(name, limit - end - _APART)
        half = text_width(shown) / 2
        short += shown != name
        if shown == "…" or end + _APART + 2 * half > limit:
            continue
        middle = min(max((left + right) / 2, end + _APART + half), limit - half)
        end = middle + half
        drawn.append(
            f'<text x="{middle:.1f}" y="{TOP - 12}" text-anchor="middle" stroke="{PAPER}" stroke-width="3" '
            f'paint-order="stroke">{html.escape(in_xml(shown), quote=False)}</text>'
        )
    return drawn, short
