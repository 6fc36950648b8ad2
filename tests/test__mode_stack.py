"""A mode taken off PyTorch's stack from any place in it, and put on again inside its own handler."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from helpers._mode_stack import Again, take_off


class Noting(TorchDispatchMode):
    """Notes the operators that come by; those that compose others are run in its sight if ``again``."""

    def __init__(self, again: bool = False):
        super().__init__()
        self.again, self.names = again, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func._schema.name)
        if self.again and func is torch.ops.aten.reshape.default:
            with Again(self):
                return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args)
        return func(*args, **(kwargs or {}))


def test_a_mode_is_taken_off_from_under_others():
    before = _get_current_dispatch_mode_stack()
    lower, upper = Noting(), Noting()
    with lower:
        upper.__enter__()
        assert take_off(lower)
        assert _get_current_dispatch_mode_stack() == [*before, upper]
        torch.zeros(2)
        assert (lower.names, upper.names) == ([], ["aten::zeros"])
        assert take_off(upper)
        lower.__enter__()  # for the block to end
    assert _get_current_dispatch_mode_stack() == before


def test_a_mode_that_is_not_there_is_not_taken_off():
    before = _get_current_dispatch_mode_stack()
    with Noting() as other:
        assert not take_off(Noting())
        assert _get_current_dispatch_mode_stack() == [*before, other]


def test_a_mode_put_on_again_sees_the_parts_of_a_composition():
    def seen(again: bool) -> list[str]:
        with torch.inference_mode(), Noting(again) as mode:
            torch.ones(6).reshape(2, 3)
        return mode.names

    assert seen(True) == ["aten::ones", "aten::reshape", "aten::view"]
    assert seen(False) == ["aten::ones", "aten::reshape"]
