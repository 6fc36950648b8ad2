"""A run in two processes, started as the chapter starts it; and what becomes of one that fails or takes too long."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers import ddp_worker

if not hasattr(os, "pwrite"):
    pytest.skip("offload_to_disk needs positional reads and writes", allow_module_level=True)


def reports_of(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_two_processes_train_alike_with_and_without_hooks(tmp_path, root):
    """From a folder that is not the checkout's, with the arguments of the chapter."""
    (tmp_path / "saved").mkdir()
    command = [sys.executable, "-m", "helpers.ddp_worker", "--world-size", "2", "--folder", str(tmp_path / "saved")]
    environment = dict(os.environ, PYTHONPATH=str(root))
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    reports = reports_of(done.stdout)
    assert [(r["rank"], r["placing"]) for r in reports] == [(n, p) for n in (0, 1) for p in ddp_worker.PLACINGS]
    for report in reports:
        # Two steps; three Linear layers keep their inputs, of 64 numbers in 32 rows, and two of them their weights.
        # A ReLU keeps its result, which is the next one's input.
        assert report["packed"] == report["unpacked"] == 2 * 5
        assert report["bytes_written"] == 2 * 3 * 32 * 64 * 4 == 2 * report["bytes_live_at_most"]
        assert report["bytes_live"] == report["names_in_folder"] == 0
        assert report["same_as_without_hooks"] and report["same_in_all_ranks"]
        assert not report["same_in_all_ranks_without_ddp"]
    assert os.listdir(tmp_path / "saved") == []


def test_one_rank_alone_agrees_with_itself(tmp_path, monkeypatch, capsys):
    """The control of the last control: what differs between ranks without averaging is their data, and nothing else."""
    for name, value in ddp_worker._environment().items():
        monkeypatch.setenv(name, value)
    (tmp_path / "saved").mkdir()
    arguments = ["--world-size", "1", "--rank", "0", "--meeting", str(tmp_path / "meeting"), "--steps", "1"]
    assert ddp_worker.main([*arguments, "--folder", str(tmp_path / "saved")]) == 0
    reports = reports_of(capsys.readouterr().out)
    assert [r["placing"] for r in reports] == list(ddp_worker.PLACINGS)
    assert all(r["same_in_all_ranks_without_ddp"] and r["same_in_all_ranks"] for r in reports)
    assert all(r["packed"] == 5 and r["same_as_without_hooks"] for r in reports)


def test_run_that_takes_too_long_is_ended(capsys):
    began = time.monotonic()
    assert ddp_worker.main(["--timeout", "0.1"]) == 1
    assert time.monotonic() - began < 30
    said = capsys.readouterr()
    assert said.out == "" and said.err == "not done after 0.1 s, ended: ranks [0, 1]\n"


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="there is no folder here in which nobody can make a file")
def test_rank_that_fails_ends_the_others_and_is_heard(capsys):
    assert ddp_worker.main(["--folder", "/proc", "--steps", "1"]) == 1
    said = capsys.readouterr()
    assert said.out == "" and "failed with code 1:" in said.err and "offload_to_disk cannot make a file" in said.err


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="processes are looked for in /proc")
@pytest.mark.parametrize(("number", "wait"), [(signal.SIGKILL, 0), (signal.SIGKILL, 3), (signal.SIGTERM, 0)])
def test_ranks_end_with_the_process_that_started_them(tmp_path, number, wait):
    """A run that would take minutes; its folder is in the command line of each of its processes."""
    command = [sys.executable, "-m", "helpers.ddp_worker", "--folder", str(tmp_path), "--steps", "1000000"]
    environment = dict(os.environ, TMPDIR=str(tmp_path))  # what is killed leaves its own folder
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as parent:
        started = wait_for(lambda: len(processes_with(tmp_path)) == 3, 30)
        time.sleep(wait)
        parent.send_signal(number)
        parent.wait(30)
    assert started
    assert wait_for(lambda: not processes_with(tmp_path), 30)


def processes_with(folder) -> list[str]:
    """Numbers of the processes that have ``folder`` in their command line."""
    found = []
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path("/proc", number, "cmdline").read_bytes()
        except OSError:  # it is gone
            continue
        if os.fsencode(folder) in line:
            found.append(number)
    return found


def wait_for(condition, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--world-size", "0"], "--world-size and --steps are at least 1"),
        (["--steps", "0"], "--world-size and --steps are at least 1"),
        (["--timeout", "0"], "--timeout is above 0"),
        (["--folder", "no such folder"], "there is no folder no such folder"),
        (["--world-size", "two"], "invalid int value"),
    ],
)
def test_wrong_arguments_are_refused(arguments, said, capsys):
    with pytest.raises(SystemExit) as ended:
        ddp_worker.main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_gloo_is_sent_over_the_loopback_device(root):
    environment = ddp_worker._environment()
    assert environment["GLOO_SOCKET_IFNAME"].startswith("lo")
    assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(root)
