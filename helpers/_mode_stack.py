"""Where on PyTorch's stack of modes is a mode? Taken off from anywhere in it, and put on again for a moment."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)

_FLAGS = (  # what PyTorch's modes note when they are entered, to put it back when they are left
    "old_dispatch_mode_flags",
    "old_non_infra_dispatch_mode_flags",
    "old_without_ignore_compile_internals_dispatch_mode_flags",
)


def take_off(mode: TorchDispatchMode) -> bool:
    """Takes a mode off the calling thread's stack of modes, from under others too. Returns whether it was there."""
    stack = _get_current_dispatch_mode_stack()
    places = [place for place, other in enumerate(stack) if other is mode]
    if not places:
        return False
    above = stack[places[-1] + 1 :]
    if above:  # the next mode was entered while this one ran, and is to put back what was there before this one
        earlier = sum(other is above[0] for other in stack[: places[-1]])
        for name in _FLAGS:
            ours, theirs = getattr(mode, name, None), getattr(above[0], name, None)
            if ours and theirs and earlier < len(theirs):
                ours[-1], theirs[earlier] = theirs[earlier], ours[-1]
    for _ in above:
        _pop_mode()
    TorchDispatchMode.__exit__(mode, None, None, None)
    for other in above:
        _push_mode(other)
    return True


class Again:
    """Puts a mode back on the stack from inside its own handler, so that it sees the parts of a composition."""

    def __init__(self, mode: TorchDispatchMode):
        self.mode = mode

    def __enter__(self) -> None:
        TorchDispatchMode.__enter__(self.mode)

    def __exit__(self, *exc: Any) -> None:
        TorchDispatchMode.__exit__(self.mode, *exc)
