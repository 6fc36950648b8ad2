"""The files that install the lab agree with each other, and make does what README says it does."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import metadata, version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import helpers

TOP_LEVEL = {
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "Makefile"),
    *("pyproject.toml", "constraints.txt", "environment.yml"),
    *("notebooks", "helpers", "tests", "benchmarks"),
    *(".ci", ".github", ".pre-commit-config.yaml", ".gitignore"),
}

# conda-forge's name of each distribution, where it differs ...
CONDA_NAMES = {"torch": "pytorch", "graphviz": "python-graphviz", "matplotlib": "matplotlib-base"}
# ... those that conda-forge lacks, which environment.yml leaves to pip ...
PIP_ONLY = {"torchviz", "graphviz-pure"}
# ... and what conda brings beyond Python packages.
CONDA_ONLY = {"python", "pip", "graphviz"}


@pytest.fixture(scope="module")
def files(root):
    """The three files, parsed: pyproject.toml, constraints.txt, environment.yml."""
    return (
        tomllib.loads((root / "pyproject.toml").read_text()),
        (root / "constraints.txt").read_text(),
        yaml.safe_load((root / "environment.yml").read_text()),
    )


def parsed(lines) -> dict[str, Requirement]:
    requirements = [Requirement(line) for line in lines]
    return {canonicalize_name(requirement.name): requirement for requirement in requirements}


def disagreements(pyproject: dict, constraints: str, environment: dict) -> list[str]:
    """Returns a sentence for each entry in which the three files differ; an empty list if they agree."""
    project = pyproject["project"]
    extras = project["optional-dependencies"]
    wanted = parsed([*project["dependencies"], *(line for lines in extras.values() for line in lines)])
    wanted.pop(project["name"], None)  # extras that include other extras
    pins = parsed(line for line in constraints.splitlines() if line and not line.startswith("#"))
    said = [f"constraints.txt pins no {name}" for name in wanted if name not in pins]
    for name, pin in pins.items():
        exact = re.fullmatch(r"==([^*+]+)", str(pin.specifier))
        if pin.url or not exact:
            said.append(f"constraints.txt: {pin} is not an exact release")
        elif name in wanted and not wanted[name].specifier.contains(exact[1]):
            said.append(f"constraints.txt: {pin} is outside pyproject.toml's {wanted[name]}")

    needed = parsed([*project["dependencies"], *extras["lab"]])
    *conda_lines, pip_part = environment["dependencies"]
    conda = {re.match(r"[\w.-]+", line)[0]: line for line in conda_lines}
    pip_lines = [line for line in pip_part["pip"] if line != "-e ."]
    if "-e ." not in pip_part["pip"]:
        said.append("environment.yml does not install the package itself: add '-e .' to its pip part")
    pip = parsed(pip_lines)
    for name, requirement in needed.items():
        conda_name = CONDA_NAMES.get(name, name)
        if name in PIP_ONLY:
            line = str(pip[name]) if name in pip else None
        else:
            line = conda.get(conda_name)
        expected = (name if name in PIP_ONLY else conda_name) + str(requirement.specifier)
        # pip and conda write the bounds in any order.
        if line is None or sorted(re.split(r"(?=[<>=])|,", line)) != sorted(re.split(r"(?=[<>=])|,", expected)):
            said.append(f"environment.yml has {line} where pyproject.toml asks for {expected}")
    known = {CONDA_NAMES.get(name, name) for name in needed if name not in PIP_ONLY} | CONDA_ONLY
    said += [f"environment.yml has {name}, which pyproject.toml does not ask for" for name in conda.keys() - known]
    said += [f"environment.yml has {name}, which pyproject.toml does not ask for" for name in pip.keys() - PIP_ONLY]
    if conda.get("python") != "python" + project["requires-python"]:
        said.append(f"environment.yml has {conda.get('python')} where pyproject.toml asks {project['requires-python']}")
    return said


def test_the_three_files_agree(files):
    assert disagreements(*files) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (0, "torch>=2.11", "torch>=2.14", "constraints.txt: torch==2.13.0 is outside pyproject.toml's torch>=2.14"),
        (
            0,
            "torch>=2.11",
            "torch>=2.12",
            "environment.yml has pytorch>=2.11 where pyproject.toml asks for pytorch>=2.1",
        ),
        (1, "nbval==", "nbvul==", "constraints.txt pins no nbval"),
        (1, "torch==2.13.0", "torch==2.13.0+cpu", "constraints.txt: torch==2.13.0+cpu is not an exact release"),
        (1, "torch==2.13.0", "torch>=2.13.0", "constraints.txt: torch>=2.13.0 is not an exact release"),
        (2, "ipywidgets>=7.7,<9", "ipywidgets>=8", "environment.yml has ipywidgets>=8 where pyproject.toml asks for"),
        (2, "expecttest>=0.3", "pandas", "environment.yml has None where pyproject.toml asks for expecttest>=0.3"),
        (2, "expecttest>=0.3", "pandas", "environment.yml has pandas, which pyproject.toml does not ask for"),
        (2, "torchviz>=0.0.3", "rich", "environment.yml has rich, which pyproject.toml does not ask for"),
        (2, "-e .", "rich", "environment.yml does not install the package itself"),
        (2, "python>=3.11", "python>=3.10", "environment.yml has python>=3.10 where pyproject.toml asks >=3.11"),
    ],
)
def test_a_disagreement_is_said(files, file, old, new, said):
    def changed(tree):
        if isinstance(tree, dict):
            return {key: changed(value) for key, value in tree.items()}
        if isinstance(tree, list):
            return [changed(value) for value in tree]
        return tree.replace(old, new) if file == 1 else new if tree == old else tree

    spoiled = [changed(content) if i == file else content for i, content in enumerate(files)]
    assert any(sentence.startswith(said) for sentence in disagreements(*spoiled))


def test_constraints_are_what_is_installed(files):
    if not Path(sys.prefix, "tensor-lab-ready").exists():
        pytest.skip("not the environment that make made")
    pins = parsed(line for line in files[1].splitlines() if line and not line.startswith("#"))
    here = {name: version(name).partition("+")[0] for name in pins}
    assert here == {name: str(pin.specifier).removeprefix("==") for name, pin in pins.items()}


def refuse(pythons: dict[str, str | None], oldest: str) -> set[str]:
    """Returns the packages, of name -> the Pythons it wants, that the Python version ``oldest`` cannot install."""
    return {name for name, wants in pythons.items() if wants and not SpecifierSet(wants).contains(oldest)}


def test_constraints_fit_the_oldest_python_to_the_last_digit(files):
    # Debian 12 has Python 3.11.2, and a package may ask for more than the 3.11 on which the others agree.
    oldest = files[0]["project"]["requires-python"].removeprefix(">=") + ".0"
    pins = parsed(line for line in files[1].splitlines() if line and not line.startswith("#"))
    assert refuse({name: metadata(name)["Requires-Python"] for name in pins}, oldest) == set()
    assert refuse({"soupsieve": ">=3.11.5", "six": None, "torch": ">=3.10"}, "3.11.0") == {"soupsieve"}


# What git holds.


def tracked(root) -> list[str]:
    if not shutil.which("git") or not (root / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True)
    return listed.stdout.split("\n")[:-1]


def strangers(paths: list[str]) -> set[str]:
    return {path.split("/")[0] for path in paths} - TOP_LEVEL


def test_top_level_holds_only_the_names_of_the_design(root):
    assert strangers(tracked(root)) == set()
    assert strangers(["helpers/memory.py", "utils.py", "docs/index.md"]) == {"utils.py", "docs"}


def other_addresses(text: str, address: str) -> set[str]:
    """Returns the places of this project on GitHub, also as Colab writes them, in ``text`` that are not ``address``."""
    found = set(re.findall(r"github(?:\.com)?/([\w.-]+/tensor-memory-lab)\b", text))
    return found - {address.removeprefix("https://github.com/")}


def test_the_address_is_pyprojects_everywhere(root, make):
    address = make.repository(root / "notebooks")
    for path in tracked(root):
        text = (root / path).read_text(encoding="utf-8", errors="replace")
        assert other_addresses(text, address) == set(), path
    fork = "somebody/tensor-memory-lab"
    assert other_addresses(f"see https://github.com/{fork}.", address) == {fork}
    assert other_addresses(f"https://colab.research.google.com/github/{fork}/blob", address) == {fork}


def test_changelog_and_helpers_say_this_version(root, files):
    newest = re.search(r"^## (\S+)", (root / "CHANGELOG.md").read_text(), re.M)
    assert newest[1] == helpers.__version__ == files[0]["project"]["version"]


def chapter_table(readme: str) -> dict[str, bool]:
    """Returns the chapters that README's table names: file stem -> whether the row links to the file."""
    rows = re.findall(r"^\| (?:\[`(\d\d_\w+)`\]\(notebooks/\1\.ipynb\)|`(\d\d_\w+)`) \|", readme, re.M)
    return {linked or planned: bool(linked) for linked, planned in rows}


def test_readme_table_links_the_chapters_there_are(root, make):
    readme = (root / "README.md").read_text()
    table = chapter_table(readme)
    there = {path.stem for path in make.chapters(root / "notebooks")}
    assert list(table) == sorted(table)
    assert {name for name, linked in table.items() if linked} == there
    assert chapter_table("| [`00_a`](notebooks/00_a.ipynb) | x |\n| `01_b` | x |\n") == {"00_a": True, "01_b": False}


# make, with a Python that only writes down how it was called.

FAKE_PYTHON = """\
#!/bin/sh
case "$2" in
  *print*) echo {version} ;;
  *exit*) exit {too_old} ;;
  *ensurepip*) exit {no_venv} ;;
esac
case "$*" in "-c "*) exit 0 ;; esac
echo "$@" >> "$CALLS"
if [ "$1 $2" = "-m venv" ]; then
  for folder; do :; done
  mkdir -p "$folder/bin" && cp "$0" "$folder/bin/python"
fi
exit 0
"""


class Played:
    """A checkout with the real Makefile on a machine with no Python but played ones."""

    def __init__(self, root: Path, folder: Path):
        self.folder, self.bin, self.record = folder / "checkout", folder / "bin", folder / "calls"
        (self.folder / "notebooks").mkdir(parents=True)
        self.bin.mkdir()
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(root / name, self.folder)
        for tool in ("sh", "mkdir", "touch", "cp", "rm", "id", "echo", "printf", "sed", "grep"):
            (self.bin / tool).symlink_to(shutil.which(tool))

    def python(self, name="python3", version="3.12.1", too_old=0, no_venv=0) -> None:
        program = self.bin / name
        program.write_text(FAKE_PYTHON.format(version=version, too_old=too_old, no_venv=no_venv))
        program.chmod(0o755)

    def make(self, *arguments: str) -> subprocess.CompletedProcess:
        environ = {"PATH": str(self.bin), "CALLS": str(self.record), "HOME": str(self.folder)}
        command = [shutil.which("make"), *arguments]
        return subprocess.run(command, cwd=self.folder, env=environ, capture_output=True, text=True)

    @property
    def calls(self) -> list[str]:
        """The command lines so far; reading forgets them."""
        lines = self.record.read_text().splitlines() if self.record.exists() else []
        self.record.unlink(missing_ok=True)
        return lines


@pytest.fixture
def played(root, tmp_path):
    if not shutil.which("make"):
        pytest.skip("no make here")
    return Played(root, tmp_path)


INSTALL = "-m pip install --constraint constraints.txt --editable .[lab,test,bench]"


def test_make_installs_once_and_again_when_a_file_changes(played):
    played.python()
    assert played.make("env").returncode == 0
    assert played.calls == ["-m venv --clear .venv", INSTALL]
    played.make("env")
    assert played.calls == []
    stamp = (played.folder / ".venv" / "tensor-lab-ready").stat().st_mtime
    os.utime(played.folder / "constraints.txt", (stamp + 5, stamp + 5))
    assert played.make("env").stdout == "Updating the environment in .venv\n"
    assert played.calls == [INSTALL]


def test_readme_gives_the_plain_command_that_make_runs(root):
    assert INSTALL.replace(".[lab,test,bench]", "'.[lab,test,bench]'") in (root / "README.md").read_text()


def test_torch_index_comes_first_and_for_torch_alone(played):
    played.python()
    index = "https://download.pytorch.org/whl/cpu"
    assert played.make("env", f"TORCH_INDEX={index}").returncode == 0
    assert played.calls[1:] == [
        f"-m pip install --constraint constraints.txt --index-url {index} --no-deps torch",
        INSTALL,
    ]


def test_colab_has_an_environment_of_its_own_made_once(played, root):
    played.python()
    (played.folder / "tests" / "colab").mkdir(parents=True)
    shutil.copy(root / "tests" / "colab" / "requirements.txt", played.folder / "tests" / "colab")
    done = played.make("test-colab", "TORCH_INDEX=https://example.org/cpu")
    assert done.returncode == 0, done.stderr
    pip = "-m pip install --constraint .venv-colab/others.txt"
    *_, venv, torch, install, pytest_ = played.calls
    assert venv == "-m venv --clear .venv-colab"
    assert torch == f"{pip} --index-url https://example.org/cpu --no-deps torch"
    assert install == f"{pip} --requirement tests/colab/requirements.txt"
    assert pytest_.startswith("-m pytest tests/test_colab.py -m colab ")
    played.make("test-colab")
    assert played.calls == [pytest_]  # a second call has nothing else to do
    played.make("test")
    *_, units, colab = played.calls
    assert " -m 'not gpu and not colab' ".replace("'", "") in units and colab == pytest_
    # constraints.txt gives the version of all that the file itself does not.
    files = ("constraints.txt", "tests/colab/requirements.txt", ".venv-colab/others.txt")
    texts = [(played.folder / file).read_text().splitlines() for file in files]
    pins, wanted, others = (parsed(line for line in lines if line and not line.startswith("#")) for lines in texts)
    named = {name for name, requirement in wanted.items() if requirement.specifier}
    assert wanted.keys() - named == {"torch"}
    assert others.keys() == pins.keys() - named


def test_lab_opens_the_first_chapter_on_this_machine_only(played):
    played.python()
    (played.folder / "notebooks" / "00_start_here.ipynb").touch()
    done = played.make("lab", "LAB_ARGS=--no-browser")
    assert done.returncode == 0, done.stderr
    *_, trust, lab = played.calls
    assert re.fullmatch(r"-m nbformat\.sign (--\S+ )*notebooks/00_start_here\.ipynb", trust)
    words = lab.split()
    assert words[:2] == ["-m", "jupyterlab"]
    assert "--ServerApp.ip=127.0.0.1" in words
    assert "--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb" in words
    assert words[-1] == "--no-browser"
    assert "token" not in lab and "password" not in lab  # Jupyter's own token stays on
    assert ("--allow-root" in words) == (os.getuid() == 0)
    defaults = played.folder / ".venv" / "etc" / "jupyter" / "labconfig" / "default_setting_overrides.json"
    assert json.loads(defaults.read_text())["@jupyter-widgets/jupyterlab-manager:plugin"] == {"saveState": True}
    played.make("lab")
    assert [call.split()[1] for call in played.calls] == ["jupyterlab"]  # a second call has nothing else to do


def test_the_first_python_that_will_do_is_taken(played):
    played.python("python3", "3.9.2", too_old=1)
    played.python("python3.13", "3.13.0", no_venv=1)
    played.python("python3.12", "3.12.1")
    assert "with python3.12;" in played.make("env").stdout


TOO_OLD = {"version": "3.9.2", "too_old": 1}
NO_VENV = {"version": "3.12.1", "no_venv": 1}


@pytest.mark.parametrize(
    ("pythons", "words"),
    [
        ([TOO_OLD], "Python 3.11 or newer is needed and the only one found is python3, which is Python 3.9.2;"),
        ([NO_VENV], "python3 (Python 3.12.1) has no venv module; install it (Debian, Ubuntu: python3-venv)"),
        ([], "Python 3.11 or newer is needed and none was found (looked for: python3 "),
    ],
)
@pytest.mark.parametrize("target", ["lab", "test"])
def test_what_is_missing_is_said_in_one_line(played, pythons, words, target):
    for python in pythons:
        played.python(**python)
    done = played.make(target)
    assert done.returncode != 0
    said, *makes_own = done.stderr.splitlines()
    assert words in said
    assert said.endswith(f"or name another one: make {target} PYTHON=/path/to/python3")
    assert len(makes_own) == 1 and makes_own[0].startswith("make: ***")
    assert played.calls == []
    assert not (played.folder / ".venv").exists()


def test_make_alone_lists_the_commands(played):
    assert {"make lab", "make test"} <= set(re.findall(r"^make \w+", played.make().stdout, re.M))
