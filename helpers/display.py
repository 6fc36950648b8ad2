"""What does the reader see? The one door to the notebook: pictures and tables with their words.

A freshly cloned notebook is untrusted: JupyterLab then hides SVG outputs and strips SVG out of HTML. So a picture
leaves here as ``<img alt="..." src="data:image/svg+xml;base64,...">``, which survives, with a plain-text twin that says
the same numbers. Nothing here prints an address, a time or a path, so saved outputs can be compared.
"""

from __future__ import annotations

import base64
import html
import numbers
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

# One meaning a colour, in every picture (Okabe and Ito's colour-blind safe palette). In this order the bands of a
# memory picture are stacked, from the floor up.
GROUPS = {
    "parameters": "#0072B2",
    "optimizer state": "#CC79A7",
    "gradients": "#E69F00",
    "saved activations": "#D55E00",
    "other": "#999999",
}
SHARED = "#009E73"
WRITTEN = "#F0E442"
INK = "#1a1a1a"
PAPER = "#ffffff"
FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
MAX_WIDTH = 700  # px; JupyterLab, Colab and GitHub all fit it

_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def exact_bytes(n: int) -> str:
    """Returns ``n`` bytes to the byte, for tables: ``exact_bytes(400_000_000) == '400,000,000 B'``."""
    return f"{n:,} B"


def round_bytes(n: float) -> str:
    """Returns ``n`` bytes in binary units, for pictures and sentences.

    Example:
        >>> round_bytes(400_000_000), round_bytes(40), round_bytes(-2048)
        ('381.47 MiB', '40 B', '-2.00 KiB')
    """
    for size, unit in _UNITS:
        # What rounds to a whole unit is one: 1,048,575 B are 1.00 MiB and not 1,024.00 KiB.
        if round(abs(n) / size * 1024, 2 if size > 1024 else 0) >= 1024:
            return f"{n / size:,.2f} {unit}"
    return f"{n:,.0f} B"


# Width of a character in ems: the larger of Helvetica's and DejaVu Sans', rounded up. What is not here is as wide as
# the last two say. tests/test_display.py compares with the fonts' own figures.
_EM = {
    character: em
    for em, characters in (
        (0.36, "fijlI',./:;\\| "),
        (0.42, "rt!()-[]"),
        (0.56, 'cszJL"*?_`'),
        (0.64, "0123456789abdeghknopquvxyFT${}"),
        (0.72, "ABEKPSVXYZ"),
        (0.80, "CDGHNOQRU&"),
        (0.86, "w#+<=>^~"),
        (0.99, "mMW%"),
    )
    for character in characters
}
_OTHER_LETTER, _OTHER = 0.80, 1.02


def text_width(text: str, size: float = 11) -> float:
    """Returns an upper estimate, in px, of ``text`` set in the regular face of `FONT`, ``size`` px high.

    A kernel cannot ask the browser for font metrics, nor which of the faces it has. So the widths are those of the
    widest: a label which fits here fits on the screen.
    """
    return size * sum(_EM.get(c) or (_OTHER_LETTER if c.islower() else _OTHER) for c in text)


def clip(text: str, width: float, size: float = 11) -> str:
    """Returns ``text``, cut with an ellipsis so that it fits ``width`` px."""
    if text_width(text, size) <= width:
        return text
    # Halved again and again: cut by one character at a time, a long name takes seconds.
    lengths = range(len(text) + 1)
    longer = bisect_right(lengths, width, key=lambda length: text_width(text[:length] + "…", size))
    return text[: max(longer - 1, 0)] + "…"


_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def in_xml(text: str) -> str:
    """Returns ``text`` without the control characters and lone surrogates that XML 1.0, and so SVG, cannot hold."""
    return _NOT_IN_XML.sub("", text)


def in_notebook() -> bool:
    """Whether an IPython kernel is there to draw into (false in a script and in a terminal)."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    shell = get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


def show(thing: Any) -> None:
    """Shows ``thing`` under the running cell; in a script prints its text instead."""
    if in_notebook():
        from IPython.display import display

        display(thing)
    else:
        print(thing)


_WORDS = {
    "svg": "a complete <svg> element",
    "alt": "what the picture shows, in one sentence",
    "text": "the plain-text twin, or leave it out",
}


class Picture:
    """A drawing with its words; the last value of a cell, or passed to `show`.

    Args:
        svg: a complete ``<svg>`` element with ``width`` and ``height`` in px and its own background.
        alt: what the picture says, with its numbers, for a reader who cannot see it.
        text: the plain-text twin, where it should say more than ``alt`` (a text tree, say).
        data: whatever the picture was drawn from; tests read it.

    Example:
        >>> Picture('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>', alt="nothing to see")
        nothing to see
    """

    def __init__(self, svg: str, *, alt: str, text: str | None = None, data: Any = None):
        for name, words in (("svg", svg), ("alt", alt), ("text", text)):
            if not isinstance(words, str) and not (name == "text" and words is None):
                raise TypeError(f"{name}: expected a string, got {words!r}: pass {_WORDS[name]}")
        if not alt.strip():
            raise ValueError("a picture needs alternative text: pass alt= with what the picture shows, in one sentence")
        if not svg.lstrip().startswith("<svg"):
            raise ValueError(f"expected a complete <svg> element, got text that starts with {svg.lstrip()[:20]!r}")
        self.svg, self.alt, self.text, self.data = svg, alt, alt if text is None else text, data

    def __repr__(self) -> str:
        return self.text

    @property
    def html(self) -> str:
        """The picture as an ``<img>`` that an untrusted notebook still shows."""
        source = base64.b64encode(self.svg.encode()).decode()
        return (
            f'<img alt="{html.escape(self.alt)}" src="data:image/svg+xml;base64,{source}" '
            'style="max-width:100%;height:auto">'
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": self.text}


class Table:
    """Rows under a heading, as HTML in a notebook and as aligned text everywhere else.

    Args:
        columns: the heads of the columns.
        rows: one sequence of cells for each row. Whole numbers get thousands separators and stand to the right.
        caption: a sentence above the table.

    Example:
        >>> Table(["operator", "bytes"], [["relu", 400_000_000], ["relu_", 0]], caption="What each allocated")
        What each allocated
        operator        bytes
        relu      400,000,000
        relu_               0
    """

    def __init__(self, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, caption: str = ""):
        if not isinstance(columns, Iterable):
            raise TypeError(
                f'columns: expected the heads of the columns, got {columns!r}: pass ["operator", "bytes"], say'
            )
        if not isinstance(rows, Iterable):
            raise TypeError(f"rows: expected one sequence of cells for each row, got {rows!r}: pass [] for no rows")
        if not isinstance(caption, str):
            raise TypeError(f'caption: expected a sentence, got {caption!r}: pass "" for no caption')
        self.columns, self.rows, self.caption = list(columns), [], caption
        for head in self.columns:
            if not isinstance(head, str):
                raise TypeError(f"columns: expected a string for each, got {head!r}: pass str(...) of it")
        for row in rows:
            if not isinstance(row, Iterable):
                raise TypeError(
                    f"rows: expected a sequence of cells, got {row!r}: pass [{row!r}] for a row of one cell"
                )
            self.rows.append(list(row))
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of {len(row)} cells under {len(self.columns)} columns: {row!r}")

    @staticmethod
    def _cell(value: Any) -> str:
        return f"{value:,}" if isinstance(value, numbers.Integral) and not isinstance(value, bool) else str(value)

    def _right(self, column: int) -> bool:
        values = [row[column] for row in self.rows]
        return bool(values) and all(isinstance(v, numbers.Number) and not isinstance(v, bool) for v in values)

    def __repr__(self) -> str:
        cells = [self.columns, *([self._cell(v) for v in row] for row in self.rows)]
        widths = [max(len(line[i]) for line in cells) for i in range(len(self.columns))]
        lines = [self.caption] if self.caption else []
        for line in cells:
            aligned = (c.rjust(w) if self._right(i) else c.ljust(w) for i, (c, w) in enumerate(zip(line, widths)))
            lines.append("  ".join(aligned).rstrip())
        return "\n".join(lines)

    @property
    def html(self) -> str:
        """The table without colours of its own, so that it follows the reader's theme."""
        align = ["right" if self._right(i) else "left" for i in range(len(self.columns))]

        def cell(tag: str, side: str, text: str) -> str:
            if tag == "th" and not text:
                tag = "td"  # a screen reader would announce a heading and say nothing
            scope = ' scope="col"' if tag == "th" else ""
            return f'<{tag}{scope} style="text-align:{side}">{html.escape(text)}</{tag}>'

        def line(tag: str, cells: Iterable[str]) -> str:
            return "".join(cell(tag, side, text) for side, text in zip(align, cells))

        caption = f'<caption style="text-align:left">{html.escape(self.caption)}</caption>' if self.caption else ""
        body = "".join(f"<tr>{line('td', map(self._cell, row))}</tr>" for row in self.rows)
        return f"<table>{caption}<thead><tr>{line('th', self.columns)}</tr></thead><tbody>{body}</tbody></table>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": repr(self)}


def lasting(picture: Picture) -> dict[str, str]:
    """Returns what a saved notebook keeps of ``picture`` for every kind of viewer: HTML, PNG and text.

    Each front end shows one of the three:

    - JupyterLab, Colab, VS Code and nbconvert take the HTML before the PNG. There a browser draws the SVG of the
      ``source``.
    - Where HTML is cleaned, as in an untrusted JupyterLab and, it is to be expected, on GitHub, ``picture`` and
      ``source`` go, as they are not on the list. The ``img`` in them stays, which holds the PNG and the words.
    - Viewers that know no HTML, or clean images out of it, are left with ``image/png``, and terminals with the text.

    Were the HTML an SVG alone, a viewer that trusts no SVG would show a broken picture, as it would not look further
    than the HTML; were there no HTML, JupyterLab would show the PNG without its words.
    """
    from ._raster import png_of  # it needs matplotlib, which takes long to load

    try:
        png = base64.b64encode(png_of(picture.svg)).decode()
    except Exception:  # no matplotlib, or one that cannot draw here: the PNG is extra, and the reader's cell has run
        return picture._repr_mimebundle_()
    svg = base64.b64encode(picture.svg.encode()).decode()
    width = re.search(r'\bwidth="(\d+)"', picture.svg)[1]
    as_html = (
        f'<picture><source type="image/svg+xml" srcset="data:image/svg+xml;base64,{svg}">'
        f'<img alt="{html.escape(picture.alt)}" src="data:image/png;base64,{png}" width="{width}" '
        'style="display:block;max-width:100%;height:auto"></picture>'
    )
    return {"text/html": as_html, "image/png": png, "text/plain": picture.text}


class LiveOutput:
    """One place under the cell that is redrawn while the cell runs. Outside a notebook it stays silent.

    Frames are light inline SVG: what the running session itself makes is trusted, and replacing an inline picture does
    not flicker as reloading an ``<img>`` does. `finish` replaces the last frame by a `Picture`, which is what the saved
    file keeps.

    Args:
        png: whether that is kept as PNG too; see `lasting`. The parts of SVG that can be are in `helpers._raster`.
    """

    def __init__(self, *, png: bool = False) -> None:
        self.frames, self._png = 0, png
        self._handle: Any = None

    def frame(self, svg: str, alt: str) -> None:
        """Draws one frame; ``svg`` gets ``role="img"`` and ``alt`` as its label."""
        # A block, as `lasting` is: nothing moves by the few px that JupyterLab leaves under what is last or in a line.
        label = f'role="img" aria-label="{html.escape(alt)}" style="display:block;margin:0"'
        labelled = svg.replace("<svg", f"<svg {label}", 1)
        self._publish({"text/html": labelled, "text/plain": alt})
        self.frames += 1

    def finish(self, picture: Picture) -> None:
        """Leaves ``picture`` in the output and in the saved notebook."""
        self._publish(lasting(picture) if self._png and in_notebook() else picture._repr_mimebundle_())

    def _publish(self, bundle: dict[str, str]) -> None:
        if not in_notebook():
            return
        from IPython.display import display

        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)
