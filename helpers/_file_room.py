"""Which parts of a file are in use? Places are handed out, taken back, and handed out again."""

from __future__ import annotations

import bisect

PAGE = 4096  # places start at its multiples, so that no two tensors share a page of the file


class FileRoom:
    """The room in one file; whoever uses it holds a lock.

    Attributes:
        end: behind this nothing is in use.
        length: the highest that ``end`` has been, and so how long the file is: pages that are there are written faster
            than new ones, so it is never cut.
        free: (offset, length) of the gaps below ``end``, by offset, no two of them side by side.
    """

    def __init__(self) -> None:
        self.end = self.length = 0
        self.free: list[tuple[int, int]] = []

    def take(self, nbytes: int, *, only_new: bool = False) -> int:
        """The offset of ``nbytes`` that nobody uses: the first gap that is large enough, else the end.

        Args:
            only_new: whether the place must not have been used before.
        """
        length = pages(nbytes)
        for index, (offset, free) in enumerate(() if only_new else self.free):
            if free >= length:
                if free == length:
                    del self.free[index]
                else:
                    self.free[index] = offset + length, free - length
                return offset
        offset = self.end
        self.end += length
        self.length = max(self.length, self.end)
        return offset

    def give_back(self, offset: int, nbytes: int) -> None:
        """The place that `take` gave for ``nbytes`` is free again."""
        length = pages(nbytes)
        index = bisect.bisect(self.free, (offset,))
        if index < len(self.free) and offset + length == self.free[index][0]:
            length += self.free.pop(index)[1]
        if index and sum(self.free[index - 1]) == offset:
            index -= 1
            before = self.free.pop(index)
            offset, length = before[0], before[1] + length
        if offset + length == self.end:
            self.end = offset
        else:
            self.free.insert(index, (offset, length))


def pages(nbytes: int) -> int:
    """Bytes of the pages that ``nbytes`` take."""
    return -(-nbytes // PAGE) * PAGE
