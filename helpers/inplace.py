"""Which write broke backward, and did one go unseen? `explain_inplace` and `guard_saved_tensors`.

PyTorch names the operator that saved a tensor; neither its message nor its anomaly mode names the line that wrote to
it. `explain_inplace` names both. Some writes are not seen by PyTorch at all, and gradients are then silently wrong:
`guard_saved_tensors` makes those an error.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from ._backward import listen, unlisten
from ._explain import bare_message, explain_backward, explain_write, note_reads
from ._guard import Guard, SavedTensorChanged
from ._report import Report
from ._writes import WriteLog

__all__ = ["Report", "SavedTensorChanged", "explain_inplace", "guard_saved_tensors"]


def guard_saved_tensors(*, check_values: bool = True) -> Guard:
    """Makes silent writes into saved tensors an error, raised when backward asks for the tensor.

    Use it when a gradient looks wrong and nothing was raised, or in a test of a training step. It finds writes that
    PyTorch cannot see (through ``.data``, ``.data =``, NumPy, DLPack, a storage) by comparing a fingerprint of the
    contents, and writes that it does not check, because saved-tensor hooks (``save_on_cpu``, say) are active.

    Args:
        check_values: whether to compare contents too; else versions alone, which costs next to nothing. Contents are
            read twice, when a tensor is saved and when backward asks for it.

    Returns:
        A context manager; put forward and backward inside. Its ``checked`` counts the comparisons.

    Raises:
        SavedTensorChanged: a RuntimeError, inside the block, whose first sentence is PyTorch's own. To see which line
            wrote, use ``explain_inplace(check_values=True)``.

    Example:
        >>> x = torch.ones(3, requires_grad=True)
        >>> with guard_saved_tensors():
        ...     y = x.exp()
        ...     y.data.zero_()  # no error without the guard, and a gradient of 0 instead of 2.7183
        ...     y.sum().backward()
        Traceback (most recent call last):
        SavedTensorChanged: one of the variables needed for gradient computation has been modified ...

    Known limits: it sees what is saved in its own thread, inside the block, through PyTorch's saved tensors: not what a
    custom Function puts on ``ctx`` as an attribute. What other hooks give back in other memory (a copy, a file, a
    checkpoint's second forward, what an unpack hook writes to) is theirs to answer for. ``torch.func`` refuses to run
    under hooks; the guard steps aside for it, and PyTorch checks versions there itself. Tensors without memory (meta)
    have no contents.
    """
    return Guard(check_values)


class explain_inplace:
    """Adds to an error of backward which line saved the tensor, which line wrote to it, and what mends it.

    Use it around your own failing code, forward and backward inside. Without an error nothing is printed and nothing
    changes: gradients are the same to the last bit. An error stays PyTorch's own, with its message made longer.

    Args:
        model: a module; its parameters and buffers are then called by their names.
        check_values: whether to look for silent writes too, as `guard_saved_tensors` does.
        reads: whether to note, in the report, values that were written in place and read by more than one operator
            afterwards (an in-place ReLU before ``+ x``), writes into copies (``x[idx].add_(1)``), and custom Functions
            that write to an input without ``mark_dirty``. They raise nothing, and some are right.

    Returns:
        From ``with``, a `Report`: its ``saved``, ``writes``, ``name``, ``mends`` and ``text`` are filled when it fails.

    Raises:
        RuntimeError: what the block raises, explained; and `SavedTensorChanged` for silent writes, if asked.

    Example:
        >>> x = torch.ones(3, requires_grad=True)
        >>> with explain_inplace() as report:
        ...     y = x.exp()
        ...     y.add_(1)
        ...     y.sum().backward()
        Traceback (most recent call last):
        RuntimeError: one of the variables needed for gradient computation has been modified by ...
        Tensor:   variable y, float32 [3]
        Saved by: exp, as its result, version 0
                  In [1], line 3: y = x.exp()
        Written:  add_, version 1
                  In [1], line 4: y.add_(1)
        Needed:   the derivative of exp is its result
        Mend:     - write out of place: y = y.add(1)
        ...

    Known limits: it follows operators of the thread that enters it. What ran before the block, or in another thread, is
    told without a line, and so are writes by the engine itself, which adds up gradients. Functions of ``torch.compile``
    run uncompiled inside.
    """

    def __init__(self, model: torch.nn.Module | None = None, *, check_values: bool = False, reads: bool = False):
        if model is not None and not isinstance(model, torch.nn.Module):
            raise TypeError(
                f"explain_inplace takes a torch.nn.Module, to name its parameters, got {type(model).__name__}: "
                "pass the model, or nothing"
            )
        self._model, self._reads = model, reads
        self._log = WriteLog(reads)
        self._guard = Guard(True) if check_values else None
        self._state = "new"
        self.report = Report()

    def __enter__(self) -> Report:
        if self._state != "new":
            raise RuntimeError("this explain_inplace has had its block: make a new one, each explains one block")
        self._state = "running"
        listen(self)
        try:
            self._log.__enter__()
            if self._guard is not None:
                try:
                    self._guard.__enter__()
                except BaseException:
                    self._log.__exit__(None, None, None)
                    raise
        except BaseException:
            unlisten(self)
            raise
        return self.report

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        try:
            if self._guard is not None:
                self._guard.__exit__(kind, error, traceback)
        finally:
            try:
                self._log.__exit__(kind, error, traceback)
            finally:
                unlisten(self)
                self._finish(error, traceback)

    def _finish(self, error: BaseException | None, traceback: Any) -> None:
        try:
            if isinstance(error, RuntimeError):
                message = bare_message(error)
                if explain_write(self.report, self._log, message, traceback):
                    _lengthen(error, message, self.report)
            if self._reads:
                note_reads(self.report, self._log)
        finally:
            self._log.close()
            self._model = None
            self._state = "done"

    def backward_starts(self, keeps_graph: bool) -> None:
        """Called before each backward of the process."""
        self._log.backward_started(keeps_graph)

    def backward_ends(self) -> None:
        """Called after each backward of the process."""
        self._log.backward_ended()

    def backward_failed(self, error: RuntimeError, outputs: Any) -> None:
        """Called for each backward that raised; explains what it can."""
        message = explain_backward(self.report, self._log, error, outputs, self._model, sys._getframe(2))
        if message is not None:
            _lengthen(error, message, self.report)


def _lengthen(error: RuntimeError, message: str, report: Report) -> None:
    """Puts a report behind the error's message; of nested blocks the innermost comes first and is enough."""
    if not hasattr(error, "explained"):
        error.explained = True
        error.args = (f"{message}\n\n{report.text}", *error.args[1:])
