"""What does a picture cost that moves while the work runs?  python benchmarks/live.py [rounds]

One Adam step under a MemoryTracker with a LiveMemoryPlot, in pairs with the same under the tracker alone; the tracker
alone against itself is the noise. Ratios of CPU time on one thread, medians and quartiles over the rounds. Frames are
counted, and sent to a display that throws them away: what the browser does with them is no part of the step. A run
lasts for as many steps as take a second, so that about ten frames fall into it, as many as any work gets.

Then the same from the parts, which noise moves less: what of a run's CPU time was spent in its frames, against the
rest of that run; how long a frame takes at ten a second; and what the plot adds to each change of the memory, on
operators so small that nothing hides it.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import sys
import time
from types import SimpleNamespace

import torch

from helpers import display
from helpers.live import LiveMemoryPlot
from helpers.memory import MemoryTracker
from helpers.models import convnet, mlp, training_step, transformer

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 15
torch.set_num_threads(1)


def workloads():
    torch.manual_seed(0)
    for name, model, inputs, targets in (
        ("MLP 12 x 1024", mlp(), (256, 1024), (256, 1024)),
        ("transformer 4 x 256", transformer(), (8, 128, 256), (8, 128, 256)),
        ("conv net 32", convnet(), (32, 3, 32, 32), (32, 10)),
    ):
        model.train()
        yield name, (model, torch.optim.Adam(model.parameters(), 1e-4), torch.randn(inputs), torch.randn(targets))


@contextlib.contextmanager
def pretended_notebook():
    """Frames are made into messages as in a notebook, and nobody is sent them."""
    handle = SimpleNamespace(update=lambda bundle, raw: io.BytesIO(bundle["text/html"].encode()))
    import IPython.display

    kept = display.in_notebook, IPython.display.display
    display.in_notebook = lambda: True
    IPython.display.display = lambda bundle, raw, display_id: handle
    try:
        yield
    finally:
        display.in_notebook, IPython.display.display = kept


class TimedPlot(LiveMemoryPlot):
    """A live plot that knows the CPU time of its frames."""

    in_frames = 0.0

    def _frame(self) -> None:
        self.in_frames += of_cpu(super()._frame)


def seconds(work, steps: int, live: bool) -> tuple[float, TimedPlot | None, MemoryTracker]:
    """CPU time of the steps alone: the finished picture comes once, however long the run was."""
    with MemoryTracker(*work) as tracker, contextlib.ExitStack() as stack:
        plot = stack.enter_context(TimedPlot(tracker)) if live else None
        start = time.process_time()
        if plot is not None:
            plot.in_frames = 0.0  # the first is drawn before the work begins
        for _ in range(steps):
            training_step(*work)
        return time.process_time() - start, plot, tracker


def step_row(name, work) -> None:
    training_step(*work)
    steps = max(1, round(1 / seconds(work, 1, False)[0]))
    taken = {"tracker alone (the noise)": [], "tracker and live plot": []}
    frames, parts = 0, []
    for number in range(ROUNDS):
        for live, row in enumerate(taken):
            first = bool(live) if number % 2 else False  # the two take turns in going first
            a, plot, tracker = seconds(work, steps, first)
            b, other, _ = seconds(work, steps, bool(live) and not first)
            taken[row].append(a / b if first else b / a)
            if live:
                took, plot = (a, plot) if first else (b, other)
                frames = plot.frames
                parts.append(took / (took - plot.in_frames))
    print(f"\n{name}: {steps} steps, {tracker.operators:,} operators, {frames} frames in the last run")
    for row, ratios in taken.items():
        low, _, high = statistics.quantiles(ratios, n=4)
        print(f"{row:28s}{statistics.median(ratios):7.3f}  {low:6.3f}-{high:5.3f}", flush=True)
    low, middle, high = statistics.quantiles(parts, n=4)
    print(f"{'with its frames, without':28s}{middle:7.3f}  {low:6.3f}-{high:5.3f}")
    with MemoryTracker(*work) as tracker, LiveMemoryPlot(tracker) as plot:
        for _ in range(steps):
            training_step(*work)
        plot._due = float("inf")
        plot._catch_up()
        took = statistics.median(of_cpu(plot._frame) for _ in range(9))
    print(f"{'a frame':28s}{took * 1e3:7.2f} ms, {10 * took:.1%} of a second if there are ten in it")


def of_cpu(run) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def tiny_row(count: int = 20_000) -> None:
    """Microseconds that are added to an allocation and its release, frames and all."""

    def chain(live: bool) -> float:
        with MemoryTracker() as tracker, contextlib.ExitStack() as stack:
            if live:
                stack.enter_context(LiveMemoryPlot(tracker))
            return of_cpu(lambda: [torch.empty(16).numel() for _ in range(count)])

    added = statistics.median(chain(True) - chain(False) for _ in range(max(ROUNDS // 3, 3)))
    alone = statistics.median(chain(False) for _ in range(3))
    print(f"\nempty(16), {alone / count * 1e6:.1f} us under the tracker: the plot adds {added / count * 1e6:.1f} us")


def finished_row() -> None:
    work = next(workloads())[1]
    with MemoryTracker(*work) as tracker:
        training_step(*work)
    from helpers.live import draw_memory

    display.lasting(draw_memory(tracker))  # matplotlib loads, once
    took = statistics.median(of_cpu(lambda: display.lasting(draw_memory(tracker))) for _ in range(5))
    print(f"the finished picture, once a run, as SVG and PNG: {took * 1e3:.0f} ms")


if __name__ == "__main__":
    with pretended_notebook():
        for workload in workloads():
            step_row(*workload)
        tiny_row()
        finished_row()
