"""Which pair of saved-tensor hooks runs? Lays guards over every pair that is entered, for as long as a guard is there.

Only the innermost pair runs, and PyTorch tells nobody that one is entered. So its class `saved_tensors_hooks`, of which
`save_on_cpu` and the hooks of checkpoint are kinds, is asked to.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch.autograd.graph import saved_tensors_hooks

active_pair = torch._C._autograd._top_saved_tensors_default_hooks
push_pair = torch._C._autograd._push_saved_tensors_default_hooks
pop_pair = torch._C._autograd._pop_saved_tensors_default_hooks

_here = threading.local()  # .covers: those of this thread, outermost first; hooks belong to a thread
_threads, _lock = 0, threading.Lock()
_plain_enter, _plain_exit = saved_tensors_hooks.__enter__, saved_tensors_hooks.__exit__
_plain_disable = torch.autograd.graph.disable_saved_tensors_hooks


class Cover(Protocol):
    """What lies over pairs of hooks; ``pushed`` are its own pairs, the latest last."""

    pushed: list[tuple]

    def push(self) -> None: ...

    def pop(self) -> None: ...


def covers() -> list[Cover]:
    """The covers of this thread, outermost first."""
    if not hasattr(_here, "covers"):
        _here.covers = []
    return _here.covers


def cover(what: Cover) -> None:
    """From now on ``what`` is pushed over each pair that this thread enters, and popped before the pair is left."""
    global _threads
    covers().append(what)
    with _lock:
        _threads += 1
        if _threads == 1:
            saved_tensors_hooks.__enter__, saved_tensors_hooks.__exit__ = _enter_and_cover, _uncover_and_exit
            torch.autograd.graph.disable_saved_tensors_hooks = _disable_around


def uncover(what: Cover) -> None:
    """The opposite of `cover`."""
    global _threads
    covers().remove(what)
    with _lock:
        _threads -= 1
        if _threads == 0:
            saved_tensors_hooks.__enter__, saved_tensors_hooks.__exit__ = _plain_enter, _plain_exit
            torch.autograd.graph.disable_saved_tensors_hooks = _plain_disable


def _enter_and_cover(self: saved_tensors_hooks) -> None:
    _plain_enter(self)
    self._covered_by = list(covers())
    for over in self._covered_by:
        over.push()


def _uncover_and_exit(self: saved_tensors_hooks, *exc: object) -> None:
    for over in reversed(self.__dict__.pop("_covered_by", ())):
        over.pop()
    _plain_exit(self, *exc)


@contextmanager
def _disable_around(message: str) -> Iterator[Any]:
    """`torch.func` refuses to work under hooks. Covers step aside for it, if there are no hooks but theirs."""
    aside: list[tuple] = []
    while (pair := active_pair(False)) is not None and any(pair[0] is own[0] for c in covers() for own in c.pushed):
        aside.append(pair)
        pop_pair()
    alone = pair is None
    if not alone:
        _restore(aside)
    try:
        with _plain_disable(message):
            yield
    finally:
        if alone:
            _restore(aside)


def _restore(pairs: list[tuple]) -> None:
    for pair in reversed(pairs):
        push_pair(*pair)
