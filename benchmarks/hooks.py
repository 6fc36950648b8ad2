"""What do the hooks of `helpers.hooks` cost, beside what else there is?  python benchmarks/hooks.py [rounds]

First one Adam step of an MLP and of a transformer, each timed in pairs against the plain step that ran just before
(ratios of CPU time on one thread, medians over the rounds; the plain step against itself is the noise), with the peak
of near memory over the step's start. Then how fast 4 KiB, 1 MiB and 64 MiB are written, against ``torch.save`` and
against a copy in memory. The folder is the system's temporary one, its page cache warm: no disk is waited for.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from helpers._disk_store import DiskStore
from helpers._pieces import bytes_of, piece_of
from helpers.hooks import compress, offload_to_cpu, offload_to_disk
from helpers.memory import MemoryTracker
from helpers.models import mlp, transformer

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 9
torch.set_num_threads(1)


class SelfDeletingFile:
    """What the best known way on disk does: a file for each saved tensor, gone with the object that stands for it."""

    def __init__(self, folder: str, tensor: torch.Tensor):
        self.path = Path(folder) / uuid.uuid4().hex
        torch.save(tensor.detach(), self.path)

    def __del__(self) -> None:
        self.path.unlink()


def with_files(folder: str) -> saved_tensors_hooks:
    return saved_tensors_hooks(lambda t: SelfDeletingFile(folder, t), lambda kept: torch.load(kept.path))


def checkpointed(model: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """Each layer of a transformer, or four parts of an MLP, recomputed in backward."""
    parts = list(model.layers) if hasattr(model, "layers") else [model[i : i + 6] for i in range(0, len(model), 6)]
    for part in parts:
        inputs = checkpoint(part, inputs, use_reentrant=False)
    return inputs


def steps(name: str, model: torch.nn.Module, shape: tuple[int, ...], folder: str) -> None:
    inputs, targets = torch.randn(shape), torch.randn(shape)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    model.train()

    def step(hooks=None, forward=torch.nn.Module.__call__):
        optimizer.zero_grad(set_to_none=True)
        with hooks if hooks is not None else contextlib.nullcontext():
            loss = torch.nn.functional.mse_loss(forward(model, inputs), targets)
        loss.backward()
        optimizer.step()

    cpu, disk = offload_to_cpu(model), offload_to_disk(folder, model)
    half, byte = compress(torch.bfloat16, model), compress(torch.int8, model)
    rows: dict[str, Callable[[], None]] = {
        "plain (the noise)": step,
        "a hook that clones": lambda: step(saved_tensors_hooks(lambda t: t.clone(), lambda t: t)),
        "offload_to_disk": lambda: step(disk),
        "self-deleting torch.save files": lambda: step(with_files(folder)),
        "offload_to_cpu": lambda: step(cpu),
        "save_on_cpu (copies nothing here)": lambda: step(save_on_cpu()),
        "checkpoint": lambda: step(forward=checkpointed),
        "compress to bfloat16": lambda: step(half),
        "compress to int8": lambda: step(byte),
    }
    ratios: dict[str, list[float]] = {row: [] for row in rows}
    for run in rows.values():
        run()
    for _ in range(ROUNDS):
        for row, run in rows.items():
            a = time.process_time()
            step()
            b = time.process_time()
            run()
            ratios[row].append((time.process_time() - b) / (b - a))
    print(f"\n{name}: one Adam step\n{'':36s}{'ratio':>7s}  {'quartiles':>13s}  {'near peak over start':>21s}")
    for row, run in rows.items():
        optimizer.zero_grad(set_to_none=True)
        gc.collect()
        with MemoryTracker(model, optimizer, inputs, targets, lines=False, groups=False) as tracker:
            run()
        low, middle, high = statistics.quantiles(ratios[row], n=4)
        peak = tracker.peak_bytes - tracker.start_bytes
        print(f"{row:36s}{middle:7.3f}  {low:6.3f}-{high:5.3f}  {peak / 1e6:18.1f} MB", flush=True)


def writes(folder: str) -> None:
    """MB/s of CPU time, and how many times ``torch.save``; the ways take turns."""
    print(f"\n{'written, MB/s (times torch.save)':36s}{'4 KiB':>16s}{'1 MiB':>16s}{'64 MiB':>16s}")
    store = DiskStore(folder)

    def in_one_file(t: torch.Tensor):
        piece = piece_of(t)
        return store.put(bytes_of(t, piece), piece, t.element_size())

    ways: dict[str, Callable] = {
        "torch.save, a file a tensor": lambda t: SelfDeletingFile(folder, t),
        "one file": in_one_file,
        "a copy in memory": torch.clone,
    }
    speeds: dict[str, list[float]] = {way: [] for way in ways}
    for nbytes, count in ((4 << 10, 400), (1 << 20, 40), (64 << 20, 2)):
        tensors = [torch.randn(nbytes // 4) for _ in range(count)]
        taken: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(ROUNDS):
            for way, put in ways.items():
                start = time.process_time()
                kept = [put(t) for t in tensors]
                taken[way].append(time.process_time() - start)
                del kept
        for way, seconds in taken.items():
            speeds[way].append(count * nbytes / statistics.median(seconds) / 1e6)
    files = speeds["torch.save, a file a tensor"]
    for way, row in speeds.items():
        print(f"{way:36s}" + "".join(f"{f'{v:,.0f} ({v / base:.1f})':>16s}" for v, base in zip(row, files)))


if __name__ == "__main__":
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as here:
        steps("MLP 12 x 1024", mlp(), (256, 1024), here)
        steps("transformer 4 x 256", transformer(), (8, 128, 256), here)
        writes(here)
