"""Which operator is behind a graph node, and did it save an input or its own result? Asked by name, when needed."""

from __future__ import annotations

import functools
import re
import threading
from typing import Any

import torch


def operator_of(node: str) -> str:
    """The operator whose backward a node is: ``exp`` for ``ExpBackward0``; for a custom Function, its class."""
    base = re.sub(r"Backward\d*$|Backwards$", "", node)
    known = _schemas().get(_plain(base)) if re.search(r"Backward\d+$", node) else None
    return known[0] if known else base


def is_custom(node: str) -> bool:
    """Whether a node is of a custom Function; PyTorch's own nodes end in a digit, or have names of their own."""
    return node.endswith("Backward")


def is_output(node: str, slot: str) -> bool | None:
    """Whether what a node saved under the name ``slot`` is a result of its operator; None if the name does not tell."""
    if slot.startswith(("result", "output")):
        return True
    if slot.startswith("inputs["):
        return False  # of a checkpoint
    known = _schemas().get(_plain(re.sub(r"Backward\d+$", "", node)))
    if known is None or is_custom(node):
        return None
    return slot.split("[")[0] not in known[1]


def speaks_of(operator: str, node: str) -> bool:
    """Whether an operator (``aten::nll_loss_forward``) can be the one that recorded a node (``NllLossBackward0``)."""
    if not re.search(r"Backward\d+$", node):
        return True  # a custom Function, or one of the nodes that any in-place operator on a view records
    seen, named = _plain(operator.removeprefix("aten::")), _plain(re.sub(r"Backward\d+$", "", node))
    return seen.startswith(named) or named.startswith(seen)


_OLD_KINDS = ("Float", "Double", "Half", "Char", "Byte", "Short", "Int", "Long")


def kind_of(tensor: torch.Tensor) -> str:
    """The tensor's type as C++ says it; types that are younger than PyTorch 0.4 have another form than in Python."""
    kind = tensor.type()
    name = kind.rpartition(".")[2].removesuffix("Tensor")
    return kind if name in _OLD_KINDS else f"{tensor.device.type.upper()}{name}Type"


def first_sentence(kind: str, shape: tuple, source: tuple[str, int] | None, then: int | None, now: int | None) -> str:
    """The words in which PyTorch says that a saved tensor was written to, the installed version's way."""
    shown = f"[{kind} {list(shape)}]"
    if source is not None:
        name = source[0] if _full_names() else re.sub(r"Backward\d*$", "", source[0])
        shown += f", which is output {source[1]} of {name},"
    shown = f"one of the variables needed for gradient computation has been modified by an inplace operation: {shown}"
    if then == now:
        return f"{shown} is at version {now}, as expected, but its values have changed."
    return f"{shown} is at version {now}; expected version {then} instead."


@functools.cache
def _full_names() -> bool:
    """Whether PyTorch says ``ExpBackward0`` in its message, or ``Exp``: that has changed, so it is made to say it."""
    said: list[str] = []

    def provoke() -> None:
        made = torch.ones(1, requires_grad=True).exp()
        made.detach().zero_()
        try:
            said.append(str(made.grad_fn._saved_result))
        except RuntimeError as error:
            said.append(str(error))

    # Hooks and modes belong to a thread, and a new one has none.
    thread = threading.Thread(target=provoke)
    thread.start()
    thread.join()
    return "ExpBackward0" in said[0]


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


@functools.cache
def _schemas() -> dict[str, tuple[str, frozenset[str]]]:
    """Plain name -> (the operator's name, all its arguments' names); read once, in some ten milliseconds."""
    found: dict[str, Any] = {}
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("aten::"):
            name = schema.name[len("aten::") :].strip("_")
            arguments = found.setdefault(_plain(name), (name, set()))[1]
            arguments.update(argument.name for argument in schema.arguments if not argument.is_out)
    return {key: (name, frozenset(arguments)) for key, (name, arguments) in found.items()}
