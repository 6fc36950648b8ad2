"""How many bytes does a store hold? One sum for all threads, which may also change in the midst of itself."""

from __future__ import annotations

import threading
from collections import deque

from ._locks import new_lock


class Tally:
    """A sum that dying objects lower, from any thread and at any moment, also while this thread is reading it.

    A signal handler may read it in the midst of a reading, so the lock is one that its own thread can take again.
    """

    def __init__(self) -> None:
        self._changes: deque[int] = deque()  # appending is one step, so whoever appends waits for nobody
        self._lock = new_lock(threading.RLock)
        self._sum = 0

    def add(self, nbytes: int) -> None:
        """Adds ``nbytes``, which may be less than 0."""
        self._changes.append(nbytes)

    @property
    def live_bytes(self) -> int:
        """The sum."""
        with self._lock:
            while self._changes:
                try:
                    change = self._changes.popleft()
                except IndexError:  # the handler of a signal has read it to the end
                    break
                self._sum += change
            return self._sum
