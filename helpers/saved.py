"""What does autograd keep for backward? Counted in the graph that exists, or predicted for one that never ran.

`saved_tensors` lists every tensor that the operators of a graph keep, with bytes counted once for each storage.
`predict_saved` gives the same list for shapes alone: a batch far too large for this machine costs a second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ._graph_read import NO_GRAPH, Reader, check_names, flatten, letter_of
from ._graph_records import Graph, SavedSlot, count, human_bytes
from ._graph_slots import FAILED, ON_CTX, OVERWRITTEN, PACKED, RECOMPUTED, RUN_AGAIN
from ._saved_record import Recorder
from ._saved_table import html_of, text_of
from ._source import Found, place

FREED = "saved tensors already freed: ask before backward()"

_LEFT_OUT = (
    "Left out: workspaces inside one operator, gradients, optimizer state, a loss outside the model, and what an "
    "allocator rounds up."
)


class SavedTensors(Sequence[SavedSlot]):
    """What a graph keeps, in the order in which forward saved it; plain data, so keeping it keeps no tensor alive.

    A sequence of `SavedSlot`: ``op``, ``slot``, ``shape``, ``dtype``, ``nbytes`` (elements times element size),
    ``storage`` (a letter; the same letter is the same memory), ``storage_nbytes`` (what stays allocated), ``name``,
    ``kind``, ``module`` and ``line`` (None where unknown), ``note``. Kinds are ``"parameter"``, ``"buffer"``,
    ``"leaf"`` (a tensor of the reader's own that requires grad) and ``"activation"`` (all the rest, inputs without grad
    too).

    Attributes:
        activation_bytes: bytes of all that is neither parameter nor buffer, each distinct storage once and whole.
        parameter_bytes: bytes of the parameters and buffers among it, counted alike; they exist without the graph.
        by_kind: kind -> bytes, of which the two above are sums.
        by_module: path -> bytes of activations, each storage with the first known module that kept it; None: unknown.
        by_operator: ``"relu (result)"`` -> bytes of activations, each storage with the operator that kept it first.
        storages: letter -> bytes of each distinct storage, made anew ones excepted.
        operators: number of operators in the graph.
        device: the device that the figures hold for.
        predicted: whether they come from `predict_saved`.
        message: why the list is empty, or empty.
        title: the finding in one sentence.
        notes: what to know beside it, a sentence each.
    """

    def __init__(self, graph: Graph, notes: Mapping[int, tuple[str | None, Found | None]], device: str):
        self.device, self.operators, self.predicted = device, len(graph.operators), False
        self.model_name, self.module_types = graph.model_name, dict(graph.module_types)
        self._records: list[SavedSlot] = []
        self.storages: dict[str, int] = {}
        letters: dict[str, str] = {}
        made_anew: dict[str, int] = {}
        for op in sorted(graph.operators.values(), key=lambda op: op.sequence):
            module, found = notes.get(op.sequence, (op.owner, None))
            for slot in op.slots:
                if slot.is_number:
                    continue
                if not slot.storage:
                    self._records.append(replace(slot, module=module, line=place(found)))
                    continue
                storage = graph.storages[slot.storage]
                named = letters.setdefault(slot.storage, letter_of(len(letters)))
                leaf = graph.leaves.get(storage.leaf)
                is_parameter = storage.is_parameter or (leaf is not None and leaf.is_parameter)
                kind = "parameter" if is_parameter and slot.kind != "buffer" else slot.kind
                (made_anew if storage.made_anew else self.storages)[named] = storage.nbytes
                record = replace(slot, storage=named, kind=kind, module=module, line=place(found))
                self._records.append(record)
        kinds = {record.storage: record.kind for record in self._records}
        by_kind: Counter[str] = Counter()
        for named, nbytes in self.storages.items():
            by_kind[kinds[named]] += nbytes
        self.by_kind = dict(by_kind)
        self.parameter_bytes = sum(self.by_kind.get(kind, 0) for kind in ("parameter", "buffer"))
        self.activation_bytes = sum(self.storages.values()) - self.parameter_bytes
        self._storage_kinds = Counter(kinds[named] for named in self.storages)
        self.message = _message(graph)
        self.notes = _notes(graph, self._records, made_anew)

    @property
    def title(self) -> str:
        if self.message:
            return self.message
        keepers = len({record.node for record in self._records})
        if not keepers:
            return f"{count(self.operators, 'operator')} keep{'s' if self.operators == 1 else ''} no tensor"
        would = "would keep" if self.predicted else "keeps" if keepers == 1 else "keep"
        kinds = self._storage_kinds
        kept = kinds["activation"] + kinds["leaf"]
        title = f"{count(keepers, 'operator')} {would} {count(kept, 'tensor')}, {human_bytes(self.activation_bytes)}"
        if kinds["leaf"]:
            leaves, held = count(kinds["leaf"], "leaf", "leaves"), human_bytes(self.by_kind["leaf"])
            title += f" ({leaves} of your own, {held}, among them)"
        anyway = [count(kinds[kind], kind) for kind in ("parameter", "buffer") if kinds[kind]]
        if anyway:
            title += f"; {' and '.join(anyway)}, {human_bytes(self.parameter_bytes)}, exist anyway"
        return title

    @property
    def by_module(self) -> dict[str | None, int]:
        return self._split(lambda record: record.module)

    @property
    def by_operator(self) -> dict[str, int]:
        return self._split(lambda record: f"{record.op} ({record.slot})")

    def _split(self, key: Callable[[SavedSlot], Any]) -> dict[Any, int]:
        """Bytes of activations by the first known key of each storage, the largest first."""
        home: dict[str, Any] = {}
        for record in self._records:
            held = record.storage in self.storages and record.kind in ("activation", "leaf")
            if held and home.get(record.storage) is None:
                home[record.storage] = key(record)
        totals: Counter[Any] = Counter()
        for named, where in home.items():
            totals[where] += self.storages[named]
        return dict(totals.most_common())

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: Any) -> Any:
        return self._records[index]

    def __iter__(self) -> Iterator[SavedSlot]:
        return iter(self._records)

    def __repr__(self) -> str:
        return text_of(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": html_of(self), "text/plain": repr(self)}


def saved_tensors(
    outputs: Any, model: torch.nn.Module | None = None, *, names: Mapping[str, torch.Tensor] | None = None
) -> SavedTensors:
    """Lists the tensors that the graph behind ``outputs`` keeps for backward.

    Ask before ``backward()``, which frees them. Nothing is changed or kept alive, no saved-tensor hook is set, and an
    unpack hook that is there runs once at most; what a hook packed is listed as it lies in memory.

    Args:
        outputs: a tensor, or a tuple, list or dict of tensors; or a function without arguments that returns them,
            ``lambda: model(x)``. The function is called once and watched, and what it returns is dropped.
        model: names parameters and buffers, recognised by their storage, and modules.
        names: your names for your tensors, ``{"a": a}``, as in `draw_graph`.

    A graph knows no modules and no lines. Given tensors, ``line`` is None, and ``module`` is that of the parameter or
    buffer that the operator reads, None if it reads none. Given a function, both are those that ran: the innermost
    module of ``model``, and the innermost line inside the function that is neither PyTorch's nor the lab's.

    A graph that was freed, or no graph at all, gives an empty list whose ``message`` says so.

    Raises:
        TypeError: if an argument is something else. What the function raises is passed on.

    Example:
        >>> a, b = torch.ones(5, requires_grad=True), torch.ones(5)
        >>> saved_tensors(a * b, names={"a": a, "b": b})
        1 operator keeps 1 tensor, 20 B
        bytes  tensor         kept by
         20 B  b [5] float32  mul (other)
        >>> [(s.op, s.slot, s.nbytes, s.kind) for s in saved_tensors(a * b)]
        [('mul', 'other', 20, 'activation')]
        >>> saved_tensors(torch.ones(5)).message
        'no graph: requires_grad is False'

    Numbers in the code, as in ``x * 3.0``, are kept as tensors of 8 B; like a hook, this list passes over them.

    Known limits: of a custom ``autograd.Function`` only what it saves, or puts on ``ctx`` as a tensor, list, tuple or
    dict, is seen; memory inside a hook's own store is not; a function's lines are those of the calling thread.
    """
    if model is not None and not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    check_names(names)
    if isinstance(outputs, torch.nn.Module):
        raise TypeError(
            f"got the module {type(outputs).__name__} itself: pass what it returns, saved_tensors(model(x), model), "
            "or a function that runs it, saved_tensors(lambda: model(x), model)"
        )
    if callable(outputs) and not isinstance(outputs, torch.Tensor):
        with Recorder(model) as recorder:
            result = outputs()
        return _read(_tensors(result), model, recorder.notes, names)
    pairs = list(flatten(outputs, ""))
    if not pairs:
        raise TypeError(f"no tensor in this {type(outputs).__name__}: pass what you would call backward() on")
    return _read(pairs, model, {}, names)


def predict_saved(
    model: torch.nn.Module, *input_shapes: Any, dtype: torch.dtype = torch.float32, **options: Any
) -> SavedTensors:
    """Lists what a training forward of ``model`` would keep for backward on a CPU, without the memory for it.

    A twin of the model with the same shapes runs on tensors that hold nothing, so the model stays as it is, whatever
    device it is on; ``torch.device("meta")`` is enough. PyTorch takes the decisions that it takes on a CPU, and
    operators whose shape functions say something else than their kernels are corrected. The result names what was
    corrected, what is not exact, and what other devices are known to keep instead.

    Args:
        model: in the mode (train or eval) that is asked for.
        *input_shapes: for each input its shape, ``(256, 3, 224, 224)``; a pair of shape and dtype,
            ``((8, 128), torch.int64)``; or a tensor on any device, of which only the shape is used.
        dtype: of inputs given by shape alone.
        **options: passed to ``forward`` by name; tensors among them likewise.

    Returns:
        As `saved_tensors`, with modules and lines; ``device`` is ``"cpu"``, ``notes`` says what to know.

    Raises:
        TypeError: if ``model`` or a shape is something else, or the model cannot be copied.
        ValueError: if a lazy module has no shapes yet.
        RuntimeError: if forward depends on values. The model's own errors pass, with a note that names the inputs.

    Example:
        >>> saved = predict_saved(torch.nn.Linear(1000, 1000), (10**9, 1000))
        >>> saved.activation_bytes, saved.device
        (4000000000000, 'cpu')

     Known limits: forward hooks of the model run, with the twin's tensors. A forward that moves tensors to a device by
    its name needs that device. On CUDA some operators keep other tensors; ``notes`` names those that are known to.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"predict_saved runs a torch.nn.Module, got {type(model).__name__}: predict_saved(model, (2, 3))"
        )
    from torch._subclasses.fake_tensor import FakeTensorMode  # two seconds that only a prediction needs

    from ._cpu_kernels import CpuKernels
    from ._fake_model import Explained, Twins, told

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    twins = Twins(mode)
    inputs = [_input(number, given, dtype, twins) for number, given in enumerate(input_shapes, 1)]
    named = {"input" if len(inputs) == 1 else f"input {i}": tensor for i, tensor in enumerate(inputs, 1)}
    options = twins.of_all(options)
    named |= {name: value for name, value in options.items() if isinstance(value, torch.Tensor)}
    twin = twins.of_model(model)
    kernels, recorder = CpuKernels(twin), Recorder(twin)
    with Explained(model, told(list(named.items())) or "no input"):
        with mode, kernels, recorder, torch.enable_grad():
            result = twin(*inputs, **options)
        saved = _read(_tensors(result), twin, recorder.notes, named)
    saved.predicted = True
    saved.notes = (
        "Holds for a CPU.",
        *(f"Corrected: {sentence}." for sentence in kernels.corrected.values()),
        *(f"Not exact: {sentence}." for sentence in kernels.unsure.values()),
        *(f"Other on CUDA: {sentence}." for sentence in kernels.elsewhere.values()),
        _LEFT_OUT,
        *saved.notes,
    )
    return saved


def _input(number: int, given: Any, dtype: torch.dtype, twins: Any) -> torch.Tensor:
    if isinstance(given, torch.Tensor):
        return twins.of(given)
    if isinstance(given, (tuple, list)):
        if len(given) == 2 and isinstance(given[1], torch.dtype):
            given, dtype = given
        if isinstance(given, (tuple, list)) and all(isinstance(n, int) and n >= 0 for n in given):
            return twins.empty(tuple(given), dtype)
    hint = "; give each input one shape, predict_saved(model, (32, 3, 224, 224))" if isinstance(given, int) else ""
    raise TypeError(
        f"input {number} must be a shape such as (2, 3), a pair ((2, 3), torch.int64) or a tensor, got {given!r}{hint}"
    )


def _tensors(result: Any) -> list[tuple[str, torch.Tensor]]:
    """The tensors in whatever a forward returns, in order."""
    found = [thing for thing in tree_leaves(result) if isinstance(thing, torch.Tensor)]
    if not found:
        raise TypeError(
            f"no tensor in the {type(result).__name__} that it returned: return what backward() starts from"
        )
    return [("", found[0])] if len(found) == 1 else [(f"output {i}", tensor) for i, tensor in enumerate(found, 1)]


def _read(
    pairs: list[tuple[str, torch.Tensor]],
    model: torch.nn.Module | None,
    notes: Mapping[int, tuple[str | None, Found | None]],
    names: Mapping[str, torch.Tensor] | None = None,
) -> SavedTensors:
    graph = Reader(model, names or {}, show_saved=True).read(pairs)
    return SavedTensors(graph, notes, str(pairs[0][1].device))


def _message(graph: Graph) -> str:
    """Why there is nothing, where there is nothing to list."""
    ops = graph.operators.values()
    if not ops:
        none = {output.note for output in graph.outputs} == {NO_GRAPH}
        return NO_GRAPH if none else "no operators: the output is itself a leaf"
    return FREED if any(op.freed for op in ops) and not any(op.slots for op in ops) else ""


def _notes(graph: Graph, records: list[SavedSlot], made_anew: Mapping[str, int]) -> tuple[str, ...]:
    """What is special about some of the tensors."""
    ops = graph.operators.values()
    many: Callable[[str], int] = Counter(record.note for record in records).__getitem__
    notes = []
    freed = sum(op.freed for op in ops)
    if freed and any(op.slots for op in ops):
        notes.append(f"{count(freed, 'operator')}: {FREED}.")
    if n := many(OVERWRITTEN):
        notes.append(f"{count(n, 'saved tensor')} overwritten since: backward() will raise.")
    if n := many(RECOMPUTED):
        notes.append(f"{count(n, 'tensor')} kept by no one: checkpoint will compute them again in backward.")
    if n := many(RUN_AGAIN):
        notes.append(f"{count(n, 'tensor')} {RUN_AGAIN}.")
    if n := many(PACKED):
        notes.append(f"{count(n, 'tensor')} listed as a saved-tensor hook packed them.")
    if made_anew:
        held = human_bytes(sum(made_anew.values()))
        notes.append(f"{count(len(made_anew), 'tensor')}, {held}, in a hook's own store: not counted.")
    if any(op.name == "differentiable_graph" for op in ops):
        notes.append("What TorchScript keeps inside its own graphs cannot be seen.")
    if n := many(ON_CTX):
        notes.append(f"{count(n, 'tensor')} put on ctx by hand: no hook and no version check sees them.")
    notes += [f"{record.op}, {record.slot}: {record.note}." for record in records if record.note.startswith(FAILED)]
    return tuple(notes)
