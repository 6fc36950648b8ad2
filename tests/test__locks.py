"""Locks that a forked child finds open."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_finds_locks_open_that_a_thread_of_its_parent_held():
    code = """
import os, threading
from helpers._locks import new_lock
renewed, plain, held = new_lock(), threading.Lock(), threading.Event()

def hold():
    with renewed, plain:
        held.set()
        threading.Event().wait(60)

threading.Thread(target=hold, daemon=True).start()
held.wait()
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, f"{renewed.acquire(timeout=0.1)} {plain.acquire(timeout=0.1)}".encode())
    os._exit(0)
os.wait()
print(os.read(read, 100).decode(), renewed.acquire(timeout=0.1))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=Path(__file__).parent.parent
    )
    assert done.stdout == "True False False\n", done.stderr  # the plain lock is the control; the parent's stays held
