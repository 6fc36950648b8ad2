"""What does PyTorch's catalogue of operators leave out? Calls that tell its maybe-copies apart, methods, and indexing.

Everything is written as source text, so that what was measured and the proof that a reader runs are the same words.
"""

from __future__ import annotations

from typing import NamedTuple

_X = "torch.rand(2, 3)"
_T = "torch.rand(3, 2).t()"
_ARRAY = "torch.rand(2, 3).numpy()"

# Catalogue name -> calls on other inputs than its own: matching dtypes, nothing to do, and the like.
CALLS: dict[str, list[str]] = {
    "to": [
        f"{_X}, torch.float32",
        f"{_X}, 'cpu'",
        f"{_X}, 'cpu', copy=True",
        f"{_X}, {_T}",
        f"{_T}, memory_format=torch.contiguous_format",
    ],
    "einsum": ["[torch.rand(3, 3)], 'ii->i'", f"[{_X}], 'ij->ji'", f"[{_X}], 'ij->i'"],
    "sum_to_size": [f"{_X}, (2, 3)", f"{_X}, (1, 3)"],
    "resolve_conj": ["torch.rand(2, 3, dtype=torch.complex64).conj()"],
    "resolve_neg": ["torch.rand(2, 3, dtype=torch.complex64).conj().imag"],
    "diff": [f"{_X}, 0"],
    "matrix_power": ["torch.rand(3, 3), 1"],
    "linalg.matrix_power": ["torch.rand(3, 3), 1"],
    "rot90": [f"{_X}, 0"],
    "roll": [f"{_X}, 0"],
    "repeat": [f"{_X}, 1, 1"],
    "cat": [f"[{_X}]"],
    "chunk": [f"{_X}, 2"],
    # Plain inputs for what a reader looks up first, so that evidence and proof are short.
    **{name: [_X, _T] for name in ("t", "T", "mT", "unbind", "diagonal", "contiguous", "positive")},
    **{name: [f"{_X}, (6,)", f"{_T}, (6,)", "torch.rand(2, 2, 4)[:, :, :1], (4,)"] for name in ("reshape", "view")},
    "narrow": [f"{_X}, 1, 0, 2"],
    "select": [f"{_X}, 0, 1"],
    "split": [f"{_X}, 1"],
    "permute": [f"{_X}, (1, 0)"],
    "transpose": [f"{_X}, 0, 1"],
    "expand": ["torch.rand(1, 3), (2, 3)"],
    "unfold": ["torch.rand(6), 0, 2, 2"],
    "index_select": [f"{_X}, 0, torch.tensor([1, 0])"],
    "masked_select": [f"{_X}, torch.rand(2, 3) > 0.5"],
    "gather": [f"{_X}, 1, torch.tensor([[2, 0], [1, 1]])"],
    "take": [f"{_X}, torch.tensor([5, 0])"],
    "take_along_dim": [f"{_X}, torch.tensor([[2, 0], [1, 1]]), 1"],
    "mul": [f"{_X}, {_X}"],
    "add": [f"{_X}, {_X}"],
    "exp": [_X],
    "nn.functional.relu": [_X],
    "flatten": ["torch.rand(3)", _X, _T, "torch.rand(2, 2, 4)[:, :, :1]"],
    "ravel": ["torch.rand(3)", _X, _T],
    "expand_as": [f"{_X}, {_X}"],
    "broadcast_to": [f"{_X}, (2, 3)"],
    "nn.functional.pad": [f"{_X}, (0, 0)"],
    "nn.functional.interpolate": ["torch.rand(1, 1, 4), 4"],
    "resize_": [f"{_X}, (40, 50)"],
    "real": [_X, "torch.rand(2, 3, dtype=torch.complex64)"],
    "block_diag": [_X],
    "linalg.multi_dot": ["[torch.rand(3, 3), torch.rand(3, 3)]"],
    "clone": [_X, "torch.rand(1, 3).expand(2, 3)"],
}


class Added(NamedTuple):
    """Something that the catalogue lacks: ``expression`` over ``x``, tried with each of ``inputs``."""

    name: str
    expression: str
    inputs: list[str]
    imports: str = ""
    assignment: str = ""


_INDEXES = (  # what stands in the brackets, and what x is
    ("1", "an int"),
    ("-1, 0", "two ints"),
    ("0:2", "a slice"),
    ("::2", "a slice with a step"),
    (":, 1", "a slice and an int"),
    ("None", "None"),
    ("...", "an Ellipsis"),
    ("torch.tensor(1)", "a 0-dim int tensor"),
    ("[0, 2]", "a list"),
    ("torch.tensor([1])", "a 1-d int tensor"),
    ("[0, 2], 1", "a list and an int"),
    ("[True, False, True]", "a list of bools"),
    ("torch.eye(3).bool()", "a mask"),
    ("True", "True"),
    ("torch.tensor(True)", "a 0-dim bool tensor"),
)
INDEX_KINDS = {f"x[{inside}]": kind for inside, kind in _INDEXES}

ADDED: list[Added] = [
    Added("numpy", "x.numpy()", [_X, _T]),
    Added("numpy(force=True)", "x.numpy(force=True)", [_X, "torch.rand(3, requires_grad=True)"]),
    Added("numpy.asarray", "np.asarray(x)", [_X], "import numpy as np"),
    Added("from_numpy", "torch.from_numpy(x)", [_ARRAY, "torch.rand(4, dtype=torch.float64).numpy()[::2]"]),
    Added("from_dlpack", "torch.from_dlpack(x)", [_X, _ARRAY]),
    Added("as_tensor", "torch.as_tensor(x)", [_X, _ARRAY, "[1.5, 2.5]"]),
    Added("as_tensor(dtype=)", "torch.as_tensor(x, dtype=torch.float64)", [_X, _ARRAY, "torch.rand(3).double()"]),
    Added("asarray", "torch.asarray(x)", [_X, _ARRAY, "[1.5, 2.5]"]),
    Added("asarray(copy=True)", "torch.asarray(x, copy=True)", [_X, _ARRAY]),
    Added("tensor", "torch.tensor(x)", [_X, _ARRAY, "[1.5, 2.5]"]),
    Added("Tensor", "torch.Tensor(x)", [_X, "[1.5, 2.5]"]),
    Added("Tensor.new_tensor", "x.new_tensor(x)", [_X]),
    Added("nn.Parameter", "torch.nn.Parameter(x)", [_X]),
    Added("type", "x.type(torch.float32)", [_X, "torch.rand(3).double()"]),
    Added("type_as", "x.type_as(torch.rand(1))", [_X, "torch.rand(1, 3).double().expand(2, 3)"]),
    Added("cpu", "x.cpu()", [_X, _T]),
    Added("to(copy=True)", "x.to('cpu', copy=True)", [_X, _T]),
    Added("detach", "x.detach()", [_X, "torch.rand(3, requires_grad=True)"]),
    Added("data", "x.data", [_X, "torch.rand(3, requires_grad=True)"]),
    Added("detach_", "x.detach_()", [_X]),
    Added("requires_grad_", "x.requires_grad_()", [_X]),
    Added("copy.copy", "copy.copy(x)", [_X], "import copy"),
    Added("copy.deepcopy", "copy.deepcopy(x)", [_X, "torch.rand(4)[:2]"], "import copy"),
    Added("adjoint", "x.adjoint()", [_X]),
    Added("Tensor.values", "x.values()", ["torch.eye(3).to_sparse().coalesce()"]),
    Added("Tensor.indices", "x.indices()", ["torch.eye(3).to_sparse().coalesce()"]),
    Added("iter", "list(x)", [_X]),
    Added("tolist", "x.tolist()", [_X]),
    *(
        Added(f"x[{inside}]", f"x[{inside}]", ["torch.randn(3, 3)"], assignment=f"x[{inside}] = 7.0")
        for inside, _ in _INDEXES
    ),
]
