"""What is a graph once it has been read? Plain records: names, shapes and bytes, never a tensor or an autograd node.

Whoever keeps a record keeps no graph alive. `helpers._graph_read` fills them in; pictures and tables are made of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from helpers._source import Place
from helpers.display import round_bytes


@dataclass
class Operator:
    """One operator of the forward pass. ``order`` counts upwards the way forward ran.

    ``module`` is where it is drawn; ``owner`` is the module whose parameter it reads, None if it reads none.
    """

    id: str
    name: str
    shape: str
    inputs: list[str] = field(default_factory=list)
    slots: list[SavedSlot] = field(default_factory=list)
    alias: str = ""
    freed: bool = False
    order: int = 0
    level: int = 0
    module: str | None = None
    owner: str | None = None
    sequence: int = -1  # autograd's own number of the node


@dataclass
class Leaf:
    """A tensor that exists without the graph: what the reader made, a parameter, or a buffer."""

    id: str
    name: str
    kind: str  # "leaf", "parameter" or "buffer"
    shape: str
    nbytes: int
    storage: str
    requires_grad: bool = True
    is_parameter: bool = False  # an nn.Parameter, whether or not a model names it


@dataclass
class Storage:
    """Memory that the graph keeps; ``leaf`` is the id of the leaf that owns it, else it was kept for backward alone."""

    letter: str
    nbytes: int
    leaf: str = ""
    name: str = ""
    same_as: str = ""
    slots: list[SavedSlot] = field(default_factory=list)
    is_parameter: bool = False
    made_anew: bool = False  # by an unpack hook when it was asked: between the questions it is not in memory


@dataclass(frozen=True)
class SavedSlot:
    """One tensor that one operator keeps for backward, as plain data.

    Attributes:
        op: the operator's plain name, ``"mul"``.
        slot: PyTorch's name of the slot, ``"self"``, ``"other"``, ``"result"``, ``"indices[0]"``.
        shape: sizes of the tensor as it was saved.
        dtype: its ``torch.dtype``.
        nbytes: elements times element size, as ``tensor.nbytes``.
        used_bytes: bytes of the storage that the tensor really reads (a repeated element counts once).
        storage: letter of the storage, in order of appearance.
        storage_nbytes: bytes of that whole storage, which is what stays allocated.
        kind: ``"activation"``, ``"leaf"``, ``"parameter"`` or ``"buffer"``; the last three exist without the graph.
        name: the reader's, or the model's, name of the tensor; empty if it has none.
        note: empty, or what is special: ``"overwritten"``, ``"packed by a hook"``, ``"unpack hook failed: ..."``,
            ``"recomputed by checkpoint"``, ``"kept to run a checkpoint again"``, ``"put on ctx by hand"``.
        node: id of the operator, ``"mul_1"``.
        module: path of the module it ran in, and
        line: the `Place` that called it; both None where unknown, and in pictures, which do not show them.
        is_number: whether it is a number from the code (``x * 3.0``), wrapped as a tensor.
        offset: where it begins in its storage, in elements.
    """

    op: str
    slot: str
    shape: tuple[int, ...]
    dtype: object
    nbytes: int
    used_bytes: int
    storage: str
    storage_nbytes: int
    kind: str
    name: str
    note: str
    node: str
    module: str | None = None
    line: Place | None = None
    is_number: bool = False
    offset: int = 0


@dataclass
class Output:
    """One tensor that the reader passed in; ``target`` is the id of what made it, empty without a graph."""

    id: str
    name: str
    shape: str
    dtype: str
    target: str = ""
    note: str = ""


@dataclass
class Graph:
    """Everything that was read; operators and leaves in order of appearance, from the output down."""

    outputs: list[Output] = field(default_factory=list)
    operators: dict[str, Operator] = field(default_factory=dict)
    leaves: dict[str, Leaf] = field(default_factory=dict)
    storages: dict[str, Storage] = field(default_factory=dict)
    model_name: str = ""
    module_types: dict[str, str] = field(default_factory=dict)  # path -> class name


def count(n: int, noun: str, plural: str = "") -> str:
    """Returns ``"1 leaf"``, ``"1,940 operators"``."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def human_bytes(n: int) -> str:
    """Bytes to the byte while they are short enough to be read, binary units above."""
    return f"{n:,} B" if n < 10_000 else round_bytes(n)


def part_of(used: int, whole: int) -> str:
    """Returns ``"40 of 4,000 B"`` for a tensor that reads a part of its storage, else the whole alone."""
    if used >= whole:
        return human_bytes(whole)
    return f"{used:,} of {whole:,} B" if whole < 10_000 else f"{human_bytes(used)} of {human_bytes(whole)}"


def shape_text(shape: Iterable[int]) -> str:
    """Returns ``"[4, 8]"``, and ``"scalar"`` for no dimensions."""
    sizes = [str(size) for size in shape]
    return f"[{', '.join(sizes)}]" if sizes else "scalar"


def dtype_text(dtype: object) -> str:
    """Returns ``"float32"`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")
