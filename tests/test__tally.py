"""A sum that any thread may change at any moment."""

from __future__ import annotations

import threading

from helpers._tally import Tally


def test_the_sum():
    tally = Tally()
    assert tally.live_bytes == 0
    tally.add(5)
    tally.add(-2)
    assert tally.live_bytes == tally.live_bytes == 3


def test_adding_waits_for_nobody():
    tally = Tally()
    with tally._lock:  # as when an object dies while this thread reads the sum
        tally.add(7)
    assert tally.live_bytes == 7


def test_threads():
    tally = Tally()

    def work():
        for _ in range(2000):
            tally.add(3)
            tally.live_bytes  # noqa: B018
            tally.add(-2)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tally.live_bytes == 16_000
