"""One file without a name: what it does when the disk, the system or somebody else does not play along."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch

from helpers import _disk_store as disk
from helpers import offload_to_disk
from helpers._disk_store import DiskStore
from helpers._offload_error import OffloadError
from helpers._pieces import bytes_of, piece_of
from helpers.models import mlp

posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and /proc, as on Linux")
proc = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc/self/fd, as on Linux")
CPU = torch.device("cpu")


def step(hooks, seed=0, size=3000):
    """The gradient of one step, whose truth is 2 * x."""
    x = torch.randn(size, generator=torch.Generator().manual_seed(seed), requires_grad=True)
    with hooks:
        y = (x * 1).pow(2).sum()
    y.backward()
    assert torch.equal(x.grad, 2 * x.detach())
    return x.grad


def put(store, tensor):
    piece = piece_of(tensor)
    return store.put(bytes_of(tensor, piece), piece, tensor.element_size()), piece


def get(store, place, piece, like):
    near, shift = store.bring(place, piece, like.element_size(), CPU)
    return near[shift : shift + piece.nbytes].view(like.dtype)


def nameless_files(folder):
    """(Descriptor, bytes) of the files of this process that were in ``folder`` and have no name there."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            target = os.readlink(link)
            if target.startswith(f"{folder}/") and target.endswith(" (deleted)"):
                found.append((int(link.name), os.stat(link).st_size))
    return found


def in_subprocess(code, *args, ok=True):
    """Runs ``code`` with ``folder = sys.argv[1]`` and so on; returns what it wrote to stdout."""
    head = "import os, sys, torch\nfrom helpers import offload_to_disk\nfrom helpers.hooks import OffloadError\n"
    done = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(code), *map(str, args)],
        capture_output=True, text=True, timeout=120, cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    assert (done.returncode == 0 and not done.stderr) or not ok, done.stderr
    return done.stdout if ok else done


# -- storing and reading -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [1, 4095, 4096, 4097, 3 << 20])
def test_bytes_come_back(tmp_path, nbytes):
    store = DiskStore(tmp_path)
    tensor = torch.randint(0, 256, (nbytes,), dtype=torch.uint8)
    place, piece = put(store, tensor)
    assert torch.equal(get(store, place, piece, tensor), tensor)
    assert store.same(place, tensor) is True
    assert store.live_bytes == nbytes and store.file_bytes == -(-nbytes // 4096) * 4096
    tensor[-1] += 1  # the control: one bit in the last byte
    assert store.same(place, tensor) is False and not torch.equal(get(store, place, piece, tensor), tensor)
    del place
    assert store.live_bytes == 0
    assert list(tmp_path.iterdir()) == []


@proc
def test_the_file_has_no_name_and_closes_with_the_last_place(tmp_path):
    store = DiskStore(tmp_path)
    assert nameless_files(tmp_path) == []  # nothing is open before it is needed
    place, _ = put(store, torch.ones(5000, dtype=torch.uint8))
    assert [size for _, size in nameless_files(tmp_path)] == [5000]
    del store
    assert len(nameless_files(tmp_path)) == 1  # a graph may still need it
    del place
    assert nameless_files(tmp_path) == []


@pytest.mark.parametrize("at_once", [1, 4096, 1 << 16, 1 << 40])
def test_short_writes_and_short_reads_are_gone_on_with(tmp_path, monkeypatch, at_once):
    pwrite, preadv, calls = os.pwrite, os.preadv, []
    monkeypatch.setattr(os, "pwrite", lambda fd, b, at: calls.append("w") or pwrite(fd, b[:at_once], at))
    monkeypatch.setattr(os, "preadv", lambda fd, bs, at: calls.append("r") or preadv(fd, [bs[0][:at_once]], at))
    tensor = torch.arange(70_000 if at_once > 1 else 100, dtype=torch.int32).view(torch.uint8)
    store = DiskStore(tmp_path)
    place, piece = put(store, tensor)
    assert torch.equal(get(store, place, piece, tensor), tensor)
    times = -(-tensor.numel() // at_once)
    assert calls == ["w"] * times + ["r"] * times


def test_a_write_that_writes_nothing_is_a_full_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "pwrite", lambda *args: 0)
    with pytest.raises(OffloadError, match="No space left on device"):
        put(DiskStore(tmp_path), torch.ones(10, dtype=torch.uint8))


def test_many_threads_at_once(tmp_path):
    store, wrong = DiskStore(tmp_path), []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        held = []
        for _ in range(60):
            tensor = torch.randint(0, 256, (seed * 1000 + 5,), dtype=torch.uint8, generator=generator)
            held.append((tensor, *put(store, tensor)))
            if len(held) > 3:
                tensor, place, piece = held.pop(0)
                if not torch.equal(get(store, place, piece, tensor), tensor):
                    wrong.append(seed)
                del place

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    with store.file.lock:
        store.file._take_back()
    assert store.live_bytes == 0 and store.file.room.free == [] and store.file.room.end == 0


def test_a_place_that_dies_while_its_thread_holds_the_lock_does_not_wait_for_it(tmp_path):
    store = DiskStore(tmp_path)
    place, _ = put(store, torch.ones(5000, dtype=torch.uint8))
    with store.file.lock:
        del place
        assert store.live_bytes == 0 and store.file.room.end == 8192
    with store.file.lock:
        store.file._take_back()
    assert store.file.room.end == 0


# -- what is refused ---------------------------------------------------------------------------------------------------


def refused(folder, wanted, *words, run=None):
    """Asserts that there is one OffloadError that says all that a reader needs."""
    with pytest.raises(OffloadError) as caught:
        run() if run is not None else offload_to_disk(folder).__enter__()
    message = str(caught.value)
    assert caught.value.folder == folder and caught.value.bytes_wanted == wanted
    assert f"\nFolder: {folder}; wanted: {wanted:,} B; free there: " in message
    for word in words:
        assert word in message
    return caught.value


def test_a_folder_that_is_missing(tmp_path):
    error = refused(tmp_path / "none", 0, "No such file or directory (ENOENT)", "make it first, or name another")
    assert error.bytes_free is None and "free there: unknown." in str(error)
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None
    (tmp_path / "none").mkdir()
    step(offload_to_disk(tmp_path / "none", min_bytes=0))  # the advice works


def test_a_file_in_place_of_a_folder(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"x")
    error = refused(file, 0, "Not a directory (ENOTDIR)", "That is a file: name a folder")
    assert error.bytes_free > 0
    assert file.read_bytes() == b"x"


def test_a_folder_that_cannot_be_written_to(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(disk, "_nameless", refuse)
    monkeypatch.setattr(os, "access", lambda *args: False)
    refused(tmp_path, 0, "Permission denied (EACCES)", "cannot be written to: name another")


@posix
def test_a_folder_without_the_right_to_write_in_it(tmp_path):
    said = in_subprocess(
        """
        folder = sys.argv[1]
        os.chmod(folder, 0o500)
        if os.getuid() == 0:  # whom no right can be taken
            os.setgroups([])
            os.chown(folder, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
        try:
            offload_to_disk(folder).__enter__()
        except OffloadError as error:
            print(error)
        """,
        tempfile.mkdtemp(dir=tmp_path),
    )
    assert "Permission denied (EACCES)" in said
    assert "cannot be written to" in said or "does not exist" in said  # the second where its parent is closed as well


@posix
def test_no_descriptor_is_left(tmp_path):
    said = in_subprocess(
        """
        import resource
        x = torch.ones(2000, requires_grad=True)
        hooks = offload_to_disk(sys.argv[1])
        x.exp().sum().backward()  # what PyTorch opens by itself is open
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
        files = []
        try:
            while True:
                files.append(open("/dev/null"))
        except OSError:
            pass
        try:
            hooks.__enter__()
        except OffloadError as error:
            message = str(error)
        for file in files:
            file.close()
        print(message)
        x.grad = None
        with hooks:
            y = (x * 1).exp().sum()
        y.backward()
        print(hooks.packed, torch.equal(x.grad, x.detach().exp()))
        """,
        tmp_path,
    )
    assert "Too many open files (EMFILE)" in said and f"Folder: {tmp_path}; wanted: 0 B; free there: " in said
    assert "close files, raise `ulimit -n`, or share one offload_to_disk" in said
    assert said.endswith("1 True\n")


@posix
def test_a_full_disk_harms_nothing_and_the_next_step_works(tmp_path):
    said = in_subprocess(
        """
        import resource
        from helpers.models import mlp
        torch.manual_seed(0)
        model = mlp(64, 4)
        optimizer = torch.optim.Adam(model.parameters())
        x = torch.randn(512, 64)
        before = [p.detach().clone() for p in model.parameters()]
        hooks = offload_to_disk(sys.argv[1], model)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))  # a write beyond is EFBIG
        try:
            with hooks:
                model(x).sum()
        except OffloadError as error:
            print(error, error.bytes_wanted, error.bytes_free > 0)
        print(all(torch.equal(p, b) and p.grad is None for p, b in zip(model.parameters(), before)))
        print(hooks.bytes_live, torch._C._autograd._top_saved_tensors_default_hooks(False))
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        model(x).sum().backward()
        plain = [p.grad.clone() for p in model.parameters()]
        optimizer.zero_grad()
        with hooks:
            loss = model(x).sum()
        loss.backward()
        print(all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), plain)), hooks.packed > 3)
        optimizer.step()
        print(hooks.bytes_live)
        """,
        tmp_path,
    ).splitlines()
    assert said[0] == "offload_to_disk could not write a saved tensor: File too large (EFBIG)."
    assert said[1].startswith(f"Folder: {tmp_path}; wanted: 131,072 B; free there: ")
    assert said[2].startswith("Free some room, name a folder on a larger disk") and said[2].endswith("131072 True")
    assert said[3:] == ["True", "0 None", "True True", "0"]


def test_a_platform_that_cannot_take_the_name_off_an_open_file(tmp_path, monkeypatch):
    def refuse(name, *args, **kwargs):
        raise PermissionError(13, "The process cannot access the file", name)

    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    with monkeypatch.context() as patch:
        removed = []
        unlink = os.unlink
        # The first attempt is refused as Windows refuses it; once the file is closed it works there too.
        patch.setattr(
            os, "unlink", lambda name: removed.append(name) or (refuse(name) if len(removed) == 1 else unlink(name))
        )
        refused(tmp_path, 0, "EACCES", "This platform does not take the name off a file that is open", "offload_to_cpu")
    assert len(removed) == 2 and list(tmp_path.iterdir()) == []
    step(offload_to_disk(tmp_path, min_bytes=0))  # without O_TMPFILE, but with unlink
    assert list(tmp_path.iterdir()) == []


def test_a_platform_without_positional_writes(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "pwrite")
    refused(tmp_path, 0, "needs positional reads and writes", "use offload_to_cpu, or Linux or macOS")


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="the system has no O_TMPFILE")
@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL])
def test_a_file_system_without_nameless_files_gets_one_that_is_unlinked(tmp_path, monkeypatch, number):
    real_open, asked = os.open, []

    def refuse(path, flags, *args, **kwargs):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            asked.append(path)
            raise OSError(number, os.strerror(number))
        return real_open(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    step(offload_to_disk(tmp_path, min_bytes=0))
    assert len(asked) == 1 and list(tmp_path.iterdir()) == []


def test_the_error_survives_the_way_to_another_process(tmp_path):
    error = refused(tmp_path / "none", 0)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.folder == error.folder and type(again) is OffloadError


def test_what_is_no_folder():
    with pytest.raises(TypeError, match=r"path of an existing folder, or None for the system's; got 5$"):
        offload_to_disk(5)
    with pytest.raises(TypeError, match=r"a model is named: offload_to_disk\(model=...\)"):
        offload_to_disk(torch.nn.Linear(2, 2))
    for odd in ("", "a\0b"):
        with pytest.raises(ValueError, match=r"path of an existing folder, such as '\.'"):
            offload_to_disk(odd)
    assert DiskStore().folder == Path(tempfile.gettempdir())


# -- a file that somebody else was at ----------------------------------------------------------------------------------


def forward(hooks):
    x = torch.randn(5000, requires_grad=True)
    with hooks:
        return x, (x * 1).pow(2).sum()


def overwrite(descriptor):
    os.pwrite(descriptor, b"\1" * 100, 50)


def extend(descriptor):
    os.pwrite(descriptor, b"\1" * 100, 1 << 20)


STRANGERS = {
    "cut": (lambda fd: os.ftruncate(fd, 0), "was cut short by somebody else: 0 B of 20,000 B are left"),
    "cut by a byte": (lambda fd: os.ftruncate(fd, 19_999), "was cut short by somebody else: 19,999 B of 20,000 B"),
    "overwritten": (overwrite, "was written to by somebody else"),
    "made longer": (extend, "was written to by somebody else"),
}


@proc
@pytest.mark.parametrize("write_after", [False, True], ids=["", "and then written to by us"])
@pytest.mark.parametrize("what, sentence", STRANGERS.values(), ids=STRANGERS)
def test_a_file_that_somebody_changed_gives_no_gradient(tmp_path, what, sentence, write_after):
    hooks = offload_to_disk(tmp_path, min_bytes=0)
    x, y = forward(hooks)
    ((number, _),) = nameless_files(tmp_path)
    time.sleep(0.05)  # more than a tick of the file system's clock
    descriptor = os.open(f"/proc/self/fd/{number}", os.O_RDWR)
    what(descriptor)
    os.close(descriptor)
    other = None
    if write_after:  # which would hide what happened: the file is longer again, and its time is ours
        time.sleep(0.05)
        other = forward(hooks)
    refused(tmp_path, 20_000, sentence, "Its gradient cannot be computed: run forward again", run=y.backward)
    assert x.grad is None
    if other is not None:
        other[1].backward()
        assert torch.equal(other[0].grad, 2 * other[0].detach())
    step(hooks)  # and the next step works
    del y, other
    gc.collect()  # the exception's frames
    assert hooks.bytes_live == 0 and list(tmp_path.iterdir()) == []


@proc
def test_a_descriptor_that_was_closed_and_given_to_another_file(tmp_path):
    hooks = offload_to_disk(tmp_path, min_bytes=0)
    x, y = forward(hooks)
    ((number, _),) = nameless_files(tmp_path)
    mine = tmp_path / "mine"
    mine.write_bytes(b"m" * 30_000)
    for reopened in (False, True):
        if reopened:
            descriptor = os.open(mine, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
        else:
            os.close(number)
        with pytest.raises(OffloadError, match="was closed by somebody else"):
            y.backward(retain_graph=True)
        assert x.grad is None
    step(hooks)
    del hooks, y
    gc.collect()  # closes its own file, and not the other
    assert os.fstat(number).st_size == 30_000
    os.close(number)
    assert mine.read_bytes() == b"m" * 30_000


def test_the_control_of_both_an_untouched_file(tmp_path):
    hooks = offload_to_disk(tmp_path, min_bytes=0)
    for seed in range(3):
        x, y = forward(hooks)
        time.sleep(0.02)
        step(hooks, seed)  # our own writes are no stranger's
        y.backward()
        assert torch.equal(x.grad, 2 * x.detach())


# -- processes ---------------------------------------------------------------------------------------------------------


@posix
@pytest.mark.parametrize("moment", ["forward", "backward"])
def test_a_kill_leaves_nothing_with_a_name(tmp_path, moment):
    code = """
        folder, moment = sys.argv[1:]
        x = torch.ones(100_000, requires_grad=True)
        hold = lambda *args: (print("now", flush=True), sys.stdin.read())
        with offload_to_disk(folder) as hooks:
            y = (x * 1).exp()
            assert hooks.bytes_live
            if moment == "forward":
                hold()
        y.register_hook(hold)
        y.sum().backward()
    """
    head = "import os, sys, torch\nfrom helpers import offload_to_disk\n"
    process = subprocess.Popen(
        [sys.executable, "-c", head + textwrap.dedent(code), str(tmp_path), moment],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    with process:
        assert process.stdout.readline() == "now\n"
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


@posix
def test_fork_while_a_graph_is_alive(tmp_path):
    said = in_subprocess(
        """
        torch.set_num_threads(1)  # OpenMP's threads are not in the child
        hooks = offload_to_disk(sys.argv[1], min_bytes=0)

        def forward(value):
            x = torch.full((5000,), float(value), requires_grad=True)
            with hooks:
                return x, (x * 1).pow(2).sum()

        def right(x, y):
            y.backward()
            return torch.equal(x.grad, 2 * x.detach())

        dead = forward(1)
        alive = forward(2)
        del dead  # a gap, in which a child and its parent must not both write
        old = hooks.store.file
        read, write = os.pipe()
        pid = os.fork()
        done = []
        for seed in range(20):
            more = [forward(10 * seed + (pid == 0) + n) for n in range(3)]
            done += [right(*pair) for pair in more]
        done.append(right(*alive))
        done.append(old is not hooks.store.file and old.room.end == 40960)
        if pid == 0:
            os.write(write, repr((len(done), all(done), hooks.bytes_live)).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        print(os.read(read, 1000).decode(), (len(done), all(done), hooks.bytes_live))
        print(os.listdir(sys.argv[1]))
        """,
        tmp_path,
    )
    assert said == "(62, True, 0) (62, True, 0)\n[]\n"


@posix
def test_a_fork_before_anything_was_written_changes_no_file(tmp_path):
    store = DiskStore(tmp_path)
    file = store.file
    store._before_fork()
    assert file.shared
    store._after_fork()
    assert store.file is file and not file.shared
    store.open()
    store._before_fork()
    store._after_fork()
    assert store.file is not file and file.shared


def test_an_interpreter_that_ends_with_live_graphs_says_nothing(tmp_path):
    said = in_subprocess(
        """
        x = torch.ones(5000, requires_grad=True)

        def forward(hooks):
            with hooks:
                return (x * 1).exp().sum()

        class Holder: pass

        hooks = offload_to_disk(sys.argv[1])
        alive = forward(hooks)
        holder = Holder()
        holder.me, holder.graph = holder, forward(offload_to_disk(sys.argv[1]))
        del holder
        print(hooks.bytes_live)
        """,
        tmp_path,
    )
    assert said == "20000\n" and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["pwrite", "preadv"])
def test_an_interrupt_in_pack_and_in_unpack(tmp_path, monkeypatch, where):
    hooks = offload_to_disk(tmp_path, min_bytes=0)
    x, kept = forward(hooks)
    real, asked = getattr(os, where), []

    def interrupt(*args):
        asked.append(args)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, where, interrupt)
    with pytest.raises(KeyboardInterrupt):
        step(hooks)
    monkeypatch.setattr(os, where, real)
    assert len(asked) == 1
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None and hooks._entries() == []
    step(hooks)
    kept.backward()  # what was there before is as it was
    assert torch.equal(x.grad, 2 * x.detach())
    del kept
    asked.clear()
    gc.collect()  # the exceptions' frames
    assert hooks.bytes_live == 0 and not hooks.store.file.writers


@proc
def test_a_thousand_steps_keep_files_descriptors_and_bytes_level(tmp_path):
    model = mlp(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    hooks = offload_to_disk(tmp_path, model, min_bytes=0)
    x, seen = torch.randn(4, 8), set()
    for number in range(1000):
        optimizer.zero_grad()
        with hooks:
            loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        if number % 100 == 0:
            sizes = [size for _, size in nameless_files(tmp_path)]
            seen.add((*sizes, hooks.file_bytes, hooks.bytes_live, len(os.listdir("/proc/self/fd")), hooks.peak_bytes))
    assert len(seen) == 1 and hooks.packed >= 3000
    ((length, file_bytes, live, _, peak),) = seen
    assert live == 0 and peak <= length <= file_bytes
