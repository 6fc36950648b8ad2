"""How well is one colour told from another? For the tests of pictures and of what a browser shows."""

from __future__ import annotations

import re


def contrast(one: str, other: str) -> float:
    """The ratio of the Web Content Accessibility Guidelines, 1 to 21; text needs 4.5, an outline 3.

    Colours are ``#rrggbb`` or what a browser computes, ``rgb(r, g, b)``.
    Source: https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio
    """
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    if re.fullmatch(r"#[\da-fA-F]{6}", colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    else:
        parts = [float(c) / 255 for c in re.fullmatch(r"rgba?\((.*)\)", colour)[1].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
