"""How does a failed backward become a `Report`? Puts together what the graph, the log and the reader's frames tell."""

from __future__ import annotations

import re
from dataclasses import replace
from types import FrameType
from typing import Any

import torch

from ._blame import CHANGED, FREED, Slot, failed_slot, freed_node, node_name, node_number, nodes_under, overlap
from ._guard import Change, SavedTensorChanged
from ._mends import AT_THE_WRITE, Case, mends, why
from ._names import assigned, name_of, target_of
from ._report import ReadAfterWrite, Report, Saved, Write
from ._slots import is_custom, is_output, operator_of, speaks_of
from ._source import READER, Found, kind_of, place, stack_lines
from ._writes import WriteLog, Written


def explain_backward(
    report: Report, log: WriteLog, error: RuntimeError, outputs: Any, model: Any, frame: FrameType
) -> str | None:
    """Fills ``report`` for an error of a backward from ``outputs``.

    Returns:
        the message that the error had, without hints; None if the error is about something else.
    """
    message = bare_message(error)
    vars(report).update(vars(Report()))  # an earlier error of the block may have been caught
    if isinstance(error, SavedTensorChanged):
        change = error.change
        what = change.shape, change.dtype, change.address, change.geometry
        slot = Slot(change.node, change.sequence, change.slot, *what)
        report.kind = "values" if change.silent else "version"
        report.version_then, report.version_now = change.version_then, change.version_now
        _explain_slot(report, log, slot, outputs, model, frame, change)
        message = change.sentence
    elif CHANGED in message:
        slot = failed_slot(outputs, message)
        if slot is None:
            return None
        report.kind = "version"
        versions = re.search(r"is at version (\d+); expected version (\d+)", message)
        if versions:
            report.version_now, report.version_then = int(versions.group(1)), int(versions.group(2))
        _explain_slot(report, log, slot, outputs, model, frame, None)
    elif FREED in message:
        _explain_freed(report, log, outputs)
    else:
        return None
    report.raised = place(stack_lines(frame)[0])
    return message


def bare_message(error: RuntimeError) -> str:
    """What the error said before a report was put behind it."""
    return re.split(r"\n\n(?:Tensor|Meaning|Written): ", str(error))[0]


def _explain_slot(
    report: Report, log: WriteLog, slot: Slot, outputs: Any, model: Any, frame: FrameType, change: Change | None
) -> None:
    recorded = log.nodes.get(slot.sequence)
    if recorded is not None and recorded.func is not None and not speaks_of(recorded.func.name(), slot.node):
        recorded = None  # another thread's node of the same number
    custom = is_custom(slot.node)
    found = change.found if change is not None and not custom else None
    if recorded is not None:
        found = (recorded.outer if custom else None) or recorded.found
    line = place(found)
    output = is_output(slot.node, slot.name)
    operator = operator_of(slot.node)
    report.saved = Saved(operator, slot.node, slot.name, output, line, slot.shape, slot.dtype)
    report.why = why(operator, slot.name, output, custom)
    since = recorded.clock if recorded is not None else 0
    writes = [w for w in log.writes_into(slot.address) if _is_later(w, since, report)]
    report.writes = [_told(write, slot.geometry) for write in writes]
    if report.kind == "values":  # they were counted elsewhere, if at all
        report.writes = [replace(write, version=None) for write in report.writes]
    stride = slot.geometry[2] if slot.geometry else None
    name, report.role = name_of(slot.address, slot.shape, stride, model, frame)
    last = report.writes[-1] if report.writes else None
    target, out_of_place = target_of(last.line, last.op) if last is not None else ("", "")
    if not name:
        name = target or (assigned(line) if output else "")
        report.role = "variable" if name else ""
    report.name = name
    if report.writes and all(write.overlaps is False for write in report.writes):
        report.notes.append("No saved element was written to: the gradient would have been right.")
    # A line that saved before an earlier backward, and again since: a loop that carries something from step to step.
    again = recorded is not None and [
        n for n, r in log.nodes.items() if r.found == recorded.found and n > slot.sequence
    ]
    crosses = any(slot.sequence < before <= max(again or [-1]) for before, _, _ in list(log.backwards)[:-1])
    report.mends = mends(
        Case(
            name.split(",")[0],
            report.role,
            operator,
            output,
            line.where if line is not None else "",
            tuple(write.line.text for write in report.writes if write.line is not None),
            out_of_place,
            crosses,
            report.kind == "values",
            change.exchanged if change is not None else False,
        )
    )


def _explain_freed(report: Report, log: WriteLog, outputs: Any) -> None:
    """The graph was used up by an earlier backward: which one, and where does this one go back into it?"""
    report.kind = "freed"
    earlier = [before for before, _, kept in list(log.backwards)[:-1] if not kept]
    node = freed_node(outputs, max(earlier, default=2**64))
    if node is None:
        return
    number = node_number(node)
    recorded = log.nodes.get(number)
    line = place(recorded.found) if recorded is not None else None
    operator = operator_of(node_name(node))
    freeing = [(before, found) for before, found, kept in list(log.backwards)[:-1] if not kept and before > number]
    report.why = (
        f"backward goes through {operator}{f' at {line}' if line else ''}, whose saved tensors are freed already"
        + (f" by the backward at {place(freeing[-1][1])}" if freeing else "")
    )
    crossing = _crossing(outputs, freeing[-1][0]) if freeing else None
    if crossing is not None:
        newer, older = (log.nodes.get(node_number(n)) for n in crossing)
        if newer is not None and older is not None:
            name = assigned(place(older.found))
            report.name, report.role = name, "variable" if name else ""
            report.notes.append(
                f"{operator_of(node_name(crossing[0]))} at {place(newer.found)} takes "
                f"{f'{name}, ' if name else ''}what {operator_of(node_name(crossing[1]))} made before that backward."
            )
        carried = report.name or "h"
        report.mends = [
            f"detach what is carried into the next step: {carried} = {carried}.detach()",
            "retain_graph=True removes this error, but the graph then grows with each step, and after an optimizer "
            "step the saved parameters are no longer the ones that were used",
        ]
    else:
        report.mends = [
            "add the losses up and call backward() once",
            "pass retain_graph=True to the first backward(), if the same graph is really needed twice",
        ]


def explain_write(report: Report, log: WriteLog, message: str, traceback: Any) -> bool:
    """Fills ``report`` for an error that the write itself raised. Returns whether it is one."""
    known = next((entry for entry in AT_THE_WRITE if entry[0] in message), None)
    if known is None:
        return False
    raised = _raised_at(traceback)
    vars(report).update(vars(Report()))
    _, kind, report.why, cures = known
    report.kind, report.mends = kind, list(cures)
    name, out_of_place = target_of(place(raised))
    report.name, report.role = name, "variable" if name else ""
    if name:
        report.notes.append(f"{name} is what is written to.")
    if out_of_place and kind not in ("view of a leaf", "pack hook"):
        report.mends.insert(0, f"write out of place: {out_of_place}")
    made = re.search(r"Output \d+ of (\w+) is a view", message)
    if made:
        node = made.group(1) if "Backward" in made.group(1) else f"{made.group(1)}Backward0"  # as other versions say it
        lines = [r.found for r in reversed(log.nodes.values()) if r.func is not None and _made(r, node)]
        if lines:
            report.notes.append(f"The view was made by {operator_of(node)} at {place(lines[0])}")
    if kind == "pack hook":
        writes = sorted(log.all_writes(), key=lambda write: write.clock)
        report.writes = [_told(write, ()) for write in writes[-1:]]
    report.raised = place(raised)
    return True


def note_reads(report: Report, log: WriteLog) -> None:
    """Lists what was read after it was written, and writes that nobody read."""
    seen: dict[int, list[str]] = {}
    for read in log.reads:
        earlier = seen.setdefault(id(read.write), [])
        operator = _operator(read.func)
        if earlier:  # the first to read is, as a rule, the code that asked for the write
            note = ReadAfterWrite(operator, place(read.found), _told(read.write, ()), list(earlier))
            report.reads.append(note)
        earlier.append(operator)
    report.lost += [_told(write, ()) for write in log.lost]
    log.settle()
    for write in log.unmarked:
        history = f"its history is still {operator_of(write.node)}" if write.node else "it is a leaf"
        report.notes.append(
            f"{_operator(write.func)} at {place(write.found)} wrote to an input of the custom Function called at "
            f"{place(write.outer)}, and {history}: its gradient misses the write. Say ctx.mark_dirty(x) in forward."
        )


def _operator(func: Any) -> str:
    return func._schema.name.removeprefix("aten::") if isinstance(func, torch._ops.OpOverload) else str(func)


def _told(write: Written, saved: tuple) -> Write:
    overlaps = overlap(write.geometry, saved) if saved else None
    return Write(_operator(write.func), place(write.found), write.version, write.shape, overlaps)


def _is_later(write: Written, since: int, report: Report) -> bool:
    """Whether a write came after the tensor was saved: by its version where that counts, else by its place in time."""
    then = report.version_then
    if report.kind == "version" and write.version is not None and then is not None:
        return write.version > then and write.clock >= since
    return write.clock > since


def _made(recorded: Any, node: str) -> bool:
    return speaks_of(recorded.func.name(), node) and operator_of(node) in _operator(recorded.func)


def _crossing(outputs: Any, before: int) -> Any:
    """The first edge from a node recorded since ``before`` to one that was there already."""
    for node in nodes_under(outputs):
        if node_number(node) >= before:
            for after, _ in node.next_functions:
                if after is not None and node_number(after) < before and after.next_functions:
                    return node, after
    return None


def _raised_at(traceback: Any) -> Found | None:
    """The reader's innermost line of a traceback."""
    found = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if kind_of(code.co_filename) == READER:
            found = code, traceback.tb_lineno
        traceback = traceback.tb_next
    return found
