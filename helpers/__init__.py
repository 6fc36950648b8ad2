"""helpers: what the notebooks of Tensor Memory Lab measure with. One module, one question; this is the map.

Names load when they are first used, so ``import helpers`` costs nothing and needs nothing installed.
"""

from importlib import import_module
from typing import Any

from ._magics import load_ipython_extension as load_ipython_extension  # what %load_ext calls
from ._magics import register_if_in_ipython

_MAP = {
    "setup": "environment",  # the card: torch, device, widgets, graph renderer
    "same_storage": "storage",  # one storage under both?
    "shares_memory": "storage",  # any byte in common?
    "shares_version_counter": "storage",  # one version counter?
    "describe": "storage",  # a card for each tensor
    "draw_storage": "storage",  # memory as cells, and what each tensor sees of it
    "MemoryTracker": "memory",  # live bytes over a block, event by event
    "measure_memory": "memory",  # what one call retains, and its peak
    "LiveMemoryPlot": "live",  # a tracker drawn while it runs
    "draw_memory": "live",  # a tracker drawn afterwards
    "explore_memory": "explore",  # what was alive at each moment of it, under a slider
    "compare_copies": "copies",  # what clone, detach and the others do, a row each
    "saved_tensors": "saved",  # what a graph keeps for backward, counted
    "predict_saved": "saved",  # the same for shapes alone, without the memory
    "draw_graph": "graph",  # what backward will walk, and what it keeps
    "operator_atlas": "atlas",  # view, copy or the same object: every operator, measured
    "explain_inplace": "inplace",  # which line saved, which line wrote, what mends it; also %%explain_inplace
    "guard_saved_tensors": "inplace",  # silent writes into saved tensors made an error; also %%guard_saved_tensors
    "offload_to_cpu": "hooks",  # saved tensors far away until backward needs them
    "offload_to_disk": "hooks",  # the same in a file without a name
    "compress": "hooks",  # the same in fewer bytes
    "WithSavedTensorHooks": "hooks",  # a module that runs under any of them
    "compare_policies": "tradeoff",  # peak, time and gradient error of each way of saving memory
    "playground": "controls",  # controls over a measurement; move one, and it runs again
    "draw_bytes": "controls",  # amounts as bars, over those of the run before
    "predict": "exercises",  # answer first, then run
    "check": "exercises",  # is the exercise solved, and if not, which property failed?
    "progress": "exercises",  # what was answered and passed so far
    "Table": "display",  # rows under a heading
    "exact_bytes": "display",  # 400,000,000 B
    "round_bytes": "display",  # 381.47 MiB
}

__all__ = sorted(_MAP)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _MAP:
        raise AttributeError(f"helpers has no {name!r}; it offers {', '.join(__all__)}")
    return getattr(import_module(f"helpers.{_MAP[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]


register_if_in_ipython()
