"""Chapter 00 as a reader meets it: JupyterLab in a real Chromium, every cell run, every picture in the page.

All chapters as a fresh clone shows them, not trusted; then a question of each is answered, and a slider moved, by
keyboard. axe-core says what of it a screen reader cannot tell.

One JupyterLab serves the whole file, from a copy of the chapters, with settings, signatures and tokens of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import subprocess
import symtable
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from wcag import contrast

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parent.parent
CHAPTER = "notebooks/00_start_here.ipynb"
CHAPTERS = sorted(path.name for path in (ROOT / "notebooks").glob("[0-9]*.ipynb"))
MADE_OF_SLIDERS = re.compile(r"\b(?:playground|explore_memory|IntSlider)\(")
WITH_SLIDERS = [name for name in CHAPTERS if MADE_OF_SLIDERS.search((ROOT / "notebooks" / name).read_text("utf-8"))]
LONGEST = 900  # seconds for the whole file; it needs about three minutes where nothing else runs
PICTURE = re.compile(r"<img\b")
# No argument of ipywidgets 8 gives the handle of a slider a name.
SLIDER = 'aria-input-field-name: <div class="noUi-handle'

# What `make lab` sets, so that nothing is fetched from elsewhere; and every cell is in the page, not only what is seen.
_MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
_DEFAULTS = json.loads(re.search(r"^define LAB_DEFAULTS\n(.*?)^endef", _MAKEFILE, re.M | re.S)[1])
SETTINGS = _DEFAULTS | {"@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"}}


class Deadline:
    """The time that is left, so that nothing waits for ever and a slow machine gets all there is."""

    def __init__(self, seconds: float):
        self._end = time.monotonic() + seconds

    @property
    def seconds(self) -> float:
        left = self._end - time.monotonic()
        assert left > 0, f"the browser tests did not end within {LONGEST} s"
        return left

    @property
    def ms(self) -> float:
        return self.seconds * 1000


@pytest.fixture(scope="module")
def deadline() -> Deadline:
    return Deadline(LONGEST)


class Lab:
    """A running JupyterLab: where it answers, its token, the folder it serves."""

    def __init__(self, url: str, token: str, folder: Path):
        self.url, self.token, self.folder = url, token, folder


@pytest.fixture(scope="module")
def lab(chromium, deadline, tmp_path_factory) -> Iterator[Lab]:
    """Starts JupyterLab as `make lab` does, on a copy, and stops it by its process id."""
    home = tmp_path_factory.mktemp("lab")
    folder = home / "checkout"
    shutil.copytree(ROOT / "notebooks", folder / "notebooks", ignore=shutil.ignore_patterns(".*", "__pycache__"))
    (folder / "helpers").symlink_to(ROOT / "helpers")
    (folder / "untrusted").mkdir()
    for name in CHAPTERS:
        shutil.copy(ROOT / "notebooks" / name, folder / "untrusted")
    for name, setting in SETTINGS.items():
        file = home / "settings" / f"{name.replace(':', '/')}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(setting))

    token = secrets.token_hex(24)
    # Not on the command line, where other users of the machine could read it. No coverage: it would be of a copy.
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("COV_", "COVERAGE_", "JUPYTER", "IPYTHON"))}
    environ |= {
        "JUPYTER_TOKEN": token,
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "IPYTHONDIR": str(home / "ipython"),
        "TENSOR_LAB_RENDERER": "graphviz-pure",
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ServerApp.ip=127.0.0.1", "--ServerApp.port=0"]
    command += [f"--ServerApp.root_dir={folder}", f"--LabApp.default_url=/lab/tree/{CHAPTER}"]
    command += ["--LabApp.expose_app_in_browser=True"]  # as window.jupyterapp, through which the tests ask
    if os.geteuid() == 0:
        command.append("--allow-root")
    log = home / "lab.log"
    with open(log, "w") as output:
        server = subprocess.Popen(command, env=environ, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield Lab(_address(server, home / "runtime", token, log, deadline), token, folder)
    finally:
        server.terminate()  # upon which it ends its kernels
        try:
            server.wait(15)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _address(server: subprocess.Popen, runtime: Path, token: str, log: Path, deadline: Deadline) -> str:
    """Waits until the server answers, and returns where; it chose the port itself."""
    file = runtime / f"jpserver-{server.pid}.json"
    while deadline.seconds:
        assert server.poll() is None, f"JupyterLab ended at once:\n{log.read_text()[-3000:]}"
        with contextlib.suppress(OSError, ValueError, KeyError):
            url = json.loads(file.read_text())["url"]
            with urllib.request.urlopen(f"{url}api/status?token={token}", timeout=2):
                return url
        time.sleep(0.1)
    raise AssertionError("unreachable")


class Notebook:
    """One notebook in one page. Nothing here awaits a promise of the page: one that never settles would hang."""

    def __init__(self, browser, lab: Lab, deadline: Deadline):
        self.lab, self.deadline = lab, deadline
        self.context = browser.new_context(viewport={"width": 1280, "height": 1000})
        self.page = self.context.new_page()
        self.page.set_default_timeout(min(60_000, deadline.ms))
        self.complaints: list[str] = []
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(f"uncaught: {error}"))

    def _heard(self, message) -> None:
        if message.type == "error":
            self.complaints.append(f"{message.text} {message.location}")

    def open(self, path: str = "") -> Notebook:
        """Opens ``path``, or what JupyterLab opens of itself."""
        self.page.goto(f"{self.lab.url}{path}?token={self.lab.token}&reset")  # nothing from the page before
        self.page.locator(".jp-NotebookPanel .jp-Notebook").wait_for()
        self.settle("const w = app.shell.currentWidget; await app.restored; await w.context.ready; await w.revealed;")
        return self

    def settle(self, code: str) -> Any:
        """Runs ``code``, which may await, in the page, and looks again and again whether it has ended."""
        self.page.evaluate(
            """code => {
                const run = Object.getPrototypeOf(async function () {}).constructor('app', code);
                window.ended = null;
                run(window.jupyterapp).then(value => { window.ended = {value}; },
                                            error => { window.ended = {error: String(error)}; });
                return null;
            }""",
            code,
        )
        self.page.wait_for_function(
            "() => window.ended !== null || document.querySelector('.jp-Dialog')", timeout=self.deadline.ms, polling=100
        )
        dialog = self.page.locator(".jp-Dialog")
        assert not dialog.count(), f"JupyterLab asks: {dialog.first.inner_text()}"
        ended = self.page.evaluate("window.ended")
        assert "error" not in ended, ended["error"]
        return ended.get("value")

    def command(self, name: str, **arguments: Any) -> Any:
        return self.settle(f"return (await app.commands.execute({name!r}, {json.dumps(arguments)})) ?? null")

    def run_all(self) -> None:
        """Runs every cell, and waits until the last one ended or one failed that should not."""
        self.settle("await app.shell.currentWidget.sessionContext.ready")
        self.command("notebook:clear-all-cell-outputs")
        assert not any(cell.get("outputs") for cell in self.cells), "what follows must come from this run"
        self.command("notebook:run-all-cells")
        # The command ends at the first cell that raises, be it meant to; the cells behind it still run then. So it is
        # over when each has its number, or when one failed that should not, behind which nothing runs.
        self.page.wait_for_function(
            """() => { const w = window.jupyterapp.shell.currentWidget;
                const code = [...w.content.model.cells].filter(c => c.type === 'code' && c.sharedModel.source.trim());
                const failed = c => c.toJSON().outputs.some(o => o.output_type === 'error')
                    && !(c.getMetadata('tags') ?? []).includes('raises-exception');
                const idle = w.sessionContext.session.kernel.status === 'idle';
                return document.querySelector('.jp-Dialog') || code.some(failed)
                    || idle && code.every(c => c.executionCount !== null); }""",
            timeout=self.deadline.ms,
            polling=100,
        )

    def run(self, *cell_ids: str) -> None:
        """Runs these cells, one after the other, as the reader's Shift+Enter would."""
        self.settle("await app.shell.currentWidget.sessionContext.ready")
        positions = [i for i, cell in enumerate(self.cells) if cell["id"] in cell_ids]
        for position in positions:
            self.settle(f"app.shell.currentWidget.content.activeCellIndex = {position}")
            self.command("notebook:run-cell")
        failed = [
            (cell["id"], output["evalue"])
            for cell in (self.cells[position] for position in positions)
            for output in cell["outputs"]
            if output["output_type"] == "error" and "raises-exception" not in cell["metadata"].get("tags", [])
        ]
        assert not failed, failed

    def tab_to(self, what: str, kind: str) -> None:
        """Presses Tab until ``kind`` has the focus, six times at most."""
        for _ in range(6):
            self.page.keyboard.press("Tab")
            if self.page.evaluate("kind => document.activeElement.matches(kind)", kind):
                return
        stands_on = self.page.evaluate("document.activeElement.outerHTML")[:200]
        raise AssertionError(f"Tab does not reach {what}; it stands on {stands_on}")

    @property
    def cells(self) -> list[dict]:
        """The cells as they are in JupyterLab's memory, not as they are drawn."""
        return self.page.evaluate("window.jupyterapp.shell.currentWidget.context.model.toJSON().cells")

    def drawn(self, cell_id: str):
        """The cell in the page."""
        position = next(i for i, cell in enumerate(self.cells) if cell["id"] == cell_id)
        return self.page.locator(f".jp-Notebook .jp-Cell[data-windowed-list-index='{position}']")

    def pictures(self) -> list[dict]:
        """Every picture in an output: its words, its own width, the width it is drawn in, and how wide its place is."""
        self.page.wait_for_function(
            "() => [...document.querySelectorAll('.jp-OutputArea-output img')].every(i => i.complete)", polling=50
        )
        return self.page.evaluate("""() => [...document.querySelectorAll('.jp-OutputArea-output img')].map(i => ({
            alt: i.alt, natural: i.naturalWidth, width: i.getBoundingClientRect().width,
            place: i.closest('.jp-OutputArea-output').getBoundingClientRect().width }))""")

    def violations(self) -> list[str]:
        """What axe-core finds in the outputs that is serious or worse: the rule, the element and what would mend it."""
        from axe_playwright_python.base import AXE_SCRIPT

        self.page.evaluate(AXE_SCRIPT)
        found = self.settle("return (await axe.run('.jp-OutputArea', {resultTypes: ['violations']})).violations")
        return [
            f"{rule['id']}: {node['html'][:200]} {node['failureSummary']}"
            for rule in found
            if rule["impact"] in ("serious", "critical")
            for node in rule["nodes"]
        ]


def but_sliders(notebook: Notebook) -> list[str]:
    return [problem for problem in notebook.violations() if not problem.startswith(SLIDER)]


def check_pictures(pictures: list[dict], expected: int) -> None:
    assert len(pictures) == expected
    for picture in pictures:
        assert picture["alt"].strip(), "a picture without alternative text"
        assert picture["natural"] > 0, f"a picture that does not load: {picture['alt'][:80]}"
        assert 0 < picture["width"] <= picture["place"] + 1, f"a picture that does not fit: {picture['alt'][:80]}"


def pictures_of(cells: list[dict]) -> dict[str, int]:
    """Cell id -> how many pictures its outputs hold: in HTML or, where there is none, as images."""
    found = {}
    for cell in cells:
        all_data = [output.get("data", {}) for output in cell.get("outputs", [])]
        found[cell["id"]] = sum(
            len(PICTURE.findall("".join(data.get("text/html", "")))) or any(mime.startswith("image/") for mime in data)
            for data in all_data
        )
    return {cell: number for cell, number in found.items() if number}


def test_pictures_are_counted_in_every_form():
    forms = [
        {"text/html": ["<img a>", "<img b>"], "image/png": ""},
        {"image/svg+xml": "<svg/>"},
        {"text/plain": "<img>"},
    ]
    cells = [{"id": str(i), "outputs": [{"data": data}]} for i, data in enumerate(forms)]
    assert pictures_of(cells) == {"0": 2, "1": 1}


@pytest.fixture(scope="module")
def chapter(browser, lab, deadline) -> Iterator[Notebook]:
    """Chapter 00 where JupyterLab opens of itself, after "run all cells"."""
    notebook = Notebook(browser, lab, deadline).open()
    assert notebook.page.url.split("?")[0] == f"{lab.url}lab/tree/{CHAPTER}"
    notebook.run_all()
    yield notebook
    notebook.context.close()


def test_every_cell_runs(chapter):
    code = [cell for cell in chapter.cells if cell["cell_type"] == "code" and "".join(cell["source"]).strip()]
    fails = {cell["id"] for cell in code if "raises-exception" in cell["metadata"].get("tags", [])}
    failed = {cell["id"]: o for cell in code for o in cell["outputs"] if o["output_type"] == "error"}
    assert set(failed) == fails, {name: o["evalue"] for name, o in failed.items()}
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert not [o for cell in code for o in cell["outputs"] if o.get("name") == "stderr"]


def test_every_picture_is_seen_and_has_words(chapter):
    in_memory = pictures_of(chapter.cells)
    assert {"c00-open": 1, "c00-graph": 1}.items() <= in_memory.items(), "the live plot's last frame and the graph"
    pictures = chapter.pictures()
    check_pictures(pictures, sum(in_memory.values()))
    # The words are the measured ones.
    assert re.search(r"[Pp]eak [\d.,]+ MiB", pictures[0]["alt"])


def test_a_picture_that_does_not_load_would_be_seen(chapter):
    good, bad = chapter.page.evaluate("""async () => {
        const widths = [];
        for (const src of ['data:image/svg+xml,<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>',
                           'data:image/svg+xml;base64,AAAA']) {
            const image = new Image();
            const done = new Promise(ok => { image.onload = image.onerror = ok; });
            image.src = src;
            await Promise.race([done, new Promise(ok => setTimeout(ok, 5000))]);
            widths.push(image.naturalWidth);
        }
        return widths;
    }""")
    assert (good, bad) == (9, 0)


def test_prediction_is_answered_with_the_keyboard(chapter):
    page, card = chapter.page, chapter.drawn("c00-predict-view").locator(".jp-OutputArea-output")
    status = card.locator("[role=status]")
    assert "Measured:" not in status.inner_text(), "nothing runs before the answer"

    # Where a reader stands who has just run the cell: on the cell itself.
    chapter.drawn("c00-predict-view").focus()
    chapter.drawn("c00-predict-view").scroll_into_view_if_needed()
    chapter.tab_to("the answers", ".widget-radio-box input, input[type=radio]")
    page.keyboard.press("Space")
    chapter.tab_to("the button", "button.jupyter-button")
    page.keyboard.press("Space")
    status.filter(has_text=re.compile("Measured:")).wait_for()
    said = status.inner_text()
    # The reader chose the first option, 4,000,000 B; the slice keeps the whole storage, so nothing is freed.
    assert "Measured: 0 B." in said
    assert "You predicted 4,000,000 B" in said
    assert "keeps all of it" in said
    assert card.locator("button", has_text="Commit and run").first.evaluate("b => b === document.activeElement")


def test_contrast_is_the_guidelines():
    assert contrast("rgb(0, 0, 0)", "rgb(255, 255, 255)") == pytest.approx(21)
    assert contrast("rgb(119, 119, 119)", "rgb(255, 255, 255)") == pytest.approx(4.48, abs=0.01)  # a little pale


# The colour of every piece of text in an output, and what lies behind it. Tracebacks are JupyterLab's own.
_TEXT = """() => {
    const opaque = e => { for (; e; e = e.parentElement) {
        const c = getComputedStyle(e).backgroundColor;
        if (!/^rgba\\(.*, 0\\)$/.test(c) && c !== 'transparent') return c; } return 'rgb(255, 255, 255)'; };
    const found = [];
    const tracebacks = '[data-mime-type$=".error"], [data-mime-type$=".stderr"]';
    for (const e of document.querySelectorAll('.jp-OutputArea-output :is(p, li, td, th, caption, pre, code, label)'))
        if (e.checkVisibility() && e.innerText.trim() && !e.closest(tracebacks))
            found.push([e.innerText.slice(0, 60), getComputedStyle(e).color, opaque(e)]);
    return found;
}"""


@pytest.mark.parametrize("theme", ["JupyterLab Dark", "JupyterLab Light"])
def test_both_themes_show_pictures_and_readable_text(chapter, theme, tmp_path):
    chapter.command("apputils:change-theme", theme=theme)
    is_light = str(theme.endswith("Light")).lower()
    chapter.page.wait_for_function(
        "light => document.body.dataset.jpThemeLight === light", arg=is_light, timeout=chapter.deadline.ms
    )
    text = chapter.page.evaluate(_TEXT)
    assert len(text) > 20
    background = chapter.page.evaluate("getComputedStyle(document.querySelector('.jp-Notebook')).backgroundColor")
    assert (contrast(background, "#ffffff") < 1.5) == theme.endswith("Light"), "the theme did change"
    assert not [(words, colour, behind) for words, colour, behind in text if contrast(colour, behind) < 4.5]
    check_pictures(chapter.pictures(), sum(pictures_of(chapter.cells).values()))
    assert but_sliders(chapter) == []
    chapter.page.screenshot(path=tmp_path / f"{theme}.png")


def test_a_picture_without_words_would_be_a_violation(chapter):
    chapter.page.evaluate("""() => {
        const picture = document.createElement('img');
        picture.src = 'data:image/svg+xml,<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>';
        document.querySelector('.jp-OutputArea-output').append(picture);
    }""")
    [said] = but_sliders(chapter)
    assert said.startswith("image-alt: <img src=")
    chapter.page.evaluate("document.querySelector('.jp-OutputArea-output > img:not([alt])').remove()")
    assert but_sliders(chapter) == []


def test_saved_file_keeps_the_pictures(chapter):
    in_memory = pictures_of(chapter.cells)
    chapter.command("docmanager:save")
    path = chapter.lab.folder / CHAPTER
    saved = nbformat.read(path, as_version=4)
    assert path.read_bytes() != (ROOT / CHAPTER).read_bytes(), "it was saved, and not only copied"
    assert pictures_of(saved.cells) == in_memory
    assert nbformat.read(ROOT / CHAPTER, as_version=4).cells, "the committed chapter is another file"


def test_who_comes_back_to_a_saved_chapter_finds_its_questions(chapter, browser, lab, deadline):
    chapter.command("docmanager:save")
    again = lab.folder / "untrusted" / "again.ipynb"  # trusted all the same: JupyterLab signed what is in it
    shutil.copy(lab.folder / CHAPTER, again)
    notebook = Notebook(browser, lab, deadline).open(f"lab/tree/untrusted/{again.name}")
    try:
        for cell_id in ("c00-predict-view", "c00-play"):
            notebook.drawn(cell_id).locator(".jp-OutputArea-output .jupyter-widgets").first.wait_for()
        card = notebook.drawn("c00-predict-view").locator(".jp-OutputArea-output")
        assert card.locator("input[type=radio]").count() >= 3
        assert "Error displaying widget" not in notebook.page.locator(".jp-Notebook").inner_text()
        assert notebook.complaints == []
    finally:
        notebook.settle("await app.shell.currentWidget.sessionContext.shutdown()")
        notebook.context.close()


def test_the_page_complains_of_nothing(chapter):
    assert chapter.complaints == []
    chapter.page.evaluate("console.error('a complaint')")
    chapter.page.wait_for_function("() => true")
    assert [text.split(" {")[0] for text in chapter.complaints] == ["a complaint"], "the control is heard"
    chapter.complaints.clear()


# Controls that chapter 00 does not show, while their kernel runs. A few operators stand for the whole atlas.
LIVE = {
    "atlas": """\
import sys
sys.path.insert(0, "..")
from helpers.atlas import ADDED, Atlas, measure, targets_added, undisturbed
with undisturbed():
    few = [measure(target) for target in targets_added(ADDED[:9])]
Atlas(few)""",
    "controls": """\
import ipywidgets as widgets
widgets.VBox([widgets.IntSlider(description="batch"), widgets.Dropdown(options=[1, 2], description="depth")])""",
}


def written(lab: Lab, name: str, sources: dict[str, str]) -> str:
    """Writes a notebook of these cells, and returns the path to open it by."""
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    cells = [nbformat.v4.new_code_cell(source, id=cell_id) for cell_id, source in sources.items()]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), lab.folder / "untrusted" / f"{name}.ipynb")
    return f"lab/tree/untrusted/{name}.ipynb"


def test_live_controls_are_fit_for_a_screen_reader(browser, lab, deadline):
    notebook = Notebook(browser, lab, deadline).open(written(lab, "live", LIVE))
    try:
        notebook.run_all()
        for name, menus in {"atlas": 3, "controls": 1}.items():
            controls = notebook.drawn(name).locator(".jp-OutputArea-output select")
            controls.first.wait_for()
            assert controls.count() == menus
        said = notebook.violations()
        assert [problem for problem in said if not problem.startswith(SLIDER)] == []
        assert len(said) == 1, "the slider is named now: take its exception out"
    finally:
        notebook.context.close()


# A live plot in a busy cell: long enough to be interrupted, and what the next cells of a reader find.
BUSY = {
    "import": "import sys\nsys.path.insert(0, '..')\nimport torch\nfrom helpers import LiveMemoryPlot, MemoryTracker",
    "busy": """\
weight = torch.rand(300, 300, requires_grad=True)
with MemoryTracker(weight) as tracker, LiveMemoryPlot(tracker) as plot:
    while True:
        with tracker.phase("forward"):
            loss = (weight @ weight).tanh().sum()
        with tracker.phase("backward"):
            loss.backward()""",
    "next": "print(plot.frames > 5, plot.error, tracker.operators == (torch.zeros(4), tracker.operators)[1])",
}


def test_an_interrupted_live_plot_leaves_a_finished_figure(browser, lab, deadline):
    notebook = Notebook(browser, lab, deadline).open(written(lab, "busy", BUSY))
    page = notebook.page
    try:
        notebook.settle("await app.shell.currentWidget.sessionContext.ready")
        # What the reader sees of the busy cell, each time that it changes.
        page.evaluate("""() => {
            window.frames_seen = []; window.heights = new Set();
            new MutationObserver(() => {
                const frame = document.querySelector('.jp-OutputArea-output svg[role=img]');
                const label = frame?.getAttribute('aria-label');
                if (!label || label === window.frames_seen.at(-1)) return;
                window.frames_seen.push(label);
                window.heights.add(frame.closest('.jp-OutputArea-output').getBoundingClientRect().height);
            }).observe(document.querySelector('.jp-Notebook'), {childList: true, subtree: true});
            window.jupyterapp.commands.execute('notebook:run-all-cells').catch(() => null);
        }""")
        page.wait_for_function("() => window.frames_seen.length >= 8", timeout=deadline.ms, polling=100)
        assert notebook.cells[1]["execution_count"] is None, "the cell is still busy"
        notebook.command("notebook:interrupt-kernel")
        page.wait_for_function(
            "() => window.jupyterapp.shell.currentWidget.content.model.cells.get(1).executionCount !== null",
            timeout=deadline.ms,
            polling=100,
        )
        seen = page.evaluate("window.frames_seen")
        assert len(set(seen)) >= 5
        operators = [int(re.match(r"Operator ([\d,]+): now ", said)[1].replace(",", "")) for said in seen]
        assert operators == sorted(operators)

        picture, error = notebook.cells[1]["outputs"]
        assert (error["output_type"], error["ename"]) == ("error", "KeyboardInterrupt")
        assert {"text/html", "image/png", "text/plain"} == picture["data"].keys()
        words = "".join(picture["data"]["text/plain"])
        assert re.search(r"Live memory over [\d,]+ operators: start 351\.56 KiB", words)
        [shown] = notebook.pictures()
        check_pictures([shown], 1)
        assert shown["alt"] == words
        height = page.evaluate(
            "document.querySelector('.jp-OutputArea-output img').closest('.jp-OutputArea-output')"
            ".getBoundingClientRect().height"
        )
        assert page.evaluate("[...window.heights]") == [pytest.approx(height, abs=1)], "nothing jumps"

        notebook.settle("app.shell.currentWidget.content.activeCellIndex = 2")
        notebook.command("notebook:run-cell")
        [said] = notebook.cells[2]["outputs"]
        assert "".join(said["text"]) == "True None True\n"
        assert notebook.violations() == []
    finally:
        notebook.context.close()


@pytest.fixture(scope="module", params=CHAPTERS)
def untrusted(request, browser, lab, deadline) -> Iterator[Notebook]:
    """Each chapter as a fresh clone shows it: not trusted, and no cell run."""
    notebook = Notebook(browser, lab, deadline).open(f"lab/tree/untrusted/{request.param}")
    yield notebook
    notebook.settle("await app.shell.currentWidget.sessionContext.shutdown()")  # torch is in it; there are many
    notebook.context.close()


def test_untrusted_chapter_shows_its_pictures(untrusted, request, tmp_path):
    trusted = untrusted.page.evaluate(
        "[...window.jupyterapp.shell.currentWidget.content.model.cells].map(c => c.type === 'code' && c.trusted)"
    )
    assert not any(trusted), "a fresh clone is not trusted"
    name = request.node.callspec.params["untrusted"]
    expected = pictures_of(nbformat.read(ROOT / "notebooks" / name, as_version=4).cells)
    assert expected, "a chapter without a picture"
    check_pictures(untrusted.pictures(), sum(expected.values()))
    cards = untrusted.page.locator(".jp-OutputArea-output", has_text="Predict, then run.")
    assert cards.count() >= 4, "what each prediction asks is read without running it"
    untrusted.page.screenshot(path=tmp_path / "untrusted.png")
    assert untrusted.complaints == []


def test_untrusted_chapter_is_fit_for_a_screen_reader(untrusted):
    assert untrusted.page.locator(".jp-OutputArea").count() > 10, "there is something to look at"
    assert untrusted.violations() == []


# The same page goes on, as a reader does who has looked enough: only the cells run that a question or a slider needs.


def names_of(source: str) -> tuple[set[str], set[str]]:
    """(bound, used): the names of the notebook's own that a cell binds, and that it or a function in it uses."""
    top = symtable.symtable(source, "cell", "exec")
    bound = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
    used, tables = {s.get_name() for s in top.get_symbols() if s.is_referenced()}, [*top.get_children()]
    while tables:
        table = tables.pop()
        used |= {s.get_name() for s in table.get_symbols() if s.is_global() and s.is_referenced()}
        tables += table.get_children()
    return bound, used


def needed_for(cells: list[dict], cell_id: str) -> list[str]:
    """``cell_id`` and, before it, set-up and every cell that binds a name which is needed."""
    code = [(c["id"], "".join(c["source"])) for c in cells if c["cell_type"] == "code"]
    position = [name for name, _ in code].index(cell_id)
    chosen, wanted = [cell_id], names_of(code[position][1])[1]
    for name, source in reversed(code[:position]):
        if name == "bootstrap":
            chosen.append(name)
            continue
        bound, used = names_of(source)
        if bound & wanted:
            chosen.append(name)
            wanted |= used
    return chosen[::-1]


def test_what_a_cell_needs_is_found():
    sources = ["%setup", "import a", "b = a.b()", "x = 1", "def f():\n    y = 2\n    return b", "f(); y = 3", "x"]
    ids = ["bootstrap", *"abxfyz"]
    cells = [{"id": i, "cell_type": "code", "source": source} for i, source in zip(ids, sources)]
    assert needed_for(cells, "y") == ["bootstrap", "a", "b", "f", "y"]
    assert needed_for(cells, "z") == ["bootstrap", "x", "z"]


def sources(cells: list[dict], pattern: re.Pattern) -> dict[str, str]:
    """Cell id -> source of the code cells in which ``pattern`` is found."""
    code = {c["id"]: "".join(c["source"]) for c in cells if c["cell_type"] == "code"}
    return {name: source for name, source in code.items() if pattern.search(source)}


def commit(notebook: Notebook, card, position: int, verdict: str) -> str:
    """Chooses the answer at ``position`` with the keyboard, commits to it, and returns what is said then."""
    card.locator("input[type=radio]").nth(position).focus()
    notebook.page.keyboard.press("Space")
    notebook.tab_to("the button", "button.jupyter-button")
    notebook.page.keyboard.press("Space")
    said = card.locator("[role=status]")
    said.filter(has_text=re.compile(verdict)).wait_for()
    return said.inner_text()


RIGHT, WRONG = "As you predicted", "You predicted"


def test_a_question_is_answered_wrongly_and_rightly(untrusted):
    cell_id = next(iter(sources(untrusted.cells, re.compile(r"^predict\(", re.M))))
    untrusted.run(*needed_for(untrusted.cells, cell_id))
    card = untrusted.drawn(cell_id).locator(".jp-OutputArea-output").last
    card.scroll_into_view_if_needed()
    labels = [label.replace("`", "") for label in card.locator(".widget-radio-box label").all_inner_texts()]
    assert len(labels) >= 3
    said = commit(untrusted, card, 0, f"{RIGHT}|{WRONG}")
    measured = re.search(r"Measured: (.*)\.$", said, re.M)[1]
    right = [label.strip() for label in labels].index(measured)
    assert (RIGHT in said) == (right == 0)
    other = right or 1  # if the first answer was wrong the right one, else a wrong one
    then = commit(untrusted, card, other, WRONG if right == 0 else RIGHT)
    assert f"Measured: {measured}." in then, "it is measured again, and the same"
    assert (RIGHT in then) == (right != 0)
    assert but_sliders(untrusted) == []
    assert untrusted.complaints == []


# What a cell with a slider says and shows: words, alternative texts, pictures.
_SHOWN = """cell => { const all = s => [...cell.querySelectorAll('.jp-OutputArea-output ' + s)];
    const words = [...all('.widget-html-content').map(e => e.innerText), ...all('img').map(i => i.alt)].join(' ');
    return [words, all('img').map(i => i.src).join(' ')]; }"""
_CHANGED = f"""([position, before]) => {{
    const cell = document.querySelector(`.jp-Notebook .jp-Cell[data-windowed-list-index='${{position}}']`);
    return ({_SHOWN})(cell).every((now, i) => now && now !== before[i]); }}"""


@pytest.mark.parametrize("untrusted", WITH_SLIDERS, indirect=True)
def test_a_slider_is_moved_and_the_picture_follows(untrusted):
    found = sources(untrusted.cells, MADE_OF_SLIDERS)
    assert found
    for cell_id, source in found.items():
        untrusted.run(*needed_for(untrusted.cells, cell_id))
        cell = untrusted.drawn(cell_id)
        handle = cell.locator(".noUi-handle").first
        handle.scroll_into_view_if_needed()
        before = cell.evaluate(_SHOWN)
        assert all(before), "words and a picture are there before anything is moved"
        handle.focus()
        untrusted.page.keyboard.press("End")
        position = int(cell.get_attribute("data-windowed-list-index"))
        untrusted.page.wait_for_function(_CHANGED, arg=[position, before], polling=50)
        words, _ = cell.evaluate(_SHOWN)
        assert "against the run before" in words or "playground(" not in source
        assert "stopped with" not in words
        for picture in cell.locator(".jp-OutputArea-output img").all():
            picture.evaluate("i => i.decode()")
            assert picture.evaluate("i => i.naturalWidth > 0 && i.width <= 700")
        assert handle.evaluate("h => h === document.activeElement"), "the next key moves it on"
    assert but_sliders(untrusted) == []
    assert untrusted.complaints == []
