"""Predictions are decided by what is measured; checks name the property that failed."""

from __future__ import annotations

import doctest
import gc
import html
import re
import subprocess
import sys
import types
import warnings
import weakref

import numpy as np
import pytest
import torch
from torch.nn import functional

from helpers import _checks, _predict_card, _predict_options, _properties, display, exercises
from helpers._checks import Case, Exercise
from helpers._properties import RETURNED
from helpers.exercises import EXERCISES, check, predict, progress

BELIEFS = {0: "A slice needs nothing.", 4000: "The sum is a tensor.", 8000: "Both sides are new."}


@pytest.fixture(autouse=True)
def fresh_kernel(monkeypatch):
    """Each test starts like a fresh kernel, with nothing predicted and nothing checked."""
    monkeypatch.setattr(exercises, "_predictions", {})
    monkeypatch.setattr(exercises, "_results", {})


def ask(measured=4000, **kwargs):
    return predict("How many bytes?", BELIEFS, run=lambda: measured, **kwargs)


# ------------------------------------------------------------------------------------------------ predict


def test_nothing_runs_before_the_answer():
    calls = []
    p = predict("How many?", BELIEFS, run=lambda: calls.append(1) or 0)
    repr(p), p.html, p._repr_mimebundle_(), p.card
    assert not calls
    assert (p.answer, p.measured, p.outcome, p.right, p.explanation) == (None, None, None, None, "")
    p.commit(0)
    assert calls == [1]


@pytest.mark.parametrize("truth", BELIEFS)
def test_the_measured_result_decides(truth):
    p = ask(truth, why="The right side is computed first.")
    for option, belief in BELIEFS.items():
        assert p.commit(option) is p
        assert (p.answer, p.measured, p.outcome, p.right) == (option, truth, truth, option == truth)
        assert p.explanation == ("The right side is computed first." if option == truth else belief)


def test_the_run_after_a_change_gives_another_right_answer():
    found = iter([0, 8000])
    p = predict("How many?", BELIEFS, run=lambda: next(found))
    assert p.commit(0).right is True
    assert p.commit(0).right is False


def test_after_the_run_measured_comes_first_then_the_verdict_then_the_belief():
    p = ask(why="A sum has memory of its own.").commit(0)
    text = repr(p)
    order = [text.index(s) for s in ("Measured: 4,000 B", "You predicted 0 B.", BELIEFS[0], "A sum has memory")]
    assert order == sorted(order)
    assert "(x) 0 B" in text
    for sentence in (BELIEFS[4000], BELIEFS[8000]):
        assert sentence not in text, "only the belief behind the reader's own answer is told"
    assert "As you predicted." in repr(p.commit(4000))
    assert BELIEFS[0] not in repr(p)


def test_show_runs_without_an_answer():
    p = ask().show()
    assert (p.answer, p.measured, p.outcome, p.right) == (None, 4000, 4000, None)
    assert "no answer was committed" in repr(p)


@pytest.mark.parametrize("measured", [4001, 0.5, "4000", True])
def test_a_result_that_is_no_option_is_told_plainly(measured):
    p = ask(measured).commit(4000)
    assert p.outcome is None
    assert p.right is False
    assert "none of the options" in p.explanation
    assert repr(measured) in p.explanation
    assert p.explanation in repr(p)
    assert BELIEFS[4000] not in repr(p), "with no option right, no belief is blamed"


def test_true_is_not_one():
    p = predict("Shared?", {True: "a view", False: "a copy"}, run=lambda: 1)
    assert p.commit(True).outcome is None
    with pytest.raises(ValueError, match="1 is not one of the options"):
        p.commit(1)
    assert predict("How many?", [True, 1.5], lambda: True, why={True: "a", 1.5: "b"}).commit(True).right


@pytest.mark.parametrize(
    ("options", "measured", "label"),
    [
        ({"view": "a", "copy": "b"}, "view", "view"),
        ({0.1: "a", 2.5: "b"}, 0.1 + 1e-13, "0.1"),
        ({(2, 3): "a", (3, 2): "b"}, torch.zeros(2, 3).shape, "(2, 3)"),
        ({torch.float32: "a", torch.float64: "b"}, torch.zeros(1).dtype, "torch.float32"),
        ({True: "a", False: "b"}, torch.tensor(1) == torch.tensor(1), "True"),
        ({4: "a", 8: "b"}, torch.tensor(8).numpy(), "8 B"),
        ({0.1: "a", 2.5: "b"}, torch.tensor(0.1, dtype=torch.float32), "0.1"),
        ({0.3: "a", 2.5: "b"}, torch.tensor(0.3, dtype=torch.bfloat16), "0.3"),
        ({1.0: "a", 1.004: "b"}, torch.tensor(1.004, dtype=torch.float16), "1.004"),
        ({np.True_: "a", np.False_: "b"}, True, "True"),
        ({torch.Size([2, 3]): "a", torch.Size([3, 2]): "b"}, (2, 3), "(2, 3)"),
        ({400_000_000: "a", 0: "b"}, 400_000_000, "400,000,000 B (381.47 MiB)"),
        ({(0.3,): "a", (2,): "b"}, (0.1 + 0.2,), "(0.3,)"),
        ({((2, 3), (3,)): "a", (1,): "b"}, (torch.zeros(2, 3).shape, torch.zeros(3).shape), "((2, 3), (3,))"),
        ({(0.1, True): "a", (1,): "b"}, (torch.tensor(0.1), np.True_), "(0.1, True)"),
        ({frozenset({1, 2}): "a", (1,): "b"}, frozenset({2, 1}), "frozenset({1, 2})"),
    ],
)
def test_what_counts_as_the_same(options, measured, label):
    p = predict("Which?", options, run=lambda: measured).show()
    assert p.outcome is not None
    assert f"Measured: {label}." in repr(p)


@pytest.mark.parametrize(
    ("options", "measured"),
    [
        ({(True,): "a", (2,): "b"}, (1,)),
        ({(1, (2, False)): "a", (2,): "b"}, (1, (2, 0))),
        ({(1, 2): "a", (2,): "b"}, (1,)),
        ({(1, 2): "a", (2,): "b"}, [1, 2]),
        ({(1_000_000,): "a", (2,): "b"}, (torch.tensor(1_000_001.0),)),
        ({1.5: "a", 2.0: "b"}, 10**400),
        ({1: "a", 2: "b"}, 10**5000),
        ({1: "a", 2: "b"}, (10**5000,)),
        ({frozenset({True}): "a", 2: "b"}, frozenset({1})),
    ],
    ids=range(9),  # pytest cannot write out all of them
)
def test_what_counts_as_another(options, measured):
    p = predict("Which?", options, run=lambda: measured)
    assert p.commit(next(iter(options))).right is False and p.outcome is None
    assert "This is none of the options" in repr(p) and p.explanation in p.html.replace("&gt;", ">")
    assert progress().rows[-1][2] == "a surprise"


def test_a_long_value_is_cut_and_a_long_number_is_counted():
    p = predict("Which?", {10**400: "a", 2.0: "b"}, run=lambda: 10**5000, unit="").commit(2.0)
    assert "(int a whole number of about 5,000 digits)" in p.explanation
    assert len(p.label(10**400)) < 310 and p.label(10**99 - 1).startswith("999,999,")
    assert len(predict("Which?", {1: "a", 2: "b"}, run=lambda: list(range(10_000))).commit(1).explanation) < 600


def test_what_goes_wrong_while_it_is_judged_is_told_too(monkeypatch):
    p = predict("Which?", {(1, 2): "a", (3, 4): "b"}, run=lambda: (1, 2))

    def fails(*args):
        raise ValueError("no answer")

    monkeypatch.setattr(exercises, "match_option", fails)
    with pytest.raises(ValueError, match="no answer"):
        p.commit((1, 2))
    assert (p.answer, p.measured, p.right, p.note) == ((1, 2), None, None, "")
    assert p.error.startswith("ValueError: no answer") and p.error in repr(p)
    assert progress().rows[-1][2] == "stopped with an error"


def test_a_run_inside_its_own_run_is_refused():
    p = predict("How many?", BELIEFS, run=lambda: p.show() and 4000)
    with pytest.raises(RuntimeError, match="called commit\\(\\) or show\\(\\) of the prediction itself"):
        p.commit(4000)
    assert p.answer == 4000 and p.measured is None and "let run only return" in repr(p)
    tried = []

    def run():
        if not tried:
            tried.append(1)
            with pytest.raises(RuntimeError):
                p.show()
        return 4000

    p.run = run
    assert p.commit(4000).right and p.commit(0).right is False


def test_what_is_another_number_in_its_dtype_stays_no_option():
    for measured in (torch.tensor(0.1001), torch.tensor(0.1, dtype=torch.float16).double(), 0.1000001):
        assert predict("Which?", {0.1: "a", 2.5: "b"}, lambda m=measured: m).show().outcome is None
    assert predict("Which?", {1_000_000: "a", 0: "b"}, lambda: torch.tensor(1_000_001.0)).show().outcome is None
    assert predict("Which?", {np.True_: "a", False: "b"}, lambda: True).commit(np.True_).right


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def test_an_exception_that_cannot_be_printed_does_not_hide():
    def mute(*args):
        raise Mute

    p = ask()
    p.run = mute
    with pytest.raises(Mute):
        p.commit(0)
    assert p.error.startswith("Mute (line ")
    assert "Seen: Mute (line " in repr(check(mute, "relu_without_growth"))
    assert "float32: Mute" in repr(check(lambda: (lambda t: t, mute), "safe_hooks"))


@pytest.mark.parametrize("name", [3, ["a"]])
def test_check_wants_the_name_as_a_string(name):
    with pytest.raises(TypeError, match="expected the exercise's name as a string, got"):
        check(copied, name)


def test_unit():
    assert "2 tensors" in repr(predict("How many?", {2: "a", 3: "b"}, lambda: 2, unit="tensors"))
    assert "( ) 3\n" in repr(predict("How many?", {2: "a", 3: "b"}, lambda: 2, unit=""))
    for unit, one in {"tensors": "1 tensor", "ms": "1 ms", "%": "1 %", "": "1"}.items():
        label = predict("How many?", {1: "a", 3: "b"}, lambda: 1, unit=unit).label
        assert (label(1), label(3)) == (one, f"3 {unit}".strip())


ONES = """pieces piece, tensors tensor, calls call, bytes byte, files file, copies copy, entries entry, ties tie,
boxes box, passes pass, losses loss, batches batch, branches branch, hashes hash, slices slice, values value,
nodes node, phases phase, sizes size, saves save, times time, deltas delta, kernels kernel, days day, steps step,
axes axis, matrices matrix, biases bias, caches cache, leaves leaf, series series,
buses buses, lenses lenses, heroes heroes, class class, axis axis, index index, data data,
ms ms, gas gas, GB GB, KiB KiB, Bytes Bytes, % %"""


@pytest.mark.parametrize(("many", "one"), [pair.split() for pair in ONES.split(",")])
def test_what_one_is_called(many, one):
    p = predict("How many?", {1: "a", 3: "b"}, lambda: 1, unit=many)
    assert (p.label(1), p.label(3)) == (f"1 {one}", f"3 {many}")


def test_key_takes_the_value_and_the_result_shows_itself_but_is_not_kept():
    table = display.Table(["operator", "bytes"], [["relu", 4000]])
    p = predict("How many?", BELIEFS, run=lambda: table, key=lambda t: t.rows[0][1], why=lambda t: f"{len(t.rows)} row")
    p.commit(4000)
    assert p.right
    assert p.note == "1 row"
    assert table.html in p.html
    assert not any(v is table for v in vars(p).values())


def test_a_prediction_keeps_no_tensor_alive():
    seen = []

    def run():
        t = torch.zeros(10)
        seen.append(weakref.ref(t))
        return t

    p = predict("How many?", {40: "a", 80: "b"}, run, key=lambda t: t.nbytes).commit(40)
    gc.collect()
    assert p.right and seen[0]() is None

    def fails():
        t = torch.zeros(10)
        seen.append(weakref.ref(t))
        raise RuntimeError("no")

    p = predict("And now?", {40: "a", 80: "b"}, fails)
    with pytest.raises(RuntimeError):
        p.commit(40)
    gc.collect()
    assert p.error and seen[1]() is None


def test_what_the_code_raises_is_raised_and_shown():
    p = predict("What?", BELIEFS, run=lambda: torch.zeros(2) @ torch.zeros(3))
    with pytest.raises(RuntimeError, match="size"):
        p.commit(0)
    assert (p.answer, p.measured, p.right) == (0, None, None)
    assert p.error.startswith("RuntimeError: ")
    assert "torch.zeros(2) @ torch.zeros(3)" in p.error
    assert p.error in repr(p)
    assert __file__ not in repr(p)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (None, "returned None; it must return what it measured (is a `return` missing?)"),
        (torch.zeros(2, 3), "returned a Tensor of shape (2, 3); a prediction is decided by one value"),
        ([1, torch.zeros(1000)], "returned a Tensor of shape (1000,), inside a list"),
        ({"a": (np.zeros(3),)}, "returned a ndarray of shape (3,), inside a dict"),
        (torch.nn.Linear(1, 1), "returned a Linear; a prediction"),
        (torch.ones(2).max(0), None),
        (torch.zeros(2, 3).max(0), "returned a Tensor of shape (3,), inside a max"),
        (lambda: 1, "returned a function"),
    ],
)
def test_a_result_that_holds_memory_or_cannot_decide(result, words):
    asked = (predict("What?", BELIEFS, run=lambda: result), predict("And?", BELIEFS, lambda: 1, key=lambda _: result))
    for p, giver in zip(asked, ("run", "key")):
        if words is None:
            assert p.show().measured == (1.0, 0)
            continue
        with pytest.raises(TypeError, match=re.escape(f"{giver} {words}")):
            p.show()
        assert p.error.startswith(f"TypeError: {giver} ") and p.measured is None
        if result is not None:
            assert p.error.endswith("pass key= to make it from what run returned" if giver == "run" else "return that")


def test_a_result_of_plain_values_is_kept_as_it_is():
    for value in ("a", b"a", True, 1j, (1, [None, 2.5]), {"a": {1}}, torch.float32, np.dtype("f4"), int, torch.strided):
        p = ask(value).show()
        assert p.measured == value and type(p.measured) is type(value)


def test_commit_of_something_else_names_the_options():
    p = ask()
    with pytest.raises(ValueError, match=r"5 is not one of the options; choose one of \[0, 4000, 8000\]"):
        p.commit(5)
    assert p.measured is None


@pytest.mark.parametrize(
    ("kwargs", "error", "words"),
    [
        ({"question": "  "}, TypeError, "a sentence"),
        ({"question": 3}, TypeError, "a sentence"),
        ({"run": 4000}, TypeError, "run=lambda: ..."),
        ({"key": "peak"}, TypeError, "key=lambda result: ..."),
        ({"options": "yes"}, TypeError, "got str"),
        ({"options": {1, 2}}, TypeError, "got set"),
        ({"options": {0: "only"}}, ValueError, "at least two"),
        ({"options": [0, 1, 0], "why": {0: "a", 1: "b"}}, ValueError, "0 is there twice"),
        ({"options": {None: "a", 1: "b"}}, ValueError, "the string 'None'"),
        ({"options": {0: "a", 1: " "}}, ValueError, "option 1 has no sentence"),
        ({"options": {0: "a", 1: None}}, ValueError, "option 1 has no sentence"),
        ({"options": [0, 1], "why": {0: "a"}}, ValueError, "option 1 has no sentence"),
        ({"options": [0, 1]}, ValueError, "option 0 has no sentence"),
        ({"options": [0, 1], "why": "because"}, ValueError, "option 0 has no sentence"),
        ({"options": {0: "a", 1: "a"}}, ValueError, "shares its sentence"),
        ({"options": [0, 1], "why": {0: "a", 1: "b", 2: "c"}}, ValueError, "2, which is not one of the options"),
        ({"options": {0: "a", 1: "b"}, "why": {0: "a", 1: "b"}}, ValueError, "both options and why"),
        ({"options": {0: "a", 1: "b"}, "why": {2: "c"}}, ValueError, "2, which is not one of the options"),
        ({"options": {0: "a", 1: "b"}, "why": {0: " "}}, ValueError, "expected a sentence for 0"),
        ({"options": {True: "a", False: "b"}, "why": {1: "c"}}, ValueError, "1, which is not one of the options"),
        ({"options": {float("nan"): "a", 1: "b"}}, ValueError, "NaN equals nothing"),
        ({"options": [torch.tensor(float("nan")), 1], "why": {1: "b"}}, ValueError, "NaN equals nothing"),
        ({"options": [torch.zeros(2), 1], "why": {1: "b"}}, TypeError, "expected single values, got a Tensor of (2,)"),
        ({"unit": None}, TypeError, "unit: expected a string"),
        ({"code": 3}, TypeError, "code: expected a string or None, got 3"),
        ({"height": "5"}, TypeError, "height: expected px to keep free as a whole number, 0 or more, got '5'"),
        ({"height": -5}, TypeError, "0 or more, got -5"),
        ({"height": None}, TypeError, "height: expected px"),
        ({"why": 7}, TypeError, "why: expected a sentence"),
        ({"options": {1: "a", "1 B": "b"}}, ValueError, "read the same"),
    ],
)
def test_wrong_arguments(kwargs, error, words):
    good = {"question": "How many?", "options": BELIEFS, "run": lambda: 0}
    with pytest.raises(error, match=re.escape(words)):
        predict(**{**good, **kwargs})


@pytest.mark.parametrize("truth", [0, 4000, 8000])
def test_why_may_have_a_sentence_for_each_outcome(truth):
    why = {0: "Nothing was made.", 4000: "One sum was made."}
    p = ask(truth, why=why)
    expected = why.get(truth, "")
    for option in BELIEFS:
        p.commit(option)
        assert p.note == expected
        assert p.explanation == (expected if option == truth else BELIEFS[option])
        for sentence in why.values():
            assert (sentence in repr(p)) == (sentence in p.html) == (sentence == expected), "on a right answer too"
    assert expected in repr(p.show()) and BELIEFS[truth] not in repr(p)
    assert not any(s in repr(ask(truth, why=why)) + ask(truth, why=why).html for s in why.values()), "nothing before"


def test_a_right_answer_hears_why_and_a_sentence_of_its_kind_stays_what_it_was():
    assert "As you predicted.\nA sum has memory." in repr(ask(why="A sum has memory.").commit(4000))
    p = predict("How many?", [0, 4000], lambda: 4000, why={0: "a", 4000: "b"}).commit(4000)
    assert p.note == p.explanation == "" and repr(p).endswith("As you predicted."), "beliefs, not outcomes"
    assert predict("What?", {True: "a", False: "b"}, lambda: False, why={False: "It is so."}).show().note == "It is so."
    assert ask(16, why={0: "Nothing."}).commit(0).note == ""


def test_why_that_is_no_sentence():
    p = ask(why=lambda result: result)
    with pytest.raises(TypeError, match="why must return a sentence"):
        p.commit(0)
    assert p.right is None


# ------------------------------------------------------------------------------------------------ the code shown


def named():
    # a comment belongs to it
    return 4000


def test_code_of_a_function_and_of_lambdas():
    assert predict("a?", BELIEFS, named).code.startswith("def named():\n    # a comment")
    assert predict("b?", BELIEFS, run=lambda: 4000, key=lambda r: r + 0).code == "4000"
    two = [lambda: named() or 1, lambda: named() or 2]
    assert [_predict_card.source_of(f) for f in two] == ["named() or 1", "named() or 2"]
    outer = lambda: lambda: named()  # noqa: E731
    assert _predict_card.source_of(outer).endswith("lambda: named())") or _predict_card.source_of(outer).startswith(
        "lambda"
    )
    assert _predict_card.source_of(outer()) == "named()"
    choice = lambda: named() if named() else 0  # noqa: E731
    assert _predict_card.source_of(choice) == "named() if named() else 0"


def test_code_that_python_did_not_keep():
    assert predict("c?", BELIEFS, torch.ones(1).numel).code == ""
    made = eval("lambda: 4000")
    assert predict("d?", BELIEFS, made).code == ""
    assert "x[:] = x + 1" in repr(predict("e?", BELIEFS, made, code="x[:] = x + 1"))


# ------------------------------------------------------------------------------------------------ the card


def test_without_a_kernel_the_card_reads_as_text_and_html():
    p = predict("Is `x < y` a <copy>?", {"yes": "belief <one>", "no": "belief `two`"}, named)
    bundle = p._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    assert bundle == p._repr_mimebundle_(), "compared by nbval: the same every time"
    body = bundle["text/html"]
    assert "<code>x &lt; y</code> a &lt;copy&gt;" in body
    assert "belief &lt;one&gt;" in body.split("<details>")[1], "hidden, but reachable without a kernel"
    assert "belief" not in body.split("<details>")[0]
    assert html.escape("return 4000") in body
    for text in (body, bundle["text/plain"]):
        assert "run the cell to commit" in text
        assert not re.search(r"0x[0-9a-f]{6,}", text)
    assert "belief" not in bundle["text/plain"]


def test_in_a_kernel_the_widget_comes_with_its_static_twin(monkeypatch):
    pytest.importorskip("ipywidgets")
    p = ask()
    static = p._repr_mimebundle_()
    monkeypatch.setattr(exercises, "in_notebook", lambda: True)
    bundle = p._repr_mimebundle_()
    view = bundle.pop(exercises.WIDGET_VIEW)
    assert view == {"version_major": 2, "version_minor": 0, "model_id": p.card.box.model_id}
    assert bundle == static


def test_without_ipywidgets_text_and_html_remain(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    monkeypatch.setattr(exercises, "in_notebook", lambda: True)
    p = ask()
    assert set(p._repr_mimebundle_()) == {"text/plain", "text/html"}
    with pytest.raises(ImportError, match=r"pip install 'ipywidgets>=7\.7,<9'.*\.commit"):
        p.card  # noqa: B018
    assert p.commit(4000).right


@pytest.fixture
def widgets():
    return pytest.importorskip("ipywidgets")


def test_every_answer_through_the_buttons(widgets):
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # an argument that ipywidgets 7 does not know says so
        p = ask()
        card = p.card
    assert card.choice.index is None, "no answer is chosen for the reader"
    assert [label for label, _ in card.choice.options] == ["0 B", "4,000 B (3.91 KiB)", "8,000 B (7.81 KiB)"]
    height = card.result.layout.min_height
    card.commit.click()
    assert p.measured is None
    assert "No answer is chosen yet" in card.result.value
    for i, option in enumerate(p.options):
        card.choice.index = i
        card.commit.click()
        assert p.answer == option
        assert p.right is (option == 4000)
        assert ("As you predicted." if p.right else BELIEFS[option]) in card.result.value
        assert card.result.value.index("Measured: 4,000 B") > 0
    card.show.click()
    assert p.answer is None
    assert "no answer was committed" in card.result.value
    assert card.result.layout.min_height == height
    assert not (card.commit.disabled or card.show.disabled or card.choice.disabled)


def test_an_exception_under_the_button_is_on_the_card_and_goes_no_further(widgets):
    p = predict("What?", BELIEFS, run=lambda: torch.zeros(2) @ torch.zeros(3))
    p.card.choice.index = 0
    for button in (p.card.commit, p.card.show):
        button.click()
        assert "RuntimeError" in p.card.result.value
        assert "Running" not in p.card.result.value

    def interrupted():
        raise KeyboardInterrupt

    p = predict("And?", BELIEFS, run=interrupted)
    p.card.show.click()
    assert "KeyboardInterrupt" in p.card.result.value
    p = predict("And then?", BELIEFS, run=lambda: sys.exit(3))  # it would end the kernel
    p.card.show.click()
    assert "SystemExit: 3" in p.card.result.value


def test_while_it_runs_the_card_says_so_and_python_moves_the_widgets_too(widgets):
    seen = []
    p = predict("How many?", BELIEFS, run=lambda: seen.append(p.card.result.value) or 0)
    card = p.card
    p.commit(8000)
    assert "Running" in seen[0]
    assert card.choice.index == 2
    assert BELIEFS[8000] in card.result.value


def test_a_question_asked_anew_lets_the_earlier_one_go(widgets):
    refs = []

    def cell():
        held = torch.zeros(10)
        refs.append(weakref.ref(held))
        return predict("How many?", {10: "a", 20: "b"}, lambda: held.numel())

    p = cell()
    card = p.card
    p.commit(10)
    p = cell()
    assert p.card is not card
    gc.collect()
    assert [ref() is not None for ref in refs] == [False, True]
    for button in (card.commit, card.show):  # it is still on the screen, in another view of the notebook say
        button.click()
        assert "Run the cell again to answer here" in card.result.value
    p = None
    exercises._predictions["How many?"].card.show.click()
    assert "Measured: 10 B" in exercises._predictions["How many?"].card.result.value, "the latest one goes on"


def test_a_card_on_the_screen_works_though_the_question_is_asked_elsewhere(widgets, monkeypatch):
    shell = types.SimpleNamespace(parent_header={})
    monkeypatch.setattr(exercises, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    monkeypatch.setattr(_predict_card, "_on_screen", {})
    cards = []
    for run, cell in enumerate("ab"):
        shell.parent_header = {"header": {"msg_id": str(run)}, "metadata": {"cellId": cell}}
        cards.append(ask().card)
    for card in cards:
        card.show.click()
        assert "Measured: 4,000 B" in card.result.value
    shell.parent_header = {"header": {"msg_id": "2"}, "metadata": {"cellId": "a"}}
    cards.append(ask().card)
    gc.collect()
    for card, kept in zip(cards, (False, True, True)):
        card.show.click()
        assert ("Measured: 4,000 B" in card.result.value) == kept


def test_the_card_names_its_parts(widgets):
    card = ask().card
    assert card.choice.description == "Your answer:"
    assert (card.commit.description, card.show.description) == ("Commit and run", "Show me")
    assert card.commit.tooltip and card.show.tooltip
    assert 'role="status"' in card.result.value
    assert card.box.children[0].value.count("How many bytes?") == 1


def test_room_is_reserved_for_the_longest_sentence(widgets):
    short, long = (predict(q, {1: "a", 2: "b" * n}, lambda: 1) for q, n in (("s?", 10), ("l?", 900)))
    assert _predict_card.reserved(long) > _predict_card.reserved(short) + 100
    assert _predict_card.reserved(ask(height=300)) == _predict_card.reserved(ask()) + 300
    assert _predict_card.reserved(ask(why={0: "b" * 900})) > _predict_card.reserved(ask(why={0: "b"})) + 100


# ------------------------------------------------------------------------------------------------ check


def wrong_shape(x):
    return x.relu_().reshape(-1)


def double(x):
    return x.relu_().double()[()]


def copied(x):
    return torch.relu(x)


def rebound(x):
    x = torch.relu(x)
    return x


def hidden(x):
    x[:] = torch.relu(x)
    return x


def masked(x):
    x[x < 0] = 0
    return x


def forgot(x):
    x.relu_()


def absolute(x):
    return x.abs_()


def squared_away(x):
    return x.nonsense()


def assigned(mean, x, momentum):
    mean = (1 - momentum) * mean + momentum * x
    return mean


def temporary(mean, x, momentum):
    mean.mul_(1 - momentum).add_(momentum * x)


def spoiled(mean, x, momentum):
    mean.mul_(1 - momentum).add_(x.mul_(momentum))


def replaced(mean, x, momentum):
    mean.data = (1 - momentum) * mean + momentum * x


def swapped(mean, x, momentum):
    mean.lerp_(x, 1 - momentum)


def copied_row(buffer, i, x, y):
    buffer[i] = x + y


def renamed_row(buffer, i, x, y):
    row = buffer[i]
    row = x + y
    return row


def cloned_row(buffer, i, x, y):
    torch.add(x, y, out=buffer[i].clone())


def spoiled_x(buffer, i, x, y):
    buffer[i] = x.add_(y)


def added_on(buffer, i, x, y):
    buffer[i].add_(x).add_(y)


def whole_buffer(buffer, i, x, y):
    torch.add(x, y, out=buffer)


def widened(buffer, i, x, y):
    torch.add(x.double(), y.double(), out=buffer[i])


WRONG = [
    ("relu_without_growth", wrong_shape, "right shape", "shape (4096,) instead of (64, 64)"),
    ("relu_without_growth", double, "right dtype", "torch.float64 instead of torch.float32"),
    ("relu_without_growth", copied, "no new memory", "16,384 B"),
    ("relu_without_growth", rebound, "no new memory", "16,384 B"),
    ("relu_without_growth", hidden, "no new memory", "16,384 B"),
    ("relu_without_growth", masked, "no new memory", "0 B allowed"),
    ("relu_without_growth", forgot, "return a tensor", "nothing (`None`)"),
    ("relu_without_growth", absolute, "right values", "instead of 0"),
    ("relu_without_growth", squared_away, "run without an exception", "return x.nonsense()"),
    ("update_running_mean", assigned, "values into `mean`", "still holds its old values"),
    ("update_running_mean", temporary, "no temporary as large as `x`", "16,384 B"),
    ("update_running_mean", spoiled, "leave `x` as it was", "`x` was changed"),
    ("update_running_mean", replaced, "values into `mean`", "in other memory"),
    ("update_running_mean", swapped, "values into `mean`", "`mean` holds at [0]"),
    ("add_into_row", copied_row, "no new memory", "4,096 B"),
    ("add_into_row", renamed_row, "values into `buffer`", "still holds its old values"),
    ("add_into_row", cloned_row, "values into `buffer`", "still holds its old values"),
    ("add_into_row", spoiled_x, "leave `x` and `y` as they were", "`x` was changed"),
    ("add_into_row", added_on, "values into `buffer`", "`buffer` holds at [2, 0]"),
    ("add_into_row", whole_buffer, "values into `buffer`", "now has shape (1024,)"),
    ("add_into_row", widened, "no new memory", "16,384 B"),
]


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize(("name", "fn", "asked", "seen"), WRONG, ids=[fn.__name__ for _, fn, *_ in WRONG])
def test_a_wrong_answer_hears_which_property_failed(name, fn, asked, seen):
    result = check(fn, name)
    assert not result
    assert result.verdict == "not there yet"
    found = [f for f in result.failures if asked in f.says]
    assert found and seen in found[0].seen, repr(result)
    assert found[0].hint or "exception" in asked or asked in ("right shape", "right dtype", "right values")
    for text in (repr(result), html.unescape(re.sub("<[^>]+>", "", result.html)).replace("`", "")):
        assert seen.replace("`", "") in text.replace("`", "")
        assert __file__ not in text


RIGHT = [
    ("relu_without_growth", lambda x: x.relu_()),
    ("relu_without_growth", lambda x: torch.relu_(x)),
    ("relu_without_growth", lambda x: functional.relu(x, inplace=True)),
    ("relu_without_growth", lambda x: x.clamp_(min=0)),
    ("update_running_mean", lambda mean, x, momentum: mean.lerp_(x, momentum)),
    ("update_running_mean", lambda mean, x, momentum: mean.mul_(1 - momentum).add_(x, alpha=momentum)),
    ("update_running_mean", lambda mean, x, momentum: torch.lerp(mean, x, torch.tensor(momentum).to(x), out=mean)),
    ("add_into_row", lambda buffer, i, x, y: torch.add(x, y, out=buffer[i])),
    ("add_into_row", lambda buffer, i, x, y: buffer[i].copy_(x).add_(y)),
]


@pytest.mark.parametrize(("name", "fn"), RIGHT)
def test_every_right_way_passes(name, fn):
    result = check(fn, name)
    assert result and result.passed and not result.failures, repr(result)
    assert f"{name}: passed, on 3 inputs." in repr(result)
    assert len(result.held) == len(EXERCISES[name].properties)


def test_the_card_says_what_holds_and_what_should():
    passed, failed = check(lambda x: x.relu_(), "relu_without_growth"), check(copied, "relu_without_growth")
    assert repr(passed).splitlines() == [
        "relu_without_growth: passed, on 3 inputs.",
        "  ✓ returns a tensor",
        "  ✓ returns the right shape",
        "  ✓ returns the right dtype",
        "  ✓ returns the right values",
        "  ✓ needs no new memory, not even for a moment",
    ]
    lines = repr(failed).splitlines()
    assert lines[1].startswith("  ✗ should need no new memory, not even for a moment. Seen: 16,384 B")
    assert "✓ returns a tensor" in repr(failed)
    for result in (passed, failed):
        assert result.html == check(copied if result is failed else lambda x: x.relu_(), "relu_without_growth").html
        # Without the signs, which a screen reader leaves out, the words alone tell one from the other.
        spoken = re.sub('<span aria-hidden="true">.</span>', "", result.html)
        assert "✓" not in spoken and "✗" not in spoken and "returns a tensor" in spoken
        assert ("should need no new memory" in spoken) == (not result.passed)
        assert "Holds" not in spoken and "It should" not in spoken


def test_every_property_reads_in_the_third_person():
    verbs = {_checks.third_person(p.says).split()[0] for e in EXERCISES.values() for p in e.properties}
    assert verbs >= {"returns", "needs", "writes", "leaves", "keeps", "has", "is", "gives", "stays", "ends", "makes"}
    assert all(verb.endswith("s") and not verb.endswith("ss") for verb in verbs), verbs
    assert [_checks.third_person(s) for s in ("do it", "copy it", "pass", "run", "stay put")] == [
        "does it",
        "copies it",
        "passes",
        "runs",
        "stays put",
    ]


def test_what_a_property_stumbles_over_is_a_failure_in_words():
    def looks(t):
        return t.result.detach() and None

    prop = P.Property("return something with a past", looks, "a hint for another mistake")
    exercise = Exercise("made_up", "do something", ("x",), (FLOATS,), lambda x: {}, (prop, P.returns_tensor()))
    result = exercise.check(lambda x: {"a": 1})
    assert [f.says for f in result.failures] == ["return something with a past", "return a tensor"]
    assert result.failures[0].seen == (
        "it returned a dict, and to look at that raised AttributeError: 'dict' object has no attribute 'detach'"
    )
    assert "hint" not in repr(result) and "Traceback" not in repr(result)


def test_a_property_that_leaves_alone_sees_other_memory_too():
    exercise = Exercise("made_up", "look", ("x",), (FLOATS,), lambda x: {}, (P.leaves_alone("x"),))
    for moved in (lambda x: x.set_(x.clone()), lambda x: setattr(x, "data", x.clone()) or 1):
        (failure,) = exercise.check(moved).failures
        assert failure.seen == "`x` was put into other memory, with the same values"
        assert "other memory than its views" in failure.hint
    assert exercise.check(lambda x: x + 1).passed, "the control"
    empty = Case("no elements", lambda: (torch.ones(0),))
    assert Exercise("made_up", "look", ("x",), (empty,), lambda x: {}, (P.leaves_alone("x"),)).check(lambda x: 1).passed


def test_freed_memory_is_told_and_the_kernel_lives():
    code = """
import torch
from helpers import _properties
from helpers.exercises import EXERCISES, check

def relu_without_growth(x):
    x.untyped_storage().resize_(0)
    return x

print(check(relu_without_growth))
gone = torch.ones(100_000)
gone.untyped_storage().resize_(0)
print(_properties.difference(gone, torch.ones(100_000)))

def frees(*args):
    for a in args:
        tensors = a if isinstance(a, list) else a.parameters() if isinstance(a, torch.nn.Module) else [a]
        for t in tensors:
            if isinstance(t, torch.Tensor):
                t.untyped_storage().resize_(0)
    return args[0] if args else None

def has_memory(value):
    return isinstance(value, (torch.Tensor, torch.nn.Module)) or isinstance(value, list) and any(map(has_memory, value))

tried = [name for name in EXERCISES if any(map(has_memory, EXERCISES[name].cases[0].make()))]
assert len(tried) > 20
for name in tried:
    assert "its memory was freed" in repr(check(frees, name)), check(frees, name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert "should leave every tensor its memory. Seen: the result cannot be read, its memory was freed" in done.stdout
    assert done.stdout.endswith("\nits memory was freed\n")


def dots(x): ...


def says_so(x):
    """With a docstring."""
    raise NotImplementedError


def says_more(x):
    raise NotImplementedError(f"your turn, {len(x)}")


def gives_dots(x):
    y = x  # noqa: F841
    return ...


def gives_token(x):
    return NotImplemented


def passes(x):
    pass


@pytest.mark.parametrize("fn", [dots, says_so, says_more, gives_dots, gives_token, passes])
def test_a_stub_is_not_a_failure(fn):
    result = check(fn, "relu_without_growth")
    assert not result.passed and not result.failures
    assert repr(result) == (
        "relu_without_growth: not written yet. It should return the ReLU of `x`, which its caller no longer needs, "
        "in no new memory."
    )


def test_pytorchs_own_not_implemented_is_shown():
    def fn(x):
        return torch.empty(2, device="meta").item() or torch.ops.aten.relu(x.to_sparse().to("meta"))

    result = check(fn, "relu_without_growth")
    assert result.written
    assert "run without an exception" in result.failures[0].says


def test_check_finds_the_exercise_by_the_functions_name():
    def relu_without_growth(x):
        return x.relu_()

    assert check(relu_without_growth).name == "relu_without_growth"


def test_check_wants_a_function_it_knows():
    with pytest.raises(TypeError, match=r"check\(name\), not check\(name\(x\)\)"):
        check(torch.zeros(1))

    def relu_without_grow(x):
        return x

    with pytest.raises(ValueError, match="did you mean 'relu_without_growth'"):
        check(relu_without_grow)
    with pytest.raises(ValueError, match="The exercises are: add_into_row"):
        check(lambda x: x)


def test_check_leaves_the_random_state_and_the_grad_mode():
    state = torch.random.get_rng_state()
    check(copied, "relu_without_growth")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("name", EXERCISES)
def test_inputs_draw_nothing_and_have_their_dtype_whatever_the_default(name):
    def dtypes():
        made = [tuple(case.make()) for case in EXERCISES[name].cases]
        models = [a for args in made for a in args if isinstance(a, torch.nn.Module)]
        leaves = torch.utils._pytree.tree_leaves(made)
        return [t.dtype for t in [*leaves, *(t for m in models for t in m.parameters())] if isinstance(t, torch.Tensor)]

    state = torch.random.get_rng_state()
    check(lambda *args: 1, name)
    assert torch.equal(torch.random.get_rng_state(), state)
    usual = dtypes()
    torch.set_default_dtype(torch.float64)
    try:
        assert dtypes() == usual
    finally:
        torch.set_default_dtype(torch.float32)


# A function that holds and one that fails for each property which chapter 04 does not ask for.
FLOATS = Case("four floats", lambda: (torch.arange(4.0),))
GRAD = Case("four floats that require grad", lambda: (torch.arange(4.0).requires_grad_(),))
P = _properties


def weighted(x):
    x.mul_(torch.ones(4).requires_grad_())
    return 0


@pytest.mark.parametrize(
    ("prop", "case", "good", "bad", "seen"),
    [
        (P.shares_memory_with("x"), FLOATS, lambda x: x.view(2, 2), lambda x: x.clone(), "is a copy"),
        (P.shares_memory_with("x"), FLOATS, lambda x: x, lambda x: print(end=""), "is a copy"),
        (P.has_own_memory("x"), FLOATS, lambda x: x.clone(), lambda x: x[1:], "is a view of `x`"),
        (P.same_object("x"), FLOATS, lambda x: x.add_(1), lambda x: x.view(4), "another object than `x`"),
        (P.keeps_no_graph(), GRAD, lambda x: (x * 2).detach(), lambda x: x * 2, "grad_fn is MulBackward0"),
        (P.keeps_no_graph("x"), FLOATS, lambda x: x, weighted, "`x` keeps a graph alive"),
        (P.retains_at_most(16), FLOATS, lambda x: x + 1, lambda x: (x + 1, x + 2), "32 B of new memory still alive"),
        (P.peak_at_most(lambda a: 2 * a["x"].nbytes), FLOATS, lambda x: x + 1, lambda x: x + 1 + (x + 2), "48 B"),
    ],
)
def test_each_property_holds_and_fails(prop, case, good, bad, seen):
    def expect(x):
        return {RETURNED: x}

    exercise = Exercise("made_up", "do something", ("x",), (case,), expect, (prop,))
    assert exercise.check(good).passed, repr(exercise.check(good))
    result = exercise.check(bad)
    assert len(result.failures) == 1
    assert seen in result.failures[0].seen


def refuses(x):
    raise ValueError("negative")


def refuses_otherwise(x):
    raise KeyError("negative")


def test_a_case_that_must_raise():
    case = Case("a negative size", lambda: (torch.ones(1),), raises=ValueError)
    exercise = Exercise("made_up", "refuse", ("x",), (case,), lambda x: {}, (P.returns_tensor(),))
    assert exercise.check(refuses).held == ["raise ValueError for a negative size"]
    assert "a float32 tensor of shape (1,)" in exercise.check(lambda x: x).failures[0].seen
    assert "KeyError" in exercise.check(refuses_otherwise).failures[0].seen


def test_low_precision_is_compared_loosely_and_nan_equals_nan():
    a = torch.tensor([1.0, float("nan")], dtype=torch.bfloat16)
    assert P.difference(a * 1.01, a) is None
    assert P.difference(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.1])) == ("at [1] 2 instead of 2.1, 1 of 2 wrong")
    assert P.difference(torch.ones(2), torch.ones(3)) == "shape (2,) instead of (3,)"


# ------------------------------------------------------------------------------------------------ progress


def test_progress_counts_what_this_kernel_saw_and_gives_nothing_away():
    first, second, third = (predict(f"Question {i}?", BELIEFS, lambda: 4000) for i in range(3))
    assert progress().rows == [["prediction", f"Question {i}?", "not made yet"] for i in range(3)]
    assert "4,000" not in repr(progress())
    first.commit(4000), second.commit(0), third.show()
    check(dots, "relu_without_growth")
    check(RIGHT[-1][1], "add_into_row")
    table = progress()
    assert [row[2] for row in table.rows] == ["as measured", "a surprise", "shown", "not written yet", "passed"]
    assert table.caption.startswith("Predictions made: 2 of 3, 1 as measured. Exercises passed: 1 of 2.")
    predict("Question 0?", BELIEFS, lambda: 4000)  # its cell runs again
    assert [row[1:] for row in progress().rows[:2]] == [["Question 0?", "not made yet"], ["Question 1?", "a surprise"]]


def test_progress_does_not_count_what_there_is_none_of():
    anew = " Run this cell again to count anew."
    assert progress().caption == "Nothing has been asked yet." + anew
    p = ask()
    assert progress().caption == "Predictions made: 0 of 1." + anew
    p.commit(0)
    assert progress().caption == "Predictions made: 1 of 1, 0 as measured." + anew
    exercises._predictions.clear()
    check(dots, "relu_without_growth")
    assert progress().caption == "Exercises passed: 0 of 1." + anew


def test_progress_of_an_empty_kernel_and_of_an_error():
    assert progress().rows == []
    with pytest.raises(ZeroDivisionError):
        predict("Zero?", BELIEFS, run=lambda: 1 // 0).show()
    assert progress().rows[0][2] == "stopped with an error"


@pytest.mark.parametrize("module", [exercises, _checks, _properties, _predict_card, _predict_options])
def test_examples_in_docstrings(module):
    assert doctest.testmod(module).failed == 0
