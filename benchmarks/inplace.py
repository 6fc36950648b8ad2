"""What do explain_inplace and guard_saved_tensors cost?  python benchmarks/inplace.py [rounds]

One Adam step of the two models that the chapters share (MLP, transformer), each tool timed in pairs against the plain
step that ran just before, so that the drift of a shared machine cancels; the plain step against itself is the noise.
Figures are ratios of CPU time on one thread, medians over the rounds. The peer is PyTorch's anomaly mode, which names
the operator that saved and nothing else.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
import warnings

import torch

from helpers._fingerprint import fingerprint
from helpers.inplace import explain_inplace, guard_saved_tensors
from helpers.models import mlp, training_step, transformer

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 15

warnings.filterwarnings("ignore")
torch.set_num_threads(1)


def identity_hooks() -> contextlib.AbstractContextManager:
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.detach(), lambda tensor: tensor)


@contextlib.contextmanager
def guarded_hooks():
    with identity_hooks(), guard_saved_tensors(check_values=False):
        yield


ROWS = {
    "plain, again": contextlib.nullcontext,
    "explain_inplace": explain_inplace,
    "guard, versions alone": lambda: guard_saved_tensors(check_values=False),
    "saved-tensor hooks that do nothing": identity_hooks,
    "the same, guarded, versions alone": guarded_hooks,
    "set_detect_anomaly, no NaN check": lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
    "set_detect_anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "explain_inplace(reads=True)": lambda: explain_inplace(reads=True),
    "guard, contents too": guard_saved_tensors,
    "explain_inplace(check_values=True)": lambda: explain_inplace(check_values=True),
}


def workloads():
    for name, model, shape in (
        ("MLP 12 x 1024, batch 256", mlp(), (256, 1024)),
        ("transformer 4 x 256, batch 8 x 128", transformer(), (8, 128, 256)),
    ):
        torch.manual_seed(0)
        inputs, targets = torch.randn(shape), torch.randn(shape)
        yield name, model, torch.optim.Adam(model.parameters()), inputs, targets


def seconds(context, *step) -> float:
    start = time.process_time()
    with context():
        training_step(*step)
    return time.process_time() - start


def table() -> None:
    for name, *step in workloads():
        for context in ROWS.values():
            seconds(context, *step)
        ratios: dict[str, list[float]] = {row: [] for row in ROWS}
        for _ in range(ROUNDS):
            for row, context in ROWS.items():
                plain = seconds(contextlib.nullcontext, *step)
                ratios[row].append(seconds(context, *step) / plain)
        print(f"\n{name}: one Adam step\n{'':38s}{'ratio':>7s}  {'quartiles':>13s}")
        for row, values in ratios.items():
            low, middle, high = statistics.quantiles(values, n=4)
            print(f"{row:38s}{middle:7.3f}  {low:6.3f}-{high:5.3f}", flush=True)


def fingerprints() -> None:
    """How fast contents are read, against a copy of the same bytes and a hash of hashlib."""
    import hashlib

    x = torch.randn(2**22)
    print("\nGB/s of 16 MiB, and microseconds for 16 numbers")
    for row, read in (
        ("fingerprint", fingerprint),
        ("hashlib.blake2b", lambda t: hashlib.blake2b(t.numpy()).digest()),
        ("hashlib.sha256", lambda t: hashlib.sha256(t.numpy()).digest()),
        ("clone", torch.clone),
    ):
        large, small = (statistics.median(_timed(read, t, n) for _ in range(9)) for t, n in ((x, 1), (x[:16], 300)))
        print(f"{row:38s}{x.nbytes / large / 1e9:7.2f}{small * 1e6:9.2f}", flush=True)


def _timed(read, tensor: torch.Tensor, count: int) -> float:
    start = time.process_time()
    for _ in range(count):
        read(tensor)
    return (time.process_time() - start) / count


if __name__ == "__main__":
    table()
    fingerprints()
