"""What is near, and what is far? Two ledgers of one step, up and down from one line, as SVG."""

from __future__ import annotations

import html
from collections.abc import Sequence

from .display import FONT, INK, MAX_WIDTH, PAPER, Picture, exact_bytes, round_bytes

_LEFT, _RIGHT, _TOP, _PLOT, _HEIGHT = 70, 20, 60, 190, 290  # px
_NEAR, _FAR = "#999999", "#D55E00"


def draw_ledgers(entries: Sequence[tuple[int, int, int]]) -> Picture:
    """Draws the bytes that were near upwards and those that were far downwards, to one scale.

    Args:
        entries: (operators so far, near bytes, far bytes), one after the other.

    Raises:
        ValueError: there is no entry.

    Example:
        >>> draw_ledgers([(1, 1024, 0), (2, 4096, 0), (3, 2048, 2048)]).alt.split(". ")[0]
        'Never more than 4.00 KiB near, up to 2.00 KiB far'
    """
    if not entries:
        raise ValueError("draw_ledgers needs at least one entry: (operators so far, near bytes, far bytes)")
    last = entries[-1][0]
    near, far = (max(entry[column] for entry in entries) for column in (1, 2))
    fullest = next((operators for operators, _, nbytes in entries if nbytes == far), 0)
    scale = _PLOT / (near + far or 1)  # px a byte, the same up and down
    middle = _TOP + near * scale
    title = f"Never more than {round_bytes(near)} near, up to {round_bytes(far)} far"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{MAX_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {MAX_WIDTH} {_HEIGHT}" font-family="{html.escape(FONT)}" font-size="12" fill="{INK}">',
        f'<rect x=".5" y=".5" width="{MAX_WIDTH - 1}" height="{_HEIGHT - 1}" rx="4" fill="{PAPER}" stroke="#8a8a8a"/>',
        f'<text x="14" y="24" font-size="14" font-weight="bold">{title}</text>',
    ]
    for column, sign, colour in ((1, 1, _NEAR), (2, -1, _FAR)):
        steps = [(_across(entry[0], last), middle - sign * scale * entry[column]) for entry in entries]
        line = "".join(f"H{x:.1f}V{y:.1f}" for x, y in steps)
        path = f"M{_LEFT} {middle:.1f}{line}H{MAX_WIDTH - _RIGHT}V{middle:.1f}Z"
        parts.append(f'<path d="{path}" fill="{colour}" stroke="{INK}"/>')
    words = f"far, at most {exact_bytes(far)}, after operator {fullest:,}"
    parts += [
        f'<text x="{_LEFT}" y="50">near, at most {exact_bytes(near)}</text>',
        f'<text x="{_LEFT}" y="275">{words}</text>',
        f'<text x="{MAX_WIDTH - _RIGHT}" y="275" text-anchor="end">operators 0 to {last:,}</text>',
    ]
    alt = f"{title}. Near, at most {exact_bytes(near)}; {words} of {last:,}."
    return Picture("".join(parts) + "</svg>", alt=alt)


def _across(operators: int, last: int) -> float:
    return _LEFT + (MAX_WIDTH - _LEFT - _RIGHT) * operators / (last or 1)
