"""What did every call of one operator do? Runs the samples of one entry and draws the verdict from them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch

from ._atlas_extras import CALLS, Added
from ._atlas_guard import seed
from ._atlas_probe import Call, DeclaredSharing, InPlace, in_place, layouts, outcomes, saves, tensors_in
from ._atlas_proof import prove
from ._atlas_values import VALUES, carries_values, numbers_in
from ._atlas_words import Example, told, told_call

_MOST_CALLS = 40  # of the catalogue's own samples; some entries have 1,400 that differ in a flag


class Variant(NamedTuple):
    """What was measured of one entry; see `helpers.atlas.Entry` for the meaning of the fields they share."""

    name: str
    variant: str
    source: str
    outputs: str | None
    copies: bool
    saves: frozenset[str]
    differentiable: bool
    in_place: InPlace | None
    evidence: tuple[Example, ...]
    proof: str
    dtype: str
    calls: int
    declared: frozenset[str]
    reason: str


class Target(NamedTuple):
    """One thing to measure: how to run it, and on what."""

    name: str
    variant: str
    run: Callable[..., Any]
    entry: Any = None  # of the catalogue
    added: Added | None = None


def targets_of(catalogue: list[Any]) -> list[Target]:
    """Every entry of the catalogue as something to run."""
    found = []
    for entry in catalogue:
        method = getattr(torch.Tensor, entry.name, None)
        # The catalogue runs `resize_` on a clone, which would hide what it does to its own argument.
        run = method if entry.name.endswith("_") and not entry.name.startswith("_") and callable(method) else entry.op
        found.append(Target(entry.name, entry.variant_test_name, run, entry=entry))
    return found


def targets_added(added: list[Added]) -> list[Target]:
    """Every added method and index as something to run."""
    found = []
    for one in added:
        space: dict[str, Any] = {"torch": torch}
        exec(one.imports, space)
        found.append(Target(one.name, "", eval(f"lambda x: {one.expression}", space), added=one))
    return found


def _arguments(text: str) -> Call:
    args, kwargs = eval(f"(lambda *args, **kwargs: (args, kwargs))({text})", {"torch": torch})
    return Call(args, kwargs, text)


def _calls_of(target: Target) -> tuple[list[Call], torch.dtype | None]:
    if target.added is not None:
        return [_arguments(text) for text in target.added.inputs], torch.float32
    supported = sorted(target.entry.supported_dtypes("cpu"), key=str)
    if not supported:
        return [], None
    dtype = torch.float32 if torch.float32 in supported else supported[0]
    # Not `entry.sample_inputs`, which seeds the generators of every kind of device before each sample.
    made = target.entry.sample_inputs_func(target.entry, "cpu", dtype, False)
    samples = (Call((s.input, *s.args), s.kwargs) for s in made)
    # Samples without an element say nothing of memory, and some entries begin with dozens of them.
    telling = (
        c for c in samples if not (t := tensors_in(c[:2])) or any(isinstance(v, np.ndarray) or v.numel() for v in t)
    )
    calls = list(islice(telling, _MOST_CALLS))
    calls = [_arguments(text) for text in CALLS.get(target.name, ())] + calls
    for call in [c for c in calls if any(t.dim() for t in tensors_in(c.args))][:4]:
        calls += layouts(call, dtype)
    for call in calls[:2]:
        for other in supported:
            if other is not dtype:
                calls.append(call.fresh(lambda t, other=other: t.to(other) if t.dtype is dtype else t))
    return calls, dtype


def _try(run: Callable[..., Any], call: Call) -> Any:
    return run(*call.args, **call.kwargs)


def measure(target: Target) -> Variant:
    """Runs all calls of one entry and says what they have in common. To be called within `_atlas_guard.undisturbed`."""
    seed()
    reason, calls, dtype = "", [], None
    try:
        calls, dtype = _calls_of(target)
        if not calls:
            reason = "the catalogue lists no dtype for it on a CPU"
    except Exception as error:  # the catalogue's own code, on whatever version is installed
        reason = _first_line(error)
    seen: dict[str, list[tuple[Call, Any]]] = {}
    for call in calls:
        given = call.fresh() if target.name.endswith("_") else call  # an input that is written stays as it was
        try:
            result = _try(target.run, given)
        except Exception as error:
            reason = reason or _first_line(error)
            continue
        kind = _kind(given, result)
        if kind:
            seen.setdefault(kind, []).append((call, result))
    if seen:
        reason = ""
    verdict = _verdict(set(seen))
    fresh = [call for kind, found in seen.items() if "new memory" in kind for call, _ in found]
    kept, differentiable = _saved(target, calls)
    copies = _copies(target.run, fresh)
    evidence = tuple(
        Example(kind, _told_call(target, best[0]), told(best[1]), len(found))
        for kind, found in seen.items()
        for best in [_plainest(found)]
    )
    return Variant(
        name=target.name,
        variant=target.variant,
        source="catalogue" if target.entry is not None else "added",
        outputs=verdict,
        copies=copies,
        saves=kept,
        differentiable=differentiable,
        in_place=_in_place(target, calls),
        evidence=evidence,
        proof=prove(target, seen, copies),
        dtype="" if dtype is None else str(dtype).removeprefix("torch."),
        calls=sum(map(len, seen.values())),
        declared=_declared(target.run, seen),
        reason=reason,
    )


def _first_line(error: Exception) -> str:
    return re.sub(r"0x[0-9a-f]+", "0x…", str(error).strip().split("\n")[0]) or type(error).__name__


def _kind(call: Call, result: Any) -> str:
    tensors = [t for t in tensors_in(result) if isinstance(t, np.ndarray) or t.numel()]
    if not tensors:
        return "" if tensors_in(result) or result in ((), []) else "no tensor"
    return " and ".join(sorted({kind for kind, _ in outcomes(tensors_in(call[:2]), tensors)}))


def _verdict(kinds: set[str]) -> str | None:
    return None if not kinds else kinds.pop() if len(kinds) == 1 and " and " not in next(iter(kinds)) else "depends"


def _told_call(target: Target, call: Call) -> str:
    if target.added is None:
        return told_call(target.name, call)
    return f"{target.added.expression} with x = {told(call.args[0])}"


def _plainest(found: list[tuple[Call, Any]]) -> tuple[Call, Any]:
    """The call to show: a matrix rather than a number or five dimensions, float32, and few other arguments."""

    def weight(pair: tuple[Call, Any]) -> tuple[bool, bool, bool, int]:
        tensors = tensors_in(pair[0][:2])
        first = tensors[0] if tensors else None
        plain = first is not None and first.ndim == 2 and 1 not in first.shape
        unusual = getattr(first, "dtype", None) is not torch.float32
        return not pair[0].text, not plain, unusual, 10 * len(tensors) + len(pair[0].args) + len(pair[0].kwargs)

    return min(found, key=weight)


def _copies(run: Callable[..., Any], calls: list[Call]) -> bool:
    """Whether every call that could be asked took all its numbers from the input, and one of them more than one."""
    found = False
    torch.use_deterministic_algorithms(True, warn_only=True)  # and so uninitialized memory is NaN, not an old copy
    try:
        lists = [c for c in calls if c.args and isinstance(c.args[0], list) and not tensors_in(c[:2])]
        usable = sorted((c for c in calls if 1 < numbers_in(c) <= len(VALUES)), key=lambda c: -numbers_in(c)) + lists
        for call in usable:
            try:
                held = carries_values(run, call) if tensors_in(call.args) else _same_list(run, call)
            except Exception:  # cholesky refuses any values but its own: no copy of whatever it is given
                continue
            if held == 0:
                return False
            found |= held is not None and held > 1
    finally:
        torch.use_deterministic_algorithms(False)
    return found


def _same_list(run: Callable[..., Any], call: Call) -> int:
    result = run(*call.args, **call.kwargs)
    return len(call.args[0]) if isinstance(result, torch.Tensor) and result.tolist() == call.args[0] else 0


def _saved(target: Target, calls: list[Call]) -> tuple[frozenset[str], bool]:
    if target.entry is not None and not target.entry.supports_autograd:
        return frozenset(), False
    kept: set[str] = set()
    recorded = False
    for call in calls[:4]:
        try:
            found = saves(target.run, call)
        except Exception:
            continue
        if found is not None:
            recorded = True
            kept |= found
    return frozenset(kept), recorded


def _in_place_form(target: Target) -> tuple[str, Callable[..., Any] | None]:
    """How the form is written that writes into its argument, and how it is run."""
    run, plain = target.entry.inplace_variant, target.entry.op
    if run is None and target.name.startswith("nn.functional."):
        # The catalogue leaves out some of these, relu and silu among them.
        try:
            takes = "inplace" in inspect.signature(getattr(torch.nn.functional, target.name.split(".")[-1])).parameters
        except (AttributeError, TypeError, ValueError):
            takes = False
        if takes:
            return f"{target.name}(inplace=True)", lambda *args, **kwargs: plain(*args, **{**kwargs, "inplace": True})
    if "<lambda>" in getattr(run, "__qualname__", ""):
        return f"{target.name}(inplace=True)", run
    return target.name if target.name.endswith("_") else f"{target.name}_", run


def _in_place(target: Target, calls: list[Call]) -> InPlace | None:
    if target.added is not None:
        if not target.added.assignment:
            return None
        space: dict[str, Any] = {"torch": torch}
        exec(f"def assign(x):\n    {target.added.assignment}\n    return x", space)
        return in_place(target.added.assignment, space["assign"], calls[0])
    name, run = _in_place_form(target)
    if run is None:
        return None
    found = []
    for call in sorted(calls, key=lambda c: (not c.text, -sum(t.numel() for t in tensors_in(c.args[:1])))):
        try:
            found.append(in_place(name, run, call))
        except Exception:  # an in-place form takes fewer inputs: no broadcast, no other dtype
            continue
        if len(found) == 6:
            break
    # The most telling one: a dropout that is switched off writes nothing, only a resize that grows moves the memory.
    return max(found, key=lambda f: (f.bumps_version, not f.keeps_storage, f.input_bytes), default=None)


def _declared(run: Callable[..., Any], seen: dict[str, list[tuple[Call, Any]]]) -> frozenset[str]:
    """Where measurement and the schemas of what was dispatched part: "undeclared sharing", "declared, yet new"."""
    parted = set()
    for found in seen.values():
        for call, _ in found[:6]:
            given = tensors_in(call[:2])
            if any(isinstance(g, np.ndarray) for g in given):
                continue
            with DeclaredSharing(given) as mode:
                try:
                    result = _try(run, call)
                except Exception:
                    continue
            for kind, out in outcomes(given, result):
                if isinstance(out, torch.Tensor) and out.numel():
                    shares = kind != "new memory"
                    if shares != mode.shares(out):
                        parted.add("undeclared sharing" if shares else "declared, yet new")
    return frozenset(parted)
