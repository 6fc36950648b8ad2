"""How much more than before? Amounts of bytes as bars, those of the run before as outlines, as SVG."""

from __future__ import annotations

import html
import numbers
from collections.abc import Mapping
from typing import Any

from .display import FONT, GROUPS, INK, MAX_WIDTH, PAPER, Picture, clip, exact_bytes, in_xml, round_bytes, text_width

_MARGIN, _TOP, _BAR, _ROW = 14, 40, 20, 56  # px
_WIDE = MAX_WIDTH - 2 * _MARGIN


def draw_bytes(now: Mapping[str, int], before: Mapping[str, int] | None = None) -> Picture:
    """Draws amounts of bytes as bars to one scale, over the outlines of what they were before.

    Args:
        now: name -> bytes, not negative; the first is the one that the title is about. A name among
            `helpers.display.GROUPS` has that group's colour.
        before: the same names, in the run before; each difference is written out, to the byte.

    Returns:
        A `Picture`; its ``data`` are ``now`` and ``before``.

    Raises:
        TypeError: one of the two is no mapping of names to whole numbers.
        ValueError: there is nothing to draw, an amount is negative, or the names are not those of ``before``.

    Example:
        >>> draw_bytes({"saved activations": 4096}, {"saved activations": 1024})
        Saved activations: from 1.00 KiB to 4.00 KiB. saved activations 4,096 B, +3,072 B against the run before.
    """
    _check("now", now)
    if before is not None:
        _check("before", before)
    if not now or (before is not None and list(before) != list(now)):
        raise ValueError(f"expected the same names twice, got {list(now)} and {list(before or ())}")
    words = {name: _told(amount, None if before is None else before[name]) for name, amount in now.items()}
    title = _title(now, before)
    alt = f"{title}. {'; '.join(f'{name} {told}' for name, told in words.items())}"
    alt += "." if before is None else " against the run before."
    return Picture(_svg(now, before, title, words), alt=in_xml(alt), data={"now": now, "before": before})


def _check(argument: str, amounts: Any) -> None:
    if not isinstance(amounts, Mapping):
        raise TypeError(f"{argument}: expected a mapping of names to bytes, as in {{'inputs': 4096}}, got {amounts!r}")
    for name, amount in amounts.items():
        if not isinstance(name, str):
            raise TypeError(f"{argument}: expected a string as the name of an amount, got {name!r}")
        if not isinstance(amount, numbers.Integral) or isinstance(amount, bool):
            raise TypeError(f"{argument}: {name}: expected bytes as a whole number, got {amount!r}")
        if amount < 0:
            raise ValueError(f"{argument}: {name}: an amount of bytes is not negative, got {amount}")


def _told(amount: int, then: int | None) -> str:
    if then is None:
        return exact_bytes(amount)
    sign = "+" if amount > then else "±" if amount == then else ""
    return f"{exact_bytes(amount)}, {sign}{exact_bytes(amount - then)}"


def _title(now: Mapping[str, int], before: Mapping[str, int] | None) -> str:
    name, amount = next(iter(now.items()))
    start = name[:1].upper() + name[1:]
    if before is None:
        return f"{start}: {round_bytes(amount)}"
    then = before[name]
    if amount == then:
        return f"{start}: {round_bytes(amount)}, as before"
    return f"{start}: from {round_bytes(then)} to {round_bytes(amount)}"


def _svg(now: Mapping[str, int], before: Mapping[str, int] | None, title: str, words: Mapping[str, str]) -> str:
    most = max([*now.values(), *(before or {}).values()]) or 1
    height = _TOP + _ROW * len(now) + (20 if before is not None else 0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{MAX_WIDTH}" height="{height}" '
        f'viewBox="0 0 {MAX_WIDTH} {height}" font-family="{html.escape(FONT)}" font-size="12" fill="{INK}">',
        f'<rect x=".5" y=".5" width="{MAX_WIDTH - 1}" height="{height - 1}" rx="4" fill="{PAPER}" stroke="#8a8a8a"/>',
        f'<text x="{_MARGIN}" y="23" font-size="14" font-weight="bold">{_text(title, 15.4)}</text>',
    ]
    y = _TOP
    x = _MARGIN + min(max(text_width(name, 13.2) for name in now) + 14, _WIDE / 2)
    for name, amount in now.items():
        parts += [
            f'<text x="{_MARGIN}" y="{y + 13}" font-weight="bold">{_text(name, 13.2, x - _MARGIN)}</text>',
            f'<text x="{x:.1f}" y="{y + 13}">{_text(words[name], 12, _MARGIN + _WIDE - x)}</text>',
            f'<rect x="{_MARGIN}" y="{y + 24}" width="{amount / most * _WIDE:.1f}" height="{_BAR}" '
            f'fill="{GROUPS.get(name, GROUPS["other"])}" stroke="{INK}" stroke-width=".8"/>',
        ]
        if before is not None:
            parts.append(
                f'<rect x="{_MARGIN}" y="{y + 21}" width="{before[name] / most * _WIDE:.1f}" height="{_BAR + 6}" '
                f'fill="none" stroke="{INK}" stroke-width="1.5" stroke-dasharray="5 3"/>'
            )
        y += _ROW
    if before is not None:
        parts += [
            f'<rect x="{_MARGIN}" y="{y + 1}" width="16" height="10" fill="none" stroke="{INK}" '
            'stroke-dasharray="5 3"/>',
            f'<text x="{_MARGIN + 22}" y="{y + 10}" font-size="11">the run before</text>',
        ]
    return "".join(parts) + "</svg>"


def _text(words: str, size: float, width: float = _WIDE) -> str:
    return html.escape(in_xml(clip(words, max(width, 0), size)), quote=False)
