"""Documented in-place failures, each explained: the operator and line that saved, the operator and line that wrote.

Each case is a piece of a reader's code. Comments mark the line that saves and the lines that write, and the same piece
runs as a script and as a cell of a notebook.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import subprocess
import sys
import textwrap
import threading
import weakref
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from helpers import MemoryTracker, explain_inplace, guard_saved_tensors
from helpers._explain import explain_backward
from helpers.inplace import SavedTensorChanged

HEAD = """\
import torch
from torch import nn
from torch.nn import functional as F
from helpers import explain_inplace
torch.manual_seed(0)
"""


class Case(NamedTuple):
    """A failure, and what has to be said of it."""

    body: str  # the last line fails; "# saves" and "# writes" mark lines
    saved: str = ""  # "operator slot"
    wrote: tuple[str, ...] = ()
    name: str = ""
    mend: str = ""  # in the first mend
    setup: str = "model = None"
    options: str = ""
    kind: str = "version"


CASES = {
    "exp, its result": Case(
        """
        w = torch.arange(1.0, 4.0, requires_grad=True)
        u = 2 * w
        y = torch.exp(u)  # saves
        y[0] = 66.0  # writes
        y.sum().backward()
        """,
        *("exp result", ("copy_",), "y", "y = y.clone()"),
    ),
    "pow, its input": Case(
        """
        w = torch.arange(1.0, 4.0, requires_grad=True)
        u = 2 * w
        y = u ** 2  # saves
        u[0] = 66.0  # writes
        y.sum().backward()
        """,
        *("pow self", ("copy_",), "u", "u = u.clone()"),
    ),
    "sigmoid, assigned to": Case(
        """
        a = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        b = torch.sigmoid(a)  # saves
        b[1] = 2.0  # writes
        b.sum().backward()
        """,
        *("sigmoid result", ("copy_",), "b", "b = b.clone()"),
    ),
    "out= under no_grad": Case(
        """
        w = torch.ones(3, requires_grad=True)
        h = w * 2
        y = h * h  # saves
        with torch.no_grad():
            torch.add(h, 1, out=h)  # writes
        y.sum().backward()
        """,
        *("mul other", ("add",), "h", "h = torch.add(h, 1)"),
    ),
    "detach, then zero_": Case(
        """
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        y = x.sigmoid()  # saves
        y.detach().zero_()  # writes
        y.sum().backward()
        """,
        *("sigmoid result", ("zero_",), "y", "clone"),
    ),
    "a residual connection": Case(
        """
        src = torch.randn(1, 3, 4, 4, requires_grad=True)
        h = torch.relu(src * 1)
        r = model(h)  # saves
        h += r  # writes
        h.sum().backward()
        """,
        *("convolution input", ("add_",), "h", "h = h + r"),
        setup="model = nn.Conv2d(3, 3, 3, padding=1)",
    ),
    "an in-place ReLU": Case(
        """
        x = torch.randn(5, requires_grad=True)
        h = torch.tanh(x)  # saves
        F.relu(h, inplace=True)  # writes
        h.sum().backward()
        """,
        *("tanh result", ("relu_",), "h", "h = F.relu(h)"),
    ),
    "an in-place dropout": Case(
        """
        x = torch.randn(50, requires_grad=True)
        h = x.exp()  # saves
        F.dropout(h, 0.5, training=True, inplace=True)  # writes
        h.sum().backward()
        """,
        *("exp result", ("mul_",), "h", "F.dropout(h, 0.5, training=True)"),
    ),
    "through a view": Case(
        """
        x = torch.randn(4, 3, requires_grad=True)
        h = x * 2
        y = h.exp()  # saves
        v = y.view(-1)[2:4]
        v.mul_(3)  # writes
        y.sum().backward()
        """,
        *("exp result", ("mul_",), "y", "v = v.mul(3)"),
    ),
    "a leaf under no_grad": Case(
        """
        w = torch.ones(3, requires_grad=True)
        loss = (w * w).sum()  # saves
        with torch.no_grad():
            w.add_(1)  # writes
        loss.backward()
        """,
        *("mul other", ("add_",), "w", ""),
    ),
    "a step between two backwards": Case(
        """
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        out = model(torch.randn(2, 4))  # saves
        d, g = out.mean(), (out ** 2).mean()
        d.backward(retain_graph=True)
        opt.step()  # writes
        g.backward()
        """,
        *("addmm mat2", ("_foreach_add_|add_",), "2.weight, transposed", "every backward() before the first step()"),
        setup="model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))",
    ),
    "a fused step, which PyTorch does not see": Case(
        """
        opt = torch.optim.Adam(model.parameters(), fused=True)
        out = model(torch.randn(2, 4))  # saves
        out.mean().backward(retain_graph=True)
        opt.step()  # writes
        (out ** 2).mean().backward()
        """,
        *("addmm mat2", ("_fused_adam_",), "2.weight, transposed", "every backward()"),
        setup="model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))",
        options="check_values=True",
        kind="values",
    ),
    "a foreach step": Case(
        """
        opt = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
        out = model(torch.randn(2, 4))  # saves
        out.mean().backward(retain_graph=True)
        opt.step()  # writes
        (out ** 2).mean().backward()
        """,
        *("addmm mat2", ("_foreach_add_",), "2.weight, transposed", "every backward()"),
        setup="model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))",
    ),
    "a hidden state carried over steps": Case(
        """
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        h = torch.zeros(1, 3)
        for step in range(3):
            h = model(torch.ones(1, 2), h)  # saves
            h.sum().backward(retain_graph=True)
            opt.step()  # writes
        """,
        *("addmm mat2", ("add_|_foreach_add_",), "weight_hh, transposed", "h = h.detach()"),
        setup="model = nn.RNNCell(2, 3)",
    ),
    "a state loaded before backward": Case(
        """
        state = {key: value + 1 for key, value in model.state_dict().items()}
        x = torch.randn(2, 4, requires_grad=True)
        loss = model(x).sum()  # saves
        model.load_state_dict(state)  # writes
        loss.backward()
        """,
        *("addmm mat2", ("copy_",), "weight, transposed", "after backward"),
        setup="model = nn.Linear(4, 4)",
    ),
    "a buffer broadcast before backward": Case(
        """
        x = torch.randn(4, 3, requires_grad=True)
        loss = model(x).sum()  # saves
        for buffer in model.buffers():
            buffer.copy_(buffer + 1)  # writes
        loss.backward()
        """,
        *("native_batch_norm running_mean", ("copy_",), "running_mean", "after backward"),
        setup="model = nn.BatchNorm1d(3).eval()",
    ),
    "a custom Function's saved input": Case(
        """
        class Square(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x

            @staticmethod
            def backward(ctx, g):
                return 2 * ctx.saved_tensors[0] * g

        h = torch.ones(3, requires_grad=True) * 2
        y = Square.apply(h)  # saves
        h.add_(1)  # writes
        y.sum().backward()
        """,
        *("Square tensors[0]", ("add_",), "h", "h = h.add(1)"),
    ),
    "a custom Function that marks its input dirty": Case(
        """
        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.mark_dirty(x)
                return x.mul_(2)  # writes

            @staticmethod
            def backward(ctx, g):
                return 2 * g

        h = torch.ones(3, requires_grad=True) * 1
        y = h.exp()
        z = h * h  # saves
        Double.apply(h)
        z.sum().backward()
        """,
        *("mul other", ("mul_",), "h", ""),
    ),
    "double backward": Case(
        """
        x = torch.ones(3, requires_grad=True)
        y = (x * 2).exp()  # saves
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        y.detach().mul_(2)  # writes
        g.sum().backward()
        """,
        *("exp result", ("mul_",), "y", ""),
    ),
    "what a first backward recorded": Case(
        """
        x = torch.ones(3, requires_grad=True)
        seed = torch.ones(3, requires_grad=True) * 1
        y = x * x
        (g,) = torch.autograd.grad(y, x, seed, create_graph=True)  # saves
        seed.mul_(2)  # writes
        g.sum().backward()
        """,
        *("mul other|mul self", ("mul_",), "seed", ""),
    ),
    "the input of a checkpoint": Case(
        """
        x = torch.ones(3, requires_grad=True) * 1
        y = torch.utils.checkpoint.checkpoint(torch.exp, x, use_reentrant=False)  # saves
        x.add_(1)  # writes
        y.sum().backward()
        """,
        *("checkpoint inputs[1]|checkpoint inputs[0]", ("add_",), "x", "x = x.add(1)"),
        setup="import torch.utils.checkpoint\nmodel = None",
    ),
    "the input of a reentrant checkpoint": Case(
        """
        x = torch.ones(3, requires_grad=True) * 1
        y = torch.utils.checkpoint.checkpoint(torch.exp, x, use_reentrant=True)  # saves
        x.add_(1)  # writes
        y.sum().backward()
        """,
        *("CheckpointFunction tensors[0]", ("add_",), "x", ""),
        setup="import torch.utils.checkpoint\nmodel = None",
    ),
    "two writes": Case(
        """
        x = torch.ones(3, requires_grad=True)
        y = x.exp()  # saves
        y.add_(1)  # writes
        y.mul_(2)  # writes
        y.sum().backward()
        """,
        *("exp result", ("add_", "mul_"), "y", ""),
    ),
    "a silent write through .data": Case(
        """
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        y = x.sigmoid()  # saves
        y.data.zero_()  # writes
        y.sum().backward()
        """,
        *("sigmoid result", ("zero_",), "y", ""),
        options="check_values=True",
        kind="values",
    ),
    "a silent step through .data": Case(
        """
        w = torch.ones(3, requires_grad=True)
        loss = (w * w).sum()  # saves
        w.data.add_(1)  # writes
        loss.backward()
        """,
        *("mul other", ("add_",), "w", ""),
        options="check_values=True",
        kind="values",
    ),
    "batch norm in evaluation, then in training": Case(
        """
        x = torch.randn(4, 3, requires_grad=True)
        y = model(x)  # saves
        model.train()
        model(x)  # writes
        y.sum().backward()
        """,
        *(
            "native_batch_norm running_mean",
            ("native_batch_norm",),
            "running_mean",
            "before the next forward in training",
        ),
        setup="model = nn.BatchNorm1d(3).eval()",
        options="check_values=True",
        kind="values",
    ),
}
PARAMETERS = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def script_of(case: Case) -> str:
    """The case as a whole script."""
    body = textwrap.dedent(case.body).strip("\n")
    options = f", {case.options}" if case.options else ""
    return f"{HEAD}{case.setup}\nwith explain_inplace(model{options}) as report:\n{textwrap.indent(body, '    ')}\n"


def marked(text: str, mark: str) -> list[tuple[int, str]]:
    """(line number, line) of the lines with a mark."""
    lines = enumerate(text.splitlines(), 1)
    return [(number, line.strip()) for number, line in lines if line.rstrip().endswith(f"# {mark}")]


def run(text: str, file: str = "reader.py", **names: object):
    """Runs a reader's script. Returns its report, and the error or None."""
    import linecache

    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    namespace: dict = dict(names)
    try:
        exec(compile(text, file, "exec"), namespace)
    except RuntimeError as error:
        return namespace["report"], error
    return namespace["report"], None


def matches(pattern: str, text: str) -> bool:
    return any(option in text for option in pattern.split("|"))


@PARAMETERS
def test_a_script_is_told_both_lines(case):
    text = script_of(case)
    report, error = run(text)
    assert error is not None and report.kind == case.kind
    saved = report.saved
    assert matches(case.saved, f"{saved.op} {saved.slot}"), saved
    ((number, line),) = marked(text, "saves")
    assert (saved.line.line, saved.line.text) == (number, line)
    assert [(w.line.line, w.line.text) for w in report.writes] == marked(text, "writes")
    for write, wrote in zip(report.writes, case.wrote):
        assert matches(wrote, write.op)
    assert report.name == case.name
    assert not case.mend or case.mend in report.mends[0], report.mends
    assert report.raised.line == len(text.splitlines()) or "for step" in text
    assert report.version_now is not None and (case.kind == "values") == (report.version_now == report.version_then)
    # All of it is in the message, after PyTorch's own first sentence.
    assert re.match(
        "one of the variables needed for gradient computation has been modified by an inplace op", str(error)
    )
    assert str(error).endswith(report.text)
    for said in (str(saved.line), str(report.writes[-1].line), f"version {report.version_then}"):
        assert said in str(error)
    for mend in report.mends:  # sentences are broken over lines; the lines of code above are not
        assert mend in re.sub(r"\s+", " ", str(error))
    assert all(len(line) <= 92 for line in report.text.splitlines() if "- " in line or "Needed" in line)


@PARAMETERS
def test_the_error_is_pytorchs_own(case):
    if case.kind == "values":
        pytest.skip("PyTorch raises nothing")
    text = script_of(case)
    report, error = run(text)
    plain = text.replace("with explain_inplace(model) as report:", "report = None\nif True:")
    _, bare = run(plain, "plain.py")
    assert type(error) is type(bare) and str(error) == f"{bare}\n\n{report.text}"


@PARAMETERS
def test_mended_by_hand_nothing_is_said(case):
    # The twin: without the lines that write there is no error, no output and no word.
    text = "\n".join(line for line in script_of(case).splitlines() if "# writes" not in line or "return" in line)
    text = (
        text.replace("buffers():", "buffers(): pass")
        .replace("no_grad():", "no_grad(): pass")
        .replace("return x.mul_(2)", "return x")
    )
    text = text.replace("Double.apply(h)", "pass")
    report, error = run(text)
    assert error is None and report.kind == "" and report.text == "" and report.saved is None


def test_as_a_script_of_its_own(tmp_path, root):
    case = CASES["a residual connection"]
    (tmp_path / "train.py").write_text(script_of(case))
    env = dict(os.environ, PYTHONPATH=str(root))
    done = subprocess.run([sys.executable, "train.py"], capture_output=True, text=True, cwd=tmp_path, env=env)
    assert done.returncode == 1 and done.stdout == ""
    for mark in ("saves", "writes"):
        ((number, line),) = marked(script_of(case), mark)
        assert f"train.py, line {number}: {line}" in done.stderr


# -- in a notebook -----------------------------------------------------------------------------------------------------


def cells_of(case: Case) -> tuple[str, str]:
    """The case in a cell under the magic, and in a cell with the context manager."""
    body = textwrap.dedent(case.body).strip("\n")
    options = f", {case.options}" if case.options else ""
    with_block = f"with explain_inplace(model{options}) as report:\n{textwrap.indent(body, '    ')}"
    return f"%%explain_inplace model{options}\n\n{body}", with_block


@pytest.fixture(scope="module")
def notebook(root):
    """All cases as cells of one notebook, run by a kernel: (cell, its outputs), after the cells that set up."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    sources = [
        HEAD,
        _EXTRA_CELLS["sets a name"],
        "shown_later",
        _EXTRA_CELLS["quiet"],
        _EXTRA_CELLS["notes"],
        "%load_ext helpers",
    ]
    for case in CASES.values():
        for cell in cells_of(case):
            sources += [case.setup, cell]
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    client = nbclient.NotebookClient(made, allow_errors=True, resources={"metadata": {"path": str(root)}})
    client.execute()
    return made.cells


_EXTRA_CELLS = {
    "sets a name": "%%explain_inplace\n\nshown_later = torch.ones(2) + 1\nshown_later * 2",
    "quiet": "%%guard_saved_tensors\ntorch.ones(2);",
    "notes": "%%explain_inplace reads=True\nx = torch.ones(3, requires_grad=True) * 1\nx.relu_() * 2 + x",
}


@pytest.mark.parametrize("magic", [True, False], ids=["magic", "with"])
@PARAMETERS
def test_a_cell_is_told_both_lines(case, magic, notebook):
    source = cells_of(case)[0 if magic else 1]
    before = [c for c in notebook if c.source == source]
    (cell,) = before
    (output,) = [o for o in cell.outputs if o.output_type == "error"]
    number = cell.execution_count
    for mark in ("saves", "writes"):
        for line, text in marked(source, mark):
            assert f"In [{number}], line {line}: {text}" in output.evalue
    assert output.ename in ("RuntimeError", "SavedTensorChanged")


def test_a_cell_shows_its_value_and_keeps_its_names(notebook):
    texts = [c.outputs[0]["data"]["text/plain"] if c.outputs else "" for c in notebook[1:6]]
    assert texts[:3] == ["tensor([4., 4.])", "tensor([2., 2.])", ""]
    assert texts[4] == "" and not notebook[5].outputs
    note, value = notebook[4].outputs
    assert "add reads what relu_ wrote before" in note["data"]["text/plain"]
    assert value["data"]["text/plain"].startswith("tensor([3., 3., 3.]")


def test_a_magic_says_what_it_takes():
    from IPython.core.error import UsageError

    from helpers._magics import _arguments

    model = nn.Linear(1, 1)
    assert _arguments("model, reads=True", {"model": model}, "explain_inplace") == ((model,), {"reads": True})
    with pytest.raises(UsageError, match=r"between its parentheses.*got 'model reads'"):
        _arguments("model reads", {}, "explain_inplace")


# -- errors at the write itself ----------------------------------------------------------------------------------------

BASE = "base = lambda: torch.ones(4, 2, requires_grad=True) * 1\n"
AT_THE_WRITE = {
    "a leaf": ("leaf", "w = torch.ones(3, requires_grad=True)\nw += 1", "no_grad"),
    "an item of a leaf": ("view of a leaf", "w = torch.ones(3, requires_grad=True)\nw[0] = 1.0", "no_grad"),
    "a view of a leaf": ("view of a leaf", "w = torch.ones(3, requires_grad=True)\nw.view(3).add_(1)", "no_grad"),
    "a chunk": ("multi-output view", BASE + "a = base().chunk(2)[0]\na.add_(1)", "x[i]"),
    "a row": ("multi-output view", BASE + "for row in base():\n    row.mul_(2)", "x[i]"),
    "a view made under no_grad": (
        "no_grad view",
        "x = torch.ones(3, requires_grad=True) * 1\nwith torch.no_grad(): v = x[:2]\nv.mul_(2)",
        "make the view where it is written to",
    ),
    "an expanded tensor": ("expanded memory", "e = torch.zeros(3, 1).expand(3, 4)\ne.add_(1)", "clone"),
    "out= with a history": (
        "out= with grad",
        "x = torch.ones(3, requires_grad=True)\ny = torch.ones(3)\ntorch.exp(x, out=y)",
        "drop out=",
    ),
    "an inference tensor": (
        "inference tensor",
        "with torch.inference_mode(): x = torch.ones(3)\nx.add_(1)",
        "clone it",
    ),
    "a custom Function's view": (
        "view from a custom Function",
        "class Same(torch.autograd.Function):\n"
        "    forward = staticmethod(lambda ctx, x: x.view(-1))\n"
        "    backward = staticmethod(lambda ctx, g: g)\n"
        "y = Same.apply(torch.ones(2, requires_grad=True) * 1)\ny.add_(1)",
        "mark_dirty",
    ),
    "a pack hook that writes": (
        "pack hook",
        "from torch.autograd.graph import saved_tensors_hooks\n"
        "b = torch.ones(3, requires_grad=True) * 1\n"
        "with saved_tensors_hooks(lambda t: t.add_(2), lambda t: t): b * b",
        "t.detach().clone()",
    ),
}


@pytest.mark.parametrize(("kind", "body", "mend"), AT_THE_WRITE.values(), ids=AT_THE_WRITE)
def test_an_error_at_the_write_is_explained(kind, body, mend):
    text = script_of(Case(body))
    report, error = run(text)
    assert report.kind == kind and report.saved is None
    assert report.raised.line == len(text.splitlines())
    assert any(mend in said for said in report.mends)
    _, bare = run(HEAD + "report = None\n" + body)
    assert str(error) == f"{bare}\n\n{report.text}" and type(error) is type(bare)


def test_the_line_that_made_a_row_and_the_hook_that_wrote_are_named():
    report, _ = run(script_of(Case(AT_THE_WRITE["a row"][1])))
    assert any("made by unbind at reader.py, line 9: for row in base():" in note for note in report.notes), report.notes
    report, _ = run(script_of(Case(AT_THE_WRITE["a pack hook that writes"][1])))
    (write,) = report.writes
    assert write.op == "add_" and "t.add_(2)" in write.line.text


def test_expanded_memory_is_no_single_answer():
    report, error = run(script_of(Case("base = torch.zeros(3, 1)\ne = base.expand(3, 4)\ne[0, 0] = 5.0\ne.zero_()")))
    assert error is None  # silent, as the explanation of the others says
    report, _ = run(script_of(Case(AT_THE_WRITE["an expanded tensor"][1])))
    assert "e[0, 0] = 5 write without a word" in report.why


# -- a graph used up ---------------------------------------------------------------------------------------------------

RNN = """
for step in range(3):
    h = model(torch.ones(1, 2), h)
    h.sum().backward()
"""


def test_a_second_backward_is_led_to_the_state_carried_over():
    text = script_of(Case("h = torch.zeros(1, 3)" + RNN, setup="model = nn.RNNCell(2, 3)"))
    report, error = run(text)
    assert report.kind == "freed" and "a second time" in str(error)
    assert "freed already by the backward at reader.py, line 11: h.sum().backward()" in report.why
    assert report.name == "h" and report.mends[0].endswith("h = h.detach()")
    assert any(
        "line 10: h = model(torch.ones(1, 2), h) takes h, what tanh made before" in note for note in report.notes
    )


def test_a_second_backward_of_one_loss():
    report, _ = run(
        script_of(Case("x = torch.ones(2, requires_grad=True)\ny = x.exp().sum()\ny.backward()\ny.backward()"))
    )
    assert report.kind == "freed" and "exp at reader.py, line 9" in report.why and "line 10: y.backward()" in report.why
    assert any("retain_graph=True" in mend for mend in report.mends)


# -- what is no error --------------------------------------------------------------------------------------------------

FINE = {
    "detach written before it is used": """
        x = torch.tensor([1.0, 2.0], requires_grad=True) * 1
        x.detach().zero_()
        (x * torch.ones(2, requires_grad=True)).sum().backward()
    """,
    "the input of exp, the result of pow": """
        u = torch.ones(3, requires_grad=True) * 2
        y = u.exp()
        u[0] = 66.0
        z = y ** 2
        z[0] = 5.0
        z.sum().backward()
    """,
    "sigmoid by hand": """
        a = torch.ones(3, requires_grad=True)
        b = 1 / (1 + (-a).exp())
        b[1] = 2.0
        b.sum().backward()
    """,
    "in-place operators that save a clone": """
        x = torch.rand(9, requires_grad=True) * 1
        x.sin_().cos_().pow_(3).clamp_(0.2, 0.8).abs_().sigmoid_()
        x.sum().backward()
    """,
    "an index in a loop": """
        h = torch.ones(3, 2, requires_grad=True) * 1
        for i in range(3):
            h[i].mul_(2)
        h.sum().backward()
    """,
}


@pytest.mark.parametrize("body", FINE.values(), ids=FINE)
def test_what_is_right_is_left_alone(body, capsys):
    report, error = run(script_of(Case(body, options="check_values=True")))
    assert error is None and report.text == "" and repr(report) == "explain_inplace: nothing to explain"
    assert capsys.readouterr() == ("", "")


def test_an_in_place_operator_that_saves_its_result_is_named_without_its_underscore():
    report, _ = run(
        script_of(Case("x = torch.rand(9, requires_grad=True) * 1\nx.sigmoid_()\nx.add_(1)\nx.sum().backward()"))
    )
    assert report.saved.op == "sigmoid" and [w.op for w in report.writes] == ["add_"]


def test_a_write_to_other_elements_is_called_a_false_alarm():
    body = """
        x = torch.ones(4, requires_grad=True) * 1
        y = x[:2] * x[:2]
        x.detach()[3] = 5.0
        y.sum().backward()
    """
    report, error = run(script_of(Case(body)))
    assert error is not None and report.writes[0].overlaps is False
    assert any("would have been right" in note for note in report.notes)
    report, _ = run(script_of(Case(body.replace("[3]", "[1]"))))
    assert report.writes[0].overlaps is True and not report.notes


# -- notes on request --------------------------------------------------------------------------------------------------


def test_reads_after_a_write_are_noted_on_request():
    body = """
        w = torch.randn(50, requires_grad=True)
        x = w * 1
        a = F.relu(x, inplace=True) * 2
        out = a + x
        out.sum().backward()
    """
    report, error = run(script_of(Case(body, options="reads=True")))
    assert error is None
    (read,) = report.reads
    assert (read.op, read.line.text) == ("add", "out = a + x")
    assert (read.write.op, read.write.line.text) == ("relu_", "a = F.relu(x, inplace=True) * 2")
    for twin in (body.replace("inplace=True", "inplace=False"), body.replace("a + x", "a + w")):
        assert not run(script_of(Case(twin, options="reads=True")))[0].reads
    assert not run(script_of(Case(body)))[0].reads


def test_a_write_into_a_copy_is_noted_on_request():
    lost = "x = torch.zeros(3)\nidx = torch.tensor([0, 0, 1])\nx[idx].add_(1)\nx[x == 0].fill_(4)"
    report, _ = run(script_of(Case(lost, options="reads=True")))
    assert [(w.op, w.line.text) for w in report.lost] == [("add_", "x[idx].add_(1)"), ("fill_", "x[x == 0].fill_(4)")]
    kept = "x = torch.zeros(3)\nidx = torch.tensor([0, 0, 1])\nx[idx] += 1\ny = x[idx].add_(1) * 2\nx[1:].add_(1)"
    assert not run(script_of(Case(kept, options="reads=True")))[0].lost


FUNCTION = """
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        MARK
        x.mul_(2)
        return x
    @staticmethod
    def backward(ctx, g):
        return g * 2
x = torch.ones(2, requires_grad=True) * 1
y = Double.apply(x)
x.sum().backward()
"""


def test_a_function_that_marks_nothing_dirty_is_noted_on_request():
    report, _ = run(script_of(Case(FUNCTION.replace("MARK", "pass"), options="reads=True")))
    (note,) = report.notes
    assert "mul_ at reader.py, line 12: x.mul_(2)" in note and "y = Double.apply(x)" in note
    assert "its history is still mul" in note and "mark_dirty" in note
    assert not run(script_of(Case(FUNCTION.replace("MARK", "ctx.mark_dirty(x)"), options="reads=True")))[0].notes


def test_a_training_loop_gives_no_notes():
    body = """
        opt = torch.optim.Adam(model.parameters())
        for _ in range(3):
            opt.zero_grad()
            model(torch.randn(4, 3)).sum().backward()
            opt.step()
    """
    setup = "model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.ReLU(inplace=True), nn.Linear(3, 1))"
    assert not run(script_of(Case(body, setup=setup, options="reads=True")))[0].text


# -- living with others ------------------------------------------------------------------------------------------------


def fails() -> None:
    y = torch.ones(3, requires_grad=True).exp()
    y.add_(1)
    y.sum().backward()


def test_caught_inside_the_block_it_is_explained_all_the_same():
    with explain_inplace() as report:
        with pytest.raises(RuntimeError, match="Written:  add_, version 1"):
            fails()
        assert report.saved.op == "exp"


def test_the_last_of_several_errors_is_reported():
    with pytest.raises(RuntimeError, match=r"a leaf Variable.*\n\nMeaning:"), explain_inplace() as report:
        x = torch.ones(4, requires_grad=True)
        for part in (slice(0, 2), slice(2, 4)):
            h = x * 1
            y = h[:2] * h[:2]
            h.detach()[part] = 5.0
            with contextlib.suppress(RuntimeError):
                y.sum().backward()
            assert len(report.writes) == 1 and len(report.notes) == (part.start == 2)
        x += 1
    assert report.kind == "leaf" and not report.writes and report.saved is None


def test_nested_blocks_explain_once_and_each_report_is_full():
    with pytest.raises(RuntimeError) as caught, explain_inplace() as outer, explain_inplace() as inner:
        fails()
    assert outer.text == inner.text and str(caught.value).count("Saved by:") == 1


def test_what_ran_before_the_block_is_told_without_a_line():
    y = torch.ones(3, requires_grad=True).exp()
    with pytest.raises(RuntimeError, match="before this block began") as caught, explain_inplace() as report:
        y.add_(1)
        y.sum().backward()
    assert report.saved.op == "exp" and report.saved.line is None and report.writes[0].op == "add_"
    assert report.name == "y" and "test_inplace.py, line" in str(caught.value)


def test_backward_in_threads():
    errors: dict[int, BaseException] = {}

    def backward(number, y):
        try:
            y.sum().backward()
        except RuntimeError as error:
            errors[number] = error

    with explain_inplace() as report:
        ys = [torch.ones(3, requires_grad=True).exp() for _ in range(4)]
        for y in ys[::2]:
            y.add_(1)
        threads = [threading.Thread(target=backward, args=pair) for pair in enumerate(ys)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(errors) == [0, 2] and report.saved.op == "exp"
    assert all("y.add_(1)" in str(error) and "ys = [" in str(error) for error in errors.values())


def test_in_a_thread_of_its_own():
    said = []

    def work():
        try:
            with explain_inplace():
                fails()
        except RuntimeError as error:
            said.append(str(error))

    with explain_inplace() as other:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert "y = torch.ones(3, requires_grad=True).exp()" in said[0]
    assert (
        other.saved is not None and other.saved.line is None
    )  # it saw another thread's operators as little as its writes


@pytest.mark.parametrize("outer", ["tracker", "explain"])
def test_with_a_memory_tracker_in_either_order(outer):
    x = torch.ones(1000, requires_grad=True)
    alone = MemoryTracker(x)
    with alone:
        (x.exp() * 2).sum().backward()
    x.grad = None
    tracker = MemoryTracker(x)
    first, second = (tracker, explain_inplace(check_values=True))[:: 1 if outer == "tracker" else -1]
    with first, second:
        (x.exp() * 2).sum().backward()
    assert tracker.peak_bytes == alone.peak_bytes
    assert [(e.op, e.delta_bytes) for e in tracker.timeline] == [(e.op, e.delta_bytes) for e in alone.timeline]
    tracker = MemoryTracker()
    first, second = (tracker, explain_inplace())[:: 1 if outer == "tracker" else -1]
    with pytest.raises(RuntimeError, match="Written:  add_"), first, second:
        fails()


def test_torch_func_and_checkpoint_work_inside():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    x = torch.randn(4, 3)

    def gradients(reentrant: bool):
        model.zero_grad()
        checkpoint(model, x.clone().requires_grad_(), use_reentrant=reentrant).sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    plain = gradients(False), gradients(True), torch.func.grad(lambda t: model(t).sum())(x)
    with explain_inplace(model, check_values=True) as report:
        inside = gradients(False), gradients(True), torch.func.grad(lambda t: model(t).sum())(x)
    assert report.text == ""
    for a, b in zip(plain[:2], inside[:2]):
        assert all(torch.equal(p, q) for p, q in zip(a, b))
    assert torch.equal(plain[2], inside[2])


def test_anomaly_mode_goes_on():
    with (
        torch.autograd.set_detect_anomaly(True),
        pytest.warns(UserWarning, match="Error detected in ExpBackward0"),
        pytest.raises(RuntimeError, match=r"Good luck!\s+Tensor:   variable y") as caught,
        explain_inplace(),
    ):
        fails()
    assert "Written:  add_" in str(caught.value)


test_anomaly_mode_goes_on = pytest.mark.filterwarnings("ignore")(test_anomaly_mode_goes_on)


def test_writes_of_python_in_backward_are_seen():
    h = torch.ones(3, requires_grad=True) * 1
    y = h.exp()
    with pytest.raises(RuntimeError), explain_inplace() as report:
        z = h * h
        y.register_hook(lambda g: h.detach().add_(1) and None if False else _write(h))
        (y + 0 * z.detach()).sum().backward(retain_graph=True)
        z.sum().backward()
    assert [w.op for w in report.writes] == ["add_"] and "h.detach().add_(1)" in report.writes[0].line.text


def _write(h: torch.Tensor) -> None:
    h.detach().add_(1)


def test_everything_is_as_before_afterwards():
    before = torch.autograd._engine_run_backward, saved_tensors_hooks.__enter__
    for body in (fails, lambda: None):
        try:
            with explain_inplace(check_values=True):
                body()
        except RuntimeError:
            pass
        assert torch._C._len_torch_dispatch_stack() == 0 and torch._C._len_torch_function_stack() == 0
        assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None
        assert (torch.autograd._engine_run_backward, saved_tensors_hooks.__enter__) == before


def test_nothing_is_kept_alive():
    model = nn.Linear(3, 3)
    block = explain_inplace(model, check_values=True, reads=True)

    def work(model):
        x = torch.ones(3, requires_grad=True)
        y = model(x).exp()
        refs = [weakref.ref(t) for t in (x, y, model.weight)]
        try:
            with block:
                z = y * y
                y.mul_(2)
                z.sum().backward()
        except RuntimeError as error:
            return refs, error.with_traceback(None)

    refs, error = work(model)
    del model
    gc.collect()
    assert [ref() for ref in refs] == [None] * 3
    assert "Written:  mul_" in str(error) and block.report.name == "y"


def test_a_variable_deleted_after_the_error_is_free():
    h = torch.ones(3, requires_grad=True) * 1
    ref = weakref.ref(h)
    try:
        with explain_inplace() as report:
            y = h * h
            h.add_(1)
            y.sum().backward()
    except RuntimeError:
        pass
    assert report.name == "h"
    del h, y
    gc.collect()
    assert ref() is None


def test_wrong_use_is_told():
    with pytest.raises(TypeError, match=r"takes a torch.nn.Module.*got Tensor.*pass the model, or nothing"):
        explain_inplace(torch.ones(1))
    block = explain_inplace()
    with block:
        pass
    with pytest.raises(RuntimeError, match="make a new one"), block:
        pass


def test_a_fault_of_ours_does_not_hide_the_readers_error(monkeypatch):
    monkeypatch.setattr("helpers.inplace.explain_backward", lambda *args: 1 / 0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught, explain_inplace():
        fails()
    assert "could not explain this: ZeroDivisionError" in caught.value.__notes__[0]
    assert explain_backward is not None


def test_hooks_that_switch_the_check_off_are_the_guards_business():
    with explain_inplace() as report, save_on_cpu():
        b = torch.ones(3, requires_grad=True) * 1
        c = b * b
        b.mul_(10)
        c.sum().backward()
    assert report.text == ""
    with pytest.raises(SavedTensorChanged, match="Written:  mul_"), explain_inplace(check_values=True), save_on_cpu():
        b = torch.ones(3, requires_grad=True) * 1
        c = b * b
        b.mul_(10)
        c.sum().backward()
    with guard_saved_tensors(check_values=False):
        torch.ones(3, requires_grad=True).exp().sum().backward()
