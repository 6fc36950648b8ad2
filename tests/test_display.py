"""What leaves for the notebook: pictures with words, tables, figures, and how wide a text is on the screen."""

from __future__ import annotations

import base64
import doctest
import random
import re
import string
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers import display
from helpers.display import (
    GROUPS,
    LiveOutput,
    Picture,
    Table,
    clip,
    exact_bytes,
    in_notebook,
    lasting,
    round_bytes,
    text_width,
)

SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'


class Parsed(HTMLParser):
    """The elements of some HTML as (tag, attributes), and its text by the element that it stands in."""

    def __init__(self, html: str):
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append((self.elements[-1][0], data))

    def text_in(self, tag: str) -> list[str]:
        return [text for where, text in self.texts if where == tag]


def test_examples_of_the_docstrings():
    assert doctest.testmod(display).attempted > 0
    assert doctest.testmod(display).failed == 0


# ---------------------------------------------------------------------------------------------------- figures


@pytest.mark.parametrize(
    ("n", "exact", "rounded"),
    [
        (0, "0 B", "0 B"),
        (1, "1 B", "1 B"),
        (1023, "1,023 B", "1,023 B"),
        (1024, "1,024 B", "1.00 KiB"),
        (2**20 - 6, "1,048,570 B", "1,023.99 KiB"),
        (2**20 - 1, "1,048,575 B", "1.00 MiB"),  # 1,024.00 KiB would be a unit too small
        (2**20, "1,048,576 B", "1.00 MiB"),
        (400_000_000, "400,000,000 B", "381.47 MiB"),
        (2**30 - 1, "1,073,741,823 B", "1.00 GiB"),
        (2**40, "1,099,511,627,776 B", "1.00 TiB"),
        (2**50, "1,125,899,906,842,624 B", "1,024.00 TiB"),
        (-1, "-1 B", "-1 B"),
        (-1023, "-1,023 B", "-1,023 B"),
        (-2048, "-2,048 B", "-2.00 KiB"),
        (-(2**30), "-1,073,741,824 B", "-1.00 GiB"),
    ],
)
def test_bytes_in_words(n, exact, rounded):
    assert exact_bytes(n) == exact
    assert round_bytes(n) == rounded


def test_rounded_bytes_are_the_bytes():
    units = {"B": 0, "KiB": 1, "MiB": 2, "GiB": 3, "TiB": 4}
    draw = random.Random(0)
    for _ in range(2000):
        n = int(2 ** draw.uniform(0, 49))
        figure, unit = round_bytes(n).split()
        value = float(figure.replace(",", ""))
        assert abs(value * 1024 ** units[unit] - n) <= 0.0051 * 1024 ** units[unit]
        assert value < 1024 or unit == "TiB"


# ---------------------------------------------------------------------------------------------------- widths of text

# Set in the faces that FONT names. Arial and Liberation Sans have Helvetica's widths.
LABELS = [
    "saved activations",
    "Backward frees the 64.00 MiB that forward saved for it",
    "peak 92.07 MiB: aten.addmm, In [20], line 17: out = net(inputs)",
    "start 4.28 MiB,  peak 36.53 MiB,  end 4.53 MiB,  -31.75 MiB at the peak against the run before",
    "OUT OF MEMORY: GPU 0 HAS 14.75 GiB",
    "model = nn.Sequential(*[MyMLP(w, mm=M) for w in (W, WW, 2 * W)])  # @ 100 %",
    "operators run: 12,345",
    "a × b – c, and so on …",
]


@pytest.fixture(scope="module")
def widths():
    """Widths in ems by face and character: Adobe's of Helvetica, and DejaVu Sans', which matplotlib brings."""
    import matplotlib
    from matplotlib.ft2font import FT2Font, LoadFlags

    folder = Path(matplotlib.get_data_path()) / "fonts"

    def adobe(name: str):
        metrics = (folder / "pdfcorefonts" / name).read_text("latin-1")
        by_name = {glyph: int(w) / 1000 for w, glyph in re.findall(r"; WX (\d+) ; N (\w+) ;", metrics)}
        by_code = {int(c): int(w) / 1000 for c, w in re.findall(r"^C (\d+) ; WX (\d+) ;", metrics, re.M)}
        names = {"×": "multiply", "–": "endash", "…": "ellipsis", "'": "quotesingle", "`": "grave"}
        return lambda c: by_name[names[c]] if c in names else by_code[ord(c)]

    def truetype(name: str):
        font = FT2Font(str(folder / "ttf" / name))
        font.set_size(1000, 72)
        return lambda c: font.load_char(ord(c), flags=LoadFlags.NO_HINTING).linearHoriAdvance / 65_536_000

    return {
        "Helvetica": adobe("Helvetica.afm"),
        "Helvetica bold": adobe("Helvetica-Bold.afm"),
        "DejaVu Sans": truetype("DejaVuSans.ttf"),
        "DejaVu Sans bold": truetype("DejaVuSans-Bold.ttf"),
    }


def test_the_fonts_are_read_rightly(widths):
    assert widths["Helvetica"]("a") == 0.556
    assert widths["DejaVu Sans"]("a") == pytest.approx(1255 / 2048, abs=1e-3)


@pytest.mark.parametrize("face", ["Helvetica", "DejaVu Sans"])
def test_no_character_is_wider_than_said(widths, face):
    characters = [c for c in string.printable if c.isprintable()] + list("×–…")
    too_narrow = {c: widths[face](c) for c in characters if widths[face](c) > text_width(c, 1)}
    assert not too_narrow
    assert [c for c in characters if widths[face](c) > 0.9 * text_width(c, 1)], "a bound so wide that it says nothing"


@pytest.mark.parametrize("text", LABELS)
def test_width_of_a_label_is_a_close_upper_bound(widths, text):
    helvetica, dejavu = (sum(map(widths[face], text)) * 11 for face in ("Helvetica", "DejaVu Sans"))
    assert max(helvetica, dejavu) <= text_width(text) <= 1.12 * max(helvetica, dejavu)


@pytest.mark.browser
def test_chromium_sets_no_label_wider(chromium):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        try:
            real = browser.new_page().evaluate(
                """([texts, font]) => { const pen = document.createElement('canvas').getContext('2d');
                    pen.font = '110px ' + font; return texts.map(t => pen.measureText(t).width / 10); }""",
                [LABELS, display.FONT],
            )
        finally:
            browser.close()
    for text, width in zip(LABELS, real, strict=True):
        assert 0.7 * text_width(text) < width <= text_width(text), text


def test_width_grows_with_the_size_and_holds_for_wide_scripts():
    assert text_width("saved", 22) == pytest.approx(2 * text_width("saved", 11))
    assert text_width("") == 0
    assert text_width("記憶体", 10) >= 30


def test_clip_keeps_what_fits_and_marks_what_it_cut():
    text = "out = own_model(own_input).sum()"
    assert clip(text, text_width(text)) == text
    for width in range(12, int(text_width(text))):
        cut = clip(text, width)
        assert cut.endswith("…") and text.startswith(cut[:-1]) and text_width(cut) <= width
        # Nothing was cut for nothing: one character more would not have fitted.
        assert text_width(text[: len(cut)] + "…") > width


def test_clip_cuts_where_one_character_at_a_time_would():
    rng = random.Random(0)
    letters = string.printable + "äß語\U0001f600…\ud800"
    for _ in range(2000):
        text = "".join(rng.choices(letters, k=rng.randrange(40)))
        width, size = rng.choice([rng.uniform(-9, 300), rng.randrange(300)]), rng.choice([8, 11, 11.5])
        # some widths at which it just fits
        width = rng.choice([width, text_width(text[: rng.randrange(40)] + "…", size)])
        cut = text
        while cut and text_width(cut + "…", size) > width:
            cut = cut[:-1]
        assert clip(text, width, size) == (text if text_width(text, size) <= width else cut + "…")


def test_clip_looks_at_a_long_text_a_few_times_only(monkeypatch):
    seen = []
    monkeypatch.setattr(display, "text_width", lambda text, size=11: seen.append(text) or text_width(text, size))
    assert len(clip("m" * 100_000, 100)) == 9
    assert len(seen) < 25


# ---------------------------------------------------------------------------------------------------- pictures


def test_picture_is_an_image_that_an_untrusted_notebook_shows():
    picture = Picture(SVG, alt="nothing to see", data=7)
    bundle = picture._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}, "JupyterLab hides image/svg+xml of untrusted notebooks"
    [(tag, attributes)] = Parsed(bundle["text/html"]).elements
    assert tag == "img"
    assert attributes["alt"] == bundle["text/plain"] == repr(picture) == "nothing to see"
    kind, _, data = attributes["src"].partition(",")
    assert kind == "data:image/svg+xml;base64"
    assert base64.b64decode(data).decode() == SVG
    assert picture.data == 7


def test_alt_text_cannot_leave_its_attribute():
    alt = """5 > 3 & "quoted" 'too' <img src=x onerror=alert(1)> peak 4 B"""
    parsed = Parsed(Picture(SVG, alt=alt).html)
    [(tag, attributes)] = parsed.elements
    assert (tag, attributes["alt"]) == ("img", alt)
    assert not parsed.texts


def test_drawing_in_any_script_survives():
    svg = SVG.replace("/>", "><text>記憶 é</text></svg>")
    [(_, attributes)] = Parsed(Picture(svg, alt="x").html).elements
    assert base64.b64decode(attributes["src"].partition(",")[2]).decode("utf-8") == svg


def test_plain_twin_may_say_more():
    picture = Picture(SVG, alt="a tree", text="root\n  leaf")
    assert repr(picture) == "root\n  leaf"
    assert Parsed(picture.html).elements[0][1]["alt"] == "a tree"


@pytest.mark.parametrize(
    ("svg", "alt", "words"),
    [
        (SVG, "", "pass alt= with what the picture shows"),
        (SVG, " \n", "pass alt= with what the picture shows"),
        ("<div></div>", "a", r"expected a complete <svg> element, got text that starts with '<div></div>'"),
        ("", "a", "expected a complete <svg> element"),
    ],
)
def test_picture_that_is_none_is_refused(svg, alt, words):
    with pytest.raises(ValueError, match=words):
        Picture(svg, alt=alt)


@pytest.mark.parametrize(
    ("svg", "words", "message"),
    [
        (None, {"alt": "a"}, "svg: expected a string, got None: pass a complete <svg> element"),
        (SVG, {"alt": None}, "alt: expected a string, got None: pass what the picture shows, in one sentence"),
        (SVG, {"alt": 5}, "alt: expected a string, got 5: pass what the picture shows, in one sentence"),
        (SVG, {"alt": "a", "text": 5}, "text: expected a string, got 5: pass the plain-text twin, or leave it out"),
    ],
)
def test_picture_of_what_is_no_string_is_refused(svg, words, message):
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        Picture(svg, **words)


def test_palette_is_okabe_and_itos_with_one_meaning_a_colour():
    okabe_ito = {"#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#999999"}
    used = [*GROUPS.values(), display.SHARED, display.WRITTEN]
    assert set(used) <= okabe_ito
    assert len(set(used)) == len(used)


# ---------------------------------------------------------------------------------------------------- tables


def test_table_as_text_is_aligned():
    table = Table(
        ["operator", "bytes", "ratio", "in place"],
        [["relu", 400_000_000, 1.5, False], ["relu_", 0, 10.25, True], ["x.sub_", -4, 0.5, True]],
        caption="What each allocated",
    )
    assert repr(table).splitlines() == [
        "What each allocated",
        "operator        bytes  ratio  in place",
        "relu      400,000,000    1.5  False",
        "relu_               0  10.25  True",
        "x.sub_             -4    0.5  True",
    ]
    head = repr(table).splitlines()[1]
    assert all(line[: len("operator")].strip() and len(line) <= len(head) for line in repr(table).splitlines()[2:])


def test_table_as_html_says_the_same():
    table = Table(["a", "b"], [["x", 1_000], ["y", 20]], caption="Bytes")
    parsed = Parsed(table.html)
    assert parsed.text_in("caption") == ["Bytes"]
    assert parsed.text_in("th") == ["a", "b"]
    assert parsed.text_in("td") == ["x", "1,000", "y", "20"]
    aligned = [attributes["style"] for tag, attributes in parsed.elements if tag in ("th", "td")]
    assert aligned == ["text-align:left", "text-align:right"] * 3
    assert all(attributes["scope"] == "col" for tag, attributes in parsed.elements if tag == "th")
    assert "color" not in table.html, "colours are the reader's theme's"
    assert table._repr_mimebundle_() == {"text/html": table.html, "text/plain": repr(table)}


def test_cells_cannot_become_html():
    evil = "<script>alert(1)</script> & \"so on\" 'too'"
    parsed = Parsed(Table([evil], [[evil]], caption=evil).html)
    assert {tag for tag, _ in parsed.elements} == {"table", "caption", "thead", "tr", "th", "tbody", "td"}
    for tag in ("caption", "th", "td"):
        assert "".join(parsed.text_in(tag)) == evil


def test_column_with_a_word_in_it_stands_to_the_left():
    assert repr(Table(["n"], [[1], ["none"]])).splitlines() == ["n", "1", "none"]
    assert repr(Table(["n"], [[1], [1000]])).splitlines() == ["    n", "    1", "1,000"]


def test_whole_numbers_of_other_libraries_count_as_such():
    import numpy as np

    assert repr(Table(["n"], [[np.int64(12345)]])).splitlines()[1] == "12,345"


def test_table_without_rows_or_caption():
    assert repr(Table(["a", "bytes"], [])) == "a  bytes"
    assert "caption" not in Table(["a"], []).html


def test_a_column_without_a_name_has_no_heading():
    head = Table(["", "a"], [["x", 1]]).html.split("</thead>")[0]
    assert head == (
        '<table><thead><tr><td style="text-align:left"></td><th scope="col" style="text-align:right">a</th></tr>'
    )


def test_rows_may_come_from_anywhere():
    assert Table(["a", "b"], {"x": 1}.items()).rows == [["x", 1]]
    assert Table(["a"], ([i] for i in range(2))).rows == [[0], [1]]


@pytest.mark.parametrize("row", [["x"], ["x", 1, 2], []])
def test_row_of_the_wrong_length_is_refused(row):
    words = f"a row of {len(row)} cells under 2 columns: {re.escape(repr(row))}"
    with pytest.raises(ValueError, match=words):
        Table(["a", "b"], [["x", 1], row])


@pytest.mark.parametrize(
    ("columns", "rows", "caption", "message"),
    [
        (None, [], "", 'columns: expected the heads of the columns, got None: pass ["operator", "bytes"], say'),
        (2, [], "", 'columns: expected the heads of the columns, got 2: pass ["operator", "bytes"], say'),
        (["a", 1], [], "", "columns: expected a string for each, got 1: pass str(...) of it"),
        (["a"], None, "", "rows: expected one sequence of cells for each row, got None: pass [] for no rows"),
        (["a"], [[1], 2], "", "rows: expected a sequence of cells, got 2: pass [2] for a row of one cell"),
        (["a"], [None], "", "rows: expected a sequence of cells, got None: pass [None] for a row of one cell"),
        (["a"], [], 5, 'caption: expected a sentence, got 5: pass "" for no caption'),
    ],
)
def test_table_of_what_is_no_sequence_is_refused(columns, rows, caption, message):
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        Table(columns, rows, caption=caption)


# ---------------------------------------------------------------------------------------------------- the door


def test_outside_a_notebook_it_is_printed(capsys):
    assert not in_notebook()
    display.show(Picture(SVG, alt="nothing to see"))
    assert capsys.readouterr().out == "nothing to see\n"


class Handle:
    def __init__(self, shown):
        self.shown = shown

    def update(self, bundle, raw):
        assert raw
        self.shown.append(("update", bundle))


@pytest.fixture
def kernel(monkeypatch):
    """Plays a kernel; returns the list of what was displayed: ("display" or "update", bundle)."""
    import IPython
    import IPython.display

    shown = []

    def fake(thing, raw=False, display_id=None):
        shown.append(("display", thing))
        return Handle(shown) if display_id else None

    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setattr(IPython.display, "display", fake)
    return shown


def test_in_a_notebook_it_is_displayed(kernel, capsys):
    picture = Picture(SVG, alt="nothing to see")
    assert in_notebook()
    display.show(picture)
    assert kernel == [("display", picture)]
    assert capsys.readouterr().out == ""


def test_a_terminal_is_no_notebook(monkeypatch):
    import IPython

    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace())
    assert not in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", None)
    assert not in_notebook()


def test_live_output_is_silent_outside_a_notebook(capsys):
    output = LiveOutput()
    output.frame(SVG, "now 4 B")
    output.finish(Picture(SVG, alt="4 B"))
    assert output.frames == 1
    assert capsys.readouterr() == ("", "")


def test_live_output_redraws_one_place_and_leaves_the_picture(kernel):
    output, picture = LiveOutput(), Picture(SVG, alt="the peak is 8 B")
    output.frame(SVG, "now 4 B")
    output.frame(SVG, 'now 8 B in "forward" <b>')
    output.finish(picture)
    assert [how for how, _ in kernel] == ["display", "update", "update"], "one place, made once"
    assert output.frames == 2
    first, second, last = (bundle for _, bundle in kernel)
    assert first["text/plain"] == "now 4 B"
    [(tag, attributes)] = Parsed(second["text/html"]).elements
    assert (tag, attributes["role"]) == ("svg", "img")
    assert attributes["aria-label"] == second["text/plain"] == 'now 8 B in "forward" <b>'
    assert last == picture._repr_mimebundle_()


def test_live_output_that_drew_no_frame_still_leaves_its_picture(kernel):
    picture = Picture(SVG, alt="8 B")
    LiveOutput().finish(picture)
    assert kernel == [("display", picture._repr_mimebundle_())]


def test_live_output_keeps_a_png_where_it_is_asked_to(kernel):
    picture = Picture(SVG, alt="8 B")
    LiveOutput(png=True).finish(picture)
    [(_, bundle)] = kernel
    assert bundle == lasting(picture)
    assert [tag for tag, _ in Parsed(bundle["text/html"]).elements] == ["picture", "source", "img"]
    (_, attributes) = Parsed(bundle["text/html"]).elements[-1]
    assert attributes["alt"] == "8 B" and attributes["src"] == f"data:image/png;base64,{bundle['image/png']}"
