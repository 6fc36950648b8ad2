"""Without a kernel, scripts or trust a chapter still shows every picture, with its words: as a page of nbconvert's.

And what a picture tells by a colour has an outline, whatever the theme: each paints its own paper.
"""

from __future__ import annotations

import base64
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output
from wcag import contrast

from helpers.display import GROUPS, INK, PAPER

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))

# Every picture in an output: its words, its own size (0 for one that does not load), and whether it is to be seen.
_PICTURES = """() => [...document.querySelectorAll('.jp-OutputArea-output :is(img, svg)')]
    .filter(e => !e.parentElement.closest('svg')).map(e => {
        const box = e.getBoundingClientRect();
        const [width, height] = e.matches('img') ? [e.naturalWidth, e.naturalHeight] : [box.width, box.height];
        return {alt: e.getAttribute(e.matches('img') ? 'alt' : 'aria-label') ?? '', area: width * height,
                seen: e.checkVisibility() && box.width > 0 && box.height > 0}; })"""


# What nbconvert writes where a picture has no alt.
_NO_WORDS = "No description has been provided for this image"


class _Counter(HTMLParser):
    """Counts the pictures of an HTML text."""

    def __init__(self, text: str):
        super().__init__()
        self.pictures = self._in_svg = 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.pictures += tag == "img" or (tag == "svg" and not self._in_svg)
        self._in_svg += tag == "svg"

    def handle_endtag(self, tag):
        self._in_svg -= tag == "svg"


def pictures_held(ipynb: str) -> int:
    """How many pictures the outputs hold in the file's text ``ipynb``: in HTML or, where there is none, as images."""
    count = 0
    for cell in json.loads(ipynb)["cells"]:
        for data in (output.get("data", {}) for output in cell.get("outputs", [])):
            in_html = _Counter("".join(data.get("text/html", ""))).pictures
            count += in_html or any(mime.startswith("image/") for mime in data)
    return count


@pytest.fixture(scope="module")
def page(browser) -> Iterator:
    """A page in which no script runs, and which nothing reaches from elsewhere."""
    context = browser.new_context(java_script_enabled=False, offline=True)
    yield context.new_page()
    context.close()


def pictures_shown(ipynb: Path, page, folder: Path) -> list[dict]:
    """What ``page`` shows of the pictures of ``ipynb``, once nbconvert made HTML of it."""
    from nbconvert import HTMLExporter

    html, _ = HTMLExporter().from_filename(str(ipynb))
    file = folder / f"{ipynb.stem}.html"
    file.write_text(html, encoding="utf-8")
    page.goto(file.as_uri())
    return page.evaluate(_PICTURES)


def problems(shown: list[dict], held: int) -> list[str]:
    said = [] if len(shown) == held else [f"{len(shown)} pictures on the page, {held} in the file"]
    for number, picture in enumerate(shown, start=1):
        said += [f"picture {number} does not load"] if not picture["area"] else []
        said += [f"picture {number} is not to be seen"] if not picture["seen"] else []
        said += [f"picture {number} has no alternative text"] if picture["alt"].strip() in ("", _NO_WORDS) else []
    return said


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_every_picture_is_on_the_page(path, page, tmp_path):
    held = pictures_held(path.read_text(encoding="utf-8"))
    assert held, "a chapter without a picture"
    assert problems(pictures_shown(path, page, tmp_path), held) == []


def drawings(ipynb: str) -> list[str]:
    """The SVG of every picture in the outputs of the file's text ``ipynb``."""
    outputs = [output for cell in json.loads(ipynb)["cells"] for output in cell.get("outputs", [])]
    in_html = ["".join(output.get("data", {}).get("text/html", "")) for output in outputs]
    coded = [code for text in in_html for code in re.findall(r"data:image/svg\+xml;base64,([\w+/=]+)", text)]
    return [base64.b64decode(code).decode() for code in coded]


def unclear(svg: str) -> list[str]:
    """A sentence for every shape in the colour of a group that no outline parts from the paper."""
    said, names = [], {colour.lower(): group for group, colour in GROUPS.items()}
    elements = list(ET.fromstring(svg).iter())
    paper = next(e for e in elements if e.tag.endswith("}rect"))
    if paper.get("fill") != PAPER:
        said.append(f"the first rectangle is {paper.get('fill')}, and no paper")
    for e in elements:
        fill = e.get("fill", "none").lower()
        if fill in names:
            line = e.get("stroke", "none")
            ratio = contrast(line, PAPER) if line != "none" else 1.0
            said += [f"{names[fill]}, outlined in {line}: {ratio:.1f}"] if ratio < 3 else []
    return said


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_what_a_colour_tells_has_an_outline(path):
    pictures = drawings(path.read_text(encoding="utf-8"))
    assert pictures
    assert [said for svg in pictures for said in unclear(svg)] == []


def test_a_missing_outline_is_seen():
    rect = '<rect width="9" height="9" fill="{}" stroke="{}"/>'
    bars = [(GROUPS["other"], "none"), (GROUPS["other"], INK), (GROUPS["gradients"], "#c9c9c9"), ("#eeeeee", "none")]
    shapes = "".join(rect.format(*colours) for colours in bars)
    svg = f'<svg xmlns="http://www.w3.org/2000/svg">{rect.format(PAPER, "none")}{shapes}</svg>'
    assert unclear(svg) == ["other, outlined in none: 1.0", "gradients, outlined in #c9c9c9: 1.7"]
    assert unclear(svg.replace(PAPER, "#1a1a1a"))[0] == "the first rectangle is #1a1a1a, and no paper"
    assert drawings(json.dumps(new_notebook(cells=[new_code_cell("x")]))) == []


# The controls.

_SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9" role="img" aria-label="a dot"><svg/></svg>'
_SOURCE = "data:image/svg+xml;base64," + base64.b64encode(_SVG.encode()).decode()
_WIDGET = {"application/vnd.jupyter.widget-view+json": {"model_id": "a", "version_major": 2, "version_minor": 0}}


@pytest.mark.parametrize(
    ("data", "held", "said"),
    [
        ({"text/html": f'<img alt="a dot" src="{_SOURCE}">'}, 1, []),
        ({"text/html": _SVG}, 1, []),
        ({"image/svg+xml": _SVG}, 1, ["picture 1 has no alternative text"]),  # nbconvert makes an <img> of it
        ({"text/html": "<p>no picture, only &lt;img&gt;</p>"}, 0, []),
        (_WIDGET, 0, []),
        (_WIDGET | {"text/html": _SVG}, 1, []),
        ({"text/html": "<p>a table</p>", "image/svg+xml": _SVG}, 1, ["0 pictures on the page, 1 in the file"]),
        ({"text/html": f'<img src="{_SOURCE}">'}, 1, ["picture 1 has no alternative text"]),
        ({"text/html": '<img alt="a dot" src="data:image/svg+xml;base64,AAAA">'}, 1, ["picture 1 does not load"]),
        (
            {"text/html": f'<div style="display:none"><img alt="a dot" src="{_SOURCE}"></div>'},
            1,
            ["picture 1 is not to be seen"],
        ),
    ],
)
def test_what_is_not_seen_is_told(data, held, said, page, tmp_path):
    outputs = [new_output("display_data", data={"text/plain": "a dot"} | data)]
    ipynb = tmp_path / "control.ipynb"
    ipynb.write_text(json.dumps(new_notebook(cells=[new_code_cell("x", outputs=outputs)])))
    assert pictures_held(ipynb.read_text()) == held
    shown = pictures_shown(ipynb, page, tmp_path)
    assert problems(shown, held) == said


def test_no_script_runs(page, tmp_path):
    outputs = [
        new_output("display_data", data={"text/html": "<title>still</title><script>document.title = 'ran'</script>"})
    ]
    ipynb = tmp_path / "control.ipynb"
    ipynb.write_text(json.dumps(new_notebook(cells=[new_code_cell("x", outputs=outputs)])))
    assert pictures_shown(ipynb, page, tmp_path) == []
    assert page.title() == "control"
    assert "document.title = 'ran'" in page.content(), "the script is there"
