"""Can I say beforehand what happens, and can I write it myself? `predict` and `check`.

A prediction never holds the right answer: the code runs after the reader has committed, and what it measures decides.
An exercise is checked property by property, so that the reader hears which one failed and not only that an assertion
did. What was answered and passed lives in the running kernel alone; nothing is stored outside the notebook.
"""

from __future__ import annotations

import difflib
import numbers
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from helpers import _predict_card
from helpers._checks import CheckResult, Exercise, what_went_wrong
from helpers._predict_options import match_option, one_of, plain, plain_option, read_options, rounding_of, same, told
from helpers.display import Table, exact_bytes, in_notebook, round_bytes

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

_CHAPTERS = [
    import_module(f"helpers.{path.stem}") for path in sorted(Path(__file__).parent.glob("_checks_[0-9][0-9].py"))
]
EXERCISES: dict[str, Exercise] = {e.name: e for chapter in _CHAPTERS for e in chapter.EXERCISES}

# This kernel's answers, in the order of the chapter: a cell that runs again keeps its place and starts anew.
_predictions: dict[str, Prediction] = {}
_results: dict[str, CheckResult] = {}


def predict(
    question: str,
    options: Mapping[Any, str] | Sequence[Any],
    run: Callable[[], Any],
    why: Mapping[Any, str] | str | Callable[[Any], str] | None = None,
    *,
    key: Callable[[Any], Any] | None = None,
    unit: str = "B",
    code: str | None = None,
    height: int = 0,
) -> Prediction:
    """Asks first and measures then: the reader commits to an answer, `run` runs, and its result decides.

    Args:
        question: what will happen? Words between backticks are shown as code.
        options: the answers to choose from, each mapped to the sentence for the belief behind choosing it wrongly.
            Every option needs its own, the one you expect to be right too: what is right is measured on the reader's
            machine. A plain sequence of answers will do where ``why`` holds these sentences.
        run: called with nothing once the reader has committed; its text is shown with the question. Let it return what
            it found, a number, a string, a dtype or a tuple or list of such: what it prints is not part of the card.
        why: what to say about the measured result whoever was right: a sentence, a function which makes it from what
            `run` returned, or, where ``options`` is a mapping, a mapping of an option to the sentence for when that
            option turns out to be measured; it need not have one for every option. Where ``options`` is a plain
            sequence, a mapping holds the beliefs instead, and nothing is said about the result.
        key: makes the deciding value from what `run` returned, say ``lambda m: m.peak_bytes``. What `run` returned then
            also shows itself under the verdict if it is a picture or a table. It is not kept: it may hold memory.
        unit: what whole numbers count, ``"B"`` for bytes (shown in MiB too), ``""`` for mere numbers. A word is
            written as for many: of ``"calls"`` there are ``2 calls`` and ``1 call``, of ``"copies"`` ``1 copy``. A word
            whose end does not tell what one is called stays as it is, as ``"ms"`` and ``"GB"`` do.
        code: the snippet to show where `run` is not its own best text.
        height: px to keep free for what `run` shows, so that nothing below moves when it appears.

    Returns:
        A `Prediction`. As the last value of a cell it shows its card. The latest one under each question is kept as
        long as the kernel runs, so that `progress` can count it, and with it `run` and whatever its closure holds: a
        large tensor that only `run` uses is best made inside it. An earlier one goes with the last name for it, and not
        before the cell that shows its card runs again.

    Raises:
        TypeError: `run`, ``key``, ``options``, ``question``, ``unit``, ``code`` or ``height`` is not of the kind above.
        ValueError: fewer than two options, one twice, None or NaN as one, or one without a sentence of its own; a
            ``why`` for what is no option, or which repeats the belief of an option.

    Example:
        >>> import torch
        >>> x = torch.zeros(1000)
        >>> p = predict(
        ...     "How many bytes does the storage under `x[:10]` have?",
        ...     {40: "A slice has a shape of its own but no memory.", 4000: "A view keeps the whole storage."},
        ...     run=lambda: x[:10].untyped_storage().nbytes(),
        ... )
        >>> p.commit(40).right, p.measured, p.explanation
        (False, 4000, 'A slice has a shape of its own but no memory.')
        >>> p = predict(
        ...     "And under `x[:10].clone()`?",
        ...     {40: "A copy is as large as what it copies.", 4000: "A copy takes over the storage."},
        ...     run=lambda: x[:10].clone().untyped_storage().nbytes(),
        ...     why={40: "A clone has a storage of its own, which just fits."},
        ... )
        >>> p.commit(40).right, p.explanation
        (True, 'A clone has a storage of its own, which just fits.')
    """
    if not isinstance(question, str) or not question.strip():
        raise TypeError(f"question: expected a sentence, got {question!r}")
    for name, function in (("run", run), *((("key", key),) if key is not None else ())):
        if not callable(function):
            raise TypeError(
                f"{name}: expected a function, got {function!r}. The code must run after the reader's answer, "
                f"so pass it uncalled: {name}=lambda{'' if name == 'run' else ' result'}: ..."
            )
    for name, text, kind in (("unit", unit, "a string, '' for mere numbers"), ("code", code, "a string or None")):
        if not isinstance(text, str) and not (name == "code" and text is None):
            raise TypeError(f"{name}: expected {kind}, got {text!r}")
    _predict_card.check_height(height)
    if isinstance(why, Mapping):
        why = {plain_option(option): sentence for option, sentence in why.items()}
    told_by_outcome = isinstance(options, Mapping) and isinstance(why, Mapping)
    answers = read_options(options, why)
    prediction = Prediction(question, *answers, run, why, key, unit, code, height, told_by_outcome)
    _predictions[question] = prediction
    return prediction


class Prediction:
    """One question, its options and, after the run, what was measured. Made by `predict`.

    Attributes:
        question, options, code: what is asked, the answers to choose from, the code that will run.
        beliefs: option to the sentence for the belief behind choosing it wrongly.
        answer: what the reader committed to; None before.
        measured: what the run gave; None before.
        outcome: the option that this is; None before, and when it is none of them.
        right: whether ``answer`` is ``outcome``; None before, and after `show`.
        explanation: after a wrong answer the sentence behind it, after a right one what ``why`` says of the result.
        note: what ``why`` says of the result, whoever was right; "" before, or where it says nothing.
        error: type and message if the code raised, else "".
    """

    def __init__(self, question, options, sentences, run, why, key, unit, code, height, told_by_outcome=False):
        self.question, self.options, self.run, self.key = question, tuple(options), run, key
        self.beliefs = _Beliefs(options, sentences)
        # with a mapping of options why speaks of outcomes, else the beliefs were in it
        self.outcomes = _Beliefs(list(why), list(why.values())) if told_by_outcome else _Beliefs([], [])
        self.why = None if isinstance(why, Mapping) else why
        self.unit, self.height = unit, height
        self.code = _predict_card.source_of(run) if code is None else code
        self._card: _predict_card.Card | None = None
        self._running = False
        self._reset(None)
        labels = [self.label(o) for o in self.options]
        if len(set(labels)) < len(labels):
            raise ValueError(f"two options read the same: {labels}; write them so that the reader can tell them apart")

    def _reset(self, answer: Any) -> None:
        self.answer, self.measured, self.outcome, self.right = answer, None, None, None
        self.explanation = self.note = self.shown = self.error = ""

    def commit(self, option: Any) -> Prediction:
        """Commits to ``option``, runs the code and lets the result decide; returns the prediction itself.

        Raises:
            ValueError: ``option`` is not one of the options.
            RuntimeError: if the code itself calls it.
            Exception: whatever the code raises. Under the button it is shown in the card instead.
        """
        option = plain_option(option)
        answer = next((o for o in self.options if same(o, option)), None)
        if answer is None:
            raise ValueError(f"{option!r} is not one of the options; choose one of {list(self.options)!r}")
        return self._run(answer)

    def show(self) -> Prediction:
        """Runs the code without an answer, as the button "Show me" does; returns the prediction itself."""
        return self._run(None)

    def _run(self, answer: Any) -> Prediction:
        if self._running:
            raise RuntimeError(
                "the code of this prediction called commit() or show() of the prediction itself; let run only return "
                "what it measured"
            )
        self._running = True
        self._reset(answer)
        if self._card is not None:
            self._card.busy()
        try:
            result = self.run()
            value = result if self.key is None else self.key(result)
            measured, rounding = plain(value, "run" if self.key is None else "key"), rounding_of(value)
            note = self.why(result) if callable(self.why) else self.why or ""
            if not isinstance(note, str):
                raise TypeError(f"why must return a sentence about the result, it returned {note!r}")
            self.shown = _predict_card.shown(result) if self.key is not None else ""
            self.note = note
            self._judge(measured, rounding)
        except BaseException as error:  # an interrupt too: the card must not stay at "running"
            self._reset(answer)
            self.error = what_went_wrong(error, self.run)  # text only: the traceback would keep the run's tensors alive
            raise
        finally:
            self._running = False
            if self._card is not None:
                self._card.refresh(self)
        return self

    def _judge(self, measured: Any, rounding: float) -> None:
        self.measured = measured
        self.outcome = match_option(self.options, measured, rounding)
        self.note = self.note or self.outcomes.get(self.outcome)
        self.right = None if self.answer is None else self.outcome is not None and same(self.answer, self.outcome)
        if self.outcome is None:
            self.explanation = (
                f"This is none of the options ({type(measured).__name__} {told(measured)}), so the question is at "
                "fault and not the answer. Please tell us, with what setup() shows."
            )
        elif self.right is False:
            self.explanation = self.beliefs[self.answer]
        else:
            self.explanation = self.note

    def is_answer(self, option: Any) -> bool:
        """Whether the reader committed to ``option``."""
        return self.answer is not None and same(self.answer, option)

    def label(self, value: Any) -> str:
        """Returns ``value`` as the card writes it."""
        if isinstance(value, numbers.Integral) and not isinstance(value, bool):
            if abs(value) >= 10**100:
                return told(value)  # nobody reads it, and no prefix of bytes goes that far
            if self.unit != "B":
                return f"{value:,} {one_of(self.unit) if value == 1 else self.unit}".strip()
            return exact_bytes(value) + (f" ({round_bytes(value)})" if abs(value) >= 1024 else "")
        return f"{value:g}" if isinstance(value, float) else value if isinstance(value, str) else told(value)

    @property
    def card(self) -> _predict_card.Card:
        """The widgets, made at the first use: ``card.choice``, ``card.commit``, ``card.show``, ``card.result``."""
        if self._card is None:
            self._card = _predict_card.Card(self)
        if in_notebook():
            _predict_card.keep_on_screen(self)
        return self._card

    @property
    def html(self) -> str:
        """The card without a kernel: what GitHub and the saved notebook show."""
        return _predict_card.as_html(self)

    def __repr__(self) -> str:
        return _predict_card.as_text(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        # Our own bundle, not the box's: ipywidgets 7 displays by side effect, and neither version leaves HTML behind
        # for the saved file. JupyterLab takes the widget while its model lives, everything else takes the HTML.
        bundle: dict[str, Any] = {"text/html": self.html, "text/plain": repr(self)}
        if in_notebook():
            try:
                box = self.card.box
            except ImportError:  # text and HTML still ask the question, .commit answers it
                return bundle
            bundle[WIDGET_VIEW] = {"version_major": 2, "version_minor": 0, "model_id": box.model_id}
        return bundle


class _Beliefs:
    """A mapping of some options to sentences by `same`, since a dict cannot tell True from 1 nor hold a list."""

    def __init__(self, options: Sequence[Any], sentences: Sequence[str]):
        self._pairs = list(zip(options, sentences, strict=True))

    def __getitem__(self, option: Any) -> str:
        for other, sentence in self._pairs:
            if same(other, option):
                return sentence
        raise KeyError(option)

    def get(self, option: Any) -> str:
        return next((sentence for other, sentence in self._pairs if same(other, option)), "")

    def values(self) -> list[str]:
        return [sentence for _, sentence in self._pairs]


def check(fn: Callable, name: str | None = None) -> CheckResult:
    """Runs an exercise's function on several inputs and says which property failed, in words.

    Args:
        fn: the reader's function, under the exercise's name.
        name: the exercise, where the function is called otherwise.

    Returns:
        A `CheckResult` with ``passed`` and ``failures``; it shows as a card and is true when everything held. What the
        function raises is reported in it, not raised.

    Raises:
        TypeError: ``fn`` is not a function (the result of a call, say), or ``name`` no string.
        ValueError: there is no exercise of that name.

    Example:
        >>> def relu_without_growth(x):
        ...     return x.relu_()
        >>> check(relu_without_growth).passed
        True
    """
    if not callable(fn):
        raise TypeError(
            f"check: expected the function itself, got a {type(fn).__name__}: write check(name), not check(name(x))"
        )
    if not (name is None or isinstance(name, str)):
        raise TypeError(
            f"check: expected the exercise's name as a string, got {name!r}: write check(fn, 'cut_loose'), or "
            "check(fn) where the function has the exercise's name"
        )
    name = name or getattr(fn, "__name__", "")
    if name not in EXERCISES:
        near = difflib.get_close_matches(name, EXERCISES, n=1)
        raise ValueError(
            f"there is no exercise called {name!r}{f'; did you mean {near[0]!r}?' if near else '.'} "
            f"The exercises are: {', '.join(sorted(EXERCISES))}"
        )
    _results[name] = EXERCISES[name].check(fn)
    return _results[name]


def progress() -> Table:
    """Returns what this kernel saw of the chapter: each prediction, each exercise. Stored nowhere else.

    Run its cell again after answering; a prediction not yet run does not give its result away.
    """
    made = [p for p in _predictions.values() if p.right is not None]
    right, passed = sum(p.right for p in made), sum(r.passed for r in _results.values())
    rows = [["prediction", p.question.replace("`", ""), _state(p)] for p in _predictions.values()]
    rows += [["exercise", name, r.verdict] for name, r in _results.items()]
    said = []
    if _predictions:
        measured = f", {right} as measured" if made else ""
        said.append(f"Predictions made: {len(made)} of {len(_predictions)}{measured}.")
    if _results:
        said.append(f"Exercises passed: {passed} of {len(_results)}.")
    said = said or ["Nothing has been asked yet."]
    return Table(["", "what", "so far"], rows, caption=" ".join([*said, "Run this cell again to count anew."]))


def _state(p: Prediction) -> str:
    if p.measured is None:
        return "stopped with an error" if p.error else "not made yet"
    if p.right is None:
        return "shown"
    return "as measured" if p.right else "a surprise"
