"""Every chapter runs as on Colab: with its front end's versions, alone, with helpers as the bootstrap cell gets them.

`make test-colab` makes the environment and runs this file. It is the kernel that plays Colab, with what `tests/colab/`
holds; the chapter is driven from here, as `make notebooks` does it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from packaging.utils import canonicalize_name

from helpers.environment import NOT_ON_COLAB

pytestmark = pytest.mark.colab

ROOT = Path(__file__).resolve().parent.parent
PLAYED = ROOT / "tests" / "colab"
PYTHON = ROOT / ".venv-colab" / "bin" / "python"
CHAPTERS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
LAB = "tensor-memory-lab"
LONGEST_CELL = 300  # seconds

WIDGET = "application/vnd.jupyter.widget-view+json"
# What Python, ipywidgets and Jupyter write when something is amiss; a chapter's own words may hold "a warning".
AMISS = re.compile(
    r"\w*Warning\b.*|WARNING:.*"
    r"|.*(?:[Uu]nrecognized argument|[Uu]nknown keyword|\bneeds? ipywidgets\b|displaying widget).*"
)


class Colab:
    """A machine that plays Colab, anew for every notebook."""

    def __init__(self, lab: Path, address: str, folder: Path):
        self.lab, self.address, self.folder = lab, address, folder

    def run(self, notebook: Any, name: str) -> Run:
        """Runs ``notebook`` alone in a folder; a cell that raises does not keep the others from running."""
        from nbclient import NotebookClient

        home = self.folder / name
        start = home / "ipython" / "profile_default" / "startup"
        for folder in (home / "content", home / "site", home / "start", start):
            folder.mkdir(parents=True)
        shutil.copy(PLAYED / "pip.py", home / "start")
        shutil.copy(PLAYED / "startup.py", start)
        pip = home / "start" / "pip"  # the program, should a cell call that
        pip.write_text(f'#!/bin/sh\nexec "{PYTHON}" -m pip "$@"\n')
        pip.chmod(0o755)

        client = NotebookClient(
            notebook,
            timeout=LONGEST_CELL,
            allow_errors=True,
            resources={"metadata": {"path": str(home / "content")}},
            extra_arguments=["--IPKernelApp.log_level=40"],
        )
        client.create_kernel_manager()
        client.km.kernel_spec.argv[0] = str(PYTHON)
        client.execute(env=self._environ(home))
        reports = [json.loads(path.read_text()) for path in sorted(home.glob("reports/*.json"))]
        return Run(notebook, client.widget_state, reports)

    def _environ(self, home: Path) -> dict[str, str]:
        # What this process was started with, of pytest, of make or of the reader, is not what Colab has.
        ours = ("COV_", "COVERAGE_", "PYTEST", "JUPYTER", "IPYTHON", "PYTHON", "MPL", "TENSOR_LAB", "VIRTUAL_ENV")
        environ = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return environ | {
            "PATH": os.pathsep.join([str(home / "start"), str(home / "site" / "bin"), environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join([str(home / "start"), str(home / "site")]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # ipykernel 6 loads a debugger, which grumbles about Python 3.11
            "IPYTHONDIR": str(home / "ipython"),
            "COLAB_HOME": str(home),
            "COLAB_LAB": str(self.lab),
            "COLAB_ADDRESS": self.address,
        }


class Run:
    """What a notebook left: itself with its outputs, the state of its widgets, a report for each call of pip."""

    def __init__(self, notebook: Any, widgets: dict[str, dict], reports: list[dict]):
        self.notebook, self.widgets, self.reports = notebook, widgets, reports

    @property
    def problems(self) -> list[str]:
        """A sentence for everything that a reader on Colab must not see."""
        said = []
        for cell in self.notebook.cells:
            for output in cell.get("outputs", []):
                fails = "raises-exception" in cell.metadata.get("tags", [])
                said += [f"cell {cell.id}: {problem}" for problem in self._problems(output, fails)]
        for state in self.widgets.values():  # where an Output widget keeps what was printed in it
            for output in state.get("outputs", ()):
                said += [f"an Output widget: {p}" for p in self._problems(nbformat.from_dict(output), False)]
        return said

    def differences(self, committed: Any, sanitize: Callable[[str], str]) -> list[str]:
        """A sentence for each cell of ``committed`` that prints something else here, among those that are compared."""
        said = []
        for cell, ran in zip(committed.cells, self.notebook.cells, strict=True):
            if "nbval-ignore-output" not in cell.metadata.get("tags", []):
                expected, found = (list(map(sanitize, told(c))) for c in (cell, ran))
                said += [f"cell {cell.id}: {f!r} instead of {e!r}" for e, f in zip(expected, found) if e != f]
                if len(expected) != len(found):
                    said.append(f"cell {cell.id}: {len(found)} outputs instead of {len(expected)}")
        return said

    def _problems(self, output: Any, fails: bool) -> Iterable[str]:
        data = output.get("data", {})
        if output.output_type == "error" and not fails:
            yield f"{output.ename}: {output.evalue}"
        text = "\n".join([output.get("text", ""), *(data[mime] for mime in data if mime.startswith("text/"))])
        if output.get("name") == "stderr":
            yield f"stderr: {text.strip()[:300]}"
        elif found := AMISS.search(re.sub(r"base64,[^\"]*", "", text)):
            yield f"a warning: {found[0][:300]}"
        if "Predict, then run." in data.get("text/html", "") and WIDGET not in data:
            yield "a prediction without its buttons"
        if WIDGET in data and data[WIDGET]["model_id"] not in self.widgets:
            yield "a widget of which the kernel sent nothing"


def told(cell: Any) -> list[str]:
    """What the outputs of ``cell`` say, each form of each by itself. A traceback is IPython's and not told."""
    said = []
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        said += [output.text] if "text" in output else []
        said += [f"{output.ename}: {output.evalue}"] if "evalue" in output else []
        said += [data[mime] for mime in sorted(data) if mime.startswith(("text/", "image/svg"))]
    return said


@pytest.fixture(scope="session")
def colab(make, tmp_path_factory) -> Colab:
    """Colab, with a wheel of this checkout's helpers as what the repository's address leads to."""
    if not PYTHON.exists():
        pytest.fail("no environment with Colab's front end: run `make test-colab`, which makes it in .venv-colab")
    folder = tmp_path_factory.mktemp("colab")
    # Out of an archive, as GitHub gives it: pip would leave its own files in the checkout.
    archive = folder / "main.zip"
    with zipfile.ZipFile(archive, "w") as files:
        for path in (*map(ROOT.joinpath, ("pyproject.toml", "README.md", "LICENSE")), *(ROOT / "helpers").glob("*.py")):
            files.write(path, Path(f"{LAB}-main", path.relative_to(ROOT)))
    command = [PYTHON, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder, archive]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = folder.glob("*.whl")
    return Colab(wheel, make.repository(ROOT / "notebooks"), folder)


def installed(reports: Iterable[dict]) -> set[str]:
    """The names of what pip would install, by its reports."""
    return {canonicalize_name(item["metadata"]["name"]) for report in reports for item in report["install"]}


def shipped(requirements: str) -> set[str]:
    """What is there already, in the environment of the file ``requirements``."""
    return {canonicalize_name(name) for name in re.findall(r"^([\w-]+)(?:==.*)?$", requirements, re.M)}


SHIPPED = shipped((PLAYED / "requirements.txt").read_text())


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_chapter_runs_on_colab(colab, make, sanitize, path):
    committed = nbformat.read(path, as_version=4)
    run = colab.run(nbformat.read(path, as_version=4), path.stem)
    assert run.problems == []
    # pip was called by the bootstrap cell and by setup(), and would leave all that Colab ships as it is.
    assert installed(run.reports) & SHIPPED == set()
    assert installed(run.reports) == {LAB, *NOT_ON_COLAB.values()}
    make.canonical(run.notebook, path)
    assert run.differences(committed, sanitize) == []


# The controls: each cell is told in words, and what is in order is not.

SPOILED = {
    "keyword": ("import ipywidgets as widgets\nwidgets.HTML(nonsense=1)", "nonsense"),
    "in-widget": (
        "out = widgets.Output()\nwith out:\n    widgets.Label(nonsense=2)\nout",
        "an Output widget: .*nonsense",
    ),
    "warning": ("import warnings\nwarnings.warn('old')", "stderr: .*UserWarning: old"),
    "printed": ("print('FutureWarning: soon')", "a warning: FutureWarning: soon"),
    "buttons": ("display({'text/html': 'Predict, then run.'}, raw=True)", "a prediction without its buttons"),
    "gone": (
        f"display({{'{WIDGET}': {{'model_id': 'abc'}}, 'text/plain': ''}}, raw=True)",
        "a widget of which the kernel sent nothing",
    ),
    "sibling": ("open('../README.md')", "FileNotFoundError: "),
    "helpers": ("import helpers", "ModuleNotFoundError: No module named 'helpers'"),
    "network": (
        "import urllib.request\nurllib.request.urlopen('http://example.org/')",
        "URLError: .*needs no network.* asks for example.org",
    ),
    "address": ("import socket\nsocket.create_connection(('192.0.2.1', 80), timeout=1)", "asks for 192.0.2.1"),
}
IN_ORDER = {
    "widget": "widgets.HTML('good')",
    "loopback": "with socket.create_server(('localhost', 0)) as server:\n"
    "    socket.create_connection(server.getsockname()).close()",
    "pip": "assert 'only pip install is played here' in str(get_ipython().getoutput('pip list'))",
    "words": "print('sum 20, with a warning')",
    "where": "import sys, os, IPython\nassert 'google.colab' in sys.modules and os.listdir() == []\n"
    "assert widgets.__version__ == '7.7.1' and IPython.__version__ == '7.34.0'",
}


def test_what_is_amiss_is_told(colab):
    cells = [new_code_cell(source, id=name) for name, (source, _) in SPOILED.items()]
    cells += [new_code_cell(source, id=name) for name, source in IN_ORDER.items()]
    cells.append(new_code_cell("1 / 0", id="means-it", metadata={"tags": ["raises-exception"]}))
    run = colab.run(new_notebook(cells=cells), "spoiled")
    for name, (_, words) in SPOILED.items():
        pattern = words if words.startswith("an Output") else f"cell {name}: .*{words}"
        assert any(re.match(pattern, problem, re.S) for problem in run.problems), (name, run.problems)
    told_of = {problem.split(":")[0].removeprefix("cell ") for problem in run.problems}
    assert told_of <= SPOILED.keys() | {"an Output widget"}, run.problems


def test_another_output_is_told(sanitize):
    def notebook(text):
        outputs = [nbformat.v4.new_output("stream", name="stdout", text=text)]
        return new_notebook(cells=[new_code_cell("x", id="x", outputs=outputs)])

    assert Run(notebook("4 B"), {}, []).differences(notebook("4 B"), sanitize) == []
    assert Run(notebook("4 B"), {}, []).differences(notebook("8 B"), sanitize) == ["cell x: '4 B' instead of '8 B'"]
    silent = new_notebook(cells=[new_code_cell("x", id="x")])
    assert Run(silent, {}, []).differences(notebook("4 B"), sanitize) == ["cell x: 0 outputs instead of 1"]


def test_pip_that_would_change_colab_is_seen():
    assert {"torch", "numpy", "matplotlib", "ipywidgets", "ipython", "ipykernel", "graphviz"} <= SHIPPED
    faked = [{"install": [{"metadata": {"name": "torchviz"}}, {"metadata": {"name": "torch"}}]}]
    assert installed(faked) & SHIPPED == {"torch"}
