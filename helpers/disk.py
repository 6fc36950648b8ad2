"""What lies on disk, and when? Counted at every call of pack and unpack, and drawn, also while it happens.

watch = DiskWatch(folder, "offload_to_disk")
with watch.phase("forward"), watch.watching(offload_to_disk(folder)):
    loss = model(inputs).sum()
with watch.phase("backward"):
    loss.backward()
draw_disk(watch)
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import saved_tensors_hooks

from ._disk_picture import Lane, Point, disk_svg, rounded
from .display import LiveOutput, Picture

_SECONDS_A_FRAME = 0.1
_active_pair = torch._C._autograd._top_saved_tensors_default_hooks


def nameless_files() -> dict[int, int]:
    """Returns descriptor -> length of the open files of this process that have a name in no folder.

    Counted by the system and not by who opened them. Empty where a process cannot list its descriptors (Windows).

    Example:
        >>> import tempfile
        >>> before = nameless_files()
        >>> with tempfile.TemporaryFile() as file:
        ...     written = file.write(b"12345678"), file.flush()
        ...     [length for number, length in nameless_files().items() if number not in before]
        [8]
    """
    found = {}
    try:
        numbers = os.listdir("/dev/fd")
    except OSError:
        return found
    for number in map(int, numbers):
        try:
            about = os.fstat(number)
        except OSError:  # the descriptor of the listing itself, or one that another thread closed
            continue
        if stat.S_ISREG(about.st_mode) and about.st_nlink == 0:
            found[number] = about.st_size
    return found


class Sample(NamedTuple):
    """What lay on disk at one moment.

    Attributes:
        call: how many calls of pack and unpack there were.
        kind: the last of them, ``pack`` or ``unpack``; ``mark`` at the ends of phases.
        phase: the phase that ran, or "".
        names: how many files the folder lists.
        named_bytes: how long they are together.
        nameless: how many files without a name this process opened since the watch began.
        nameless_bytes: how long those are together.
        in_use: how many of their bytes a graph needs, as the hooks count them (``bytes_live``).
    """

    call: int
    kind: str
    phase: str
    names: int
    named_bytes: int
    nameless: int
    nameless_bytes: int
    in_use: int


class DiskWatch:
    """Counts what is in a folder, and which nameless files are open, at each call of a pair of hooks.

    The pair that is watched does what it would do alone: each of its calls is passed on to it, and counted afterwards.

    Args:
        folder: the folder whose files are counted; files in folders inside it are not.
        name: what to call this watch in a picture.

    Attributes:
        samples: a `Sample` for each call and for both ends of each phase, the first from before all.
        phases: (name, first call, last call) of the phases that ended.
        listener: called after each sample; how `LiveDiskPlot` hears of it.

    Example:
        >>> import tempfile
        >>> from helpers import offload_to_disk
        >>> x = torch.rand(1000, 100, requires_grad=True)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     watch = DiskWatch(folder)
        ...     with watch.watching(offload_to_disk(folder)):
        ...         y = (2 * x).exp()
        ...     y.sum().backward()
        ...     [(s.kind, s.names, s.in_use) for s in watch.samples]
        [('mark', 0, 0), ('pack', 0, 400000), ('mark', 0, 400000), ('unpack', 0, 400000)]
    """

    def __init__(self, folder: str | os.PathLike, name: str = "the folder"):
        self.folder, self.name = Path(folder), name
        if not self.folder.is_dir():
            raise NotADirectoryError(f"DiskWatch counts the files of an existing folder; there is none at {folder}")
        self.samples: list[Sample] = []
        self.phases: list[tuple[str, int, int]] = []
        self.listener: Callable[[], None] | None = None
        self._before = set(nameless_files())
        self._hooks: Any = None
        self._calls = 0
        self._phase = ""
        self._lock = threading.Lock()
        self.mark()

    @contextmanager
    def watching(self, hooks: AbstractContextManager) -> Iterator[Any]:
        """Enters ``hooks`` and counts at each of its calls, those in a later backward among them.

        Raises:
            TypeError: if ``hooks`` makes no pair of saved-tensor hooks the active one.
        """
        around = _active_pair(False)
        with hooks:
            pair = _active_pair(False)
            if pair is None or pair is around or (around is not None and pair[0] is around[0]):
                raise TypeError(f"watching takes a pair of saved-tensor hooks as a context manager; got {hooks!r}")
            self._hooks = hooks
            with saved_tensors_hooks(self._counting("pack", pair[0]), self._counting("unpack", pair[1])):
                yield hooks
        self.mark()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Names what runs inside; phases do not nest."""
        first, self._phase = self._calls, name
        self.mark()
        try:
            yield
        finally:
            self.mark()
            self.phases.append((name, first, self._calls))
            self._phase = ""

    def mark(self) -> Sample:
        """Counts now, also without a call; returns the `Sample`."""
        return self._sample("mark")

    @property
    def last(self) -> Sample:
        """The latest sample."""
        return self.samples[-1]

    def _counting(self, kind: str, function: Callable) -> Callable:
        def call(value: Any) -> Any:
            result = function(value)
            self._sample(kind)
            return result

        return call

    def _sample(self, kind: str) -> Sample:
        with self._lock:
            self._calls += kind != "mark"
            sizes = []
            for entry in os.scandir(self.folder) if self.folder.is_dir() else ():
                try:
                    if entry.is_file(follow_symlinks=False):
                        sizes.append(entry.stat(follow_symlinks=False).st_size)
                except FileNotFoundError:  # it went between the listing and the question
                    continue
            nameless = nameless_files()
            self._before &= nameless.keys()  # a number that was closed may be given to another file
            ours = [length for number, length in nameless.items() if number not in self._before]
            in_use = getattr(self._hooks, "bytes_live", 0)
            sample = Sample(self._calls, kind, self._phase, len(sizes), sum(sizes), len(ours), sum(ours), in_use)
            self.samples.append(sample)
        if self.listener is not None:
            self.listener()
        return sample


def _figures(watch: DiskWatch) -> str:
    most, last = max(watch.samples, key=lambda s: s.named_bytes + s.in_use), watch.last
    if not any(s.names for s in watch.samples):
        return (
            f"no name in the folder, {_count(last.nameless, 'open file')} without one; "
            f"{rounded(most.in_use)} in use at most, {rounded(last.in_use)} now"
        )
    return (
        f"{_count(most.names, 'file')}, {rounded(most.named_bytes)} at most; "
        f"{_count(last.names, 'file')}, {rounded(last.named_bytes)} now"
    )


def _now(watch: DiskWatch) -> str:
    last = watch.last
    named = f"{_count(last.names, 'file')} with a name, {last.nameless:,} without"
    return f"{named}: {rounded(last.named_bytes + last.in_use)} in use"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _lane(watch: DiskWatch) -> Lane:
    points = [Point(s.call, s.names, s.named_bytes, s.in_use, s.nameless_bytes) for s in watch.samples]
    return Lane(watch.name, points, watch.phases, _figures(watch))


def _finding(watches: tuple[DiskWatch, ...]) -> str:
    if len(watches) == 1 and not any(s.names for s in watches[0].samples):
        most = max(s.in_use for s in watches[0].samples)
        return f"Up to {rounded(most)} on disk, no name in the folder, {rounded(watches[0].last.in_use)} in use now"
    leaking = [f"{w.name} leaves {_count(w.last.names, 'file')}" for w in watches if w.last.names]
    clean = [w.name for w in watches if not w.last.names]
    if clean:
        leaking.append(f"{' and '.join(clean)} {'leaves' if len(clean) == 1 else 'leave'} none")
    return ", ".join(leaking)


def draw_disk(*watches: DiskWatch, title: str | None = None) -> Picture:
    """Draws bytes on disk over the calls of pack and unpack, a lane for each watch, all to one scale.

    Args:
        watches: what to draw, finished or still going on.
        title: the finding in one sentence, if you know better than the picture does.

    Returns:
        A `Picture`; its ``data`` is a list of each watch's samples.

    Raises:
        TypeError: without a watch, or for something else.
    """
    if not watches or not all(isinstance(w, DiskWatch) for w in watches):
        raise TypeError(f"draw_disk takes one or more DiskWatch objects; got {watches!r}")
    heading = title or _finding(watches)
    lanes = [_lane(w) for w in watches]
    alt = f"{heading}. Over the calls of pack and unpack: " + "; ".join(
        f"{lane.name}: {lane.figures}" for lane in lanes
    )
    return Picture(disk_svg(lanes, heading), alt=f"{alt}.", data=[list(w.samples) for w in watches])


class LiveDiskPlot:
    """Draws running `DiskWatch` objects under the cell, about ten times a second, and leaves a finished picture.

    Frames are drawn by the work itself, between two calls. A plain script shows nothing while it runs: read
    ``plot.picture.alt`` afterwards.

    Attributes:
        frames: how many frames were drawn while the work ran.
        picture: the finished `Picture`, after the block; None before.
    """

    def __init__(self, *watches: DiskWatch):
        if not watches or not all(isinstance(w, DiskWatch) for w in watches):
            raise TypeError(f"LiveDiskPlot takes one or more DiskWatch objects; got {watches!r}")
        self.watches = watches
        self.picture: Picture | None = None
        self._output = LiveOutput()
        self._due = 0.0
        self._lock = threading.Lock()

    @property
    def frames(self) -> int:
        return self._output.frames

    def __enter__(self) -> LiveDiskPlot:
        for watch in self.watches:
            watch.listener = self._moved
        self._frame()
        return self

    def __exit__(self, *exc: object) -> None:
        for watch in self.watches:
            watch.listener = None
        self.picture = draw_disk(*self.watches)
        self._output.finish(self.picture)

    def _moved(self) -> None:
        if time.monotonic() >= self._due:
            self._frame()

    def _frame(self) -> None:
        with self._lock:
            lanes = [_lane(w) for w in self.watches]
            words = "Now " + ", ".join(_now(w) for w in self.watches)
            self._output.frame(disk_svg(lanes, words), words)
            self._due = time.monotonic() + _SECONDS_A_FRAME
