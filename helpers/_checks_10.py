"""What the exercises of chapter 10 (offload to disk) ask for. Stubs and solutions stand in the chapter itself."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from helpers._checks import Case, Exercise
from helpers._properties import Property, Trial, describe, difference, message_of, returns_two_functions
from helpers.display import exact_bytes, round_bytes


class _Folder(str):
    """The path of a new folder, which goes when the last trial that has it does. A copy of a trial shares it."""

    def __new__(cls) -> _Folder:
        directory = tempfile.TemporaryDirectory(prefix="exercise_")
        self = super().__new__(cls, directory.name)
        self.directory = directory
        return self

    def __deepcopy__(self, memo: dict) -> _Folder:
        return self

    def sizes(self) -> list[int]:
        return [entry.stat().st_size for entry in os.scandir(self)]

    def clear(self) -> None:
        for entry in os.scandir(self):
            os.unlink(entry.path)


def _gone(there: Callable[[], Any]) -> bool:
    """Whether there is nothing, at the latest after a garbage collection, which takes its time."""
    return not there() or (gc.collect() >= 0 and not there())


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {message_of(error).partition(chr(10))[0][:90]}"


# ---------------------------------------------------------------------------------------------------- one layer


@torch.random.fork_rng(devices=[])  # layers draw numbers, and the reader's must stay the next ones
def _model(rows: int, width: int, out: int) -> tuple[nn.Module, torch.Tensor, _Folder]:
    generator = torch.Generator().manual_seed(rows)
    model = nn.Sequential(
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, out), nn.Tanh(), nn.Linear(out, 4)
    ).float()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.rand(p.shape, generator=generator) - 0.5)
    return model, torch.rand(rows, width, generator=generator, dtype=torch.float32), _Folder()


def _of_layer(t: Trial) -> int:
    """Bytes of what the third layer saves beside its weight: its input."""
    x = t.before["x"]
    return x.shape[0] * t.before["model"][2].in_features * 4


def _output_and_hooks(t: Trial) -> str | None:
    if not isinstance(t.result, tuple) or len(t.result) != 2 or not isinstance(t.result[0], torch.Tensor):
        return f"it returned {describe(t.result)}"
    if not hasattr(t.result[1], "file_bytes"):
        return f"the second of the pair is {describe(t.result[1])}, not an offload_to_disk"
    return None


def _right_output(t: Trial) -> str | None:
    with torch.no_grad():
        return difference(t.result[0], t.before["model"](t.before["x"]))


def _layer_bytes(t: Trial) -> str | None:
    written, wanted = t.result[1].bytes_written, _of_layer(t)
    if written == wanted:
        return None
    return f"{exact_bytes(written)} were written instead of the {exact_bytes(wanted)} of that layer's input"


def _why_bytes(t: Trial) -> str:
    if t.result[1].bytes_written == 0:
        return "What is smaller than 4,096 B stays in memory, unless you pass `min_bytes=0`."
    return (
        "A `with` around the call takes what every layer saves. `policy=model[2]` is what is saved while that one runs."
    )


def _of_this_output(t: Trial) -> str | None:
    """The hooks may have moved that many bytes for another call of the model."""
    output, hooks = t.result
    live, read = hooks.bytes_live, hooks.bytes_read
    if live != _of_layer(t):
        return f"{exact_bytes(live)} are on disk while the output's graph waits for its backward"
    try:
        torch.autograd.grad(output.sum(), list(t.args["model"].parameters()), retain_graph=True)
    except Exception:  # of the reader's graph, which the next property tells
        return None
    return None if hooks.bytes_read > read else "the backward of the output read nothing from the disk"


def _layer_gradients(t: Trial) -> str | None:
    model, wanted = t.args["model"], t.before["model"]
    try:
        t.result[0].sum().backward()
    except Exception as error:  # of the reader's graph
        return _first_line(error)
    wanted(t.before["x"]).sum().backward()
    for (name, p), q in zip(model.named_parameters(), wanted.parameters()):
        if p.grad is None or not torch.equal(p.grad, q.grad):
            return f"the gradient of `{name}` is {'missing' if p.grad is None else 'different'}"
    return None


ONE_LAYER = Exercise(
    name="one_layer_on_disk",
    task="return `(model(x), hooks)`, with what `model[2]` saves on disk and nothing else",
    parameters=("model", "x", "folder"),
    cases=(
        Case("a batch of 8", lambda: _model(8, 16, 16)),
        Case("a batch of 500", lambda: _model(500, 24, 10)),
    ),
    expect=lambda model, x, folder: {},
    properties=(
        Property(
            "return the output and the hooks", _output_and_hooks, "Return them as a pair: `return output, hooks`.", True
        ),
        Property("return the output of the whole model", _right_output, "Run all layers: `model(x)`.", True),
        Property("move what that layer saves, and nothing else", _layer_bytes, _why_bytes),
        Property(
            "keep on disk what the graph of the returned output needs",
            _of_this_output,
            "Each call of `model(x)` makes a graph of its own: return the output of the call that ran under the hooks.",
        ),
        Property("give the gradients that there are without hooks, to the last bit", _layer_gradients),
    ),
)

# ---------------------------------------------------------------------------------------------------- hooks


def _square(h: torch.Tensor) -> torch.Tensor:
    return h * h


def _exp(h: torch.Tensor) -> torch.Tensor:
    return h.exp()


def _slices(h: torch.Tensor) -> torch.Tensor:
    return h[:1500] * h[500:]


def _picked(h: torch.Tensor) -> torch.Tensor:
    return h[torch.arange(1999, -1, -2)] * h[:1000]


_FUNCTIONS = ((_square, "h * h"), (_exp, "h.exp()"), (_slices, "h[:1500] * h[500:]"), (_picked, "h[positions]"))


def _graph(make: Callable, hooks: tuple | None, start: float = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """(Leaf, sum at the end of its graph); the saved tensors are results and not leaves."""
    leaf = (torch.arange(2000.0, dtype=torch.float32) / 1000 + start).requires_grad_()
    h = leaf * 1
    if hooks is None:
        return leaf, make(h).sum()
    with saved_tensors_hooks(*hooks):
        return leaf, make(h).sum()


def _gradient(leaf: torch.Tensor, out: torch.Tensor, **options: Any) -> torch.Tensor:
    leaf.grad = None
    out.backward(**options)
    return leaf.grad


def _gradients(times: int) -> Callable[[Trial], str | None]:
    def test(t: Trial) -> str | None:
        for make, name in _FUNCTIONS:
            wanted = _gradient(*_graph(make, None))
            try:
                leaf, out = _graph(make, t.result)
                for number in range(times):
                    found = _gradient(leaf, out, retain_graph=number + 1 < times)
            except Exception as error:  # whatever the reader's hooks raise belongs on the card
                return f"{name}: {_first_line(error)}"
            if not torch.equal(found, wanted):
                return f"the gradient of {name} is wrong {difference(found, wanted) or 'in its last bits'}"
        return None

    return test


_SAME_BITS = Property("give the gradients that there are without hooks, to the last bit", _gradients(1))
_TWICE = Property(
    "unpack a second time",
    _gradients(2),
    "With `retain_graph=True` backward runs twice, and asks twice for each tensor.",
)

# ---------------------------------------------------------------------------------------------------- a threshold


def _wrong_side(t: Trial) -> tuple[torch.Tensor, str] | None:
    """(Tensor on the wrong side of the threshold, what happened to it), the first of those that are tried."""
    folder, limit, pack = t.args["folder"], t.args["min_bytes"], t.result[0]
    sizes = ((torch.float64, 600), (torch.bool, 2000), (torch.float32, 1024), (torch.float32, 1023))
    tensors = [torch.zeros(count, dtype=dtype) for dtype, count in sizes]
    for tensor in (*tensors, torch.zeros(100_000, dtype=torch.float32)[:250]):
        before = len(folder.sizes())
        pack(tensor)
        gone = len(folder.sizes()) > before
        if gone != (tensor.nbytes >= limit):
            elements = f"{tensor.numel():,} elements of {str(tensor.dtype).removeprefix('torch.')}"
            whole = tensor.untyped_storage().nbytes()
            base = f" from a storage of {exact_bytes(whole)}" if whole > tensor.nbytes else ""
            did = "went to disk" if gone else "made no file"
            return (
                tensor,
                f"{elements}, {exact_bytes(tensor.nbytes)}{base}, {did}; the threshold is {exact_bytes(limit)}",
            )
    return None


def _right_side(t: Trial) -> str | None:
    found = _wrong_side(t)
    return found and found[1]


def _why_side(t: Trial) -> str:
    tensor, _ = _wrong_side(t)
    if tensor.nbytes == t.args["min_bytes"]:
        return '"At least" includes the threshold itself.'
    if tensor.untyped_storage().nbytes() > tensor.nbytes:
        return "The storage is all that lies under a slice; `t.nbytes` is the slice alone."
    return "`numel()` counts elements and `element_size()` is the bytes of each; `t.nbytes` is both."


def _slice_alone(t: Trial) -> str | None:
    folder, base = t.args["folder"], torch.arange(100_000, dtype=torch.float32)
    before = sum(folder.sizes())
    t.result[0](base[:2000])
    written = sum(folder.sizes()) - before
    return None if 8000 <= written < 12_000 else f"a slice of 8,000 B wrote {round_bytes(written)}"


def _no_leak(t: Trial) -> str | None:
    h = torch.ones(10, requires_grad=True, dtype=torch.float32) * 1
    with saved_tensors_hooks(*t.result):
        out = h.exp()
        kept = weakref.ref(out.untyped_storage())
        del out
    return (
        None if _gone(lambda: kept() is not None) else "the result of an exp whose graph was dropped is still in memory"
    )


THRESHOLD = Exercise(
    name="threshold_hooks",
    task="return `pack` and `unpack` that keep tensors of at least `min_bytes` bytes in files, and others in memory",
    parameters=("folder", "min_bytes"),
    cases=(
        Case("min_bytes=4096", lambda: (_Folder(), 4096)),
        Case("min_bytes=0", lambda: (_Folder(), 0)),
    ),
    expect=lambda folder, min_bytes: {},
    properties=(
        returns_two_functions(),
        Property(
            "write what has at least `min_bytes` bytes, and nothing else",
            _right_side,
            _why_side,
        ),
        Property(
            "write the elements of a slice alone",
            _slice_alone,
            "`torch.save` writes the whole storage under a tensor; a clone has one that fits.",
        ),
        _SAME_BITS,
        _TWICE,
        Property(
            "keep nothing alive longer than the graph does",
            _no_leak,
            "A saved result holds its own graph: what stays in memory is `t.detach()`.",
        ),
    ),
)

# ---------------------------------------------------------------------------------------------------- the traps


def _files_of_a_graph(t: Trial) -> int:
    t.args["folder"].clear()
    held = _graph(_square, t.result)
    files = len(t.args["folder"].sizes())
    del held
    return files


def _writes_files(t: Trial) -> str | None:
    files = _files_of_a_graph(t)
    many = f"{files} file{'' if files == 1 else 's'}"
    return None if files == 2 else f"the graph of h * h, two saved tensors, has {many} in the folder"


def _why_files(t: Trial) -> str:
    if _files_of_a_graph(t) == 0:
        return "Here a file must have a name, so that it can be counted; without a name is the better idea."
    return "Two slots that hold one tensor are packed each for itself."


def _two_graphs(t: Trial) -> str | None:
    try:
        first, second = _graph(_square, t.result), _graph(_square, t.result, start=10)
        found = [_gradient(*first)]
        del first
        third = _graph(_square, t.result, start=20)
        found += [_gradient(*second), _gradient(*third)]
    except Exception as error:  # whatever the reader's hooks raise belongs on the card
        return _first_line(error)
    for number, gradient in enumerate(found):
        wanted = _gradient(*_graph(_square, None, start=10 * number))
        if not torch.equal(gradient, wanted):
            return f"the gradient of graph {number + 1} of 3 is wrong {difference(gradient, wanted)}"
    return None


def _nothing_left(t: Trial) -> str | None:
    folder = t.args["folder"]
    folder.clear()
    held = _graph(_exp, t.result)
    del held
    if not _gone(folder.sizes):
        files = len(folder.sizes())
        return f"{files} file of a graph that was dropped"
    leaf, out = _graph(_square, t.result)
    _gradient(leaf, out)
    if not _gone(folder.sizes):
        files = len(folder.sizes())
        return f"{files} files after a backward, with nothing that needs them"
    return None


@contextmanager
def _overheard() -> Iterator[list[str]]:
    """What Python would print of exceptions that nobody can catch, such as those of ``__del__``."""
    heard: list[str] = []
    usual, sys.unraisablehook = sys.unraisablehook, lambda said: heard.append(said.exc_type.__name__)
    try:
        yield heard
    finally:
        sys.unraisablehook = usual


def _quiet(t: Trial) -> str | None:
    with _overheard() as heard:
        held = _graph(_square, t.result)
        t.args["folder"].clear()
        del held
    return f"{heard[0]}, where nobody can catch it" if heard else None


TRAPS = Exercise(
    name="file_hooks",
    task="return `pack` and `unpack` that keep each saved tensor in a file of its own, for as long as its graph lives",
    parameters=("folder",),
    cases=(Case("products and exponentials", lambda: (_Folder(),)),),
    expect=lambda folder: {},
    properties=(
        returns_two_functions(),
        Property("write a file for each", _writes_files, _why_files),
        Property(
            "keep the files of several graphs apart",
            _two_graphs,
            "A count of files and an `id()` come again; `uuid.uuid4().hex` does not.",
        ),
        _SAME_BITS,
        _TWICE,
        Property(
            "leave no file that no graph needs",
            _nothing_left,
            "What `pack` returns is let go when the graph is done: delete the file then. What is called then must not "
            "hold the object itself.",
        ),
        Property(
            "be quiet when a file is gone already",
            _quiet,
            "Somebody may have emptied the folder: ignore a missing file (`missing_ok=True`).",
        ),
    ),
)

EXERCISES = (ONE_LAYER, THRESHOLD, TRAPS)
