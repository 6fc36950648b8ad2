"""Whose code is a frame, and how a place in it is told."""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace

import pytest
import torch

from helpers import _source
from helpers._source import LIBRARY, READER, Place, kind_of, line_at, place, reader_frame, stack_lines


@pytest.mark.parametrize(
    ("file", "where"),
    [
        ("/home/reader/train.py", "train.py, line 3"),
        ("<ipython-input-5-0123456789ab>", "In [5], line 3"),  # IPython 7
        ("/tmp/ipykernel_4242/1234567890.py", "this notebook, line 3"),  # a cell whose number nobody knows any more
        ("<stdin>", "<stdin>, line 3"),
    ],
)
def test_a_place_is_told_without_a_path(file, where):
    assert Place(file, 3, "h.add_(1)").where == where
    assert str(Place(file, 3, "h.add_(1)")) == f"{where}: h.add_(1)"
    assert str(Place(file, 3, "")) == where


def test_a_cell_has_the_number_that_the_kernel_gave_it(monkeypatch):
    shell = SimpleNamespace(compile=SimpleNamespace(_filename_map={"/tmp/ipykernel_1/99.py": 7}))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert Place("/tmp/ipykernel_1/99.py", 2, "").where == "In [7], line 2"
    assert Place("/tmp/ipykernel_1/98.py", 2, "").where == "this notebook, line 2"


def test_a_cell_has_its_number_where_ipython_7_keeps_no_list(monkeypatch):
    cells = ["", "x = 1", "x.add_(1)"]
    compiler = SimpleNamespace(get_code_name=lambda raw, code, number: f"/tmp/ipykernel_1/{raw}.py")
    shell = SimpleNamespace(compile=compiler, history_manager=SimpleNamespace(input_hist_raw=cells))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(_source, "_counted", {})
    assert Place("/tmp/ipykernel_1/x.add_(1).py", 1, "").where == "In [2], line 1"
    cells += ["y = 2", "x = 1"]  # the first cell once more: the newest number counts
    assert Place("/tmp/ipykernel_1/x = 1.py", 1, "").where == "In [4], line 1"
    assert Place("/tmp/ipykernel_1/y = 3.py", 1, "").where == "this notebook, line 1"


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        (__file__, READER),
        ("<ipython-input-5-0123456789ab>", READER),
        ("/tmp/ipykernel_4242/1234567890.py", READER),
        ("<stdin>", READER),
        (torch.nn.functional.__file__, LIBRARY),
        (_source.__file__, LIBRARY),
        (json.__file__, LIBRARY),
        (pytest.__file__, LIBRARY),
        ("<frozen importlib._bootstrap>", LIBRARY),
        (torch.autograd.graph.__file__, _source.ENGINE),
        (os.path.dirname(_source.__file__) + "_of_mine/x.py", READER),  # a folder whose name only begins alike
    ],
)
def test_whose_code_it_is(file, kind):
    assert kind_of(file) == kind


def test_the_innermost_line_of_the_reader_is_found_through_a_library():
    found = json.loads("[1.5]", parse_float=lambda text: stack_lines(sys._getframe(1)))[0]
    line, backward, outer = found
    assert place(line).text.startswith("found = json.loads(")
    assert (backward, outer) == (False, None)


def test_a_line_inside_backward_is_told_from_the_call():
    seen = []
    x = torch.ones(3, requires_grad=True)
    x.register_hook(lambda grad: seen.append(stack_lines(sys._getframe(1))))
    x.sum().backward()
    ((line, backward, outer),) = seen
    assert (line, backward) == (None, True)
    assert place(outer).text == "x.sum().backward()"


def test_no_frame_has_no_line():
    assert stack_lines(None) == (None, False, None)
    assert place(None) is None
    assert line_at(None) is None


def test_an_instruction_stands_in_the_line_that_its_frame_tells():
    def lines_of(frame):
        return (frame.f_code, frame.f_lineno), line_at((frame.f_code, frame.f_lasti))

    seen = []
    for step in range(3):
        seen.append(lines_of(sys._getframe()))
        if step:
            seen.append(lines_of(sys._getframe()))
    assert all(told == read for told, read in seen)
    assert len({told[1] for told, _ in seen}) == 2


def test_the_frame_inside_backward_is_that_of_the_call():
    seen = []
    x = torch.ones(3, requires_grad=True)
    x.register_hook(lambda grad: seen.append(reader_frame(sys._getframe(1))))
    x.sum().backward()
    ((frame, backward),) = seen
    assert backward and frame is sys._getframe()
    assert reader_frame(frame) == (frame, False)
    assert reader_frame(None) == (None, False)
