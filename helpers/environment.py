"""Where am I? The card that every chapter's first cell shows, and what Colab lacks.

The ranges on the card are what CI proved, no more: outside them the lab runs all the same, and the card says in words
what may differ. Nothing is set here: no seed, no thread count, no default device.
"""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module, invalidate_caches
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from .display import Table, in_notebook

OLDEST_TORCH = (2, 11)
# What CI runs the lab on. tests/test_environment.py compares these with the files of versions and with CI's settings.
PROVED = {
    "PyTorch": ("2.13",),
    "Python": ("3.11",),
    "ipywidgets": ("7", "8"),
    "device": ("CPU",),
    "graph pictures": ("dot", "graphviz-pure", "text"),
}
# Import name -> distribution. Colab ships the rest of what the chapters import, and that is left as it is.
NOT_ON_COLAB = {"torchviz": "torchviz", "graphviz_pure": "graphviz-pure", "expecttest": "expecttest"}
RENDERERS = ("auto", "dot", "graphviz-pure", "text")
_RENDERER_VARIABLE = "TENSOR_LAB_RENDERER"


class Renderer(NamedTuple):
    """What draws graphs here: ``name`` is "dot", "graphviz-pure" or "text", ``binary`` its path (None for text)."""

    name: str
    binary: str | None


def graph_renderer(environ: Mapping[str, str] = os.environ) -> Renderer:
    """Returns what `draw_graph` draws with: the program that ``TENSOR_LAB_RENDERER`` names, else the first one found.

    In "auto", the default, that is ``dot`` on PATH, then the ``graphviz-pure`` package, then a tree of text. A program
    that is named but not there gives text, so that a picture is never an exception.

    Raises:
        ValueError: if the variable holds anything but one of `RENDERERS`.
    """
    wanted = environ.get(_RENDERER_VARIABLE) or "auto"
    if wanted not in RENDERERS:
        raise ValueError(f"{_RENDERER_VARIABLE} is {wanted!r}; set it to one of {', '.join(RENDERERS)}, or unset it")
    path = environ.get("PATH", "")
    # pip puts the program beside the interpreter, which is on PATH only where the environment was activated.
    beside = str(Path(sys.executable).parent)
    found = {
        "dot": shutil.which("dot", path=path),
        "graphviz-pure": shutil.which("graphviz-pure", path=os.pathsep.join([beside, path])),
    }
    for name in ("dot", "graphviz-pure") if wanted == "auto" else (wanted,):
        if binary := found.get(name):
            return Renderer(name, binary)
    return Renderer("text", None)


class EnvironmentCard(Table):
    """The card that `setup` returns: a row for each part, and a sentence for each thing to know.

    Attributes:
        torch, python, ipywidgets: versions, as text ("none" without ipywidgets).
        device: "CPU", or the name of the CUDA device.
        renderer: what draws graphs; see `graph_renderer`.
        where: "Colab", "Jupyter" or "script".
        notes: the sentences; empty when all is as in CI.
    """

    def __init__(self, *, torch: str, python: str, ipywidgets: str, device: str, renderer: str, where: str, notes=()):
        self.torch, self.python, self.ipywidgets = torch, python, ipywidgets
        self.device, self.renderer, self.where = device, renderer, where
        # Feature releases behave alike, and ipywidgets breaks between majors only.
        kinds = {
            "PyTorch": _release(torch, 2),
            "Python": _release(python, 2),
            "ipywidgets": _release(ipywidgets, 1),
            "device": device,
            "graph pictures": renderer,
        }
        self.proved = {part: kinds[part] in PROVED[part] for part in PROVED}
        shown = {"PyTorch": torch, "Python": python, "ipywidgets": ipywidgets, "device": device}
        shown["graph pictures"] = renderer
        rows = [
            [part, here, "yes" if self.proved[part] else f"no, CI has {' or '.join(PROVED[part])}"]
            for part, here in shown.items()
        ]
        super().__init__(["part", "here", "proved in CI"], rows, caption=f"The lab, running in: {where}")
        self.notes = list(notes)

    def __repr__(self) -> str:
        return "\n".join([super().__repr__(), *self.notes])

    @property
    def html(self) -> str:
        return super().html + "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)


def setup() -> EnvironmentCard:
    """Returns the card of this environment; on Colab first adds, by name, the packages that Colab lacks.

    Example:
        >>> setup().where
        'script'
    """
    notes = []
    where = "Colab" if "google.colab" in sys.modules else "Jupyter" if in_notebook() else "script"
    if where == "Colab":
        notes += _add_missing_packages()
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"PyTorch cannot be imported ({error}). Install it with `pip install 'torch>=2.11'`, or run `make lab`, "
            "which makes an environment that has it."
        ) from error

    if tuple(map(int, _release(torch.__version__, 2).split("."))) < OLDEST_TORCH:
        notes.append(
            f"PyTorch {torch.__version__} is older than {'.'.join(map(str, OLDEST_TORCH))}, the oldest that the lab "
            "supports: cells may fail, and numbers may differ from the text. `pip install --upgrade torch` mends it."
        )
    device, about_device = _device(torch)
    renderer, about_renderer = _renderer()
    return EnvironmentCard(
        torch=str(torch.__version__),
        python=".".join(map(str, sys.version_info[:3])),
        ipywidgets=_version("ipywidgets"),
        device=device,
        renderer=renderer,
        where=where,
        notes=notes + about_device + about_renderer,
    )


def _device(torch: Any) -> tuple[str, list[str]]:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name(0), []
    if torch.backends.mps.is_available():
        return "CPU", [
            "There is an Apple GPU here, and the lab measures on the CPU: MPS has no memory counters that are exact to "
            "the byte. The lessons are the same."
        ]
    return "CPU", []


def _renderer() -> tuple[str, list[str]]:
    name, _ = graph_renderer()
    wanted = os.environ.get(_RENDERER_VARIABLE) or "auto"
    if name == "text" and wanted != "text":
        lacking = "neither `dot` nor graphviz-pure is" if wanted == "auto" else f"{wanted} is not"
        return name, [f"Graphs are drawn as text, because {lacking} here. `pip install graphviz-pure` brings pictures."]
    return name, []


def _add_missing_packages() -> list[str]:
    """Installs what `NOT_ON_COLAB` names and cannot be imported; returns what the reader has to know about it."""
    missing = [distribution for module, distribution in NOT_ON_COLAB.items() if find_spec(module) is None]
    if not missing:
        return []
    print(f"Adding {', '.join(missing)}: Colab lacks them ...", flush=True)
    # Without dependencies: pip must have no reason to change a package that Colab ships.
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", *missing]
    failed = subprocess.run(command, check=False).returncode != 0
    invalidate_caches()
    if failed:
        return [f"pip could not add {', '.join(missing)}. Retry with `%pip install --no-deps {' '.join(missing)}`."]
    return []


def _version(module: str) -> str:
    try:
        return str(import_module(module).__version__)
    except ImportError:
        return "none"


def _release(version: str, parts: int) -> str:
    """Returns the first ``parts`` numbers: ``_release("2.13.0+cpu", 2) == "2.13"``; without numbers, all of it."""
    numbers = re.findall(r"\d+", version.split("+")[0])
    return ".".join(numbers[:parts]) or version


def available_bytes(device: str = "cpu") -> int:
    """Returns how many bytes could be allocated on ``device`` now, without pushing anything out to disk.

    On Linux it is the kernel's own estimate; elsewhere half of the physical memory, to stay on the safe side.

    Example:
        >>> available_bytes() > 0
        True
    """
    import torch

    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
