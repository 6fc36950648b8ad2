"""How does a picture look where SVG is not shown? The lab's own drawings of memory as PNG, by matplotlib.

It reads the drawing itself, so both are one picture: what is drawn, and how it is worded, is decided in one place. It
knows the part of SVG that these drawings use, and refuses the rest rather than leave something out.
"""

from __future__ import annotations

import io
import re
import warnings
import xml.etree.ElementTree as ET
from typing import Any

from .display import GROUPS, INK, PAPER

_SCALE = 1.5  # px of the PNG for one of the SVG: sharp on most screens, and still a small file
# matplotlib draws these 12 to the inch, which is every 6 px here, as the patterns of the drawings are.
_HATCHES = {"hatch-optimizer-state": "//", "hatch-gradients": "..", "hatch-saved-activations": "\\\\"}
_HATCH_INK, _HATCH_WIDTH = "#1a1a1a", 0.7
_ANCHORS = {"start": "left", "middle": "center", "end": "right"}
_TOKEN = re.compile(r"[A-Za-z]|-?(?:\d+\.?\d*|\.\d+)")


def png_of(svg: str) -> bytes:
    """Returns ``svg`` as PNG; the same bytes for the same drawing and versions, whatever the reader set in matplotlib.

    Raises:
        ValueError: for an element or a step of a path that is not drawn here.
    """
    from matplotlib import MatplotlibDeprecationWarning, rc_context, rcParamsDefault
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    root = ET.fromstring(svg)
    width, height = float(root.get("width")), float(root.get("height"))
    # The reader's style is for the reader's figures: with `text.usetex` matplotlib would look for LaTeX, and much else
    # changes the bytes. So all settings are matplotlib's own; but for the backend, which setting it would switch.
    settings = {name: value for name, value in rcParamsDefault.items() if not name.startswith("backend")}
    settings |= {"hatch.linewidth": _HATCH_WIDTH, "path.simplify": False}
    # A figure of its own, not pyplot's: the reader's settings and current figure stay as they are. Some of the settings
    # that are copied may be on their way out of matplotlib.
    with warnings.catch_warnings(action="ignore", category=MatplotlibDeprecationWarning), rc_context(settings):
        warnings.filterwarnings("ignore", message=".*[Gg]lyph")  # a letter of the reader's that no font here has
        figure = Figure((width / 72, height / 72), dpi=72 * _SCALE)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, width), ylim=(height, 0))
        axes.set_axis_off()
        for order, element in enumerate(root):
            artist = _artist(element, root)
            if artist is not None:
                artist.set_zorder(order)
                axes.add_artist(artist)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
    return _packed(canvas.buffer_rgba())


def _packed(pixels: Any) -> bytes:
    import numpy
    from PIL import Image  # matplotlib cannot be without it

    palette = Image.new("P", (1, 1))
    palette.putpalette(_palette())
    image = Image.fromarray(numpy.asarray(pixels)).convert("RGB")
    buffer = io.BytesIO()
    image.quantize(palette=palette, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _palette() -> list[int]:
    """Greys, and each colour of the lab with its way to the ink of outlines and to the paper of labels.

    Fixed, for a palette that is worked out from the picture merges the colours of two groups where both are small.
    """
    greys = [[level] * 3 for level in range(26, 256, 13)] + [[255] * 3, [0xF1] * 3]
    mixed = []
    for colour in GROUPS.values():
        own, ink, paper = ([int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in (colour, INK, PAPER))
        for other, share in ((own, 0), (ink, 0.2), (ink, 0.4), (ink, 0.6), (paper, 0.3), (paper, 0.6), (paper, 0.85)):
            mixed.append([round(a + (b - a) * share) for a, b in zip(own, other)])
    return [level for colour in (*greys, *mixed) for level in colour]


def _artist(element: ET.Element, root: ET.Element) -> Any:
    from matplotlib.patches import Circle, FancyBboxPatch, PathPatch, Rectangle

    def number(name: str, default: float = 0) -> float:
        return float(element.get(name, default))

    kind = element.tag.rsplit("}", 1)[-1]
    style = _style(element, root)
    if kind == "defs":
        return None
    if kind == "text":
        return _text(element, root, number("x"), number("y"))
    if kind == "circle":
        return Circle((number("cx"), number("cy")), number("r"), **style)
    if kind == "rect":
        corner, size = (number("x"), number("y")), (number("width"), number("height"))
        if element.get("rx"):
            return FancyBboxPatch(corner, *size, boxstyle=f"round,pad=0,rounding_size={element.get('rx')}", **style)
        return Rectangle(corner, *size, **style)
    if kind == "path":
        return PathPatch(_path(element.get("d")), capstyle="butt", joinstyle="round", **style)
    raise ValueError(f"<{kind}> is not drawn as PNG: only rect, path, circle and text are")


def _style(element: ET.Element, root: ET.Element) -> dict[str, Any]:
    from matplotlib.colors import to_rgba

    fill, stroke = element.get("fill", root.get("fill")), element.get("stroke", "none")
    opacity = float(element.get("fill-opacity", 1))
    if fill.startswith("url(#"):
        hatch = _HATCHES[fill[5:-1]]
        return {"facecolor": "none", "edgecolor": to_rgba(_HATCH_INK, opacity), "hatch": hatch, "linewidth": 0}
    style: dict[str, Any] = {"facecolor": "none" if fill == "none" else to_rgba(fill, opacity), "edgecolor": stroke}
    style["linewidth"] = 0 if stroke == "none" else float(element.get("stroke-width", 1))
    dashes = element.get("stroke-dasharray", "none")
    if dashes != "none" and style["linewidth"]:
        # matplotlib counts dashes in widths of the line.
        style["linestyle"] = 0, [float(d) / style["linewidth"] for d in dashes.split()]
    return style


def _text(element: ET.Element, root: ET.Element, x: float, y: float) -> Any:
    from matplotlib.patheffects import withStroke
    from matplotlib.text import Text

    halo = element.get("paint-order") == "stroke"
    return Text(
        x,
        y,
        " ".join((element.text or "").split()),
        color=element.get("fill", root.get("fill")),
        family="DejaVu Sans",  # comes with matplotlib, so the letters are the same everywhere
        fontsize=float(element.get("font-size", root.get("font-size"))),
        fontweight=element.get("font-weight", "normal"),
        horizontalalignment=_ANCHORS[element.get("text-anchor", "start")],
        verticalalignment="baseline",
        parse_math=False,  # a dollar in a line of code is a dollar
        path_effects=[withStroke(linewidth=float(element.get("stroke-width")), foreground=PAPER)] if halo else None,
    )


def _path(d: str) -> Any:
    """The steps of a path. Only the first of a subpath may be relative to nothing, so ``M`` comes first."""
    from matplotlib.path import Path

    tokens, points, codes = _TOKEN.findall(d), [], []
    x = y = 0.0
    at, step = 0, ""
    while at < len(tokens):
        if tokens[at].isalpha():
            step, at = tokens[at], at + 1
        if step == "Z":
            points.append(points[codes.index(Path.MOVETO)])
            codes.append(Path.CLOSEPOLY)
            continue
        if step in ("M", "L"):
            x, y, at = float(tokens[at]), float(tokens[at + 1]), at + 2
        elif step in ("H", "h"):
            x, at = float(tokens[at]) + (x if step == "h" else 0), at + 1
        elif step in ("V", "v"):
            y, at = float(tokens[at]) + (y if step == "v" else 0), at + 1
        else:
            raise ValueError(f"{step} in a path is not drawn as PNG: only M, L, H, h, V, v and Z are")
        points.append((x, y))
        codes.append(Path.MOVETO if step == "M" else Path.LINETO)
    return Path(points, codes)
