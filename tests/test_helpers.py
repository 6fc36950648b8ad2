"""The package map: each name loads, an unknown one is answered with what there is, and the map alone loads nothing."""

from __future__ import annotations

import re
import tomllib
from types import ModuleType

import pytest

import helpers

HEAVY = {"torch", "numpy", "matplotlib", "IPython", "ipywidgets", "graphviz", "torchviz"}


def test_map_names_something():
    assert {"MemoryTracker", "measure_memory", "draw_graph", "predict", "check", "setup"} <= set(helpers.__all__)
    assert helpers.__all__ == sorted(set(helpers.__all__))


@pytest.mark.parametrize("name", helpers.__all__)
def test_every_public_name_loads_and_is_documented(name):
    thing = getattr(helpers, name)
    assert not isinstance(thing, ModuleType), "a module of the same name hides it"
    assert callable(thing) and thing.__name__ == name
    assert thing.__module__.startswith("helpers.")
    assert thing.__doc__ and thing.__doc__.strip()
    assert name in dir(helpers)


def test_names_load_by_star():
    names: dict = {}
    exec("from helpers import *", names)
    assert set(helpers.__all__) <= set(names)


def test_unknown_name_is_answered_with_what_there_is():
    with pytest.raises(AttributeError) as caught:
        helpers.MemoryTraker  # noqa: B018
    said = str(caught.value)
    assert said.startswith("helpers has no 'MemoryTraker'; it offers ")
    assert all(name in said for name in helpers.__all__)
    with pytest.raises(ImportError, match="MemoryTraker"):
        exec("from helpers import MemoryTraker")
    assert not hasattr(helpers, "MemoryTraker")


def test_version_is_the_projects(root):
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert helpers.__version__ == project["version"]


def test_map_has_a_line_on_every_name(root):
    source = (root / "helpers" / "__init__.py").read_text()
    entries = re.findall(r'^    "(\w+)": "(\w+)",(  # \S.*)?$', source, re.M)
    assert {name for name, _, _ in entries} == set(helpers.__all__)
    assert not [name for name, _, words in entries if not words]


def test_import_of_the_map_loads_nothing_heavy(imported_by):
    assert HEAVY & imported_by("import helpers, helpers.display; dir(helpers), helpers.Table") == set()


def test_the_check_for_heavy_imports_can_fail(imported_by):
    assert "torch" in HEAVY & imported_by("import helpers; helpers.MemoryTracker")


def test_contributing_maps_every_public_module(root):
    text = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    public = {path.name for path in (root / "helpers").glob("*.py") if not path.name.startswith("_")}
    missing = sorted(name for name in public if f"      {name} " not in text)
    assert not missing, f"the code map in CONTRIBUTING.md lacks {missing}"
    assert "      nothing.py " not in text  # the control: a name that is not there is found missing
