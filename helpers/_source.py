"""Which line of the reader's own code is running? Frames kept cheap, places told in words."""

from __future__ import annotations

import linecache
import os
import re
import sys
import sysconfig
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

# A frame is the reader's unless it lies in one of these: PyTorch, this package, Python itself and installed packages.
_OURS = (os.path.dirname(__file__), os.path.dirname(torch.__file__))
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_SKIP = tuple(os.path.join(folder, "") for folder in (*_OURS, *_INSTALLED))

Found = tuple[CodeType, int]  # a code object and a line number: cheap to keep, read only when asked for
Spot = tuple[CodeType, int]  # a code object and the offset of an instruction: cheaper still, no lines are counted
READER, LIBRARY, ENGINE = 1, 0, -1
_kinds: dict[str, int] = {}  # by file name: the hash of a string is kept, that of a code object is not


class Place(NamedTuple):
    """A line of code: where it stands and what it says."""

    file: str
    line: int
    text: str

    @property
    def where(self) -> str:
        """``In [5], line 3`` in a notebook, ``train.py, line 3`` in a script; never a path."""
        cell = _cell_number(self.file)
        return f"{cell if cell else os.path.basename(self.file)}, line {self.line}"

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" if self.text else self.where


def _cell_number(file: str) -> str | None:
    """The cell that ``file`` names, as Jupyter writes it, or None for an ordinary file."""
    old = re.match(r"<ipython-input-(\d+)-", file)  # IPython before 8 says so in the name itself
    if old:
        return f"In [{old.group(1)}]"
    if "ipykernel_" not in file:
        return None
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    number = _numbers(shell).get(file)
    return f"In [{number}]" if number is not None else "this notebook"


_counted: dict[str, int] = {}


def _numbers(shell: Any) -> dict[str, int]:
    """File name -> the number of the newest cell with that text, of which the file is named."""
    compiler = getattr(shell, "compile", None)
    if (kept := getattr(compiler, "_filename_map", None)) is not None:
        return kept
    # IPython 7 keeps none, and with ipykernel 6 the name tells no number either: so it is on Colab.
    history = getattr(getattr(shell, "history_manager", None), "input_hist_raw", [])
    for number in range(max(_counted.values(), default=0) + 1, len(history)):
        _counted[compiler.get_code_name(history[number], history[number], number)] = number
    return _counted


def kind_of(file: str) -> int:
    """Whether code of ``file`` is the reader's, a library's, or on the way into the autograd engine; remembered."""
    # A notebook cell lies under no installed folder; "<stdin>" and "<string>" are what the reader typed.
    kind = LIBRARY if file.startswith(_SKIP) or file.startswith("<frozen") else READER
    if file == torch.autograd.graph.__file__:
        kind = ENGINE
    _kinds[file] = kind
    return kind


def stack_lines(frame: FrameType | None) -> tuple[Found | None, bool, Found | None]:
    """The reader's innermost line on the stack of ``frame``, told apart by the call into the autograd engine.

    Returns:
        (line inside the innermost backward or, outside backward, simply the innermost line; whether there is a backward
        on the stack below which nothing was found; the line that called that backward).
    """
    found, backward = reader_frame(frame)
    line = None if found is None else (found.f_code, found.f_lineno)
    return (None, True, line) if backward else (line, False, None)


def reader_frame(frame: FrameType | None) -> tuple[FrameType | None, bool]:
    """The reader's innermost frame on the stack of ``frame``, and whether a call into the autograd engine is nearer."""
    backward = False
    while frame is not None:
        code = frame.f_code
        kind = _kinds.get(code.co_filename)
        if kind is None:
            kind = kind_of(code.co_filename)
        if kind == READER:
            return frame, backward
        if kind == ENGINE and code.co_name == "_engine_run_backward":
            backward = True
        frame = frame.f_back
    return None, backward


def line_at(spot: Spot | None) -> Found | None:
    """The line in which an instruction stands."""
    if spot is None:
        return None
    code, instruction = spot
    lines = (line for start, end, line in code.co_lines() if start <= instruction < end)
    return code, next(lines, None) or code.co_firstlineno


def place(found: Found | None) -> Place | None:
    """Reads the text of a line that `stack_lines` found."""
    if found is None:
        return None
    code, line = found
    return Place(code.co_filename, line, linecache.getline(code.co_filename, line).strip())
