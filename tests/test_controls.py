"""A playground runs its body for what the controls say, whoever moves them, and shows what that led to."""

from __future__ import annotations

import gc
import itertools
import sys
import types
import weakref

import pytest
import torch

from helpers import Table
from helpers.controls import playground
from helpers.display import Picture

widgets = pytest.importorskip("ipywidgets")


def double(n, word):
    return word * n


def told(now, before):
    return f"{before} -> {now}"


@pytest.fixture
def play():
    return playground(double, show=told, n=(1, 3, 9), word=["a", "bc"])


def test_runs_with_the_defaults(play):
    assert (play.values, play.result, play.before) == ({"n": 3, "word": "a"}, "aaa", None)
    assert repr(play) == "n = 3, word = a\nNone -> aaa"
    assert "None -&gt; aaa" in play.html


def test_set_runs_once_and_lays_over(play):
    assert play.set(n=1, word="bc").result == "bc"
    assert (play.before, play.picture, play.title) == ("aaa", "aaa -> bc", "n = 1, word = bc")
    assert play.set(n=2).before == "bc"


def test_without_show_the_body_shows_itself():
    table = playground(lambda n: Table(["n"], [[n]]), n=(0, 1, 2))
    assert table.html == Table(["n"], [[1]]).html
    picture = Picture('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>', alt="a dot & more")
    assert 'alt="a dot &amp; more"' in playground(lambda n: picture, n=(0, 1, 2)).html


def test_several_things_stand_one_under_the_other():
    play = playground(lambda n: n, show=lambda now, before: [f"{now} & {before}", Table(["n"], [[now]])], n=(0, 1, 2))
    assert play.html == f"<p>1 &amp; None</p>{Table(['n'], [[1]]).html}"
    assert repr(play) == "n = 1\n1 & None\nn\n1"
    assert 'padding:0 16px 0 0;text-align:right">1</td>' in play.widgets[""].value  # a widget's table needs room


def test_moving_a_control_is_setting_it(play):
    play.widgets["n"].value = 9
    assert (play.result, play.before) == ("a" * 9, "aaa")
    play.widgets["word"].value = "bc"
    assert play.result == "bc" * 9 and "-&gt; " + "bc" * 9 in play.widgets[""].value
    play.set(n=1, word="a")
    assert (play.widgets["n"].value, play.widgets["word"].value) == (1, "a")
    assert play.before == "bc" * 9  # the controls that follow do not run it again


def test_controls_are_those_of_the_ranges():
    play = playground(lambda n, m, c: 0, n=(1, 3, 9), m=(0, 32, 64, 16), c=["all", 0, True])
    n, m, c = (play.widgets[name] for name in ("n", "m", "c"))
    assert (n.min, n.value, n.max, n.step, n.continuous_update) == (1, 3, 9, 1, False)
    assert (m.min, m.value, m.max, m.step) == (0, 32, 64, 16)
    assert isinstance(c, widgets.Dropdown) and [value for _, value in c.options] == ["all", 0, True]


def test_every_choice_is_what_its_place_in_the_list_says():
    given = [torch.float32, torch.float64, 0, True, "0 to 1"]
    play = playground(lambda c: repr(c), c=given)
    given.clear()
    for place, choice in enumerate([torch.float64, 0, True, "0 to 1"], 1):
        play.widgets["c"].index = place  # as by hand
        assert play.result == repr(choice) == repr(play.values["c"]) and str(choice) == play.widgets["c"].label
        assert play.set(c=torch.float32).widgets["c"].index == 0
        assert play.set(c=choice).widgets["c"].index == place


def test_settings_are_default_least_and_greatest(play):
    assert list(play.settings()) == [
        {"n": 3, "word": "a"},
        {"n": 1, "word": "a"},
        {"n": 9, "word": "a"},
        {"n": 3, "word": "bc"},
    ]
    for values in play.settings():
        assert play.set(**values).result == values["word"] * values["n"]


def test_an_error_under_a_control_is_shown_and_the_next_run_goes_on():
    def body(n):
        return 12 // n

    play = playground(body, show=told, n=(0, 3, 9))
    play.widgets["n"].value = 0
    assert play.error.startswith("ZeroDivisionError") and play.result is None
    assert "n = 0: it stopped with ZeroDivisionError" in play.widgets[""].value
    assert "stopped with ZeroDivisionError" in repr(play)
    play.widgets["n"].value = 4
    assert (play.error, play.picture) == ("", "4 -> 3")  # laid over the last that there was
    with pytest.raises(ZeroDivisionError):
        play.set(n=0)
    assert "stopped" in play.widgets[""].value
    with pytest.raises(ZeroDivisionError):
        playground(body, n=(0, 0, 9))


class Mute:
    def __repr__(self):
        raise RuntimeError("no words")


class MuteError(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def raises(error):
    raise error


@pytest.mark.parametrize(
    ("wrong", "error", "told"),
    [
        (Mute, RuntimeError, "RuntimeError: no words"),  # what is to be shown
        (lambda: raises(MuteError()), MuteError, "MuteError"),
        (lambda: sys.exit(3), SystemExit, "SystemExit: 3"),  # it would end the kernel
        (lambda: raises(KeyboardInterrupt), KeyboardInterrupt, "KeyboardInterrupt"),
    ],
)
def test_whatever_goes_wrong_is_shown_instead_of_the_picture_before(wrong, error, told):
    play = playground(lambda n: wrong() if n == 2 else "fine", n=(0, 1, 3))
    assert "fine" in play.widgets[""].value
    play.widgets["n"].value = 2
    assert (play.error, play.result, play.title) == (told, None, "n = 2")
    assert f"<p>n = 2: it stopped with {told}</p>" in play.widgets[""].value
    assert repr(play) == f"n = 2\nstopped with {told}"
    assert "fine" in play.set(n=3).widgets[""].value and play.error == ""
    with pytest.raises(error):
        play.set(n=2)
    assert f"stopped with {told}" in play.widgets[""].value


def test_a_body_that_moves_its_own_control_does_not_change_what_its_result_belongs_to():
    def body(n):
        if n == 5:
            play.widgets["n"].value = 7
        if n == 6:
            play.set(n=7)
        return n

    play = playground(body, n=(1, 3, 9))
    play.widgets["n"].value = 5
    assert (play.result, play.title, play.widgets["n"].value) == (5, "n = 5", 5)
    assert "<p>5</p>" in play.widgets[""].value
    play.widgets["n"].value = 6
    assert play.title == "n = 6" and play.error.startswith("RuntimeError: set was called by the body it would run")
    assert play.set(n=4).result == 4


def cell(refs, **kwargs):
    """Makes a playground whose measurement is seen to be gone or not, as a cell does."""

    def body(n):
        made = torch.zeros(10)
        refs.append(weakref.ref(made))
        return made

    return playground(body, show=lambda now, before: f"{len(now)} and {before is None}", n=(0, 1, 5), **kwargs)


def alive(refs):
    gc.collect()
    return [ref() is not None for ref in refs]


def test_a_cell_that_runs_again_lets_its_playground_go():
    refs = []
    play = cell(refs)
    first = play.box, play.widgets["n"]
    assert alive(refs) == [True]
    play = cell(refs)
    assert play.widgets and alive(refs) == [False, True]
    first[1].value = 5  # it is still on the screen, in another view of the notebook say
    assert "Run the cell again" in first[0].children[-1].value and alive(refs) == [False, True]
    play.widgets["n"].value = 5
    assert alive(refs) == [False, True, True], "what was there before is laid under it"


@pytest.mark.parametrize("named", [True, False], ids=["cells with ids", "cells without"])
def test_what_a_cell_shows_works_until_that_cell_runs_again(named, monkeypatch):
    shell = types.SimpleNamespace(parent_header={})
    monkeypatch.setattr("helpers.controls.in_notebook", lambda: True)
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    monkeypatch.setattr("helpers._predict_card._on_screen", {})
    runs = itertools.count()

    def running(code, id):
        metadata = {"cellId": id} if named else {}
        header = {"msg_id": f"run {next(runs)}"}
        shell.parent_header = {"header": header, "metadata": metadata, "content": {"code": code}}

    def displayed():
        play = cell(refs)
        play._repr_mimebundle_()
        return play.widgets["n"]

    refs = []
    running("for _ in range(2): display(...)", "a")
    sliders = [displayed(), displayed()]
    running("display(...)", "b")
    sliders.append(displayed())
    assert alive(refs) == [True] * 3
    shell.parent_header = {"header": {"msg_id": "a move"}, "metadata": {}, "content": {"comm_id": 1}}
    for slider in sliders:
        slider.value = 5
    assert alive(refs) == [True] * 6, "all are on the screen, none has a name"
    del refs[3:]
    running("for _ in range(2): display(...)" if not named else "display(... )  # edited", "a")
    displayed()
    assert alive(refs) == [False, False, True, True]


def test_static_html_says_what_to_do(play):
    bundle = play._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}  # no kernel, no widget
    assert bundle["text/html"].startswith("<p>n = 3, word = a. Run the cell to move the controls.</p>")
    assert bundle["text/plain"] == repr(play)


def test_in_a_notebook_the_controls_come_first(play, monkeypatch):
    monkeypatch.setattr("helpers.controls.in_notebook", lambda: True)
    bundle = play._repr_mimebundle_()
    view = bundle["application/vnd.jupyter.widget-view+json"]
    assert view["version_major"] == 2 and view["model_id"] == play.box.model_id
    assert [type(child).__name__ for child in play.box.children] == ["IntSlider", "Dropdown", "HTML"]


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({}, ValueError, "without a control"),
        ({"n": 3}, TypeError, "n: a control is a tuple"),
        ({"n": (1, 2)}, TypeError, "n: a control is a tuple"),
        ({"n": (1.0, 2, 3)}, TypeError, "n: a control is a tuple"),
        ({"n": (0, True, 3)}, TypeError, "n: a control is a tuple"),
        ({"n": (1, 9, 3)}, ValueError, "do not fit each other"),
        ({"n": (1, 4, 9, 2)}, ValueError, "do not fit each other"),
        ({"n": (0, 4, 9, 2)}, ValueError, "do not fit each other"),
        ({"n": (0, 4, 9, 0)}, ValueError, "do not fit each other"),
        ({"n": ["a"]}, ValueError, "has at least two"),
        ({"n": [0, 1, False]}, ValueError, "n: the choices 0 and False are equal or read the same; pass strings"),
        ({"n": [1, True]}, ValueError, "the choices 1 and True are equal"),
        ({"n": [1, 2, 1]}, ValueError, "the choices 1 and 1 are equal"),
        ({"n": ["1", 1]}, ValueError, "the choices '1' and 1 are equal or read the same"),
        ({"n": [None, 1]}, ValueError, "None cannot be a choice"),
        ({"n": [1.0, float("nan")]}, ValueError, "nan cannot be a choice, since == does not find it again"),
        ({"n": ["a", torch.zeros(2)]}, ValueError, "cannot be a choice, since == does not find it again"),
    ],
)
def test_controls_that_are_none_are_refused(given, error, words):
    with pytest.raises(error, match=words):
        playground(lambda **values: values, **given)


def test_body_and_show_must_be_functions():
    with pytest.raises(TypeError, match="body: expected a function"):
        playground(3, n=(1, 2, 3))
    with pytest.raises(TypeError, match="show: expected a function"):
        playground(double, show="text", n=(1, 2, 3))
    with pytest.raises(TypeError, match="height: expected px to keep free as a whole number, 0 or more, got 'x'"):
        playground(str, height="x", n=(1, 2, 3))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"m": 3}, "there is no control 'm'; there are n, word"),
        ({"n": 10}, "n cannot be 10: it goes from 1 to 9"),
        ({"n": "3"}, "n cannot be '3'"),
        ({"n": True}, "n cannot be True"),
        ({"word": "d"}, "word cannot be 'd': it is one of 'a', 'bc'"),
    ],
)
def test_values_that_no_control_has_are_refused(play, values, words):
    with pytest.raises(ValueError, match=words):
        play.set(**values)
    assert play.values == {"n": 3, "word": "a"} and play.result == "aaa"
