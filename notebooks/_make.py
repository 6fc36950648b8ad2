"""Makes the chapters' files: writes their generated cells, runs them, saves what they print in one canonical form.

    python notebooks/_make.py [chapter ...]           write, run and save (all chapters if none is named)
    python notebooks/_make.py --no-execute [...]      write the generated cells only; outputs stay as they are
    python notebooks/_make.py --check                 change nothing; name the generated cells that are stale

Generated are, in every chapter: the navigation under the author's first cell, the cell that gets the helpers, and the
navigation at the end. They follow from the file order and the address in pyproject.toml. All else is the author's.

A file is replaced only after its last cell ran, so a cell that fails leaves the file as it was.
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat

FOLDER = Path(__file__).resolve().parent
# The branch or tag that badges and bootstrap cells name; the one place of it. A release sets its tag here.
REF = "main"
CHAPTER_NAME = re.compile(r"\d\d_\w+\.ipynb")
GENERATED = ("nav-top", "bootstrap", "nav-bottom")
VALID_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
WIDGET = "application/vnd.jupyter.widget-view+json"
# A widget lives in a running kernel, and its repr is noise that differs between ipywidgets 7 and 8; tests/nbval.cfg
# turns that repr into the same words.
WIDGET_TEXT = "(an interactive control: run the cell to use it)"
LONGEST_CELL = 600  # seconds; far more than any cell may take, so that only a cell that hangs meets it
# What authors decide in a cell's metadata. The rest (timings, collapsed outputs, editor marks) is of one machine.
KEPT_METADATA = ("tags", "jupyter", "cellView")


class ChapterError(Exception):
    """A chapter that cannot be made; the text says which, where, and what to do."""


def chapters(folder: Path = FOLDER) -> list[Path]:
    """Returns the chapters of ``folder`` in reading order."""
    return sorted(path for path in folder.glob("*.ipynb") if CHAPTER_NAME.fullmatch(path.name))


def repository(folder: Path = FOLDER) -> str:
    """Returns the repository's address, from the ``pyproject.toml`` beside ``folder``."""
    with open(folder.parent / "pyproject.toml", "rb") as file:
        return tomllib.load(file)["project"]["urls"]["Repository"].rstrip("/")


def title(path: Path) -> str:
    """Returns the chapter's title, which is the first line of its first cell: ``# In-place memory``."""
    cells = _parse(path).cells
    first = cells[0].source.splitlines()[0] if cells and cells[0].source else ""
    if not first.startswith("# ") or not first[2:].strip():
        raise ChapterError(f"{path.name}: the first cell must begin with '# ' and a title, not with {first[:40]!r}")
    return first.removeprefix("# ").strip()


def generated_cells(path: Path) -> dict[str, Any]:
    """Returns the generated cells of the chapter at ``path``, by id, as they follow from the files beside it."""
    all_paths = chapters(path.parent)
    position = all_paths.index(path)
    before = all_paths[position - 1] if position else None
    after = all_paths[position + 1] if position + 1 < len(all_paths) else None
    address = repository(path.parent)
    colab = address.replace("https://github.com/", "https://colab.research.google.com/github/")
    colab += f"/blob/{REF}/notebooks/"

    # Links between files work in JupyterLab and on GitHub. Colab opens one file alone and needs whole addresses.
    steps, colab_steps = [], [f"[this chapter]({colab}{path.name})"]
    if before:
        steps.append(f"← [{title(before)}]({before.name})")
    steps.append("[contents](../README.md#chapters)")
    if after:
        steps.append(f"[{title(after)}]({after.name}) →")
        colab_steps.append(f"[the next one]({colab}{after.name})")
    steps.append("open in Colab: " + ", ".join(colab_steps))
    navigation = " | ".join(steps)

    markdown, code = nbformat.v4.new_markdown_cell, nbformat.v4.new_code_cell
    tags = {"tags": ["nbval-ignore-output"]}  # the card names this machine's device and versions
    return {
        "nav-top": markdown(navigation, id="nav-top"),
        "bootstrap": code(bootstrap(address), id="bootstrap", metadata=tags),
        "nav-bottom": markdown("---\n" + navigation, id="nav-bottom"),
    }


def bootstrap(address: str) -> str:
    """Returns the source of the cell that gets the helpers: from this checkout, else, on Colab, from ``address``."""
    # The archive, unlike git+https, needs no git, and exists for branches and tags alike. --no-deps: pip must find no
    # reason to touch what Colab ships; setup() adds by name what Colab lacks.
    return f"""\
import importlib.util, pathlib, subprocess, sys; sys.path.insert(0, str(pathlib.Path("..").resolve()))
if "google.colab" in sys.modules and not importlib.util.find_spec("helpers"):  # this file alone
    source = "{address}/archive/{REF}.zip"
    if subprocess.call([sys.executable, "-m", "pip", "install", "-q", "--no-deps", source]):
        raise RuntimeError(f"No answer from {{source}}: upload helpers/ of a clone (Files, left); run again")
from helpers import setup; setup()"""


def with_generated_cells(notebook: Any, path: Path) -> Any:
    """Puts the generated cells of ``path`` into ``notebook``, in place; returns it. Their outputs stay."""
    new = generated_cells(path)
    old = {cell.get("id"): cell for cell in notebook.cells if cell.get("id") in GENERATED}
    for name, cell in new.items():
        previous = old.get(name)
        # Also of a cell that changed: a new address or revision in it does not change the card that it shows.
        if cell.cell_type == "code" and previous is not None:
            cell.outputs, cell.execution_count = previous.outputs, previous.execution_count
    own = [cell for cell in notebook.cells if cell.get("id") not in GENERATED]
    notebook.cells = [own[0], new["nav-top"], new["bootstrap"], *own[1:], new["nav-bottom"]]
    return notebook


def canonical(notebook: Any, path: Path) -> Any:
    """Brings ``notebook`` into the one form in which chapters are committed, in place; returns it.

    Cell ids are kept where they are valid and unique, else derived from chapter and position. Code cells are counted
    from 1; of the metadata stays what authors decide; chunks of one stream are joined; a widget keeps a line of text.
    """
    number = path.name[:2]
    seen: set[str] = set()
    cells = []
    for cell in notebook.cells:
        if cell.cell_type != "raw" and not cell.source.strip():
            continue  # an empty cell says nothing, and shifts the counts that nbval goes by
        name = cell.get("id", "")
        if not VALID_ID.fullmatch(name) or name in seen:
            position = len(cells)
            while (name := f"c{number}-{position:03}") in seen:
                position += 1
        seen.add(name)
        cell["id"] = name
        cell.metadata = {key: cell.metadata[key] for key in KEPT_METADATA if cell.metadata.get(key)}
        cell.source = cell.source.strip("\n")
        cells.append(cell)

    for count, cell in enumerate((cell for cell in cells if cell.cell_type == "code"), start=1):
        cell.execution_count = count
        cell.outputs = _canonical_outputs(cell.outputs, count)
    notebook.cells = cells
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def _canonical_outputs(outputs: Sequence[Any], count: int) -> list[Any]:
    result: list[Any] = []
    for output in outputs:
        previous = result[-1] if result else None
        if output.output_type == "stream" and previous is not None and previous.get("name") == output.name:
            previous.text += output.text
            continue
        output = nbformat.from_dict({key: value for key, value in output.items() if key != "transient"})
        if output.output_type == "execute_result":
            output.execution_count = count
        if "data" in output and output.data.pop(WIDGET, None) is not None and list(output.data) == ["text/plain"]:
            output.data["text/plain"] = WIDGET_TEXT
        if "metadata" in output:
            output.metadata.pop(WIDGET, None)
        result.append(output)
    return result


def execute(notebook: Any, path: Path) -> None:
    """Runs ``notebook`` from a fresh kernel of this interpreter, in the chapter's folder; keeps outputs in it.

    Raises:
        ChapterError: with the chapter, the cell and its error, if a cell fails and carries no tag "raises-exception".
    """
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    client = NotebookClient(
        notebook,
        timeout=LONGEST_CELL,
        resources={"metadata": {"path": str(path.parent)}},
        extra_arguments=[
            "--IPKernelApp.log_level=40"
        ],  # errors; not that the connection to this machine is unencrypted
    )
    client.create_kernel_manager()
    # Not whatever kernel is named python3: where several environments are installed, that may be any of them.
    client.km.kernel_spec.argv[0] = sys.executable
    running = None

    def starts(cell: Any, cell_index: int) -> None:
        nonlocal running
        running = cell

    client.on_cell_start = starts
    try:
        # Pictures of graphs must not depend on the version of this machine's `dot`.
        client.execute(env={"TENSOR_LAB_RENDERER": "graphviz-pure", **os.environ})
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        if isinstance(error, CellExecutionError):
            what = f"{error.ename}: {error.evalue}"
        elif isinstance(error, CellTimeoutError):
            what = f"it ran for more than {LONGEST_CELL} s"
        else:
            what = "the kernel died (out of memory?)"
        where = f"the cell with id {running['id']!r}" if running is not None else "the start"
        source = "" if running is None else "\n    " + running.source.replace("\n", "\n    ")
        raise ChapterError(f"{path.name}: {where} failed: {what}{source}\nThe file is as it was.") from error


def text_of(notebook: Any) -> str:
    """Returns the file's text for ``notebook``."""
    return nbformat.writes(notebook, version=nbformat.NO_CONVERT).rstrip("\n") + "\n"


def write(notebook: Any, path: Path) -> bool:
    """Writes ``notebook`` to ``path`` at once or not at all; returns whether the file changed."""
    nbformat.validate(notebook)
    text = text_of(notebook)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    # Beside the file: from a temporary folder, perhaps on another disk, a rename is not one step.
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return True


def read(path: Path) -> Any:
    """Returns the notebook at ``path`` as it is.

    Raises:
        ChapterError: if it is no notebook, or is not named as a chapter.
    """
    if not CHAPTER_NAME.fullmatch(path.name):
        raise ChapterError(f"{path.name}: a chapter is named with two digits and a word, as 04_inplace_memory.ipynb")
    try:
        notebook = _parse(path)
    except FileNotFoundError:
        names = ", ".join(chapter.name for chapter in chapters(path.parent)) or "none"
        raise ChapterError(f"{path.name}: no such file; the chapters here are: {names}") from None
    title(path)
    return notebook


def _parse(path: Path) -> Any:
    # nbformat.read would mend missing and double cell ids with random ones, which would differ on every run.
    try:
        notebook = nbformat.v4.reads(path.read_text(encoding="utf-8"))
        if not isinstance(notebook.get("cells"), list):
            raise ValueError("it has no cells")
        return notebook
    except OSError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ChapterError(f"{path.name}: not readable as a notebook: {reason}") from error


def make(path: Path, *, run: bool = True) -> bool:
    """Makes the chapter at ``path``; returns whether its file changed. Without ``run``, outputs stay."""
    path = path.resolve()
    notebook = canonical(with_generated_cells(read(path), path), path)
    if run:
        execute(notebook, path)
        canonical(notebook, path)
    return write(notebook, path)


def stale(path: Path) -> list[str]:
    """Returns the ids of the generated cells of ``path`` that are missing or not as this tool writes them."""
    path = path.resolve()
    cells = read(path).cells
    here = {cell.get("id"): cell.source for cell in cells}
    wrong = [name for name, cell in generated_cells(path).items() if here.get(name) != cell.source]
    order = [cell.get("id") for cell in cells]
    in_place = [*order[1:3], *order[-1:]] == list(GENERATED)
    return wrong if wrong or in_place else ["the order of nav-top, bootstrap and nav-bottom"]


def cover(folder: Path = FOLDER) -> bool:
    """Writes the picture of the README, which is the first one that chapter 00 makes; returns whether it changed."""
    target = folder.parent / ".github" / "one_training_step.svg"
    svg = first_picture(_parse(chapters(folder)[0]))
    if target.exists() and target.read_text(encoding="utf-8") == svg:
        return False
    target.write_text(svg, encoding="utf-8")
    return True


def first_picture(notebook: Any) -> str:
    """Returns the SVG of the first picture among the outputs of ``notebook``.

    Raises:
        ChapterError: if there is none.
    """
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            as_html = output.get("data", {}).get("text/html", "")
            found = re.search(r'src(?:set)?="data:image/svg\+xml;base64,([^"]+)"', as_html)
            if found:
                return base64.b64decode(found[1]).decode()
    raise ChapterError("the first chapter has no picture among its outputs, and the README shows it: make it first")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chapter", nargs="*", type=Path)
    parser.add_argument("--check", action="store_true", help="only name what is stale in the generated cells")
    parser.add_argument("--no-execute", action="store_true", help="write the generated cells; keep the outputs")
    options = parser.parse_args(arguments)
    paths = options.chapter or chapters()
    if not paths:
        print(f"no chapter in {FOLDER.name}/: they are named as 04_inplace_memory.ipynb", file=sys.stderr)
        return 1
    failed = 0
    for path in paths:
        started = time.monotonic()
        try:
            if options.check:
                wrong = stale(path)
                failed += bool(wrong)
                if wrong:
                    print(f"{path.name}: stale: {', '.join(wrong)}; run: python notebooks/_make.py --no-execute")
                continue
            print(f"{path.name} ...", end=" ", flush=True)
            changed = make(path, run=not options.no_execute)
            print(f"{'written' if changed else 'unchanged'}, {time.monotonic() - started:.0f} s")
        except ChapterError as error:
            failed += 1
            print(f"\nerror: {error}", file=sys.stderr)
    if not failed and not options.check and chapters()[:1] == [path.resolve() for path in paths[:1]]:
        cover()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
