"""What stays known of a run too long to be kept whole? Thins the oldest part of a tracker's log."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

from ._timeline import Alive, Log, Replay

Row = tuple[int, tuple, dict[str, int], bool]  # event number, entry of the log, bytes by group, whether it has to stay


class History:
    """The older part of a log: of every so many events the highest, and each that stands beside the border of a phase.

    The rows are spread evenly over the run: when they are too many, each stands for twice as many events as before. A
    border outlives that as long as all borders, and a row between each two of them, take no more than the room that is
    wanted then, three quarters of ``most``.

    Args:
        log: the log, of which `fold` takes the oldest entries away.
        marks: as `Replay` takes them; `fold` takes away those that it has used.
        most: how many rows are kept at most.

    Attributes:
        rows: what is kept, oldest first.
        state: what was alive where the rows end; from there on the log is whole.
        seen: how many events the rows stand for.
        start: bytes by group before the first event, and what was alive there.
        peak: the row of the highest event so far, once it is no longer in the log, and what was alive there.
    """

    def __init__(self, log: Log, marks: list[tuple], most: int):
        self.log, self.marks, self.most = log, marks, most
        self.rows: list[Row] = []
        self.seen = 0
        self.state = Replay(log, [])
        self.start: tuple[dict[str, int], list[Alive]] | None = None
        self.peak: tuple[Row, list[Alive]] | None = None
        self._width = 1  # events for which one row stands
        self._borders_stay = True

    def fold(self, until: int, start: int, peak: int, borders: list[int]) -> None:
        """Takes the entries before ``until`` out of the log.

        Args:
            start: number of the run's first event; what comes before it tells what existed already.
            peak: number of the highest event so far.
            borders: numbers of the first events behind a border, rising; those that are used up are taken away.
        """
        self._take_marks(until)
        # Entry by entry, and the log shortened last: an interrupt in between leaves all of it consistent.
        while self.state.next_event < until:
            index = self.state.next_event
            if index == start:
                self._note_start()
            entry = self.log[index]
            self.state.state_after(index)
            if index >= start:
                beside = bisect_left(borders, index)
                at_border = any(border in (index, index + 1) for border in borders[beside : beside + 2])
                self._add((index, entry, dict(self.state.totals), at_border or index == peak))
                if index == peak:
                    self.peak = self.rows[-1], self.state.storages()
        if until == start:
            self._note_start()
        self.log.forget(until)
        del borders[: bisect_left(borders, until)]

    def _note_start(self) -> None:
        self.start = dict(self.state.totals), self.state.storages()

    def _take_marks(self, until: int) -> None:
        count = len(self.marks)  # another thread may add to it meanwhile
        taken = [mark for mark in self.marks[:count] if mark[0] < until]
        self.marks[:count] = [mark for mark in self.marks[:count] if mark[0] >= until]
        self.state = self.state.branch(sorted(taken, key=lambda mark: mark[0]))

    def _add(self, row: Row) -> None:
        self.seen += 1
        _put(self.rows, row if self._borders_stay else (*row[:3], False), self._width)
        if len(self.rows) > self.most:
            self._thin()

    def _thin(self) -> None:
        room = max(self.most * 3 // 4, 1)
        if self._borders_stay and _fewest(self.rows) > room:
            self._borders_stay = False
            self.rows = [(*row[:3], False) for row in self.rows]
            # Beside borders nothing could be merged, however wide a row was: begin where all may fit without them.
            span = self.rows[-1][0] - self.rows[0][0]
            self._width = 1 << max((span // room).bit_length() - 2, 0)
        while len(self.rows) > room:
            self._width *= 2
            rows: list[Row] = []
            for row in self.rows:
                _put(rows, row, self._width)
            self.rows = rows


def _fewest(rows: list[Row]) -> int:
    """How many rows are left when each stands for as many events as there are."""
    return len(rows) - sum(not (one[3] or other[3]) for one, other in pairwise(rows))


def _put(rows: list[Row], row: Row, width: int) -> None:
    """Adds a row, or lets it and the last one stand together for what lies between two multiples of ``width``."""
    if rows and rows[-1][0] // width == row[0] // width and not (rows[-1][3] or row[3]):
        if row[1][5] >= rows[-1][1][5]:  # live bytes
            rows[-1] = row
    else:
        rows.append(row)
