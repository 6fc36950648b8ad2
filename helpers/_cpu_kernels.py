"""Where do shapes alone not tell what a CPU kernel keeps? Corrections for those operators, and notes on the rest.

`FakeTensorMode` already lets PyTorch take the decisions of a CPU: it runs the flash attention for CPUs where a meta
tensor would fall back on plain matrix products, and it casts under CPU autocast. What remains are operators whose shape
function says something else than the kernel does. They were found by comparing every operator of PyTorch's own
catalogue (`op_db`: 5,668 samples in float32, 4,596 in bfloat16) and common modules under autocast with real runs.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
_HALVES = (torch.bfloat16, torch.float16)
_PAGE = 4096

_NORMS = {
    _aten.native_layer_norm.default: "layer_norm",
    _aten.native_group_norm.default: "group_norm",
    _aten.native_batch_norm.default: "batch_norm",
    _aten._native_batch_norm_legit.default: "batch_norm",
}

# What CUDA is known to keep instead, by the operator that a CPU ran. Dropout: aten/src/ATen/native/Dropout.cpp,
# is_fused_kernel_acceptable. Attention: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp.
_ELSEWHERE = {
    "bernoulli_": "dropout (factors in the dtype of the input; on CUDA a mask of one byte an element)",
    "_scaled_dot_product_flash_attention_for_cpu": "scaled_dot_product_attention (CUDA's kernel depends on the GPU)",
    "native_batch_norm": "batch_norm (cuDNN may add a reserve for channels_last)",
}


class CpuKernels(TorchDispatchMode):
    """Runs inside a `FakeTensorMode` and gives results the dtype and size that CPU kernels give them.

    Attributes:
        corrected: what was corrected, a sentence for each operator.
        unsure: operators whose figure may be wrong, and by how much.
        elsewhere: operators that are known to keep something else on CUDA.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.corrected: dict[str, str] = {}
        self.unsure: dict[str, str] = {}
        self.elsewhere: dict[str, str] = {}
        if any(isinstance(module, torch.nn.RNNBase) for module in model.modules()):
            self.elsewhere["rnn"] = "LSTM, GRU and RNN (cuDNN keeps a reserve of its own size)"

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if name in _ELSEWHERE:
            self.elsewhere[name] = _ELSEWHERE[name]
        if func in _NORMS:
            return self._norm(_NORMS[func], out, args)
        if func is _aten.mkldnn_rnn_layer.default:
            return self._lstm(out, args, kwargs or {})
        if name == "_embedding_bag":
            return self._embedding_bag(out, args, kwargs or {})
        if name == "_sparse_mm_reduce_impl":
            self.unsure["sparse.mm"] = "sparse.mm with a reduction: the positions it keeps (8 B an element) are missing"
        return out

    def _norm(self, name: str, out: Any, args: tuple) -> Any:
        """Statistics of half-precision input are float32 where weight or running statistics are float32.

        As in aten/src/ATen/native/cpu/mixed_data_type.h, param_scalar_type; the shape functions give the input's dtype.
        """
        parameters = [a for a in args[1:5] if isinstance(a, torch.Tensor)]
        if args[0].dtype not in _HALVES or not any(p.dtype is torch.float32 for p in parameters):
            if name == "layer_norm" and args[0].dtype in _HALVES:  # aten/src/ATen/native/cuda/layer_norm_kernel.cu
                self.elsewhere[name] = "layer_norm (statistics of half-precision input are float32 on CUDA)"
            return out
        self.corrected[name] = f"{name}: statistics in float32, as the kernel for mixed precision keeps them"
        return (out[0], *(torch.empty_like(s, dtype=torch.float32) for s in out[1:]))

    def _lstm(self, out: Any, args: tuple, kwargs: dict) -> Any:
        names = [a.name for a in _aten.mkldnn_rnn_layer.default._schema.arguments]
        given = {**dict(zip(names, args)), **kwargs}
        if not given["train"]:
            return out
        length, batch, features = given["input"].shape
        element = given["input"].element_size()
        nbytes = lstm_workspace(length, batch, features, given["hidden_size"], element)
        self.corrected["LSTM"] = "LSTM: the workspace that oneDNN keeps, by the layout in its source"
        real = _lstm_workspace_of_this_machine(element)
        if real != lstm_workspace(*_PROBE, element):
            self.corrected.pop("LSTM")
            told = "cannot be asked here" if real is None else f"differs on this machine ({real:,} B for a small one)"
            self.unsure["LSTM"] = (
                f"LSTM: the oneDNN workspace is a guess by the layout in oneDNN 3, which {told}; measure a real run"
            )
        return (*out[:3], torch.empty(nbytes, dtype=torch.uint8, device=out[0].device))

    def _embedding_bag(self, out: Any, args: tuple, kwargs: dict) -> Any:
        """In mean and max mode the CPU kernel keeps the first n of n + 1 places; in sum mode it depends on the path."""
        mode = args[4] if len(args) > 4 else kwargs.get("mode", 0)
        places = out[1]
        if mode and places.numel() == args[1].numel():
            places = torch.empty(places.numel() + 1, dtype=places.dtype, device=places.device)[:-1]
            return (out[0], places, *out[2:])
        if args[0].dtype is not torch.float32:
            self.unsure["embedding_bag"] = (
                "embedding_bag: off by up to 8 B for each index, as the kernel's path decides"
            )
        return out


def lstm_workspace(length: int, batch: int, features: int, hidden: int, element_size: int) -> int:
    """Bytes that oneDNN keeps for the backward of one layer and direction of an LSTM.

    Gates, hidden states, and for layer, cell, and the gradients of layer, iteration and cell a place for each step and
    one more, each part on pages of its own. Source: oneDNN, src/cpu/rnn/rnn_utils.hpp (set_conf, ws_*_size) and
    rnn_utils.cpp (set_offsets); the sizes do not depend on the processor.

    Example:
        >>> lstm_workspace(20, 4, 16, 32, 4)
        176128
    """

    def row(elements: int, size: int) -> int:
        """Bytes of a row, in whole lines of 64 B and not a multiple of 256 elements, where caches would collide."""
        line = 64 // size
        padded = -(-elements // line) * line
        return (padded + line if padded % 256 == 0 else padded) * size

    steps = length * batch
    states = 2 * (length + 1) * batch
    widest = max(hidden, features)
    parts = (
        steps * row(4 * hidden, element_size),
        steps * row(hidden, element_size),
        states * row(widest, element_size),
        states * hidden * element_size,
        *[states * row(widest, 4)] * 2,  # gradients add up in float32
        states * hidden * 4,
    )
    return sum(-(-part // _PAGE) * _PAGE for part in parts)


_PROBE = (
    9,
    33,
    100,
    70,
)  # length, batch, features, hidden size: milliseconds, and each part has its own number of pages


@functools.cache
def _lstm_workspace_of_this_machine(element_size: int) -> int | None:
    """Asks the kernel itself, once; None where it does not run for this dtype."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    length, batch, features, hidden = _PROBE
    dtype = torch.float32 if element_size == 4 else torch.bfloat16
    with unset_fake_temporarily(), torch.utils._python_dispatch._disable_current_modes(), torch.enable_grad():
        make = lambda *shape: torch.zeros(shape, dtype=dtype)  # noqa: E731 - used in one call
        try:
            out = _aten.mkldnn_rnn_layer.default(
                make(length, batch, features),
                make(4 * hidden, features),
                make(4 * hidden, hidden),
                make(4 * hidden),
                make(4 * hidden),
                make(batch, hidden),
                make(batch, hidden),
                False,
                [],
                2,  # the mode of an LSTM
                hidden,
                1,
                True,
                False,
                False,
                True,
            )
        except RuntimeError:
            return None
        return out[3].untyped_storage().nbytes()
