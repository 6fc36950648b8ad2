"""Why does an operator need what it saved, and what mends a write into it? The words of an explanation."""

from __future__ import annotations

from typing import NamedTuple

_RESULT = {  # operators that reuse their result
    "exp": "the derivative of exp is its result",
    "expm1": "the derivative of expm1 is its result plus 1",
    "sigmoid": "the derivative of sigmoid is y * (1 - y), worked out from its result y",
    "tanh": "the derivative of tanh is 1 - y * y, worked out from its result y",
    "sqrt": "the derivative of sqrt is 1 / (2 * y), worked out from its result y",
    "rsqrt": "the derivative of rsqrt is -y ** 3 / 2, worked out from its result y",
    "reciprocal": "the derivative of 1 / x is -y * y, worked out from its result y",
    "relu": "relu lets gradients through where its result is positive",
    "softmax": "the derivative of softmax is worked out from its result",
    "log_softmax": "the derivative of log_softmax is worked out from its result",
    "div": "the derivative of a quotient is worked out from its result",
}
_INPUT = {
    "mul": "the derivative of a product by one factor is the other factor",
    "pow": "the derivative of x ** n is n * x ** (n - 1), worked out from x",
    "log": "the derivative of log x is 1 / x, worked out from x",
    "sin": "the derivative of sin x is cos x, worked out from x",
    "cos": "the derivative of cos x is -sin x, worked out from x",
    "div": "the derivative of a quotient needs the divisor, and by the divisor also what was divided",
    "native_batch_norm": "in evaluation its backward reads the running statistics, in training the input",
}
_PRODUCTS = {"mm", "bmm", "addmm", "addmv", "mv", "baddbmm", "matmul", "linear", "dot", "addbmm"}


def why(operator: str, slot: str, is_output: bool | None, custom: bool) -> str:
    """Why backward needs what an operator saved under the name ``slot``."""
    base = slot.split("[")[0]
    if operator in ("checkpoint", "CheckpointFunction"):
        return "checkpoint keeps its inputs, as backward runs the forward again from them"
    if custom:
        return f"the Function {operator} put it on ctx with save_for_backward, so its backward reads it"
    if is_output:
        return _RESULT.get(operator, f"{operator} keeps its result, from which its derivative is worked out")
    if base in ("running_mean", "running_var"):
        return _INPUT["native_batch_norm"]
    if operator in _PRODUCTS:
        return f"the derivative of a matrix product by one factor is worked out from the other, here {slot}"
    if "convolution" in operator:
        if base == "weight":
            return "the gradient of a convolution's input is worked out from its weight"
        return "the gradient of a convolution's weight is worked out from its input"
    return _INPUT.get(operator, f"{operator} keeps {slot}, from which its derivative is worked out")


class Case(NamedTuple):
    """What is known of a failure, as far as mends depend on it."""

    name: str  # what the tensor is called, without how it was seen
    role: str  # parameter, buffer, variable or ""
    operator: str  # that saved
    is_output: bool | None
    saving_line: str  # "line 3", as it is told
    texts: tuple[str, ...]  # the lines that wrote
    out_of_place: str  # the writing statement without its write
    crosses: bool  # whether backward went into a graph that an earlier backward had used already
    silent: bool
    exchanged: bool


def mends(case: Case) -> list[str]:
    """What to do, the likeliest first."""
    written = " ".join(case.texts)
    if case.exchanged:
        return [f"let {case.name or 'the tensor'} keep its memory until backward is done: no .data = ... before that"]
    if case.role == "buffer" and "load_state_dict" not in written and "copy_" not in written:
        return [
            "run backward before the next forward in training mode, which rewrites the running statistics",
            "keep the module in one mode, .train() or .eval(), until backward is done",
        ]
    if ".step(" in written:
        return [*_CARRIED[: int(case.crosses)], *_STEPPED]
    if case.role in ("parameter", "buffer") or "load_state_dict" in written:
        return [
            "write to it after backward: put backward() before that line",
            "run the forward again after the write, so that the loss is one of the new values",
            *_SILENT[: int(case.silent)],
        ]
    found = []
    if case.out_of_place:
        found.append(f"write out of place: {case.out_of_place}")
    elif "inplace=True" in written:
        found.append("pass inplace=False")
    if case.name:
        found.append(f"write into a copy: {case.name} = {case.name}.clone() before the line that writes")
    else:
        found.append("write into a copy: clone() before the line that writes, or the function without the underscore")
    if case.saving_line and not case.is_output:
        found.append(f"write before {case.saving_line}, if {case.operator} is to use the new value")
    found.append("write after backward()")
    return [*found, *_SILENT[: int(case.silent)]]


_CARRIED = [
    "detach what is carried from one step to the next (a hidden state: h = h.detach()), so that backward stays in its "
    "own step; retain_graph=True only hides that it does not"
]
_STEPPED = [
    "call every backward() before the first step() that changes these parameters",
    "run the forward again after step(), so that the second loss is one of the new parameters",
]
_SILENT = [
    "in any case, write under torch.no_grad() rather than through .data or NumPy: PyTorch then sees the write, and an "
    "error comes instead of a wrong gradient"
]

# Errors that are raised by the write itself: (words of PyTorch's message, kind, meaning, mends).
AT_THE_WRITE: list[tuple[str, str, str, list[str]]] = [
    (
        "a view of a leaf Variable that requires grad",
        "view of a leaf",
        "The tensor written to is a view of a leaf: a parameter, or a tensor made with requires_grad=True. Autograd "
        "accumulates gradients in leaves, and with a history of its own it would be none. Nothing saved is to blame.",
        [
            "to change the parameter itself (initialise, update): put the write under torch.no_grad()",
            "to compute with changed values: write into a copy, w = w.clone(), whose gradient flows back to the leaf",
        ],
    ),
    (
        "leaf Variable that requires grad",
        "leaf",
        "The tensor written to is a leaf: a parameter, or a tensor made with requires_grad=True. Autograd accumulates "
        "gradients in leaves, and with a history of its own it would be none. Nothing saved is to blame.",
        [
            "to change the parameter itself (initialise, update): put the write under torch.no_grad()",
            "to compute with changed values: write out of place, or into a copy, w = w.clone()",
        ],
    ),
    (
        "function that returns multiple views",
        "multi-output view",
        "The tensor written to is one of several views that one operator returned (chunk, split, unbind; "
        "`for row in x` is unbind too). Autograd can give a new history to one view of a tensor, not to one of several "
        "made at once.",
        [
            "index instead: x[i] is one view, so x[i].mul_(2) in a loop is right and differentiable",
            "write out of place and put the parts together: torch.cat, torch.stack",
        ],
    ),
    (
        "created inside a custom Function",
        "view from a custom Function",
        "The tensor written to is an input that a custom Function returned as its output, or a view of one. The "
        "Function's own backward would be replaced by the history of the write.",
        [
            "in the Function, return a new tensor; or mark an input that it writes to, ctx.mark_dirty(x)",
            "clone the Function's output before writing to it",
        ],
    ),
    (
        "created in no_grad mode",
        "no_grad view",
        "The view was made under torch.no_grad() and is written to outside. Autograd has no record of how it lies over "
        "its base, so it cannot tell whether the base is meant to change.",
        [
            "make the view where it is written to: outside no_grad if the write should be differentiated",
            "do both under no_grad, or take view.detach() if no gradient is wanted",
        ],
    ),
    (
        "created in inference mode",
        "inference view",
        "The view was made under torch.inference_mode() and is written to outside.",
        ["make the view outside inference_mode, or clone it before writing"],
    ),
    (
        "Inplace update to inference tensor outside InferenceMode",
        "inference tensor",
        "A tensor made under torch.inference_mode() has no version counter, so no write outside could be checked.",
        ["clone it outside inference_mode and write into the clone"],
    ),
    (
        "more than one element of the written-to tensor refers to a single memory location",
        "expanded memory",
        "The tensor written to is expanded: several of its elements are one place in memory, so the write has no "
        "meaning. Only some operators refuse. fill_, zero_ and an assignment like e[0, 0] = 5 write without a word, to "
        "every element at that place and to the tensor that was expanded; masked_fill_ and index_put_ only warn.",
        ["clone first: e = base.expand(...).clone(), or base.repeat(...)", "write to the base"],
    ),
    (
        "functions with out=... arguments don't support automatic differentiation",
        "out= with grad",
        "An operator with out= writes into a tensor that has its own history, which autograd cannot replace.",
        ["drop out= and keep what the operator returns", "call it under torch.no_grad(), if no gradient is wanted"],
    ),
    (
        "pack hook is modifying its input in place",
        "pack hook",
        "A pack hook of saved_tensors_hooks wrote into the tensor it was given, which is the one that forward goes on "
        "with, and it has been changed already.",
        ["let the hook write into a copy: t.detach().clone()"],
    ),
]
