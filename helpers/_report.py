"""What is known of a failed backward, in plain attributes, and as the text that goes with PyTorch's message."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field

import torch

from ._source import Place


@dataclass
class Saved:
    """Who saved the tensor.

    Attributes:
        op: the operator, ``exp``; for a custom Function its class.
        node: the graph node, ``ExpBackward0``.
        slot: under what name the node keeps it: ``result``, ``self``, ``weight``.
        is_output: whether it is the operator's own result; None if the name does not tell.
        line: the reader's line; None if it ran before the block, or in another thread.
    """

    op: str
    node: str
    slot: str
    is_output: bool | None
    line: Place | None
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass
class Write:
    """Who wrote.

    Attributes:
        op: the operator, ``add_``.
        line: the reader's line, or None.
        version: of the tensor afterwards; None where it is not counted.
        overlaps: whether it wrote to an element that was saved; None if that is not known.
    """

    op: str
    line: Place | None
    version: int | None
    shape: tuple[int, ...]
    overlaps: bool | None = None


@dataclass
class ReadAfterWrite:
    """A value that was written in place and read afterwards, perhaps by code that means the old one.

    Attributes:
        op, line: who read it.
        write: what it read.
        earlier: who had read it before, since the same write.
    """

    op: str
    line: Place | None
    write: Write
    earlier: list[str]


@dataclass
class Report:
    """What `explain_inplace` found; empty while nothing has failed.

    Attributes:
        kind: "" (no failure), "version", "values" (a silent write), "freed", or an error at the write itself: "leaf",
            "view of a leaf", "multi-output view", "no_grad view", "expanded memory", "out= with grad", "pack hook", ...
        saved: a `Saved`; None where nothing saved is to blame.
        writes: each later `Write`, in order.
        name: what the tensor is called: "2.weight, transposed", "h"; empty if no name was found.
        role: "parameter", "buffer", "variable" or "".
        version_then, version_now: of the tensor when it was saved and when backward asked.
        why: why the operator needs the value.
        mends: what to do, the likeliest first.
        raised: the reader's line that raised.
        reads: `ReadAfterWrite` notes, with ``reads=True``.
        lost: writes into a copy that indexing had made and nobody read, with ``reads=True``.
        notes: further sentences.
        text: all of it, as it is added to the error's message.
    """

    kind: str = ""
    saved: Saved | None = None
    writes: list[Write] = field(default_factory=list)
    name: str = ""
    role: str = ""
    version_then: int | None = None
    version_now: int | None = None
    why: str = ""
    mends: list[str] = field(default_factory=list)
    raised: Place | None = None
    reads: list[ReadAfterWrite] = field(default_factory=list)
    lost: list[Write] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        lines: list[str] = []
        if self.saved is not None:
            what = {True: "its result", False: "its input", None: "a tensor"}[self.saved.is_output]
            slot = "" if self.saved.slot.startswith(("result", "tensors")) else f" '{self.saved.slot}'"
            shape = f"{str(self.saved.dtype).removeprefix('torch.')} {list(self.saved.shape)}"
            told = f"{self.role} {self.name}".strip() if self.name else "the tensor"
            lines.append(f"Tensor:   {told}, {shape}")
            lines.append(f"Saved by: {self.saved.op}, as {what}{slot}{_version(self.version_then)}")
            lines.append(f"          {self.saved.line or _UNSEEN}")
        for write in self.writes[:_SHOWN]:
            elsewhere = _ELSEWHERE if write.overlaps is False else ""
            lines.append(f"Written:  {write.op}{_version(write.version)}{elsewhere}")
            lines.append(f"          {write.line or 'at a line that is not known'}")
        if len(self.writes) > _SHOWN:
            lines.append(f"          and {len(self.writes) - _SHOWN} later writes")
        if self.saved is not None and not self.writes:
            lines.append(f"Written:  {_NOBODY_SILENT if self.kind == 'values' else _NOBODY}")
        if self.why:
            lines += _wrapped("Needed:   " if self.saved is not None else "Meaning:  ", self.why)
        if self.raised is not None:
            lines.append(f"Raised:   {self.raised}")
        lines += [f"Note:     {note}" for note in self.notes]
        for i, mend in enumerate(self.mends):
            lines += _wrapped(f"{'Mend:   ' if i == 0 else '        '}  - ", mend)
        for read in self.reads:
            lines.append(f"Note:     {read.op} reads what {read.write.op} wrote before")
            lines.append(f"          written: {read.write.line}")
            lines.append(f"          read:    {read.line}")
            lines.append("          If the value before the write is meant, write out of place.")
        for write in self.lost:
            lines.append(f"Note:     {write.op} wrote into a copy that indexing had made, and the copy is gone unread")
            lines.append(f"          {write.line}")
            lines.append("          To write into the tensor itself: x[idx] += ... (a repeated index counts once), or")
            lines.append("          x.index_put_((idx,), ..., accumulate=True)")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self.text or "explain_inplace: nothing to explain"


_SHOWN = 6
_UNSEEN = "before this block began, or in another thread: run the forward inside the block to see its line"
_ELSEWHERE = ", to other elements than were saved (PyTorch counts versions by tensor, not by element)"
_NOBODY = "by no operator of this block's thread"
_NOBODY_SILENT = "by no operator of this block's thread: NumPy, another library, or a storage's own methods"


def _wrapped(head: str, text: str) -> list[str]:
    """Breaks a sentence between words, for the width of a notebook's output; lines of code are never broken."""
    return textwrap.wrap(
        head + text, 92, subsequent_indent=" " * len(head), break_long_words=False, break_on_hyphens=False
    )


def _version(version: int | None) -> str:
    return "" if version is None else f", version {version}"
