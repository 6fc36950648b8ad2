"""Which property of the reader's function failed? The framework under `helpers.exercises.check`.

An `Exercise` calls the function once for each of its inputs, on fresh tensors, with the memory measured, and asks its
properties in order. The expected values come from an independent computation and never from the function itself.
"""

from __future__ import annotations

import copy
import dis
import linecache
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._C import _len_torch_function_stack
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils import _device

from helpers._predict_card import BOX, prose
from helpers._properties import Property, Trial, describe, first_freed, message_of, typed


@dataclass(frozen=True)
class Case:
    """An input: its name in words, what makes its arguments afresh, and the exception it must raise, if any."""

    name: str
    make: Callable[[], tuple]
    raises: type[Exception] | None = None


@dataclass(frozen=True)
class Failure:
    """A property that did not hold: what was asked, what was seen, on which input, and the hint."""

    says: str
    seen: str
    case: str
    hint: str = ""

    def __str__(self) -> str:
        return f"It should {self.says}. Seen: {self.seen} (input: {self.case})."


@dataclass
class CheckResult:
    """What `check` found; true when every property held on every input."""

    name: str
    failures: list[Failure] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    cases: int = 0
    written: bool = True
    task: str = ""

    @property
    def passed(self) -> bool:
        """Whether the function is written and no property failed."""
        return self.written and not self.failures

    @property
    def verdict(self) -> str:
        """The state in two or three words."""
        return "passed" if self.passed else "not there yet" if self.written else "not written yet"

    def __bool__(self) -> bool:  # so that `assert check(fn)` means what it says
        return self.passed

    @property
    def headline(self) -> str:
        """The first sentence of the card."""
        if not self.written:
            return f"{self.name}: not written yet. It should {self.task}."
        if self.passed:
            return f"{self.name}: passed, on {self.cases} input{'' if self.cases == 1 else 's'}."
        return f"{self.name}: not there yet."

    def __repr__(self) -> str:
        lines = [self.headline]
        for f in self.failures:
            lines.append(f"  ✗ should {f.says}. Seen: {f.seen} (input: {f.case}).")
            if f.hint:
                lines.append(f"    {f.hint}")
        lines += [f"  ✓ {third_person(says)}" for says in self.held]
        return "\n".join(lines)

    @property
    def html(self) -> str:
        """The card. Its words tell what failed ("should return") from what holds ("returns"); the signs repeat it."""

        def item(sign: str, text: str) -> str:
            return f'<li style="margin:2px 0"><span aria-hidden="true">{sign}</span> {text}</li>'

        rows = []
        for f in self.failures:
            hint = f"<br><em>{prose(f.hint)}</em>" if f.hint else ""
            seen = f"Seen: {prose(f.seen)} (input: {prose(f.case)})."
            rows.append(item("✗", f"<strong>should {prose(f.says)}</strong>.<br>{seen}{hint}"))
        rows += [item("✓", prose(third_person(says))) for says in self.held]
        style = "margin:4px 0 0;padding-left:4px;list-style:none"
        items = f'<ul style="{style}">{"".join(rows)}</ul>' if rows else ""
        return f'<div style="{BOX}"><strong>{prose(self.headline)}</strong>{items}</div>'

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": repr(self)}


@dataclass(frozen=True)
class Exercise:
    """What a function must do, on which inputs, and how that is known.

    Attributes:
        name: the function's name.
        task: what it does, as "It should ..." continues.
        parameters: the names of its parameters, in order.
        cases: the inputs.
        expect: given copies of the arguments, a mapping of what must come out: `RETURNED` for the result, a parameter's
            name for what it must hold afterwards. It is a second way to the answer, not the solution.
        properties: what is asked, the plain things first.
    """

    name: str
    task: str
    parameters: tuple[str, ...]
    cases: Sequence[Case]
    expect: Callable[..., Mapping[str, Any]]
    properties: Sequence[Property]

    def check(self, fn: Callable) -> CheckResult:
        """Calls ``fn`` on every input and asks every property, each reported at its first failure."""
        with usual_settings():
            return self._check(fn)

    def _check(self, fn: Callable) -> CheckResult:
        result = CheckResult(self.name, cases=len(self.cases), task=self.task)
        failed: dict[str, Failure] = {}
        asked: dict[str, bool] = {}
        for case in self.cases:
            trial = self._trial(case)
            problem = self._call(fn, case, trial)
            if problem == "stub":
                return CheckResult(self.name, written=False, task=self.task)
            if problem is not None:
                failed.setdefault(problem.says, problem)
                continue
            if case.raises is not None:
                asked[f"raise {case.raises.__name__} for {case.name}"] = True
                continue
            if (unreadable := _not_to_be_read(trial)) is not None:
                says, seen = unreadable
                failed.setdefault(says, Failure(says, seen, case.name))
                continue
            for p in self.properties:
                asked[p.says] = True
                seen, hint = _ask(p, trial)
                if seen is not None:
                    failed.setdefault(p.says, Failure(p.says, seen, case.name, hint))
                    if p.decisive:
                        break
        result.failures = list(failed.values())
        result.held = [says for says in asked if says not in failed]
        return result

    def _trial(self, case: Case) -> Trial:
        args = dict(zip(self.parameters, case.make(), strict=True))
        before = {name: _copy(a) for name, a in args.items()}
        memory = {name: a.detach() for name, a in args.items() if isinstance(a, torch.Tensor)}
        expected = {} if case.raises else dict(self.expect(**{name: _copy(a) for name, a in args.items()}))
        return Trial(args, before, memory, expected)

    def _call(self, fn: Callable, case: Case, trial: Trial) -> Failure | str | None:
        from helpers.memory import measure_memory

        try:
            with usual_settings():
                measured = measure_memory(fn, *trial.args.values())
        except NotImplementedError as error:
            return "stub" if _raised_by_hand(error, fn) else self._raised(error, fn, case)
        except Exception as error:  # the reader's exception belongs on the card, with its line
            if case.raises is None or not isinstance(error, case.raises):
                return self._raised(error, fn, case)
            return None
        else:
            trial.result = measured.result
            trial.peak_bytes, trial.retained_bytes = measured.peak_bytes, measured.retained_bytes
            if trial.result is ... or trial.result is NotImplemented or (trial.result is None and does_nothing(fn)):
                return "stub"
            if case.raises is not None:
                wanted = case.raises.__name__
                return Failure(f"raise {wanted} for {case.name}", f"it returned {describe(trial.result)}", case.name)
        return None

    @staticmethod
    def _raised(error: Exception, fn: Callable, case: Case) -> Failure:
        return Failure("run without an exception", what_went_wrong(error, fn), case.name)


@contextmanager
def usual_settings() -> Iterator[None]:
    """PyTorch's settings are for a while those of a fresh kernel, on which the exercises count, and then as before.

    Without it a right answer fails where gradients are off, say, and is told off for what was not done; and what the
    reader's function sets and does not put back would reach the next call, and the reader's next cell.
    """
    dtype, autocast = torch.get_default_dtype(), torch.is_autocast_enabled("cpu")
    modes, current = _get_current_function_mode_stack(), _device.CURRENT_DEVICE
    default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    with torch.inference_mode(False), torch.enable_grad():
        try:
            torch.set_default_dtype(torch.float32)
            torch.set_autocast_enabled("cpu", False)
            # A `with torch.device(...)` can only be left in order, and to set another default inside it breaks both. So
            # what PyTorch keeps of either is laid aside and put back.
            _set_device([mode for mode in modes if not isinstance(mode, _device.DeviceContext)], None, None)
            yield
        finally:
            _set_device(modes, current, default)
            torch.set_autocast_enabled("cpu", autocast)
            torch.set_default_dtype(dtype)


def _set_device(modes: Sequence[Any], current: torch.device | None, default: Any) -> None:
    for _ in range(_len_torch_function_stack()):
        _pop_mode()
    for mode in modes:
        _push_mode(mode)
    _device.CURRENT_DEVICE = current
    torch._GLOBAL_DEVICE_CONTEXT.device_context = default


def _ask(p: Property, trial: Trial) -> tuple[str | None, str]:
    """What was seen instead, None if the property holds, and its hint. A result too odd to look at has failed."""
    try:
        with usual_settings():  # some properties call what the function returned
            seen = p.test(trial)
            return seen, "" if seen is None else p.hint_for(trial)
    except Exception as error:  # of what the reader returned; a traceback through the helpers would say nothing
        return _raised_when_seen(error, trial), ""


def _not_to_be_read(trial: Trial) -> tuple[str, str] | None:
    """What was asked and what was seen, where no property may look at the trial; None where each may."""
    try:
        with usual_settings():  # a tensor of the reader's own class may run code of the reader's
            lost = first_freed(trial)
    except Exception as error:
        return "return what can be read", _raised_when_seen(error, trial)
    return None if lost is None else ("leave every tensor its memory", lost)


def _raised_when_seen(error: Exception, trial: Trial) -> str:
    text = message_of(error).partition("\n")[0]
    return f"it returned {describe(trial.result)}, and to look at that raised {typed(error, text)}"


# ---------------------------------------------------------------------------------------------------- words


def third_person(says: str) -> str:
    """``returns a tensor`` for ``return a tensor``."""
    verb, _, rest = says.partition(" ")
    irregular = {"be": "is", "have": "has"}
    if verb.endswith(("s", "sh", "ch", "x", "z", "o")):
        verb += "es"
    elif verb.endswith("y") and verb[-2:-1] not in tuple("aeiou"):
        verb = f"{verb[:-1]}ies"
    else:
        verb = irregular.get(verb, f"{verb}s")
    return f"{verb} {rest}".strip()


def what_went_wrong(error: BaseException, fn: Callable) -> str:
    """Returns type, message and, where it is known, the line of ``fn``'s own file in which ``error`` arose."""
    text = typed(error, message_of(error))
    own = getattr(getattr(fn, "__code__", None), "co_filename", None)
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == own]
    if not lines:
        return text
    source = linecache.getline(own, lines[-1].lineno).strip()
    return f"{text} (line {lines[-1].lineno}{f': `{source}`' if source else ''})"


def does_nothing(fn: Callable) -> bool:
    """Whether ``fn``'s body is only ``pass``, ``...``, a docstring or ``return None``: a stub still untouched."""
    idle = {"RESUME", "NOP", "LOAD_CONST", "POP_TOP", "RETURN_VALUE", "RETURN_CONST"}
    code = getattr(fn, "__code__", None)
    return code is not None and all(i.opname in idle for i in dis.get_instructions(code))


def _raised_by_hand(error: NotImplementedError, fn: Callable) -> bool:
    """Whether ``fn`` says `raise NotImplementedError` itself; PyTorch raises it too, for operators a device lacks."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    code = getattr(fn, "__code__", None)
    if trace is None or trace.tb_frame.f_code is not code:
        return False
    return any(i.offset == trace.tb_lasti and i.opname == "RAISE_VARARGS" for i in dis.get_instructions(code))


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if type(value) in (list, tuple):  # deepcopy would refuse results of operators among them
        return type(value)(map(_copy, value))
    return copy.deepcopy(value)
