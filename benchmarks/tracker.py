"""What does MemoryTracker cost, and is its peak true?  python benchmarks/tracker.py [rounds]

Three Adam steps (MLP, transformer, small conv net), each timed in pairs against the plain step that ran just before, so
that the drift of a shared machine cancels; the plain step against itself is the noise. Figures are ratios of CPU time
on one thread, medians over the rounds. The true peak comes from an allocator shim (built here from C, loaded in front
of libc) that counts the memory of tensors where it is taken and given back, and knows nothing of PyTorch.
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

import torch  # noqa: E402  (the shim has to be there first)
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from helpers.memory import MemoryTracker  # noqa: E402
from helpers.models import convnet, mlp, training_step, transformer  # noqa: E402

warnings.filterwarnings("ignore")
torch.set_num_threads(1)


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
    torch.manual_seed(0)
    for name, model, shape, target in (
        ("MLP 12 x 1024", mlp(), (256, 1024), (256, 1024)),
        ("transformer 4 x 256", transformer(), (8, 128, 256), (8, 128, 256)),
        ("conv net 32", convnet(), (32, 3, 32, 32), (32, 10)),
    ):
        model.train()
        yield name, model, torch.optim.Adam(model.parameters(), 1e-4), torch.randn(shape), torch.randn(target)


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
        "empty dispatch mode (the floor)": lambda: under(EmptyMode()),
        "MemoryTracker, timeline and phases": lambda: tracked(lines=False, groups=False),
        "MemoryTracker, and lines and groups": tracked,
        "torch.distributed._tools MemTracker": mem_tracker,
    }


def table() -> None:
    truth = Truth()
    for name, *work in workloads():
        step, rows = variants(*work)
        for run in (step, step, *rows.values()):
            run()
        true_peak = truth.peak_over_start(step)
        ratios = {row: [] for row in rows}
        reported = {}
        for _ in range(ROUNDS):
            for row, run in rows.items():
                a = time.process_time()
                step()
                b = time.process_time()
                reported[row] = run()
                ratios[row].append((time.process_time() - b) / (b - a))
        true = f"{true_peak:,} B" if true_peak is not None else "not measured (no C compiler)"
        print(f"\n{name}: one Adam step; true peak over its start {true}")
        print(f"{'':38s}{'ratio':>7s}  {'quartiles':>13s}  {'reported peak':>14s}  {'off by':>8s}")
        for row, values in ratios.items():
            low, _, high = statistics.quantiles(values, n=4)
            peak = reported[row]
            off = f"{(peak - true_peak) / true_peak:+.3%}" if peak and true_peak else ""
            print(
                f"{row:38s}{statistics.median(values):7.3f}  {low:6.3f}-{high:5.3f}  "
                f"{f'{peak:,}' if peak else '':>14s}  {off:>8s}",
                flush=True,
            )


def tiny_operator(count: int = 2000) -> None:
    """Microseconds added to an operator on 16 numbers, where nothing hides the cost."""
    from torch.distributed._tools.mem_tracker import MemTracker

    def chain(x):
        for _ in range(count):
            x = x * 1.0001

    def timed(x, mode=None):
        start = time.process_time()
        if mode is None:
            chain(x)
        else:
            with mode():
                chain(x)
        return (time.process_time() - start) / count * 1e6

    plain = torch.randn(16)
    recorded = torch.randn(16, requires_grad=True)
    print("\nMicroseconds added to one multiplication of 16 numbers (without and with autograd recording)")
    for row, mode in (
        ("empty dispatch mode (the floor)", EmptyMode),
        ("MemoryTracker, timeline and phases", lambda: MemoryTracker(lines=False, groups=False)),
        ("MemoryTracker, and lines and groups", MemoryTracker),
        ("torch.distributed._tools MemTracker", MemTracker),
    ):
        added = [
            statistics.median(timed(x, mode) - timed(x) for _ in range(5 if mode is MemTracker else 9))
            for x in (plain, recorded)
        ]
        print(f"{row:38s}{added[0]:7.1f}{added[1]:9.1f}", flush=True)


if __name__ == "__main__":
    table()
    tiny_operator()
