"""What will backward walk, and what does it keep until then? The autograd graph as a picture.

`draw_graph` reads a graph once into plain records, then draws those: the output on top, operators by their plain name,
the reader's own tensors in blue, and in vermilion every tensor that an operator keeps for backward, with its bytes. The
same graph gives the same picture and the same text on every run, with or without a program that lays graphs out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from helpers import _graph_layout as layout
from helpers._graph_fold import GraphEdge, GraphNode, Plan
from helpers._graph_read import NO_GRAPH, Reader, check_names, flatten, plain_name
from helpers._graph_records import Graph, SavedSlot
from helpers._graph_words import FREED, alt_of, folded_of, note_of, text_of, title_of
from helpers.display import Picture

__all__ = ["FREED", "NO_GRAPH", "GraphEdge", "GraphNode", "GraphPicture", "SavedSlot", "draw_graph", "plain_name"]


class GraphPicture(Picture):
    """A drawn graph: plain data only, so keeping it keeps no tensor and no graph alive.

    Attributes:
        title: the finding, in one sentence.
        nodes: the boxes, from the output down (`GraphNode`); folded ones have kind ``"group"``.
        edges: the lines between them (`GraphEdge`), of kind ``"input"`` or ``"saved"``.
        saved: one `SavedSlot` for each tensor that an operator keeps, also of folded operators.
        saved_bytes: bytes kept for backward alone, each distinct storage once and whole.
        parameter_bytes: bytes of saved storages that exist anyway: parameters, buffers and the reader's own leaves.
        operators: number of operators in the graph, drawn or folded.
        folded: how boxes were joined, and the limit; empty when every operator has its own box.
        dot: the picture in the DOT language, the same text on every run.
        renderer: what drew it: ``"dot"``, ``"graphviz-pure"`` or ``"text"``.
        text, alt, svg: the text tree, the sentence for those who cannot see the picture, and the picture.
    """

    def __init__(self, graph: Graph, plan: Plan, *, title: str, folded: str, svg: str, renderer: str, text: str):
        super().__init__(svg, alt=alt_of(graph, title, folded), text=text)
        self.title, self.folded, self.renderer = title, folded, renderer
        self.nodes, self.edges = plan.nodes, plan.edges
        self.dot = layout.dot_source(plan)
        self.operators = len(graph.operators)
        self.saved = [slot for op in graph.operators.values() for slot in op.slots if slot.storage]
        self.saved_bytes = sum(s.nbytes for s in graph.storages.values() if not s.leaf)
        self.parameter_bytes = sum(s.nbytes for s in graph.storages.values() if s.leaf)


def draw_graph(
    output: Any,
    model: torch.nn.Module | None = None,
    show_saved: bool = True,
    max_nodes: int = 60,
    names: Mapping[str, torch.Tensor] | None = None,
) -> GraphPicture:
    """Draws the graph that backward would walk from ``output``, and what its operators keep until then.

    Look at it before ``backward()``, which frees what was saved. Reading leaves no trace: no version, gradient or
    hook changes, nothing is kept alive. What a saved-tensor hook packed is looked at, not unpacked, where it is a
    tensor or holds one; any other packed object is unpacked once, but a checkpoint's never, as that runs forward again.

    Args:
        output: a tensor, or a tuple, list or dict of tensors (nested as you like; None is skipped).
        model: names parameters and buffers, recognised by their memory, and lets a large graph fold by module. The
            graph does not record modules: an operator belongs to the module whose parameter or buffer it reads, and one
            that reads none (a ReLU, an addition, the loss) is counted with the last such module before it.
        show_saved: draw saved tensors. False reads none of them.
        max_nodes: the most boxes in the picture, at least 2; above it, or where the picture would need more than 700 px
            of width, boxes are folded together and the picture says so.
        names: your names for your tensors, ``{"a": a}``; without them leaves are ``leaf 1``, ``leaf 2``, ...

    Raises:
        TypeError: if ``output``, ``model`` or ``names`` hold something else.
        ValueError: for a ``max_nodes`` below 2, or an unknown renderer in ``TENSOR_LAB_RENDERER`` (auto, dot,
            graphviz-pure, text).

    Example:
        >>> a = torch.ones(5, requires_grad=True)
        >>> draw_graph(a * a, names={"a": a})
        1 operator keeps 1 leaf (20 B, there anyway): 0 B extra
        output [5] float32
          mul [5]
            keeps self: a [5] float32, 20 B
            keeps other: a [5] float32, 20 B
            a: leaf [5], 20 B
            a: see above

    Known limits: memory inside a hook's own store is not part of the graph and is not seen. What a hook makes anew on
    each unpack counts each time.
    """
    _check(model, max_nodes, names)
    layout.wanted_renderer()  # a mistyped renderer is said before the work, not after
    outputs = list(flatten(output, ""))
    if not outputs:
        raise TypeError(f"no tensor in this {type(output).__name__}: pass the tensor that you would call backward() on")
    graph = Reader(model, names or {}, show_saved).read(outputs)
    title = title_of(graph, show_saved)
    plan, coarser = layout.choose(graph, max_nodes)
    folded = folded_of(graph, plan, max_nodes)
    text = text_of(graph, plan, title, folded)
    note = lambda drawn: note_of(graph, drawn, folded_of(graph, drawn, max_nodes), show_saved)  # noqa: E731 - one use
    svg, renderer = layout.draw(plan, coarser, title, note, text)
    return GraphPicture(graph, plan, title=title, folded=folded, svg=svg, renderer=renderer, text=text)


def _check(model: Any, max_nodes: Any, names: Any) -> None:
    if model is not None and not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}; name tensors with names={{...}}")
    if not isinstance(max_nodes, int) or isinstance(max_nodes, bool) or max_nodes < 2:
        raise ValueError(
            f"max_nodes must be a whole number of at least 2 (the output and one box for the rest), got {max_nodes!r}"
        )
    check_names(names)
