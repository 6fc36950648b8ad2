"""Do saved tensors go to disk in each process of a DistributedDataParallel run? Trains in several and reports.

    python -m helpers.ddp_worker --world-size 2 --folder /tmp

Each process (a rank) trains the same small network on data of its own, over gloo on the loopback address: once without
hooks, then with `offload_to_disk` placed in three ways. It prints a line of JSON for each rank and placing, and ends
with a code that is not 0 and no JSON if a process fails or the time is up. Nothing goes on running then, nor when the
process that started the ranks is killed.

A module and not a cell, as a function that is defined in a notebook cannot be started in another process.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

PLACINGS = ("inside", "outside", "with")
_PROCESS = "helpers.ddp_worker"  # not __name__, which is __main__ here


def main(arguments: Sequence[str] | None = None) -> int:
    """Starts the ranks, waits for all, prints their reports; returns the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {_PROCESS}", description=__doc__.partition("\n")[0])
    parser.add_argument("--world-size", type=int, default=2, help="how many processes (default: 2)")
    parser.add_argument("--steps", type=int, default=2, help="how many training steps (default: 2)")
    parser.add_argument("--folder", help="where saved tensors go (default: a new temporary folder)")
    parser.add_argument("--timeout", type=float, default=90.0, help="seconds until everything is ended (default: 90)")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--meeting", help=argparse.SUPPRESS)
    parser.add_argument("--parent", type=int, default=os.getppid(), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.world_size < 1 or options.steps < 1 or options.timeout <= 0:
        parser.error("--world-size and --steps are at least 1, --timeout is above 0")
    if options.folder is not None and not os.path.isdir(options.folder):
        parser.error(f"--folder: there is no folder {options.folder}")
    if options.rank is not None:
        done = threading.Event()
        watcher = threading.Thread(target=_end_with_parent, args=(options.parent, done))
        watcher.start()
        try:
            _be_rank(options)
        finally:
            done.set()
            watcher.join()
        return 0
    with tempfile.TemporaryDirectory(prefix="tensor_memory_lab_") as own:
        (folder := Path(own, "saved")).mkdir()
        return _start(options, options.folder or str(folder), Path(own))


def _start(options: argparse.Namespace, folder: str, own: Path) -> int:
    """Runs a process for each rank. What they say goes through files, as a full pipe would stop them."""
    command = [sys.executable, "-m", _PROCESS, "--world-size", str(options.world_size), "--steps", str(options.steps)]
    command += ["--folder", folder, "--timeout", str(options.timeout), "--meeting", str(own / "meeting")]
    command += ["--parent", str(os.getpid())]
    processes: list[subprocess.Popen] = []
    deadline = time.monotonic() + options.timeout
    try:
        for rank in range(options.world_size):
            with open(own / f"out{rank}", "w") as out, open(own / f"err{rank}", "w") as err:
                rank_command = [*command, "--rank", str(rank)]
                processes.append(subprocess.Popen(rank_command, env=_environment(), stdout=out, stderr=err))
        while any(p.poll() is None for p in processes):
            if any(p.poll() for p in processes) or time.monotonic() > deadline:
                break  # the others would wait for one that is no more
            time.sleep(0.02)
    finally:
        late = [rank for rank, p in enumerate(processes) if p.poll() is None]
        for p in processes:
            p.kill()
            p.wait()
    failed = [rank for rank, p in enumerate(processes) if p.returncode and rank not in late]
    for rank in failed:
        said = (own / f"err{rank}").read_text()
        print(f"rank {rank} failed with code {processes[rank].returncode}:\n{said}", file=sys.stderr)
    if late and not failed:
        print(f"not done after {options.timeout:g} s, ended: ranks {late}", file=sys.stderr)
    if late or failed:
        return 1
    for rank in range(options.world_size):
        print((own / f"out{rank}").read_text(), end="")
    return 0


def _environment() -> dict[str, str]:
    """gloo asks for the machine's name, which need not lead anywhere; the loopback device is always there."""
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    # This checkout or installation, also if we were started from another folder.
    root = str(Path(__file__).resolve().parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH"))))
    loopback = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    if loopback:
        environment["GLOO_SOCKET_IFNAME"] = loopback[0]
    return environment


def _be_rank(options: argparse.Namespace) -> None:
    import torch.distributed as dist

    dist.init_process_group(
        "gloo",
        init_method=f"file://{options.meeting}",
        rank=options.rank,
        world_size=options.world_size,
        timeout=timedelta(seconds=options.timeout),
    )
    try:
        alone = _train(options, None, together=False)
        without = _train(options, None)
        for placing in PLACINGS:
            print(json.dumps(_report(options, placing, alone, without)))
    finally:
        dist.destroy_process_group()


def _end_with_parent(parent: int, done: threading.Event) -> None:
    """Ends this process when the one that would end it in time is gone: then another has adopted it."""
    while not done.wait(0.2):
        if os.getppid() != parent:
            os._exit(1)


def _report(options: argparse.Namespace, placing: str, alone: dict, without: dict) -> dict:
    from helpers import offload_to_disk

    hooks = offload_to_disk(options.folder, min_bytes=0)
    run = _train(options, placing, hooks=hooks)
    return {
        "rank": options.rank,
        "world_size": options.world_size,
        "placing": placing,
        "packed": hooks.packed,
        "unpacked": hooks.unpacked,
        "bytes_written": hooks.bytes_written,
        "bytes_live_at_most": run["live"],
        "bytes_live": hooks.bytes_live,
        "names_in_folder": run["names"],
        "same_as_without_hooks": _equal(run["gradients"], without["gradients"]),
        "same_in_all_ranks": _equal_across(run["gradients"]),
        "same_in_all_ranks_without_ddp": _equal_across(alone["gradients"]),
    }


def _train(options: argparse.Namespace, placing: str | None, *, hooks=None, together: bool = True) -> dict:
    """Returns the gradients of each step, and what lay in the folder and in the file when forward had run."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from helpers import WithSavedTensorHooks

    torch.manual_seed(0)  # the same network in all ranks, other data in each
    net: nn.Module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    parameters = list(net.parameters())
    if placing == "inside":
        net = WithSavedTensorHooks(net, hooks)
    if together:
        net = DistributedDataParallel(net)
    if placing == "outside":
        net = WithSavedTensorHooks(net, hooks)
    torch.manual_seed(1 + options.rank)
    batches = [torch.randn(32, 64) for _ in range(options.steps)]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    gradients, names, live = [], 0, 0
    for batch in batches:
        optimizer.zero_grad()
        with hooks if placing == "with" else nullcontext():
            result = net(batch)
        names = max(names, len(os.listdir(options.folder)))
        live = max(live, hooks.bytes_live if hooks is not None else 0)
        result.pow(2).mean().backward()
        gradients += [p.grad.clone() for p in parameters]
        optimizer.step()
    return {"gradients": gradients, "names": names, "live": live}


def _equal(a: list, b: list) -> bool:
    import torch

    return len(a) == len(b) and all(map(torch.equal, a, b))


def _equal_across(gradients: list) -> bool:
    import torch
    import torch.distributed as dist

    flat = torch.cat([g.flatten() for g in gradients])
    everybodys = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(everybodys, flat)
    return all(torch.equal(flat, other) for other in everybodys)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the ranks are ended
    code = main()
    sys.stdout.flush()
    if "--rank" in sys.argv:
        # A thread of gloo that asks for Python's lock while Python takes itself apart aborts a rank that had done its
        # work, once in many runs. All is said, and the system closes the file: end here.
        os._exit(code)
    sys.exit(code)
