"""notebooks/_make.py, on small chapters made for the occasion."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

# Stands for the helpers, so that a kernel here need not import torch.
FAKE_SETUP = "def setup():\n    return 'the card'\n"


@pytest.fixture
def checkout(tmp_path, root):
    """A checkout with helpers that do nothing, and a function that adds a chapter of the given cells."""
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "__init__.py").write_text("from helpers.environment import setup\n")
    (tmp_path / "helpers" / "environment.py").write_text(FAKE_SETUP)
    (tmp_path / "notebooks").mkdir()
    shutil.copy(root / "pyproject.toml", tmp_path)

    def chapter(name, *cells, title="A title"):
        path = tmp_path / "notebooks" / name
        nbformat.write(new_notebook(cells=[new_markdown_cell(f"# {title}\n\nMore.", id="title"), *cells]), path)
        return path

    return SimpleNamespace(folder=tmp_path / "notebooks", chapter=chapter)


def read(path):
    return nbformat.read(path, as_version=4)


def test_chapters_are_numbered_files_in_order(checkout, make):
    for name in ("10_b.ipynb", "02_a.ipynb", "Untitled.ipynb"):
        checkout.chapter(name)
    assert [path.name for path in make.chapters(checkout.folder)] == ["02_a.ipynb", "10_b.ipynb"]


def test_navigation_follows_the_file_order(checkout, make):
    first = checkout.chapter("00_a.ipynb", title="First")
    second = checkout.chapter("01_b.ipynb", title="Second")
    third = checkout.chapter("02_c.ipynb", title="Third")
    tops = [make.generated_cells(path)["nav-top"].source for path in (first, second, third)]
    assert "← [First](00_a.ipynb) | [contents](../README.md#chapters) | [Third](02_c.ipynb) →" in tops[1]
    assert "←" not in tops[0]
    assert "→" not in tops[2]


def test_all_addresses_are_pyprojects_and_name_one_revision(checkout, make, monkeypatch):
    path = checkout.chapter("00_a.ipynb")
    pyproject = checkout.folder.parent / "pyproject.toml"
    old = make.repository(checkout.folder)
    pyproject.write_text(pyproject.read_text().replace(old, "https://github.com/somebody/fork"))
    monkeypatch.setattr(make, "REF", "v9")
    text = "".join(cell.source for cell in make.generated_cells(path).values())
    assert old not in text
    assert text.count("https://colab.research.google.com/github/somebody/fork/blob/v9/notebooks/00_a.ipynb") == 2
    assert text.count("https://github.com/somebody/fork/archive/v9.zip") == 1


def test_make_writes_generated_cells_runs_and_saves(checkout, make):
    path = checkout.chapter("00_a.ipynb", new_code_cell("x = 6 * 7", id="a"), new_code_cell("print(x)\nx", id="b"))
    assert make.make(path)
    cells = read(path).cells
    assert [cell.id for cell in cells] == ["title", "nav-top", "bootstrap", "a", "b", "nav-bottom"]
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [1, 2, 3]
    assert code[0].outputs[0].data["text/plain"] == "'the card'"
    assert [output.get("text") or output.data["text/plain"] for output in code[2].outputs] == ["42\n", "42"]
    first = path.read_bytes()
    assert not make.make(path)
    assert path.read_bytes() == first
    assert make.stale(path) == []
    assert [entry.name for entry in checkout.folder.iterdir()] == ["00_a.ipynb"]


def test_kernel_is_this_interpreter_and_the_renderer_is_fixed(checkout, make, monkeypatch):
    monkeypatch.delenv("TENSOR_LAB_RENDERER", raising=False)
    source = "import os, sys\nprint(sys.prefix, os.environ['TENSOR_LAB_RENDERER'], os.path.basename(os.getcwd()))"
    path = checkout.chapter("00_a.ipynb", new_code_cell(source, id="a"))
    make.make(path)
    assert read(path).cells[3].outputs[0].text.split() == [sys.prefix, "graphviz-pure", "notebooks"]


def test_failing_cell_is_named_and_leaves_the_file(checkout, make, capsys):
    path = checkout.chapter("04_x.ipynb", new_code_cell("1 + 1", id="good"), new_code_cell("x = 1 / 0", id="bad"))
    before = path.read_bytes()
    assert make.main([str(path)]) == 1
    said = capsys.readouterr().err
    assert "04_x.ipynb: the cell with id 'bad' failed: ZeroDivisionError: division by zero" in said
    assert "    x = 1 / 0" in said
    assert "The file is as it was." in said
    assert path.read_bytes() == before
    assert [entry.name for entry in checkout.folder.iterdir()] == ["04_x.ipynb"]


def test_no_execute_keeps_the_outputs(checkout, make):
    output = new_output("stream", name="stdout", text="kept\n")
    path = checkout.chapter("00_a.ipynb", new_code_cell("1 / 0", id="a", outputs=[output], execution_count=1))
    assert make.main(["--no-execute", str(path)]) == 0
    cells = read(path).cells
    assert cells[3].outputs == [output]
    assert [cell.execution_count for cell in cells if cell.cell_type == "code"] == [1, 2]


def test_a_new_revision_keeps_the_card(checkout, make, monkeypatch):
    path = checkout.chapter("00_a.ipynb")
    make.make(path)
    monkeypatch.setattr(make, "REF", "v9")
    assert make.make(path, run=False)
    cell = read(path).cells[2]
    assert "v9.zip" in cell.source
    assert cell.outputs[0].data["text/plain"] == "'the card'"


def test_check_names_stale_cells_and_changes_nothing(checkout, make, capsys):
    first = checkout.chapter("00_a.ipynb", title="First")
    make.main(["--no-execute", str(first)])
    assert make.main(["--check", str(first)]) == 0
    checkout.chapter("01_b.ipynb", title="Second")
    before = first.read_bytes()
    assert make.main(["--check", str(first)]) == 1
    assert (
        "00_a.ipynb: stale: nav-top, nav-bottom; run: python notebooks/_make.py --no-execute" in capsys.readouterr().out
    )
    assert first.read_bytes() == before


def test_check_sees_a_generated_cell_out_of_place(checkout, make):
    path = checkout.chapter("00_a.ipynb", new_code_cell("1", id="a"))
    make.main(["--no-execute", str(path)])
    notebook = read(path)
    notebook.cells.insert(-1, notebook.cells.pop())
    nbformat.write(notebook, path)
    assert make.stale(path) == ["the order of nav-top, bootstrap and nav-bottom"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("00_a.ipynb", None, "no such file; the chapters here are: 05_there.ipynb"),
        ("00_a.ipynb", "{", "not readable as a notebook"),
        ("00_a.ipynb", "{}", "not readable as a notebook"),
        ("Untitled.ipynb", "{}", "a chapter is named with two digits and a word, as 04_inplace_memory.ipynb"),
    ],
)
def test_bad_file_says_what_is_wrong(checkout, make, capsys, name, content, words):
    checkout.chapter("05_there.ipynb")
    path = checkout.folder / name
    if content:
        path.write_text(content)
    assert make.main([str(path)]) == 1
    assert words in capsys.readouterr().err


def test_double_ids_are_mended_the_same_way_every_time(checkout, make):
    twins = [new_code_cell("1", id="a"), new_code_cell("2", id="b")]
    path = checkout.chapter("04_x.ipynb", *twins)
    path.write_text(path.read_text().replace('"id": "b"', '"id": "a"'))
    make.make(path, run=False)
    assert [cell.id for cell in read(path).cells][3:5] == ["a", "c04-004"]


def test_chapter_without_title_is_refused(checkout, make, capsys):
    path = checkout.chapter("00_a.ipynb", title="")
    assert make.main(["--no-execute", str(path)]) == 1
    assert "the first cell must begin with '# ' and a title" in capsys.readouterr().err


def canonical_code(make, checkout, cells):
    notebook = new_notebook(metadata={"language_info": {"name": "python", "version": "3.9"}})
    notebook.cells = cells  # past new_notebook, which would mend them
    return make.canonical(notebook, checkout.folder / "04_x.ipynb")


def test_canonical_form_of_cells(make, checkout):
    metadata = {"execution": {"iopub.status.busy": "2026"}, "tags": ["t"], "jupyter": {"source_hidden": True}}
    cells = [
        new_code_cell("a\n", id="kept", metadata=metadata, execution_count=41),
        new_code_cell("b", id="kept"),
        new_code_cell("", id="empty"),
        new_code_cell("c", id="c"),
    ]
    cells[-1]["id"] = "not valid"
    notebook = canonical_code(make, checkout, cells)
    assert [cell.id for cell in notebook.cells] == ["kept", "c04-001", "c04-002"]
    assert [cell.execution_count for cell in notebook.cells] == [1, 2, 3]
    assert notebook.cells[0].metadata == {"tags": ["t"], "jupyter": {"source_hidden": True}}
    assert notebook.cells[0].source == "a"
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert notebook.metadata.language_info == {"name": "python"}
    again = json.dumps(notebook)
    assert json.dumps(make.canonical(notebook, checkout.folder / "04_x.ipynb")) == again


def test_canonical_form_of_outputs(make, checkout):
    def stdout(text, name="stdout"):
        return new_output("stream", name=name, text=text)

    view = {make.WIDGET: {"model_id": "1f"}, "text/plain": "VBox(children=(IntSlider(value=0),))"}
    shown = {make.WIDGET: {"model_id": "2f"}, "text/plain": "HBox()", "text/html": "<b>read me</b>"}
    cell = new_code_cell("x", id="x", execution_count=7)
    cell.outputs = [
        stdout("a"),
        stdout("b\n"),
        stdout("c", "stderr"),
        new_output("execute_result", data={"text/plain": "1"}, execution_count=7),
        new_output("display_data", data=view),
        new_output("display_data", data=shown),
    ]
    outputs = canonical_code(make, checkout, [cell]).cells[0].outputs
    assert [output.get("text") for output in outputs[:2]] == ["ab\n", "c"]
    assert outputs[2].execution_count == 1
    assert outputs[3].data == {"text/plain": make.WIDGET_TEXT}
    assert outputs[4].data == {"text/plain": "HBox()", "text/html": "<b>read me</b>"}


# The bootstrap cell, run as a reader runs it.


@pytest.fixture
def colab(make, monkeypatch, tmp_path):
    """Plays Colab on one file alone: no helpers, and a pip whose calls are kept."""
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == "helpers"]:
        monkeypatch.delitem(sys.modules, name)
    calls = []
    played = SimpleNamespace(calls=calls, answer=0, there=False, helpers=ModuleType("helpers"))
    played.helpers.setup = lambda: "the card"

    def call(command):
        calls.append(command)
        played.there = played.answer == 0
        if played.there:
            monkeypatch.setitem(sys.modules, "helpers", played.helpers)
        return played.answer

    monkeypatch.setattr(subprocess, "call", call)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if played.there else None)
    return played


ADDRESS = "https://github.com/somebody/lab"


def test_bootstrap_is_six_lines_at_most(make):
    assert len(make.bootstrap(ADDRESS).splitlines()) <= 6


def test_bootstrap_on_colab_takes_the_archive_of_the_revision(make, colab):
    exec(make.bootstrap(ADDRESS), {})
    [command] = colab.calls
    assert command == [sys.executable, "-m", "pip", "install", "-q", "--no-deps", f"{ADDRESS}/archive/{make.REF}.zip"]
    exec(make.bootstrap(ADDRESS), {})
    assert len(colab.calls) == 1  # what is there is not fetched again


def test_bootstrap_without_an_answer_says_how_to_go_on(make, colab):
    colab.answer = 1
    with pytest.raises(RuntimeError, match=r"No answer from \S+: upload helpers/ of a clone \(Files, left\)"):
        exec(make.bootstrap(ADDRESS), {})


def test_bootstrap_in_a_checkout_installs_nothing_and_finds_the_helpers_beside_it(checkout, make, tmp_path):
    # An interpreter of its own, isolated (-I) from the environment in which the helpers are installed.
    code = (
        "import subprocess, sys\n"
        "sys.meta_path = [f for f in sys.meta_path if 'editable' not in str(f).lower()]\n"
        "def call(*a): raise AssertionError('pip was called')\n"
        "subprocess.call = call\n" + make.bootstrap(ADDRESS) + "\nprint(setup(), setup.__code__.co_filename)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], cwd=checkout.folder, capture_output=True, text=True)
    assert done.stdout.split() == ["the", "card", str(tmp_path / "helpers" / "environment.py")], done.stderr


def test_the_readmes_picture_is_the_one_in_the_first_chapter(make, root):
    svg = make.first_picture(read(make.chapters(root / "notebooks")[0]))
    picture = root / ".github" / "one_training_step.svg"
    assert picture.read_text(encoding="utf-8") == svg, "stale: run make notebooks"
    assert f"]({picture.relative_to(root)})" in (root / "README.md").read_text(encoding="utf-8")


def test_the_cover_is_written_once_and_needs_a_picture(checkout, make):
    path = checkout.chapter("00_a.ipynb")
    (checkout.folder.parent / ".github").mkdir()
    with pytest.raises(make.ChapterError, match="has no picture"):
        make.cover(checkout.folder)
    picture = {"text/html": '<img alt="x" src="data:image/svg+xml;base64,PHN2Zy8+">'}
    notebook = read(path)
    notebook.cells.append(new_code_cell("1", outputs=[new_output("display_data", picture)]))
    nbformat.write(notebook, path)
    assert make.cover(checkout.folder)
    assert (checkout.folder.parent / ".github" / "one_training_step.svg").read_text() == "<svg/>"
    assert not make.cover(checkout.folder)


def test_a_broken_neighbour_is_named(checkout, make, capsys):
    whole = checkout.chapter("00_a.ipynb")
    for text in ("{", "[]", "{}"):
        (checkout.folder / "01_b.ipynb").write_text(text)
        assert make.main([str(whole), "--no-execute"]) == 1
        assert "01_b.ipynb: not readable as a notebook" in capsys.readouterr().err
    (checkout.folder / "01_b.ipynb").unlink()
    assert make.main([str(whole), "--no-execute"]) == 0  # the control
