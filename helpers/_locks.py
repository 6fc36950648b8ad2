"""Locks that a forked child can use: the thread that held one when the process was forked is not in the child."""

from __future__ import annotations

import os
import threading
import weakref

_locks: weakref.WeakValueDictionary[int, threading.Lock] = weakref.WeakValueDictionary()


def new_lock() -> threading.Lock:
    """A lock that is free in a child whatever it was in its parent."""
    lock = threading.Lock()
    _locks[id(lock)] = lock
    return lock


def _renew() -> None:
    for ref in _locks.valuerefs():
        if (lock := ref()) is not None:
            lock._at_fork_reinit()  # what threading and logging do with theirs


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
