"""What does a graph picture say, and is it true? Bytes are counted by hand here, shapes of graphs by torchviz."""

from __future__ import annotations

import base64
import gc
import os
import re
import subprocess
import sys
import weakref
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from helpers import _graph_layout as layout
from helpers.graph import FREED, NO_GRAPH, GraphPicture, draw_graph, plain_name
from helpers.inplace import SavedTensorChanged, explain_inplace, guard_saved_tensors
from helpers.saved import saved_tensors


@pytest.fixture(autouse=True)
def text_renderer(monkeypatch):
    """Most tests are about what was read; those about drawing choose a program themselves."""
    monkeypatch.setenv("TENSOR_LAB_RENDERER", "text")


def leaf(*shape):
    return torch.rand(*shape, requires_grad=True)


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def of_kind(picture, kind):
    return [node for node in picture.nodes if node.kind == kind]


# --- what is kept ---


def test_a_tensor_kept_twice_is_one_box_with_two_ties_and_no_extra_bytes():
    a = leaf(5)
    picture = draw_graph(a * a, names={"a": a})
    assert [node.name for node in picture.nodes] == ["output", "mul", "a"]
    ties = [edge for edge in picture.edges if edge.kind == "saved"]
    assert [(e.source, e.target, e.label) for e in ties] == [("mul_1", "leaf_1", "self"), ("mul_1", "leaf_1", "other")]
    assert [(s.op, s.slot, s.shape, s.dtype, s.nbytes, s.kind) for s in picture.saved] == [
        ("mul", "self", (5,), torch.float32, 20, "leaf"),
        ("mul", "other", (5,), torch.float32, 20, "leaf"),
    ]
    assert (picture.saved_bytes, picture.parameter_bytes) == (0, 20)
    assert "0 B extra" in picture.title and "20 B" in picture.title
    # The twin: another tensor in the second slot is a second box.
    b = leaf(5)
    assert len(of_kind(draw_graph(a * b), "leaf")) == 2


def test_a_saved_result_says_that_it_is_the_output():
    x = leaf(3)
    y = x.exp()
    picture = draw_graph(y)
    assert picture.saved_bytes == 12 and picture.title == "1 operator keeps 1 tensor, 12 B"
    assert "same storage as the output" in of_kind(picture, "saved")[0].lines
    assert "same storage as the output" in picture.text
    assert "same storage as" not in draw_graph(y * 2).text  # control: now exp's result lies inside the graph


def test_one_storage_kept_by_two_operators_counts_once():
    picture = draw_graph(leaf(10).exp().sin().sum())
    assert [(s.op, s.slot, s.storage) for s in picture.saved] == [("sin", "self", "A"), ("exp", "result", "A")]
    assert picture.saved_bytes == 40 and picture.title == "2 operators keep 1 tensor, 40 B"


@pytest.mark.parametrize(
    ("make", "nbytes", "used", "whole", "said"),
    [
        (lambda y: y[:10] * y[:10], 40, 40, 4000, "40 of 4,000 B"),
        (lambda y: y * torch.rand(1, 1000).expand(5, 1000), 20000, 4000, 4000, "4,000 B"),
    ],
)
def test_a_view_keeps_its_whole_storage(make, nbytes, used, whole, said):
    picture = draw_graph(make(torch.rand(1000, requires_grad=True).clone()))
    first = picture.saved[0]
    assert (first.nbytes, first.used_bytes, first.storage_nbytes) == (nbytes, used, whole)
    assert picture.saved_bytes == whole and said in picture.text


def test_parameters_are_named_by_their_memory_and_counted_apart():
    model, x = mlp(), torch.rand(4, 8)
    picture = draw_graph(model(x), model, names={"x": x})
    kept = {(s.slot, s.name): s.kind for s in picture.saved}
    assert kept[("mat2", "2.weight")] == "parameter" and kept[("mat1", "x")] == "activation"
    assert picture.saved_bytes == 4 * 8 * 4 + 4 * 16 * 4  # the input, and ReLU's result, which mat1 keeps as well
    assert picture.parameter_bytes == 2 * 16 * 4  # 2.weight; 0.weight is not needed, as x wants no gradient
    assert {node.name for node in of_kind(picture, "leaf")} == {"0.weight", "0.bias", "2.weight", "2.bias"}
    # The control: without the model the same boxes have no name.
    assert {node.name for node in of_kind(draw_graph(model(x)), "leaf")} == {f"leaf {i}" for i in range(1, 5)}


def test_frozen_parameters_and_buffers_exist_anyway():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).requires_grad_(False).eval()
    x = leaf(2, 4)
    picture = draw_graph(model(x), model)
    kinds = {s.name: s.kind for s in picture.saved if s.name}
    assert kinds["0.weight"] == "parameter" and kinds["1.running_var"] == "buffer"
    assert "frozen parameter" in draw_graph(model[0](x), model).text


def test_a_custom_function_keeps_its_name_and_its_saved_tensors():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x, None, x * x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            x, _, square = ctx.saved_tensors
            return g * 3 * square + 0 * x

    x = leaf(3)
    y = Cube.apply(x)
    picture = draw_graph(y)
    assert [(s.op, s.slot) for s in picture.saved] == [("Cube", "tensors[0]"), ("Cube", "tensors[2]")]
    assert (picture.saved_bytes, picture.parameter_bytes) == (12, 12)
    y.sum().backward()
    assert draw_graph(y).title == FREED


def test_what_a_custom_function_puts_on_ctx_is_drawn_and_outlives_backward():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, by_hand):
            ctx.save_for_backward(x)
            if by_hand:
                ctx.twice = (2 * x, "a word")
            return x * x

        @staticmethod
        def backward(ctx, g):
            return 2 * g, None

    x = leaf(3)
    y = Square.apply(x, True)
    assert [(s.slot, s.note) for s in draw_graph(y).saved] == [
        ("tensors[0]", ""),
        ("ctx.twice", "put on ctx by hand"),
    ]
    assert draw_graph(y).saved_bytes == 12 and draw_graph(Square.apply(x, False)).saved_bytes == 0
    y.sum().backward()
    assert draw_graph(y).saved_bytes == 12 and FREED in draw_graph(y).title


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda x: x * x, "mul"),
        (lambda x: nn.functional.max_pool2d(x, 2), "max_pool2d_with_indices"),
        (lambda x: x.log_softmax(-1), "log_softmax"),
    ],
)
def test_plain_names(make, name):
    assert plain_name(make(leaf(1, 1, 4, 4)).grad_fn) == name


def test_show_saved_false_reads_nothing():
    calls = []
    with saved_tensors_hooks(lambda t: 7, lambda p: calls.append(p)):
        y = leaf(3).exp()
    picture = draw_graph(y, show_saved=False)
    assert picture.saved == [] and not calls and not of_kind(picture, "saved")


# --- graphs that are not there any more, or never were ---


def test_no_graph_and_a_leaf_say_so():
    picture = draw_graph(torch.ones(3))
    assert picture.title == NO_GRAPH and len(picture.nodes) == 1 and not picture.edges and NO_GRAPH in picture.alt
    a = leaf(3)
    assert "itself a leaf" in draw_graph(a, names={"a": a}).title


def test_a_freed_graph_gives_a_message():
    x = leaf(3)
    y = (x * x).exp().sum()
    y.backward(retain_graph=True)
    assert "freed" not in draw_graph(y).title  # control: still there
    y.backward()
    picture = draw_graph(y)
    assert picture.title == FREED == "saved tensors already freed: draw before backward()"
    assert FREED in picture.alt and picture.saved == [] and picture.saved_bytes == 0


def test_a_graph_freed_in_part():
    x = leaf(3)
    shared = x.exp()
    shared.sum().backward()
    picture = draw_graph(shared.sin())
    assert [s.op for s in picture.saved] == ["sin"] and "1 operator: saved tensors already freed" in picture.title


def test_an_overwritten_tensor_is_shown_and_named():
    w = leaf(3).exp()
    product = w.sin()
    assert "overwritten" not in draw_graph(product).title  # control
    w.add_(1)
    picture = draw_graph(product)
    assert {s.note for s in picture.saved} == {"overwritten"} and "backward() will raise" in picture.title
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


# --- other people's hooks ---


def test_hooks_run_once_at_most_and_without_a_graph():
    store, calls = [], []

    def pack(t):
        store.append(t.detach())
        return len(store) - 1

    def unpack(i):
        calls.append((i, torch.is_grad_enabled()))
        return store[i]

    x = leaf(3)
    with saved_tensors_hooks(pack, unpack):
        y = x * x.exp()
    picture = draw_graph(y)
    assert sorted(calls) == [(0, False), (1, False), (2, False)] and torch.is_grad_enabled()
    assert {s.shape for s in picture.saved} == {(3,)} and {s.note for s in picture.saved} == {"packed by a hook"}
    y.sum().backward()  # still works


@pytest.mark.parametrize("pack", [lambda t: t.detach().bfloat16(), lambda t: ("cpu", t.detach().bfloat16())])
def test_a_packed_tensor_is_looked_at_and_not_unpacked(pack):
    calls = []
    with saved_tensors_hooks(pack, lambda p: calls.append(p)):
        y = leaf(3).exp()
    picture = draw_graph(y)
    assert not calls and picture.saved_bytes == 6 and picture.saved[0].dtype is torch.bfloat16


def test_a_hook_that_fails_does_not_stop_the_picture():
    def unpack(_):
        raise OSError("disk is gone")

    with saved_tensors_hooks(lambda t: "file", unpack):
        y = leaf(3).exp()
    picture = draw_graph(y)
    assert "could not be unpacked" in picture.title and "disk is gone" in picture.text
    with pytest.raises(OSError, match="disk is gone"):
        y.sum().backward()


def test_a_checkpoint_is_not_run_again():
    runs = []

    def block(x):
        runs.append(1)
        return x.exp().sin()

    y = checkpoint(block, leaf(3) * 1.0, use_reentrant=False)
    picture = draw_graph(y)
    assert len(runs) == 1 and "recomputed by checkpoint" in picture.title
    # Its input is told once, with the first operator that needs it.
    held = [(s.op, s.slot, s.shape) for s in picture.saved if s.note == "kept to run a checkpoint again"]
    assert held == [("sin", "checkpoint input 1", (3,))]
    y.sum().backward()
    assert len(runs) == 2  # control: backward does run it again


# --- no trace ---


def test_the_picture_keeps_nothing_alive():
    x = leaf(1000)
    y = x.exp()
    storage, output = StorageWeakRef(y.untyped_storage()), weakref.ref(y)  # exp's node keeps this storage
    picture = draw_graph(y, names={"y": y})
    gc.collect()
    assert not storage.expired()  # control: y itself is still here
    del y
    gc.collect()
    assert storage.expired() and output() is None and picture.saved_bytes == 4000


def test_reading_changes_nothing():
    x = leaf(3)
    h = x.exp()
    y = (h * h).sum()
    versions = (x._version, h._version, y._version)
    draw_graph(y)
    draw_graph(y)
    assert (x._version, h._version, y._version) == versions and x.grad is None and not x._backward_hooks
    y.backward()
    assert torch.allclose(x.grad, 2 * (2 * x).exp())


# --- torchviz as the independent answer ---


@pytest.mark.parametrize(
    "make",
    [
        lambda x: (x.exp() + x.sin()).sum(),
        lambda x: x * x,
        lambda x: torch.cat([x, x.tanh(), x[:1]]).mean(),
        lambda x: (x.view(1, -1) @ x.view(-1, 1)).sigmoid().log(),
    ],
)
def test_torchviz_counts_the_same_operators_and_edges(make):
    torchviz = pytest.importorskip("torchviz")
    x = leaf(4)
    y = make(x)
    source = torchviz.make_dot(y, params={"x": x}).source
    functions = set(re.findall(r"^\t(\d+) \[label=\w*(?:Backward\d+|AccumulateGrad)", source, re.MULTILINE))
    lines = [(a, b) for a, b in re.findall(r"(\d+) -> (\d+)", source) if a in functions and b in functions]
    picture = draw_graph(y)
    ours = [edge for edge in picture.edges if edge.kind == "input" and not edge.source.startswith("output")]
    assert len(of_kind(picture, "operator")) + len(of_kind(picture, "leaf")) == len(functions) > 1
    assert len(ours) == len(lines)


# --- large graphs ---


@pytest.mark.parametrize("length", [2_000, 20_000])
def test_a_long_chain_neither_overflows_nor_floods(length):
    x = leaf(4)
    y = x
    for _ in range(length):
        y = y.exp()
    picture = draw_graph(y)
    assert picture.operators == length and picture.saved_bytes == 16 * length
    assert len(picture.nodes) < 15 and f"{length:,} operators in {len(picture.nodes)} boxes" in picture.text
    assert sum(node.nbytes for node in picture.nodes if node.kind in ("saved", "group")) == picture.saved_bytes
    assert len(picture.text) < 2000 and "limits: 60 boxes" in picture.folded


def test_below_the_limit_nothing_is_folded():
    y = leaf(2)
    for _ in range(25):
        y = y.exp()
    assert draw_graph(y).folded == "" and len(draw_graph(y).nodes) == 52
    assert draw_graph(y, max_nodes=51).folded


@pytest.mark.parametrize("limit", [2, 3, 5, 12, 60])
def test_the_limit_holds_and_no_byte_is_lost(limit):
    model = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(30)])
    for named in (model, None):
        picture = draw_graph(model(torch.rand(4, 8)), named, max_nodes=limit)
        assert len(picture.nodes) <= limit
        assert picture.saved_bytes == 31 * 4 * 8 * 4  # the input and thirty results
        assert sum(n.nbytes for n in picture.nodes if n.kind in ("saved", "group")) == picture.saved_bytes
        assert sum(n.operators for n in picture.nodes) == picture.operators == 90


def test_modules_fold_under_their_own_names():
    model = nn.Sequential()
    for i in range(12):
        model.add_module(f"block{i}", nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU()))
    picture = draw_graph(model(torch.rand(2, 8)), model, max_nodes=20)
    assert [n.name for n in picture.nodes[1:]] == [f"block{i}: Sequential" for i in range(11, -1, -1)]
    assert "Folded by module" in picture.folded
    assert {n.operators for n in picture.nodes[1:]} == {6}  # t, addmm and relu, twice


def test_wide_graphs_fold_until_they_fit():
    tensors = [leaf(3) for _ in range(300)]
    for y in (torch.stack(tensors[:40]), torch.stack([t.relu() for t in tensors]), [t.exp() for t in tensors]):
        picture = draw_graph(y)
        assert len(picture.nodes) <= 60 and picture.folded and max(map(len, picture.text.split("\n"))) < 150


def test_deep_trees_start_again_at_the_left():
    y = leaf(2)
    for _ in range(28):
        y = y.neg()
    text = draw_graph(y).text
    assert "continued below" in text and max(len(line) for line in text.split("\n")) < 100


# --- the same every time, everywhere ---

PROGRAM = """
import torch
from helpers.graph import draw_graph
x = torch.ones(3, requires_grad=True)
w = torch.ones(3, requires_grad=True)
picture = draw_graph({"loss": (x.exp() * w * w).sum(), "aux": x.sin()}, names={"x": x})
print(picture.dot, picture.text, picture.svg, picture.alt)
"""


def test_the_same_graph_gives_the_same_words_in_every_process():
    root = str(Path(layout.__file__).parents[1])
    outputs = set()
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root, "TENSOR_LAB_RENDERER": "auto"}
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=env, check=True)
        outputs.add(done.stdout)
    assert len(outputs) == 1
    assert not re.search(r"0x[0-9a-f]{6,}|\d{9,}", outputs.pop())


def installed(renderer):
    return pytest.param(
        renderer,
        marks=pytest.mark.skipif(layout._program(renderer) is None, reason=f"the program {renderer} is not installed"),
    )


@pytest.mark.parametrize("renderer", [installed("dot"), installed("graphviz-pure"), "text"])
def test_every_renderer_draws_the_same_words_at_a_readable_size(monkeypatch, renderer):
    model = mlp()
    out = model(torch.rand(4, 8))
    text = draw_graph(out, model).text
    monkeypatch.setenv("TENSOR_LAB_RENDERER", renderer)
    picture = draw_graph(out, model)
    assert picture.renderer == renderer and picture.text == text
    assert picture.svg.startswith("<svg") and int(re.search(r'width="(\d+)"', picture.svg)[1]) <= 700
    sizes = [float(size) for size in re.findall(r'font-size="([\d.]+)"', picture.svg)]
    scale = float((re.search(r"scale\(([\d.]+)\)", picture.svg) or [0, "1"])[1])
    assert min(sizes) * scale >= 10.99
    for unwanted in ("<?xml", "<!--", "<title>", "graphviz version", "Generated"):
        assert unwanted not in picture.svg
    assert "2.weight" in picture.svg and "relu" in picture.svg
    bundle = picture._repr_mimebundle_()
    assert (
        bundle["text/plain"] == picture.text and base64.b64encode(picture.svg.encode()).decode() in bundle["text/html"]
    )


def test_without_any_program_there_is_still_a_picture(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    x = leaf(3)
    for wanted in ("auto", "dot", "graphviz-pure"):
        monkeypatch.setenv("TENSOR_LAB_RENDERER", wanted)
        picture = draw_graph((x * x).sum(), names={"x": x})
        assert picture.renderer == "text" and picture.svg.startswith("<svg") and "mul" in picture.svg


@pytest.mark.parametrize("script", ["exit 3", "echo nonsense", "sleep 30", "kill -9 $$"])
def test_a_program_that_fails_is_passed_over(monkeypatch, tmp_path, script):
    broken = tmp_path / "dot"
    broken.write_text(f"#!/bin/sh\n{script}\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin{os.pathsep}/usr/bin")
    monkeypatch.setattr(layout, "TIMEOUT", 0.3)
    monkeypatch.setenv("TENSOR_LAB_RENDERER", "dot")
    assert draw_graph(leaf(3).exp()).renderer == "text"


def test_an_unknown_renderer_is_refused_with_the_choices(monkeypatch):
    monkeypatch.setenv("TENSOR_LAB_RENDERER", "neato")
    with pytest.raises(ValueError, match=r"'neato'.*auto, dot, graphviz-pure, text"):
        draw_graph(leaf(3).exp())


# --- arguments ---


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"output": 3.0}, TypeError, "got float: pass the result of your forward"),
        ({"output": [torch.ones(1), "x"]}, TypeError, "got str"),
        ({"output": []}, TypeError, "no tensor in this list"),
        ({"output": torch.ones(1), "model": "net"}, TypeError, "torch.nn.Module, got str"),
        ({"output": torch.ones(1), "max_nodes": 1}, ValueError, "at least 2"),
        ({"output": torch.ones(1), "max_nodes": 2.5}, ValueError, "got 2.5"),
        ({"output": torch.ones(1), "max_nodes": True}, ValueError, "got True"),
        ({"output": torch.ones(1), "names": [1]}, TypeError, "got list"),
        ({"output": torch.ones(1), "names": {"a": 1}}, TypeError, r"names\['a'\] must be a tensor, got int"),
    ],
)
def test_wrong_arguments_say_what_to_pass(arguments, error, message):
    with pytest.raises(error, match=message):
        draw_graph(**arguments)


def test_containers_sparse_and_meta_tensors():
    a = leaf(3)
    picture = draw_graph({"loss": (a * 2).sum(), "parts": (a.exp(), None)})
    assert [n.name for n in of_kind(picture, "output")] == ["loss", "parts 1"]
    meta = torch.empty(1000, device="meta", requires_grad=True)
    assert draw_graph(meta.exp()).saved_bytes == 4000
    sparse = torch.eye(3).to_sparse()
    picture = draw_graph(torch.sparse.mm(sparse, leaf(3, 3)))
    assert isinstance(picture, GraphPicture) and picture.saved_bytes == 3 * (2 * 8 + 4)  # indices, and values


def test_awkward_names_survive_every_renderer(monkeypatch):
    monkeypatch.setenv("TENSOR_LAB_RENDERER", "auto")
    x = leaf(3)
    for name in ('a<b>&"c"', "back\\slash", "名前", "encoder.layers.0.self_attention.in_projection.weight_original"):
        picture = draw_graph(x.exp(), names={name: x})
        assert picture.nodes[-1].name == name or name in {n.name for n in picture.nodes}
        assert picture.svg.count("<svg") == 1 and name in picture.text


# -- names that a custom Function gives to what it keeps ---------------------------------------------------------------


class OwnNames(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.name, ctx._sequence_nr, ctx.variable = "scale", 3, torch.ones(2)
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2 + 0 * ctx.saved_tensors[0]


def test_attributes_on_ctx_do_not_hide_what_the_node_itself_says():
    picture = draw_graph(OwnNames.apply(torch.ones(2, requires_grad=True) * 3) * 4)
    assert [node.name for node in picture.nodes if node.kind == "operator"] == ["mul", "OwnNames", "mul"]
    saved = saved_tensors(OwnNames.apply(torch.ones(2, requires_grad=True).exp()))
    assert [(slot.op, slot.slot) for slot in saved] == [
        ("exp", "result"),
        ("OwnNames", "tensors[0]"),
        ("OwnNames", "ctx.variable"),
    ]


def test_attributes_on_ctx_do_not_hinder_guard_and_explainer():
    x = torch.ones(2, requires_grad=True).exp()
    with pytest.raises(SavedTensorChanged, match="OwnNames"), guard_saved_tensors(check_values=True):
        y = OwnNames.apply(x)
        x.data.zero_()
        y.sum().backward()
    x = torch.ones(2, requires_grad=True).exp()
    y = OwnNames.apply(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="OwnNames"), explain_inplace():
        y.sum().backward()


@pytest.mark.parametrize("renderer", ["text", "auto"])
@pytest.mark.parametrize("many", [1, 2, 5, 30])
@pytest.mark.parametrize("kind", ["leaves", "operators", "both", "no graph"])
def test_any_number_of_outputs_fits_into_any_limit(kind, many, renderer, monkeypatch):
    monkeypatch.setenv("TENSOR_LAB_RENDERER", renderer)
    x = leaf(3)
    outputs = {
        "leaves": lambda: [leaf(3) for _ in range(many)],
        "operators": lambda: [x * i for i in range(many)],
        "both": lambda: [leaf(3) for _ in range(many)] + [x * 2, leaf(2).exp()],
        "no graph": lambda: [torch.ones(3) for _ in range(many)],
    }[kind]()
    for most in (2, 3, 7, 60):
        picture = draw_graph(outputs, max_nodes=most)
        ids = {node.id for node in picture.nodes}
        assert len(ids) == len(picture.nodes) <= most
        assert all({edge.source, edge.target} <= ids for edge in picture.edges)


@pytest.mark.parametrize("renderer", ["text", "auto"])
def test_what_xml_cannot_write_is_left_out_of_names(renderer, monkeypatch):
    monkeypatch.setenv("TENSOR_LAB_RENDERER", renderer)
    x = leaf(2)
    picture = draw_graph(x.exp(), names={"a\x00\x1b\x0bb\ud800\uffff": x})
    assert "ab" in "".join(ElementTree.fromstring(picture.svg).itertext())
