"""What the card says, on this machine and on machines that are played here by monkeypatching."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from types import ModuleType

import pytest

from helpers import environment
from helpers.environment import PROVED, EnvironmentCard, graph_renderer, setup


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Returns a function that makes a PATH with the named programs; the interpreter's folder holds none of them."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python" / "python"))

    def on_path(*names: str) -> dict[str, str]:
        for name in names:
            program = tmp_path / "bin" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text("#!/bin/sh\n")
            program.chmod(0o755)
        return {"PATH": str(tmp_path / "bin")}

    return on_path


@pytest.mark.parametrize(
    ("there", "wanted", "drawn_by"),
    [
        (["dot", "graphviz-pure"], None, "dot"),
        (["dot", "graphviz-pure"], "auto", "dot"),
        (["graphviz-pure"], None, "graphviz-pure"),
        ([], None, "text"),
        (["dot", "graphviz-pure"], "graphviz-pure", "graphviz-pure"),
        (["dot", "graphviz-pure"], "text", "text"),
        (["graphviz-pure"], "dot", "text"),
    ],
)
def test_renderer_is_the_one_asked_for_or_the_first_one_there(programs, there, wanted, drawn_by):
    environ = programs(*there) | ({"TENSOR_LAB_RENDERER": wanted} if wanted else {})
    name, binary = graph_renderer(environ)
    assert name == drawn_by
    assert (binary is None) == (name == "text")
    assert binary is None or os.path.basename(binary) == name


def test_renderer_beside_the_interpreter_is_found_without_path(programs, tmp_path, monkeypatch):
    programs("graphviz-pure")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    assert graph_renderer({"PATH": ""}).name == "graphviz-pure"


def test_renderer_misspelt_names_the_right_ones():
    with pytest.raises(ValueError, match=r"is 'dott'; set it to one of auto, dot, graphviz-pure, text"):
        graph_renderer({"TENSOR_LAB_RENDERER": "dott"})


def test_card_is_this_environment(monkeypatch):
    import torch

    monkeypatch.setenv("TENSOR_LAB_RENDERER", "text")
    card = setup()
    assert card.torch == torch.__version__
    assert card.python == ".".join(map(str, sys.version_info[:3]))
    assert card.where == "script"
    assert card.renderer == "text"
    # The same rows as text and as HTML.
    for row in card.rows:
        for cell in row:
            assert cell in repr(card)
            assert cell in card.html


def test_setup_sets_nothing():
    import torch

    def state():
        return torch.get_num_threads(), torch.get_default_dtype(), torch.random.get_rng_state().tolist()

    before = state()
    setup()
    assert state() == before
    torch.rand(1)
    assert state() != before  # the comparison does see a change


def card(**changes) -> EnvironmentCard:
    here = {"torch": "2.13.0+cpu", "python": "3.11.7", "ipywidgets": "8.1.9", "device": "CPU"}
    return EnvironmentCard(**(here | {"renderer": "dot", "where": "script"} | changes))


def test_card_in_the_proved_range_says_yes_throughout():
    assert all(card().proved.values())
    assert all(card(ipywidgets="7.7.1").proved.values())


@pytest.mark.parametrize(
    ("changes", "part", "words"),
    [
        ({"torch": "2.11.0+cu128"}, "PyTorch", "no, CI has 2.13"),
        ({"torch": "2.1.3"}, "PyTorch", "no, CI has 2.13"),  # 2.1 begins like 2.13
        ({"python": "3.13.1"}, "Python", "no, CI has 3.11"),
        ({"ipywidgets": "9.0.0"}, "ipywidgets", "no, CI has 7 or 8"),
        ({"ipywidgets": "none"}, "ipywidgets", "no, CI has 7 or 8"),
        ({"device": "Tesla T4"}, "device", "no, CI has CPU"),
    ],
)
def test_card_outside_the_proved_range_says_which_part(changes, part, words):
    unproved = card(**changes)
    assert [name for name, yes in unproved.proved.items() if not yes] == [part]
    assert words in repr(unproved)
    assert words in unproved.html


def test_old_torch_is_said_in_words(monkeypatch):
    import torch

    monkeypatch.setattr(torch, "__version__", "2.9.1")
    [note] = setup().notes
    assert note.startswith("PyTorch 2.9.1 is older than 2.11, the oldest that the lab supports")
    assert note.endswith("`pip install --upgrade torch` mends it.")
    monkeypatch.setattr(torch, "__version__", "2.11.0")
    assert setup().notes == []


def test_apple_gpu_is_measured_on_the_cpu_and_said(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    card = setup()
    assert card.device == "CPU"
    assert "the lab measures on the CPU" in card.html
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert "the lab measures on the CPU" not in setup().html


def test_cuda_device_is_named(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla T4")
    assert setup().device == "Tesla T4"


def test_no_renderer_is_said_with_the_cure(programs, monkeypatch):
    monkeypatch.delenv("TENSOR_LAB_RENDERER", raising=False)
    monkeypatch.setenv("PATH", programs()["PATH"])
    assert "`pip install graphviz-pure` brings pictures" in repr(setup())
    monkeypatch.setenv("TENSOR_LAB_RENDERER", "dot")
    assert "because dot is not here" in repr(setup())


@pytest.fixture
def colab(monkeypatch):
    """Plays Colab: torchviz cannot be imported, and pip's command lines are kept instead of run."""
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    monkeypatch.setattr(environment, "find_spec", lambda name: None if name == "torchviz" else object())
    calls = []

    def run(command, check):
        calls.append(command)
        return subprocess.CompletedProcess(command, calls.returncode)

    calls = type("Calls", (list,), {"returncode": 0})()
    monkeypatch.setattr(environment.subprocess, "run", run)
    return calls


def test_colab_gets_what_it_lacks_and_nothing_else(colab, capsys):
    assert setup().where == "Colab"
    assert [call[1:] for call in colab] == [["-m", "pip", "install", "--quiet", "--no-deps", "torchviz"]]
    assert "Adding torchviz" in capsys.readouterr().out


def test_elsewhere_pip_is_not_called(colab, monkeypatch):
    monkeypatch.delitem(sys.modules, "google.colab")
    setup()
    assert colab == []


def test_colab_without_an_index_still_gets_its_card(colab):
    colab.returncode = 1
    assert "Retry with `%pip install --no-deps torchviz`" in repr(setup())


def test_what_colab_ships_is_not_on_the_list():
    ships = {"torch", "numpy", "matplotlib", "ipywidgets", "IPython", "ipykernel", "graphviz"}
    assert not ships & set(environment.NOT_ON_COLAB)


def test_missing_torch_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"pip install 'torch>=2\.11'.*make lab"):
        setup()


def test_proved_range_is_what_ci_runs(root):
    files = (root / "tests" / "colab" / "requirements.txt", root / "constraints.txt")
    colab, pins = (dict(re.findall(r"^([\w-]+)==(\S+)$", file.read_text(), re.M)) for file in files)
    assert "torch" not in colab, "PyTorch is in both environments in the version of constraints.txt"
    assert [pins["torch"].rpartition(".")[0]] == list(PROVED["PyTorch"])
    assert [p["ipywidgets"].partition(".")[0] for p in (colab, pins)] == list(PROVED["ipywidgets"])
    workflow = (root / ".github" / "workflows" / "ci.yml").read_text()
    assert re.findall(r"python:(\d\.\d+)", workflow) == list(PROVED["Python"])


def test_oldest_torch_is_pyprojects(root):
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert f"torch>={'.'.join(map(str, environment.OLDEST_TORCH))}" in project["dependencies"]


HEAVY = {"matplotlib", "graphviz", "torchviz", "ipywidgets", "IPython", "expecttest"}


def test_import_is_light(imported_by):
    assert HEAVY & imported_by("import helpers.environment") == set()


def test_the_check_for_light_imports_can_fail(imported_by):
    assert HEAVY & imported_by("import helpers, graphviz") == {"graphviz"}


# ---------------------------------------------------------------------------------------------------- available_bytes


@pytest.fixture
def meminfo(monkeypatch):
    """Returns a function that gives /proc/meminfo another text, or an error instead of one."""
    import builtins
    import io

    really_open = builtins.open

    def plays(answer):
        def open_(file, *args, **kwargs):
            if file != "/proc/meminfo":
                return really_open(file, *args, **kwargs)
            if isinstance(answer, Exception):
                raise answer
            return io.StringIO(answer)

        monkeypatch.setattr(builtins, "open", open_)

    return plays


def test_available_bytes_are_the_kernels_estimate(meminfo):
    # The kernel writes kB and means 1,024 bytes. Free memory is less, as caches are given up without loss.
    meminfo("MemTotal:  8000000 kB\nMemFree:  100 kB\nMemAvailable:  4000000 kB\nBuffers:  7 kB\n")
    assert environment.available_bytes() == 4_096_000_000
    assert environment.available_bytes("cpu") == 4_096_000_000


@pytest.mark.parametrize("answer", [FileNotFoundError("/proc/meminfo"), "MemTotal: 8000000 kB\nMemFree: 100 kB\n", ""])
def test_without_an_estimate_it_is_half_of_the_memory(meminfo, monkeypatch, answer):
    meminfo(answer)
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 2_000_000}.get)
    assert environment.available_bytes() == 4_096_000_000


def test_available_bytes_of_this_machine_are_less_than_it_has():
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < environment.available_bytes() < physical


def test_available_bytes_of_a_gpu_are_what_the_driver_says(monkeypatch):
    import torch

    asked = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: asked.append(device) or (3, 16))
    assert environment.available_bytes("cuda:1") == 3
    assert asked == ["cuda:1"]


def test_available_bytes_of_no_device_is_refused():
    with pytest.raises(RuntimeError, match="gpu"):
        environment.available_bytes("gpu")
