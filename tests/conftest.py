"""Fixtures that several test files share."""

from __future__ import annotations

import gc
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).resolve().parent.parent
BROWSER_FLAGS = [
    "--no-sandbox",  # Chromium's own does not start for root, as which containers run
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def _share(name: str) -> None:
    """Lets test files import ``tests/<name>.py``, which pytest's importlib mode does not: it leaves sys.path alone."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tests" / f"{name}.py")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


_share("exercise_answers")
_share("operator_samples")
_share("wcag")


@pytest.fixture(scope="module", autouse=True)
def _what_stood_before() -> None:
    """Measuring asks for many garbage collections, and each would look at the million objects that imports left."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small operators are slower on several threads, above all on a busy machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout's folder."""
    return ROOT


@pytest.fixture(scope="session")
def imported_by() -> Callable[[str], set[str]]:
    """Tells which modules a fresh interpreter has imported after a statement."""

    def after(statement: str) -> set[str]:
        code = f"import sys; {statement}; print(*sorted(sys.modules))"
        # -P would hide the checkout; -c puts the working folder on sys.path.
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
        return set(done.stdout.split())

    return after


@pytest.fixture(scope="session")
def make() -> ModuleType:
    """``notebooks/_make.py``, which no package holds."""
    spec = importlib.util.spec_from_file_location("make_notebooks", ROOT / "notebooks" / "_make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def sanitize() -> Callable[[str], str]:
    """Takes out of a text what ``tests/nbval.cfg`` says that two right runs may differ in."""
    parser = ConfigParser(interpolation=None)
    parser.read(ROOT / "tests" / "nbval.cfg")
    rules = [(section["regex"], section["replace"]) for name, section in parser.items() if name != "DEFAULT"]

    def apply(text: str) -> str:
        for regex, replace in rules:
            text = re.sub(regex, replace, text)
        return text

    return apply


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium; without one the test is skipped, or fails where ``TENSOR_LAB_REQUIRE_BROWSER`` is set."""
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        message = f"no browser: none of {', '.join(names)} is on PATH (Debian: apt install chromium)"
        (pytest.fail if os.environ.get("TENSOR_LAB_REQUIRE_BROWSER") else pytest.skip)(message)
    return path


# Not for the whole session: as long as it runs, no test can run an event loop of its own.
@pytest.fixture(scope="module")
def browser(chromium) -> Iterator[Browser]:
    """A running Chromium without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=BROWSER_FLAGS)
        yield running
        running.close()
