"""What does MemoryTracker cost, and is its peak true?  python benchmarks/tracker.py [rounds]

Three Adam steps (MLP, transformer, small conv net). Each variant is timed in pairs with the plain step, which goes
first in some rounds and second in as many; the variants take turns in going first; and the peer, which leaves much
behind, has rounds of its own. So neither the drift of a shared machine nor what a run leaves in caches and heap falls
on one side. The plain step against itself is the noise. Figures are ratios of CPU time on one thread, medians over the
rounds.

Below each table the same ratios are worked out from what noise moves less: how many operators a step has, and
what each costs more in the same network made narrow, where the operators are as many and next to nothing is computed.
That is a lower bound. Between the operators of a wide network the caches are emptied, and the code and the data of any
mode come from afar each time; the last table shows what that does to one multiplication.

The true peak comes from an allocator shim (built here from C, loaded in front of libc) that counts the memory of
tensors where it is taken and given back, and knows nothing of PyTorch.
"""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

HERE = Path(__file__).parent
ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 15


def restart_under_shim() -> None:
    """Builds the shim and runs this script again behind it; without a C compiler the truth column stays empty."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if os.environ.get("ALLOCATOR_SHIM") or compiler is None or sys.platform != "linux":
        return
    with tempfile.TemporaryDirectory() as folder:
        shim = Path(folder) / "shim.so"
        subprocess.run(
            [compiler, "-O2", "-shared", "-fPIC", "-o", shim, HERE / "_allocator_shim.c", "-ldl", "-lpthread"],
            check=True,
        )
        env = dict(os.environ, LD_PRELOAD=str(shim), ALLOCATOR_SHIM="1", OMP_NUM_THREADS="1")
        sys.exit(subprocess.run([sys.executable, __file__, *sys.argv[1:]], env=env).returncode)


restart_under_shim()

import numpy as np  # noqa: E402  (the shim has to be there first)
import torch  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from helpers.memory import MemoryTracker  # noqa: E402
from helpers.models import convnet, mlp, training_step, transformer  # noqa: E402

warnings.filterwarnings("ignore")
torch.set_num_threads(1)


FLOOR, PEER = "empty dispatch mode (the floor)", "torch.distributed._tools MemTracker"
TIMELINE, LINES = "MemoryTracker, timeline and phases", "MemoryTracker, and lines and groups"


class EmptyMode(TorchDispatchMode):
    """The floor: what any dispatch mode costs."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Truth:
    """The shim's counters, or None where it could not be built."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL(None) if os.environ.get("ALLOCATOR_SHIM") else None
        if self.lib:
            self.lib.shim_live_bytes.restype = self.lib.shim_peak_bytes.restype = ctypes.c_int64

    def peak_over_start(self, step) -> int | None:
        if not self.lib:
            return None
        gc.collect()
        start = self.lib.shim_live_bytes()
        self.lib.shim_reset_peak()
        step()
        return self.lib.shim_peak_bytes() - start


def workloads():
    """(name, the work, the same work with as many operators and next to nothing to compute)."""
    torch.manual_seed(0)
    for name, wide, narrow in (
        (
            "MLP 12 x 1024",
            (mlp(), (256, 1024), (256, 1024)),
            (mlp(8), (2, 8), (2, 8)),
        ),
        (
            "transformer 4 x 256",
            (transformer(), (8, 128, 256), (8, 128, 256)),
            (transformer(8), (2, 2, 8), (2, 2, 8)),
        ),
        (
            "conv net 32",
            (convnet(), (32, 3, 32, 32), (32, 10)),
            (convnet(1), (2, 3, 8, 8), (2, 10)),
        ),
    ):
        yield name, work_of(*wide), work_of(*narrow)


def work_of(model, inputs, targets):
    model.train()
    return model, torch.optim.Adam(model.parameters(), 1e-4), torch.randn(inputs), torch.randn(targets)


def variants(model, optimizer, inputs, targets):
    """Name -> a function that runs one step and returns the peak it reports over the step's start, or None."""
    work = (model, optimizer, inputs, targets)

    def step():
        training_step(*work)

    def under(mode):
        with mode:
            step()

    def tracked(phases=True, **options):
        with MemoryTracker(*work, **options) as tracker:
            if not phases:
                step()
            else:  # the same step with its phases named
                with tracker.phase("forward"):
                    optimizer.zero_grad(set_to_none=True)
                    loss = torch.nn.functional.mse_loss(model(inputs), targets)
                with tracker.phase("backward"):
                    loss.backward()
                with tracker.phase("step"):
                    optimizer.step()
        return tracker.peak_bytes - tracker.start_bytes

    def mem_tracker():
        from torch.distributed._tools.mem_tracker import MemTracker

        peer = MemTracker()
        peer.track_external(model, optimizer, inputs, targets)
        start = MemoryTracker(*work).live_bytes  # the peer reports the peak with all that was there before
        with peer:
            step()
        return peer.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"] - start

    return step, {
        "plain (the noise)": step,
        FLOOR: lambda: under(EmptyMode()),
        TIMELINE: lambda: tracked(lines=False, groups=False),
        LINES: tracked,
        PEER: mem_tracker,
    }


def seconds(run) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def pairs(step, rows, rounds: int):
    """Row -> [(seconds of the plain step, seconds of the row)], a pair a round."""
    names, taken = list(rows), {name: [] for name in rows}
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            if number // len(names) % 2:
                late = seconds(rows[name])
                taken[name].append((seconds(step), late))
            else:
                early = seconds(step)
                taken[name].append((early, seconds(rows[name])))
    return taken


def step_table(name, work, narrow, truth: Truth) -> None:
    step, rows = variants(*work)
    for run in (step, step, *rows.values()):
        run()
    true_peak = truth.peak_over_start(step)
    reported = {row: run() for row, run in rows.items()}
    peer = {PEER: rows.pop(PEER)}
    taken = pairs(step, rows, ROUNDS) | pairs(step, peer, max(ROUNDS // 3, 2))
    true = f"{true_peak:,} B" if true_peak is not None else "not measured (no C compiler)"
    print(f"\n{name}: one Adam step; true peak over its start {true}")
    print(f"{'':38s}{'ratio':>7s}  {'quartiles':>13s}  {'reported peak':>14s}  {'off by':>8s}")
    for row, both in taken.items():
        ratios = [observed / plain for plain, observed in both]
        low, _, high = statistics.quantiles(ratios, n=4)
        peak = reported[row]
        off = f"{(peak - true_peak) / true_peak:+.3%}" if peak and true_peak else ""
        print(
            f"{row:38s}{statistics.median(ratios):7.3f}  {low:6.3f}-{high:5.3f}  "
            f"{f'{peak:,}' if peak else '':>14s}  {off:>8s}",
            flush=True,
        )
    plain = statistics.median(plain for both in taken.values() for plain, _ in both)
    operator_table(plain, narrow)


def operator_table(plain: float, narrow) -> None:
    """The same ratios from the number of operators and the cost of one."""
    step, rows = variants(*narrow)
    rows = {name: rows[name] for name in (FLOOR, TIMELINE, LINES)}
    for run in (step, *rows.values()):  # the first step makes the optimizer's state
        run()
    with MemoryTracker(lines=False, groups=False) as tracker:
        step()
    print(f"{tracker.operators:,} operators in {plain * 1e3:.0f} ms; without the work in between:")
    for row, both in pairs(step, rows, 8 * ROUNDS).items():
        added = statistics.median(observed - plain for plain, observed in both)
        each = f"{added / tracker.operators * 1e6:.1f} us an operator"
        print(f"{row:38s}{1 + added / plain:7.3f}  {each}", flush=True)


def tiny_operator(count: int = 300) -> None:
    """Microseconds added to an operator on 16 numbers, where nothing hides the cost."""
    from torch.distributed._tools.mem_tracker import MemTracker

    swept = np.ones(2**20)  # 8 MiB, more than the caches of one core hold

    def chain(x, sweep):
        taken = []
        for _ in range(count):
            if sweep:
                swept.sum()
            start = time.perf_counter()  # an operator is too short for the clock of CPU time
            x = x * 1.0001
            taken.append(time.perf_counter() - start)
        return statistics.median(taken) * 1e6

    def added(mode, x, sweep):
        plain = chain(x, sweep)
        with mode():
            return chain(x, sweep) - plain

    inputs = torch.randn(16), torch.randn(16, requires_grad=True)
    print("\nMicroseconds added to one multiplication of 16 numbers, without and with autograd recording")
    print(f"{'':38s}{'':>7s}{'recorded':>10s}{'caches swept':>15s}{'recorded':>10s}")
    for row, mode in (
        (FLOOR, EmptyMode),
        (TIMELINE, lambda: MemoryTracker(lines=False, groups=False)),
        (LINES, MemoryTracker),
        (PEER, MemTracker),
    ):
        found = [
            statistics.median(added(mode, x, sweep) for _ in range(ROUNDS)) for sweep in (False, True) for x in inputs
        ]
        print(f"{row:38s}{found[0]:7.1f}{found[1]:10.1f}{found[2]:15.1f}{found[3]:10.1f}", flush=True)


if __name__ == "__main__":
    shim = Truth()
    for workload in workloads():
        step_table(*workload, shim)
    tiny_operator()
