"""View, copy or the very object? Every operator of the installed PyTorch, measured on its own sample inputs.

PyTorch ships a catalogue of its operators with sample inputs for each. `operator_atlas` runs it, adds inputs that tell
maybe-copies apart (transposed, expanded, every second element, other dtypes) and the methods and indexes that the
catalogue lacks, and asks of every call whether the result stands on the memory of an argument. Nothing is looked up.

It is measured on a CPU, on small tensors. Not seen is what would come out of inputs that nobody tried: "view" means
that every call that ran gave a view.
"""

from __future__ import annotations

import difflib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from ._atlas_extras import ADDED
from ._atlas_guard import undisturbed
from ._atlas_probe import InPlace
from ._atlas_run import Target, Variant, measure, targets_added, targets_of
from ._atlas_words import Example
from .display import INK, PAPER, SHARED, LiveOutput, Picture, Table

OUTCOMES = ("new memory", "view", "same object", "depends", "no tensor")
_atlas: Atlas | None = None


class Entry:
    """What was measured of one operator, over all entries that the catalogue has under its name.

    Attributes:
        name: as the catalogue has it: ``flatten``, ``nn.functional.relu``, ``linalg.svd``; an index as ``x[[0, 2]]``.
        variants: one `Variant` for each catalogue entry, with the same fields.
        source: "catalogue", or "added" for the methods and indexes that it lacks.
        outputs: "view", "new memory", "same object", "depends" on the input, or "no tensor"; None if nothing could run.
        copies: whether all new memory holds the input's values and nothing else (`clone`, `index_select`).
        saves: what the graph of a call keeps: a set out of "input", "output" and "other"; empty for nothing.
        differentiable: whether a graph was recorded at all.
        in_place: an `InPlace` for the form that writes into its argument, or None.
        evidence: an `Example` for each outcome that was seen.
        proof: source text that makes inputs, runs the operator and asserts the outcome; "" where three lines do not do.
        reason: why nothing could run; "" otherwise.
    """

    def __init__(self, name: str, variants: Iterable[Variant]):
        self.name, self.variants = name, tuple(variants)
        ran = [v for v in self.variants if v.outputs is not None]
        found = {v.outputs for v in ran}
        self.source = self.variants[0].source
        self.outputs: str | None = found.pop() if len(found) == 1 else "depends" if found else None
        new = [v for v in ran if any("new memory" in e.outcome for e in v.evidence)]
        self.copies = bool(new) and all(v.copies for v in new)
        self.saves = frozenset().union(*(v.saves for v in ran))
        self.differentiable = any(v.differentiable for v in ran)
        self.in_place: InPlace | None = next((v.in_place for v in ran if v.in_place), None)
        examples: dict[str, Example] = {}
        for example in (e for v in ran for e in v.evidence):
            before = examples.get(example.outcome)
            examples[example.outcome] = before._replace(calls=before.calls + example.calls) if before else example
        self.evidence = tuple(examples.values())
        self.proof = next((v.proof for v in ran if v.proof and v.outputs == self.outputs), "")
        self.reason = "" if ran else self.variants[0].reason

    @property
    def verdict(self) -> str:
        """The outcome in one sentence."""
        values = "holding the input's values" if self.copies else "holding values that were computed or filled in"
        return {
            "view": "a view: the result stands on its argument's memory",
            "new memory": f"new memory, {values}",
            "same object": "the very object that was passed in",
            "depends": f"depends on the input: {self._kinds()}" if self.outputs == "depends" else "",
            "no tensor": "no tensor comes back",
            None: f"could not run here: {self.reason}",
        }[self.outputs]

    def _kinds(self) -> str:
        new = f"new memory with {'the values of the input' if self.copies else 'other values'}"
        words = {"new memory": new, "view": "a view", "same object": "the same object", "no tensor": "no tensor"}
        kinds = [words.get(e.outcome, e.outcome) for e in self.evidence]
        return ", ".join(kinds[:-1]) + f" or {kinds[-1]}"

    @property
    def keeps(self) -> str:
        """What backward will need, in words."""
        if not self.differentiable:
            return "records nothing"
        words = {"input": "its input", "output": "its output", "other": "something new"}
        kept = [word for key, word in words.items() if key in self.saves]
        return f"keeps {' and '.join(kept)}" if kept else "keeps no tensor"

    def __repr__(self) -> str:
        lines = [f"{self.name}: {self.verdict}", *(f"  {e}" for e in self.evidence)]
        if self.outputs is not None:
            lines.append(f"  for backward: {self.keeps}")
        if self.in_place is not None:
            lines.append(f"  in place: {self.in_place}")
        if self.proof:
            lines += ["  proof:", *(f"    {line}" for line in self.proof.split("\n"))]
        return "\n".join(lines)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        from ._atlas_table import entry_html  # the drawer reads the atlas, so it cannot be imported before it

        return {"text/html": entry_html(self), "text/plain": repr(self)}


class UnknownOperator(KeyError):
    """A name that is not in the atlas, with the nearest that are."""

    def __str__(self) -> str:  # KeyError would show the message in quotes
        return str(self.args[0])


class Atlas(Mapping):
    """Operator name -> `Entry`; a searchable table as the last value of a cell. Holds no tensor.

    Attributes:
        counts: outcome -> how many catalogue entries have it, "not run" among them; adds up to the whole catalogue.
        failed: catalogue entry -> why it could not run.
        aliases: other names of the same operators -> the name it is listed under.
        seconds: what the measurement took.
    """

    def __init__(self, variants: Iterable[Variant], *, aliases: Mapping[str, str] = {}, seconds: float = 0.0):
        grouped: dict[str, list[Variant]] = {}
        for variant in variants:
            grouped.setdefault(variant.name, []).append(variant)
        self._entries = {name: Entry(name, found) for name, found in grouped.items()}
        self.aliases, self.seconds = dict(aliases or {}), seconds
        listed = [v for e in self._entries.values() for v in e.variants if v.source == "catalogue"]
        counted = Counter(v.outputs or "not run" for v in listed)
        self.counts = {kind: counted[kind] for kind in (*OUTCOMES, "not run")}
        self.failed = {f"{v.name} {v.variant}".strip(): v.reason for v in listed if v.outputs is None}
        self._card: Any = None

    def __getitem__(self, name: str) -> Entry:
        try:
            return self._entries[name]
        except KeyError:
            raise UnknownOperator(self._advice(str(name))) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def _advice(self, name: str) -> str:
        short = name.removeprefix("torch.").removeprefix("Tensor.")
        if short in self.aliases:
            return f"{name!r} is another name of {self.aliases[short]!r}: look that up"
        ends = [known for known in self if known.split(".")[-1] == short.rstrip("_")]
        near = list(dict.fromkeys(ends + difflib.get_close_matches(short, self, n=4, cutoff=0.6)))
        advice = f"the nearest names are {', '.join(map(repr, near))}" if near else "nothing is called nearly so"
        return f"the atlas has no operator {name!r}: {advice}. Part of a name finds more: atlas.find({short[:6]!r})"

    def find(
        self,
        text: str = "",
        *,
        outputs: str | None = None,
        copies: bool | None = None,
        saves: Iterable[str] | None = None,
        source: str | None = None,
    ) -> list[str]:
        """Returns the names that contain ``text`` and fit all that is asked, those that start with it first.

        Raises:
            ValueError: for an outcome that no entry can have.

        Example:
            >>> operator_atlas().find("reshape", outputs="depends")
            ['reshape', 'reshape_as']
        """
        if outputs is not None and outputs not in (*OUTCOMES, "not run"):
            raise ValueError(f"no entry has outputs {outputs!r}; there is {', '.join(OUTCOMES)}, and 'not run'")
        wanted, needle = None if saves is None else frozenset(saves), text.strip().lower().removeprefix("torch.")
        found = [
            name
            for name, e in self._entries.items()
            if (needle in name.lower() or any(needle in a for a, n in self.aliases.items() if n == name))
            and (outputs is None or outputs == (e.outputs or "not run"))
            and (copies is None or copies == e.copies)
            and (wanted is None or (e.differentiable and wanted == e.saves))
            and (source is None or source == e.source)
        ]
        # Names with an underscore in front are PyTorch's own business: last.
        return sorted(
            found, key=lambda n: (n.lower() != needle, n[0] == "_", not n.lower().startswith(needle), n.lower())
        )

    def summary(self) -> Table:
        """The counts: catalogue entries, the names they are under, and what was added to them."""
        rows = []
        for kind in (*OUTCOMES, "not run"):
            for copies in (True, False) if kind == "new memory" else (None,):
                same = [e for e in self._entries.values() if (e.outputs or "not run") == kind]
                same = [e for e in same if copies is None or e.copies is copies]
                variants = [v for e in self._entries.values() for v in e.variants if (v.outputs or "not run") == kind]
                label = {True: "new memory, the input's values", False: "new memory, computed"}.get(copies, kind)
                rows.append(
                    [
                        {"depends": "depends on the input", "not run": "could not run here"}.get(label, label),
                        sum(v.source == "catalogue" and copies in (None, v.copies) for v in variants),
                        sum(e.source == "catalogue" for e in same),
                        sum(e.source == "added" for e in same),
                    ]
                )
        rows.append(["all", *(sum(row[i] for row in rows) for i in (1, 2, 3))])
        return Table(["what comes back", "entries", "names", "added"], rows, caption="The operators of this PyTorch")

    def __repr__(self) -> str:
        return repr(self.summary())

    @property
    def html(self) -> str:
        """All names by outcome, with the evidence of those that depend: what is left where no kernel runs."""
        from ._atlas_table import as_html  # the drawer reads the atlas, so it cannot be imported before it

        return as_html(self)

    @property
    def card(self) -> Any:
        """The searchable table, an object with its ipywidgets; the same at each call.

        Raises:
            ImportError: without ipywidgets, with what to install.
        """
        if self._card is None:
            from ._atlas_table import Card

            self._card = Card(self)
        return self._card

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ._atlas_table import mimebundle

        return mimebundle(self)


# --------------------------------------------------------------------------------------------------- measuring


def load_catalogue() -> list[Any]:
    """PyTorch's own catalogue of operators.

    Raises:
        ImportError: where it cannot be imported, with what to install.
    """
    try:
        # Importing PyTorch's test tools forbids `torch.backends.cudnn.benchmark = ...` and the like from then on, which
        # is right for its tests and not for the reader: the bracket puts the permission back.
        with torch.backends.__allow_nonbracketed_mutation():
            from torch.testing._internal.common_methods_invocations import op_db
    except ImportError as error:
        raise ImportError(
            f"PyTorch's catalogue of operators cannot be imported ({error}): pip install expecttest"
        ) from error
    return op_db


class _Progress:
    """A bar under the cell, drawn by the work itself ten times a second; silent in a script."""

    def __init__(self, total: int):
        self.total, self.done, self._due, self._output = total, 0, 0.0, LiveOutput()

    def step(self, name: str) -> None:
        self.done += 1
        if time.monotonic() >= self._due:
            self._output.frame(
                self._svg(f"{self.done:,} of {self.total:,}: {name}"), f"Measuring {self.total:,} operators"
            )
            self._due = time.monotonic() + 0.1

    def finish(self, words: str) -> None:
        self._output.finish(Picture(self._svg(words), alt=words))

    def _svg(self, words: str) -> str:
        width = round(400 * self.done / self.total)
        words = words.replace("&", "&amp;").replace("<", "&lt;")
        return (
            '<svg xmlns="http://www.w3.org/2000/svg" width="420" height="46">'
            f'<rect width="420" height="46" fill="{PAPER}"/>'
            f'<text x="10" y="17" font-family="sans-serif" font-size="12" fill="{INK}">{words}</text>'
            f'<rect x="10" y="26" width="400" height="10" fill="#ddd"/>'
            f'<rect x="10" y="26" width="{width}" height="10" fill="{SHARED}"/></svg>'
        )


def measure_targets(targets: list[Target]) -> list[Variant]:
    """Measures each target, with a progress bar; everything global is as before when it returns."""
    progress, found = _Progress(len(targets)), []
    with undisturbed():
        for target in targets:
            found.append(measure(target))
            progress.step(target.name)
    listed = sum(target.entry is not None for target in targets)
    progress.finish(f"Measured {listed:,} catalogue entries and {len(targets) - listed:,} methods and indexes")
    return found


def operator_atlas() -> Atlas:
    """Measures every operator of the installed PyTorch, once in a kernel; about ten seconds, with a progress bar.

    The generators of random numbers, the default dtype and the modes of autograd are as before afterwards.

    Raises:
        ImportError: if PyTorch's catalogue cannot be imported (it needs the small package expecttest).

    Example:
        >>> atlas = operator_atlas()
        >>> atlas["index_select"].outputs, atlas["index_select"].copies, atlas["narrow"].outputs
        ('new memory', True, 'view')
        >>> print(atlas["narrow"].proof)
        x = torch.rand(2, 3)
        a = torch.narrow(x, 1, 0, 2)
        assert a is not x and a.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    """
    global _atlas
    if _atlas is None:
        started = time.monotonic()
        with undisturbed():
            catalogue = load_catalogue()
        variants = measure_targets(targets_of(catalogue) + targets_added(ADDED))
        names = {entry.name for entry in catalogue}
        aliases = {a.name: entry.name for entry in catalogue for a in entry.aliases if a.name not in names}
        _atlas = Atlas(variants, aliases=aliases, seconds=time.monotonic() - started)
    return _atlas
