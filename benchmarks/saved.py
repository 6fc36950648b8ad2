"""How long do saved_tensors, draw_graph and predict_saved take on ResNet-152?  python benchmarks/saved.py [rounds]

Wall-clock seconds on one thread, medians over the rounds. The graph has the full size of ResNet-152 and little data in
it: two pictures of 64 x 64. Its forward stands beside the figures, as what a reader has waited for already. The
prediction is of the published batch, 256 pictures of 224 x 224, of a model on the meta device.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from helpers.graph import draw_graph
from helpers.models import resnet
from helpers.saved import predict_saved, saved_tensors

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
os.environ.setdefault("TENSOR_LAB_RENDERER", "text")  # what is read and folded, not another program's drawing


def timed(run: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of the first call, which imports what it needs, and the median of the others."""
    times = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times[0], statistics.median(times[1:])


def main() -> None:
    torch.set_num_threads(1)
    with torch.device("meta"):
        shapes_alone = resnet(152)
    model = resnet(152)
    x = torch.rand(2, 3, 64, 64)
    graph = model(x)
    rows = {
        "forward alone (the reader waits for it anyway)": lambda: model(x),
        "saved_tensors of its graph": lambda: saved_tensors(graph, model),
        "saved_tensors of a function (forward, watched)": lambda: saved_tensors(lambda: model(x), model),
        "draw_graph of its graph, text": lambda: draw_graph(graph, model),
        "predict_saved, batch 256, 224 x 224": lambda: predict_saved(shapes_alone, (256, 3, 224, 224)),
        "the table of it as HTML": lambda: PREDICTED._repr_mimebundle_(),
    }
    start = time.perf_counter()
    PREDICTED = predict_saved(shapes_alone, (256, 3, 224, 224))
    first = time.perf_counter() - start
    saved = saved_tensors(graph, model)
    print(f"ResNet-152: {saved.operators:,} operators, {len(saved):,} saved slots, {len(saved.storages):,} storages")
    print(f"predicted for batch 256: {PREDICTED.title}")
    print(f"{'':50s}{'first':>8s}{'median':>8s}")
    for row, run in rows.items():
        one, median = timed(run)
        if row.startswith("predict"):
            one = first
        print(f"{row:50s}{one:7.2f}s{median:7.2f}s", flush=True)


if __name__ == "__main__":
    main()
