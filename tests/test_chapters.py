"""What a chapter asks of its reader has an answer: every prediction is decided, every exercise solved by its solution.

Each chapter runs once, in a fresh kernel, with the exercises solved; then every option of every prediction is chosen.
That its saved outputs are true, those of the unsolved exercises among them, is nbval's business.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
LEAST_PREDICTIONS = 4
LEAST_EXERCISES = {"04_inplace_memory": 3}

_CHECK = re.compile(r"^check\((\w+)\)$", re.M)
_DETAILS = re.compile(r"<details><summary>(.*?)</summary>(.*?)</details>", re.S)
_CODE = re.compile(r"```python\n(.*?)```", re.S)

# Runs behind the last cell. Nothing is decided here, so that each finding can be told in a test's own words.
_DRIVER = """\
import json
from helpers import exercises
solved = {name: [result.verdict, repr(result)] for name, result in exercises._results.items()}
untouched = {}
for name, stub in STUBS.items():
    exec(stub, dict(globals()))
    result = exercises._results[name]
    untouched[name] = [result.verdict, repr(result)]
asked = []
for p in list(exercises._predictions.values()):
    answers = []
    for option in p.options:
        p.commit(option)
        outcome = None if p.outcome is None else p.label(p.outcome)
        answers.append([p.label(option), outcome, repr(p.measured), p.right, repr(p), p.beliefs[option]])
    asked.append([p.question, answers])
from helpers.controls import Playground
played = {}
for name, play in [item for item in globals().items() if isinstance(item[1], Playground)]:
    played[name] = [type(play).__name__]
    for setting in list(play.settings()):
        for control, value in setting.items():
            play.widgets[control].value = value  # as by hand, one after the other
        assert play.values == setting
        played[name].append([play.title, play.error, play.html])
print("REPORT " + json.dumps({"solved": solved, "untouched": untouched, "asked": asked, "played": played}))
"""


@dataclass(frozen=True)
class Exercise:
    """An exercise as the chapter has it: what the reader finds, and what is folded away behind it."""

    name: str
    stub: str
    folded: dict[str, str]  # summary -> what it hides

    @property
    def solution(self) -> str | None:
        text = next((text for summary, text in self.folded.items() if summary.startswith("Solution")), "")
        code = _CODE.search(text)
        return code and code[1]


def exercises_of(notebook: Any) -> list[Exercise]:
    """Returns the exercises: a code cell that ends in ``check(name)``, and what the text behind it folds away."""
    found = []
    for position, cell in enumerate(notebook.cells):
        named = _CHECK.search(cell.source) if cell.cell_type == "code" else None
        if named:
            folded = {}
            for later in notebook.cells[position + 1 :]:
                if later.cell_type != "markdown":
                    break
                folded |= dict(_DETAILS.findall(later.source))
            found.append(Exercise(named[1], cell.source, folded))
    return found


def run(notebook: Any, path: Path, make) -> dict:
    """Runs ``notebook``, as the chapter at ``path``, with its exercises solved; returns what the driver found."""
    exercises = exercises_of(notebook)
    solutions = {e.stub: f"{e.solution}\n\ncheck({e.name})" for e in exercises if e.solution}
    for cell in notebook.cells:
        cell.source = solutions.get(cell.source, cell.source)
    stubs = {e.name: e.stub for e in exercises}
    notebook.cells.append(new_code_cell(f"STUBS = {stubs!r}\n{_DRIVER}", id="driver"))
    make.execute(notebook, path)  # fails, naming the cell, if one raises that should not
    printed = "".join(o.get("text", "") for o in notebook.cells[-1].outputs)
    return json.loads(printed.split("REPORT ", 1)[1])


def prediction_problems(report: dict) -> list[str]:
    """Returns a sentence for everything that is wrong with a prediction."""
    said = []
    for question, answers in report["asked"]:
        options, outcomes, measured, rights, texts, beliefs = zip(*answers)
        if None in outcomes:
            found = measured[outcomes.index(None)]
            said.append(f"{question!r}: measured was {found}, which is none of the options {list(options)}")
            continue
        if len(set(outcomes)) > 1:
            said.append(f"{question!r}: measured now {' and now '.join(sorted(set(outcomes)))}")
        for option, outcome, right, text, belief in zip(options, outcomes, rights, texts, beliefs):
            if right != (option == outcome):
                said.append(f"{question!r}: {option} is judged {right}, with {outcome} measured")
            if not right and belief not in text:
                said.append(f"{question!r}: who answers {option} does not read: {belief}")
            others = [other for other in beliefs if other != belief and other in text]
            if others or (right and belief in text):
                said.append(f"{question!r}: who answers {option} is told of a belief that is not the reader's")
    return said


# Exercises whose stub is a whole program with planted bugs, which must not pass as it stands. All others are empty.
PLANTED = {"train"}


def exercise_problems(exercises: list[Exercise], report: dict) -> list[str]:
    """Returns a sentence for everything that is wrong with an exercise."""
    said = []
    for exercise in exercises:
        name = exercise.name
        if exercise.solution is None:
            said.append(f"{name}: no Python code folded away under 'Solution'")
        elif report["solved"].get(name, [None])[0] != "passed":
            said.append(f"{name}: the chapter's own solution does not pass: {report['solved'].get(name)}")
        verdict, text = report["untouched"][name]
        expected = "not there yet" if name in PLANTED else "not written yet"
        if verdict != expected or not text.startswith(f"{name}: {expected}."):
            said.append(f"{name}: untouched, it is called {verdict!r}: {text}")
        hints = [summary for summary in exercise.folded if summary.startswith("Hint ")]
        if len(hints) != 2:
            said.append(f"{name}: two hints are due, there are {hints}")
    return said


@pytest.fixture(scope="module", params=CHAPTERS, ids=lambda path: path.stem)
def chapter(request, make) -> tuple[str, list[Exercise], dict]:
    """(name, exercises, report) of each chapter, run once."""
    path = request.param
    notebook = nbformat.read(path, as_version=4)
    return path.stem, exercises_of(notebook), run(notebook, path, make)


def test_every_prediction_is_decided_by_what_is_measured(chapter):
    name, _, report = chapter
    assert prediction_problems(report) == [], name
    asked = [question for question, _ in report["asked"]]
    assert len(asked) >= LEAST_PREDICTIONS, f"{name} asks only {asked}"


def test_predictions_do_not_all_have_their_answer_in_one_place(chapter):
    name, _, report = chapter
    places = [[option for option, *_ in answers].index(answers[0][1]) for _, answers in report["asked"]]
    assert len(set(places)) > 1, f"{name}: the right answer is always number {places[0] + 1}"


def test_every_exercise_is_solved_by_its_solution(chapter):
    name, exercises, report = chapter
    assert exercise_problems(exercises, report) == [], name
    names = [e.name for e in exercises]
    assert len(set(names)) == len(names) >= LEAST_EXERCISES.get(name, 0)


WITH_PLAYGROUND = [path for path in CHAPTERS if re.search(r"\bplayground\(", path.read_text("utf-8"))]


def playground_problems(report: dict) -> list[str]:
    """Returns a sentence for everything that is wrong with a playground whose controls were all moved to their ends."""
    said = []
    for name, (kind, *moves) in report["played"].items():
        said += [f"{name}: {title} stopped with {error}" for title, error, _ in moves if error]
        if kind == "Playground" and not any("against the run before" in text for _, _, text in moves):
            said.append(f"{name}: nothing is said of the difference to the run before")
        if len({text for _, _, text in moves}) < 3:
            said.append(f"{name}: it shows the same whatever is moved")
    return said


def test_every_playground_takes_its_controls_to_both_ends(chapter):
    name, _, report = chapter
    assert playground_problems(report) == [], name
    made = any(kind == "Playground" for kind, *_ in report["played"].values())
    assert made == (name in {path.stem for path in WITH_PLAYGROUND})


def test_some_chapters_have_a_playground():
    assert {path.stem[:2] for path in WITH_PLAYGROUND} >= {"02", "04", "07", "09"}


# The control: a chapter in which each of these is wrong once.

_WRONG = f"""\
import sys
sys.path.insert(0, {str(ROOT)!r})
from itertools import count
from helpers import check, predict
number = count()
answers = {{0: "The first belief.", 8: "The second belief."}}
predict("Decided?", answers, run=lambda: 8)
predict("None of them?", answers, run=lambda: 16)
predict("Twice the same?", answers, run=lambda: 8 * (next(number) % 2))
predict("Mixed up?", answers, run=lambda: 8, why="The second belief. It is right.")"""
_DOES_NOTHING = "def relu_without_growth(x):\n    raise NotImplementedError"
_COPIES = "<details><summary>Solution</summary>\n\n```python\ndef {0}:\n    return {1}\n```\n\n</details>"


def test_what_is_wrong_is_found(make, tmp_path):
    notebook = new_notebook(
        cells=[
            new_code_cell(_WRONG),
            new_code_cell(f"{_DOES_NOTHING}\n\n\ncheck(relu_without_growth)"),
            new_markdown_cell(_COPIES.format("relu_without_growth(x)", "x.relu()")),
            new_code_cell("def add_into_row(buffer, i, x, y):\n    buffer[i] = x + y\n\n\ncheck(add_into_row)"),
            new_markdown_cell("<details><summary>Hint 1</summary>none</details>"),
            new_code_cell("from helpers import playground\nplay = playground(lambda n: str(12 // n), n=(0, 12, 13))"),
            new_code_cell("still = playground(lambda n: 'against the run before', n=(0, 1, 2))"),
        ]
    )
    exercises = exercises_of(notebook)
    report = run(notebook, tmp_path / "00_wrong.ipynb", make)
    assert prediction_problems(report) == [
        "'None of them?': measured was 16, which is none of the options ['0 B', '8 B']",
        "'Twice the same?': measured now 0 B and now 8 B",
        "'Mixed up?': who answers 0 B is told of a belief that is not the reader's",
        "'Mixed up?': who answers 8 B is told of a belief that is not the reader's",
    ]
    found = exercise_problems(exercises, report)
    assert found[0].startswith("relu_without_growth: the chapter's own solution does not pass: ['not there yet', ")
    assert found[1] == "relu_without_growth: two hints are due, there are []"
    assert found[2] == "add_into_row: no Python code folded away under 'Solution'"
    assert found[3].startswith("add_into_row: untouched, it is called 'not there yet': ")
    assert found[4] == "add_into_row: two hints are due, there are ['Hint 1']"
    assert len(found) == 5
    assert playground_problems(report) == [
        "play: n = 0 stopped with ZeroDivisionError: integer division or modulo by zero",
        "play: nothing is said of the difference to the run before",
        "still: it shows the same whatever is moved",
    ]


def test_a_cell_that_raises_is_named(make, tmp_path):
    notebook = new_notebook(cells=[new_code_cell("1 / 0", id="half-way")])
    with pytest.raises(make.ChapterError, match="the cell with id 'half-way' failed: ZeroDivisionError"):
        run(notebook, tmp_path / "00_wrong.ipynb", make)
