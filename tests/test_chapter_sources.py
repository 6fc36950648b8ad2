"""No cell relies on what Colab lacks: sibling files, widgets that threads update, third-party widgets, the network.

`test_colab.py` runs the chapters without all that. What it cannot see is told here from the sources: a widget that a
thread moves looks the same to the kernel, and a branch that did not run may still ask for a file.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))

# Distribution -> import name, where they differ.
_IMPORT_NAMES = {"ipython": "IPython", "graphviz-pure": "graphviz_pure"}
_LOOPBACK = re.compile(r"localhost|127\.[\d.]+|\[?::1\]?")
_URL = re.compile(r"\s*(?:https?|ftp|tcp|wss?|s3|gs|git)://([^/:\s]+|\[[\d:a-f]+\])")
_FETCHES = {"load_state_dict_from_url", "download_url_to_file", "from_pretrained", "snapshot_download", "load_dataset"}
_CONNECTS = {"create_connection", "connect", "connect_ex", "getaddrinfo", "HTTPConnection", "HTTPSConnection"}
_FETCHING_PROGRAMS = {"pip", "conda", "wget", "curl", "git", "apt", "apt-get", "gsutil", "ssh"}
_MARKDOWN_PICTURE = re.compile(r"!\[[^\]]*\]\(\s*<?([^)\s>]+)|<img\b[^>]*?\bsrc=[\"']([^\"']+)")
_MAKES_WIDGETS = {"predict"}  # of helpers


def importable() -> set[str]:
    """What a chapter may import: Python's own, and what `pyproject.toml` says that the lab needs."""
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = [re.match(r"[\w-]+", line)[0] for line in lines]
    return {_IMPORT_NAMES.get(name, name) for name in names} | set(sys.stdlib_module_names) | {"helpers"}


def problems(notebook: Any) -> list[str]:
    """A sentence for everything in ``notebook`` that Colab, which opens one file alone, does not have."""
    said, trees = [], {}
    for cell in notebook.cells:
        if cell.cell_type == "code" and cell.id != "bootstrap":  # which is generated, and run in test_colab.py
            # Magics and shell lines become calls of get_ipython().
            trees[cell.id] = ast.parse(TransformerManager().transform_cell(cell.source))
            said += [f"cell {cell.id}: {problem}" for problem in [*_imports(trees[cell.id]), *_outside(trees[cell.id])]]
        elif cell.cell_type == "markdown":
            for target in map("".join, _MARKDOWN_PICTURE.findall(cell.source)):
                if not target.startswith(("data:", "attachment:")):
                    where = "the network" if _URL.match(target) else "a sibling file"
                    said.append(f"cell {cell.id}: a picture from {where}: {target}")
    return said + [f"cell {name}: {problem}" for name, problem in _threads(trees)]


def _dotted(node: ast.AST) -> str:
    """``torch.hub.load`` for that expression; what is no name becomes ``?``."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = ["." * node.level + (node.module or "")]
        for name in names:
            if name.partition(".")[0] not in importable():
                yield f"imports {name}, which is none of the lab's dependencies"


def _outside(tree: ast.AST) -> Iterator[str]:
    """Sibling files and the network, in what is written out in the source."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if _is_sibling(node.value):
                yield f"a sibling file: {node.value}"
            if (url := _URL.match(node.value)) and not _LOOPBACK.fullmatch(url[1]):
                yield f"the network: {node.value}"
        elif isinstance(node, ast.Call):
            yield from _call(node)


def _is_sibling(text: str) -> bool:
    """Whether ``text`` names what lies beside the chapters, or the folder around them."""
    if text == "..":
        return True
    looks_like_a_name = re.fullmatch(r"[\w./-]{1,200}", text) and text.strip("./")
    return bool(looks_like_a_name) and (ROOT / "notebooks" / text).exists()


def _call(node: ast.Call) -> Iterator[str]:
    name = _dotted(node.func)
    last = name.rpartition(".")[2]
    texts = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    if last in _FETCHES or re.search(r"\bhub\.(?:load|list|help)$", name):
        yield f"the network: {name}()"
    if any(k.arg == "download" and getattr(k.value, "value", None) is True for k in node.keywords):
        yield f"the network: {name}(download=True)"
    if last in _CONNECTS and node.args:
        host = node.args[0].elts[0] if isinstance(node.args[0], ast.Tuple) and node.args[0].elts else node.args[0]
        if isinstance(host, ast.Constant) and isinstance(host.value, str) and not _LOOPBACK.fullmatch(host.value):
            yield f"the network: {name}({host.value!r})"

    words: list[str] = []
    if isinstance(node.func, ast.Attribute) and _is_shell(node.func.value):
        words = " ".join(texts).split()
        if texts[:1] == ["matplotlib"] and len(words) > 1 and words[1] != "inline":
            yield f"a front end that Colab has not: %{' '.join(words)}"
        yield from (f"a sibling file: {word}" for word in words if word not in texts and _is_sibling(word))
    elif name.startswith(("subprocess.", "os.system", "os.popen")) or last in ("Popen", "check_call", "check_output"):
        listed = node.args[0].elts if node.args and isinstance(node.args[0], (ast.List, ast.Tuple)) else node.args[:1]
        words = [w for e in listed if isinstance(e, ast.Constant) and isinstance(e.value, str) for w in e.value.split()]
    if fetching := _FETCHING_PROGRAMS.intersection(words):
        yield f"the network: {' '.join(words)}, which calls {min(fetching)}"


def _is_shell(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _dotted(node.func) == "get_ipython"


# Threads and widgets. A thread may read a widget; on Colab whatever else it does with one is not shown.


def _threads(trees: dict[str, ast.AST]) -> Iterator[tuple[str, str]]:
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
    makers = {"ipywidgets", *_MAKES_WIDGETS}
    for node in nodes:
        if isinstance(node, ast.Import):
            makers |= {alias.asname or alias.name for alias in node.names if alias.name.startswith("ipywidgets")}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ipywidgets"):
            makers |= {alias.asname or alias.name for alias in node.names}
    widgets = {name for node in nodes for name, value in _bindings(node) if _makes(value, makers)}
    for node in nodes:  # for box in boxes
        loops = isinstance(node, (ast.For, ast.comprehension)) and {_dotted(n) for n in ast.walk(node.iter)} & widgets
        if loops:
            widgets |= {n.id for n in ast.walk(node.target) if _is_set(n)}

    functions: dict[str, list[ast.AST]] = {}
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            functions.setdefault(node.name, []).append(node)
    for name, tree in trees.items():
        for node in ast.walk(tree):
            for work in _started(node):
                for used in _used(work, widgets, makers, functions, parents):
                    yield name, f"a thread uses the widget {used} for more than reading it"


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from ((n.id, node.value) for n in ast.walk(target) if _is_set(n))
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value and isinstance(node.target, ast.Name):
        yield node.target.id, node.value
    elif isinstance(node, ast.withitem) and isinstance(node.optional_vars, ast.Name):
        yield node.optional_vars.id, node.context_expr


def _is_set(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _makes(value: ast.AST, makers: set[str]) -> bool:
    """Whether ``value`` is a widget that is made here, or holds some."""
    if isinstance(value, ast.Call):
        return _dotted(value.func).partition(".")[0] in makers
    if isinstance(value, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
        return _makes(value.elt, makers)
    if isinstance(value, ast.DictComp):
        return _makes(value.value, makers)
    if isinstance(value, (ast.Attribute, ast.Subscript)):  # predict(...).card
        return isinstance(value.value, (ast.Call, ast.Attribute)) and _makes(value.value, makers)
    return any(_makes(e, makers) for e in [*getattr(value, "elts", ()), *getattr(value, "values", ())])


def _started(node: ast.AST) -> list[ast.AST]:
    """What ``node`` has a thread run: expressions that are called there, or are given to it."""
    if isinstance(node, ast.ClassDef) and any(_dotted(b).endswith(("Thread", "Timer")) for b in node.bases):
        return [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "run"]
    if isinstance(node, ast.Call):
        last = _dotted(node.func).rpartition(".")[2]
        if last in ("Thread", "Timer", "start_new_thread", "submit", "to_thread", "run_in_executor"):
            return [*node.args, *(keyword.value for keyword in node.keywords)]
        if last == "map" and isinstance(node.func, ast.Attribute):  # of an executor
            return list(node.args)
    return []


def _used(work: ast.AST, widgets: set, makers: set, functions: dict, parents: dict) -> Iterator[str]:
    """The names of the widgets that ``work``, and what it calls in turn, does more with than read."""
    waiting, seen, found = [work], set(), set()
    while waiting:
        body = waiting.pop()
        inner = list(ast.walk(body))
        own = {n.arg for n in inner if isinstance(n, ast.arg)}
        own |= {name for n in inner for name, value in _bindings(n) if not _makes(value, makers)}
        for node in inner:
            if isinstance(node, ast.Name) and node.id in widgets - own and not _only_read(node, parents):
                found.add(node.id)
            called = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None
            for function in functions.get(called, ()):
                if function not in seen:
                    seen.add(function)
                    waiting.append(function)
    yield from sorted(found)


def _only_read(node: ast.AST, parents: dict) -> bool:
    """Whether of the widget ``node`` an attribute is read: no call, no assignment, not handed on itself."""
    top = node
    while isinstance(parents.get(top), (ast.Attribute, ast.Subscript)) and parents[top].value is top:
        top = parents[top]
    parent = parents.get(top)
    called = isinstance(parent, ast.Call) and parent.func is top
    return top is not node and isinstance(top.ctx, ast.Load) and not called


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_chapter_needs_nothing_that_colab_has_not(path):
    assert problems(nbformat.read(path, as_version=4)) == []


# The controls: each line is told, and its twin is not.

_SETUP = """\
import threading, subprocess, socket, ipywidgets as widgets
from concurrent.futures import ThreadPoolExecutor
from helpers import predict
bar, out, boxes = widgets.IntProgress(), widgets.Output(), [widgets.HTML() for _ in range(3)]
question = predict("?", [1, 2], run=lambda: 1)
def show(i):
    bar.value = i
def count(i):
    return i + bar.value
"""


def said_of(source: str) -> list[str]:
    return problems(new_notebook(cells=[new_code_cell(_SETUP, id="setup"), new_code_cell(source, id="x")]))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("open('../README.md')", "a sibling file: ../README.md"),
        ("data = Path('00_start_here.ipynb').read_text()", "a sibling file: 00_start_here.ipynb"),
        ("sys.path.append('..')", "a sibling file: .."),
        ("!cat ../pyproject.toml", "a sibling file: ../pyproject.toml"),
        ("%run _make.py --check", "a sibling file: _make.py"),
        ("import _make", "imports _make, which is none of the lab's dependencies"),
        ("from tests import conftest", "imports tests, which"),
        ("from . import helpers", "imports ., which"),
        ("import ipympl", "imports ipympl, which"),
        ("from bqplot import pyplot", "imports bqplot, which"),
        ("def later():\n    import anywidget.experimental", "imports anywidget.experimental, which"),
        ("%matplotlib widget", "a front end that Colab has not: %matplotlib widget"),
        ("threading.Thread(target=show, args=(3,)).start()", "a thread uses the widget bar"),
        ("threading.Thread(target=lambda: out.append_stdout('x')).start()", "a thread uses the widget out"),
        (
            "def work():\n    with out:\n        print(1)\nthreading.Timer(1, work).start()",
            "a thread uses the widget out",
        ),
        ("def far():\n    show(1)\nThreadPoolExecutor().submit(far)", "a thread uses the widget bar"),
        ("with ThreadPoolExecutor() as pool:\n    pool.map(show, range(3))", "a thread uses the widget bar"),
        ("class Work(threading.Thread):\n    def run(self):\n        show(1)", "a thread uses the widget bar"),
        (
            "def work():\n    for box in boxes:\n        box.value = ''\nthreading.Thread(target=work)",
            "the widget box ",
        ),
        ("threading.Thread(target=print, args=(bar,))", "a thread uses the widget bar"),
        ("threading.Thread(target=lambda: question.commit(1))", "a thread uses the widget question"),
        ("threading.Thread(target=lambda: setattr(bar, 'value', 1))", "a thread uses the widget bar"),
        ("import asyncio\nasyncio.to_thread(show, 1)", "a thread uses the widget bar"),
        (
            "import urllib.request\nurllib.request.urlopen('https://example.org/x')",
            "the network: https://example.org/x",
        ),
        ("address = f'http://example.org/{name}'", "the network: http://example.org/"),
        ("torch.hub.load('pytorch/vision', 'resnet18')", "the network: torch.hub.load()"),
        ("CIFAR10('/x', download=True)", "the network: CIFAR10(download=True)"),
        ("socket.create_connection(('example.org', 80))", "the network: socket.create_connection('example.org')"),
        ("%pip install einops", "the network: pip install einops, which calls pip"),
        ("!wget x.org/y", "the network: wget x.org/y, which calls wget"),
        ("subprocess.run(['git', 'clone', url])", "the network: git clone, which calls git"),
        ("import requests", "imports requests, which"),
    ],
)
def test_what_colab_has_not_is_told(source, words):
    assert any(words in problem and problem.startswith("cell x: ") for problem in said_of(source)), said_of(source)


@pytest.mark.parametrize(
    "source",
    [
        "open('mine.txt', 'w').write('x')",
        "torch.save(x, folder / 'model.pt')",
        "print('see README.md and https://pytorch.org')",
        "import os, torch.distributed as dist, numpy as np",
        "%matplotlib inline",
        "!ls",
        "show(3)",
        "threading.Thread(target=print, args=(3,)).start()",
        "threading.Thread(target=count, args=(3,)).start()",
        "threading.Thread(target=lambda: print(bar.value)).start()",
        "def work(bar):\n    bar.value = 1\nthreading.Thread(target=work, args=(object(),)).start()",
        "def work():\n    out = []\n    out.append(1)\nthreading.Thread(target=work).start()",
        "sent = []\nthreading.Thread(target=lambda: sent.append(1)).start()\nbar.value = len(sent)",
        "list(map(show, range(3)))",
        "dist.init_process_group('gloo', init_method=f'tcp://127.0.0.1:{port}', rank=0, world_size=2)",
        "urlopen(f'http://localhost:{port}/')",
        "socket.create_connection(('127.0.0.1', port))",
        "subprocess.run([sys.executable, '-c', 'import torch; print(torch.ones(2))'], check=True)",
        "subprocess.Popen([sys.executable, worker, '--connect', f'127.0.0.1:{port}'])",
    ],
)
def test_what_colab_has_is_left_alone(source):
    assert said_of(source) == []


def test_pictures_of_the_text_come_with_it():
    sources = [
        "![a](a.png)",
        '<img alt="a" src="https://x.org/a.png">',
        "[a](01_b.ipynb) ![a](data:image/png;base64,A)",
    ]
    notebook = new_notebook(cells=[new_markdown_cell(source, id=f"m{i}") for i, source in enumerate(sources)])
    assert problems(notebook) == [
        "cell m0: a picture from a sibling file: a.png",
        "cell m1: a picture from the network: https://x.org/a.png",
    ]
