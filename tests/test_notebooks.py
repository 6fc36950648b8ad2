"""The committed chapters are in canonical form, tell nothing of the machine that made them, and fit every renderer.

That their outputs are true is not tested here: `make test` runs every chapter under nbval, strictly.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MOST_LINES = 25
MOST_BYTES = 1_500_000

_PICTURE = re.compile(r"data:image/[\w+.]+;base64,[A-Za-z0-9+/=\s]+")
_SPOKEN_MIMES = ("text/", "image/svg")  # the rest is pixels or made of tokens
# What must not be in an output, and why.
_BANNED = {
    "a memory address": re.compile(r"0x[0-9a-fA-F]{6,}|(?<![\d.,])\d{13,20}(?![\d.,])"),
    "a path of one machine": re.compile(
        r"(?<![\w.:/~-])/(?:home|root|tmp|usr|var|opt|work|mnt|srv|private|Users|Volumes|content)/\w"
        r"|\b[A-Z]:\\\w|ipykernel_\d"
    ),
}


def problems(path: Path, make) -> list[str]:
    """Returns a sentence for everything that keeps the chapter at ``path`` from being committed."""
    said = []
    size = path.stat().st_size
    if size > MOST_BYTES:
        said.append(f"{size:,} bytes; {MOST_BYTES:,} at most, so that a page of it opens at once")
    notebook = make.read(path)

    if stale := make.stale(path):
        said.append(f"stale generated cells: {', '.join(stale)}; run notebooks/_make.py --no-execute")
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    counts = [cell.execution_count for cell in code]
    if counts != list(range(1, len(code) + 1)):
        said.append(f"execution counts {counts}; expected 1 to {len(code)}, as nbval compares no uncounted cell")
    ids = [cell.get("id", "") for cell in notebook.cells]
    if len(set(ids)) < len(ids) or not all(map(make.VALID_ID.fullmatch, ids)):
        said.append(f"cell ids that are missing, double or not valid: {ids}")
    for cell in code:
        where = f"cell {cell.get('id')}"
        lines = len(cell.source.splitlines())
        if lines > MOST_LINES:
            said.append(f"{where}: {lines} lines of code; {MOST_LINES} at most")
        said += [f"{where}: {problem}" for output in cell.outputs for problem in _output_problems(output, cell)]

    if make.text_of(make.canonical(make.with_generated_cells(notebook, path), path)) != path.read_text("utf-8"):
        said.append("not in canonical form; run notebooks/_make.py --no-execute")
    return said


def _output_problems(output, cell) -> list[str]:
    said = []
    if output.output_type == "error" and "raises-exception" not in cell.metadata.get("tags", []):
        said.append(f"a stored {output.ename} without the tag raises-exception")
    if output.get("name") == "stderr":
        said.append(f"stderr in the output: {output.text[:60]!r}")
    data = output.get("data", {})
    spoken = [value for mime, value in data.items() if mime.startswith(_SPOKEN_MIMES)]
    spoken += [output.get("text", ""), output.get("evalue", ""), *output.get("traceback", [])]
    words = _PICTURE.sub("", "\n".join(spoken))
    for what, pattern in _BANNED.items():
        if found := pattern.search(words):
            said.append(f"{what} in the output: {words[max(0, found.start() - 20) : found.end() + 20]!r}")
    return said


def test_there_are_chapters():
    assert CHAPTERS, "no chapter in notebooks/"


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_chapter_is_fit_to_commit(path, make):
    assert problems(path, make) == []


# The controls: a good chapter has no problems, and each way of spoiling it is seen.


@pytest.fixture
def good(tmp_path, make):
    """A chapter with an output of each kind, in canonical form."""
    (tmp_path / "notebooks").mkdir()
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    path = tmp_path / "notebooks" / "00_good.ipynb"
    picture = '<img alt="a bar of 400,000,000 B" src="data:image/svg+xml;base64,AAAA0xDEADBEEFffff/tmp/x">'
    outputs = [
        new_output("stream", name="stdout", text="400,000,000 B\n"),
        new_output("execute_result", data={"text/plain": "a bar", "text/html": picture}, execution_count=1),
    ]
    cells = [new_markdown_cell("# Good", id="title"), new_code_cell("x", id="x", outputs=outputs)]
    nbformat.write(new_notebook(cells=cells), path)
    make.make(path, run=False)
    return path


def test_good_chapter_has_no_problems(good, make):
    assert problems(good, make) == []


def output(text, name="stdout"):
    return {"output_type": "stream", "name": name, "text": text}


def error(tags=()):
    stored = {"output_type": "error", "ename": "ZeroDivisionError", "evalue": "", "traceback": []}
    return lambda cell: cell.update(outputs=[stored], metadata={"tags": list(tags)})


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda cell: cell.update(execution_count=7), "execution counts [1, 7]; expected 1 to 2"),
        (lambda cell: cell.update(execution_count=None), "execution counts [1, None]"),
        (lambda cell: cell.update(id="title"), "cell ids that are missing, double or not valid"),
        (lambda cell: cell.update(source="x\n" * 26), "cell x: 26 lines of code"),
        (error(), "cell x: a stored ZeroDivisionError without the tag"),
        (lambda cell: cell["outputs"].append(output("careful", "stderr")), "cell x: stderr in the output: 'careful'"),
        (lambda cell: cell["outputs"].append(output("<Mul at 0x7f1234567890>")), "a memory address in the output"),
        (lambda cell: cell["outputs"].append(output("id 140234567890123")), "a memory address in the output"),
        (lambda cell: cell["outputs"].append(output("in " + "/home/me/x.py")), "a path of one machine in the output"),
        (lambda cell: cell["outputs"].append(output("C:\\Users\\me")), "a path of one machine in the output"),
        (lambda cell: cell["outputs"].append(output("x" * MOST_BYTES)), "bytes; 1,500,000 at most"),
        (lambda cell: cell["metadata"].update(collapsed=True), "not in canonical form"),
        (lambda cell: cell["outputs"].append(output("in two ")), "not in canonical form"),
    ],
)
def test_spoiled_chapter_is_seen(good, make, spoil, words):
    notebook = json.loads(good.read_text())
    cell = next(cell for cell in notebook["cells"] if cell["id"] == "x")
    cell["outputs"] = cell["outputs"][:1]
    spoil(cell)
    good.write_text(json.dumps(notebook))
    assert any(words in problem for problem in problems(good, make))


def test_stale_navigation_is_seen(good, make):
    shutil.copy(good, good.with_name("01_new.ipynb"))
    assert any(problem.startswith("stale generated cells: nav-top, nav-bottom;") for problem in problems(good, make))


def test_error_that_is_tagged_may_stay(good, make):
    notebook = nbformat.read(good, as_version=4)
    error(tags=["raises-exception"])(next(cell for cell in notebook.cells if cell.id == "x"))
    make.write(nbformat.from_dict(notebook), good)
    assert problems(good, make) == []


# tests/nbval.cfg takes out what two right runs may differ in, and nothing else.


def nbval(path: Path, *, environ=os.environ) -> subprocess.CompletedProcess:
    flags = ["--nbval", "--nbval-current-env", "--nbval-sanitize-with", str(ROOT / "tests" / "nbval.cfg")]
    command = [sys.executable, "-m", "pytest", *flags, "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(path)]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            '<img alt="4 B" src="data:image/svg+xml;base64,AAAA">',
            '<img alt="4 B" src="data:image/svg+xml;base64,BBBBBBBB/+==">',
        ),
        (
            '<svg role="img" aria-label="4 B" width="3"><g/></svg>',
            '<svg width="5" aria-label="4 B">\n<text>4\n</text></svg>',
        ),
        ("VBox(children=(HTML(value='a'),))", "VBox(children=(HTML(value='a',\n layout=Layout()),))"),
        ("In [5], line 3: h.add_(1)", "In [1], line 3: h.add_(1)"),
    ],
)
def test_two_right_runs_compare_equal(sanitize, one, other):
    assert one != other
    assert sanitize(one) == sanitize(other)


def test_widget_compares_equal_to_the_words_that_stand_for_it(sanitize, make):
    assert sanitize("HBox(children=(IntSlider(value=0),))") == make.WIDGET_TEXT


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            '<img alt="4 B" src="data:image/png;base64,AAAA">',
            '<img alt="8 B" src="data:image/png;base64,AAAA">',
        ),
        ('<svg aria-label="4 B"><g/></svg>', '<svg aria-label="8 B"><g/></svg>'),
        ("<svg><g/></svg> 4 B <svg><g/></svg>", "<svg><g/></svg> 8 B <svg><g/></svg>"),
        ("400,000,000 B", "400,000,004 B"),
        ("In [5], line 3: h.add_(1)", "In [5], line 4: h.add_(1)"),
        ("a list of VBox(1)", "a list of VBox(2)"),
        ("0x7f1234567890", "0x7f1234567891"),
    ],
)
def test_a_different_statement_compares_different(sanitize, one, other):
    assert sanitize(one) != sanitize(other)


def test_nbval_fails_on_a_false_output(good):
    notebook = nbformat.read(good, as_version=4)
    stored = new_output("stream", name="stdout", text="3\n")
    notebook.cells = [new_code_cell("print(1 + 1)", id="x", outputs=[stored], execution_count=1)]
    nbformat.write(notebook, good)
    assert nbval(good).returncode == 1
    notebook.cells[0].outputs[0].text = "2\n"
    nbformat.write(notebook, good)
    assert nbval(good).returncode == 0


# The saved outputs come from graphviz-pure, as `make test` draws; the other ways of drawing must compare equal.


@pytest.mark.parametrize("renderer", ["dot", "dot is hidden", "text"])
def test_first_chapter_is_true_with_any_renderer(renderer, tmp_path):
    environ = dict(os.environ)
    if renderer == "dot" and not shutil.which("dot"):
        pytest.skip("no dot on PATH (Debian: apt install graphviz)")
    if renderer == "dot is hidden":
        environ |= {"TENSOR_LAB_RENDERER": "auto", "PATH": str(tmp_path)}
    else:
        environ["TENSOR_LAB_RENDERER"] = renderer
    done = nbval(ROOT / "notebooks" / "00_start_here.ipynb", environ=environ)
    assert done.returncode == 0, done.stdout[-4000:]
