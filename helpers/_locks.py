"""Locks that a forked child can use: the thread that held one when the process was forked is not in the child."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

_locks: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def new_lock(kind: Callable[[], Any] = threading.Lock) -> Any:
    """A lock, or an RLock, that is free in a child whatever it was in its parent."""
    lock = kind()
    _locks[id(lock)] = lock
    return lock


def _renew() -> None:
    for ref in _locks.valuerefs():
        if (lock := ref()) is not None:
            lock._at_fork_reinit()  # what threading and logging do with theirs


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
