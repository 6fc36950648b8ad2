"""What lies on disk: the watch against files made by hand and the system's own figures, the picture against the watch.

Covers helpers/disk.py and its drawer, helpers/_disk_picture.py.
"""

from __future__ import annotations

import doctest
import os
import re
import tempfile
import threading
import xml.etree.ElementTree as ET

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from helpers import disk, display, offload_to_disk
from helpers._disk_picture import LEFT, Lane, Point, disk_svg, height_of, rounded
from helpers.disk import DiskWatch, LiveDiskPlot, draw_disk, nameless_files
from helpers.display import MAX_WIDTH, text_width

pytestmark = pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="a process cannot list its descriptors here")


def files_in(folder, size=1000):
    """Hooks that write a file of ``size`` bytes for each tensor and delete it when backward asks."""

    def pack(t):
        path = folder / str(len(list(folder.iterdir())))
        path.write_bytes(bytes(size))
        return t.detach(), path

    def unpack(kept):
        kept[1].unlink()
        return kept[0]

    return saved_tensors_hooks(pack, unpack)


def step(watch, hooks):
    x = torch.ones(5000, requires_grad=True)
    with watch.phase("forward"), watch.watching(hooks):
        out = (2 * x).exp().exp().sum()
    with watch.phase("backward"):
        out.backward()
    return x.grad


def test_examples_of_the_docstrings():
    found = doctest.testmod(disk)
    assert found.attempted > 0 and found.failed == 0


def test_files_with_and_without_a_name_are_told_apart(tmp_path):
    before = nameless_files()
    with open(tmp_path / "named", "wb") as named, tempfile.TemporaryFile() as nameless:
        named.write(bytes(10)), named.flush()
        nameless.write(bytes(20)), nameless.flush()
        new = {n: size for n, size in nameless_files().items() if n not in before}
        assert new == {nameless.fileno(): 20}
    assert nameless_files() == before


def test_watch_counts_each_call(tmp_path):
    watch = DiskWatch(tmp_path, "by hand")
    step(watch, files_in(tmp_path))
    seen = [(s.call, s.kind, s.names, s.named_bytes) for s in watch.samples if s.kind != "mark"]
    assert seen == [(1, "pack", 1, 1000), (2, "pack", 2, 2000), (3, "unpack", 1, 1000), (4, "unpack", 0, 0)]
    assert watch.phases == [("forward", 0, 2), ("backward", 2, 4)]
    assert [s.phase for s in watch.samples if s.kind == "unpack"] == ["backward"] * 2
    assert watch.last.names == 0 and watch.samples[0].call == 0


def test_watch_sees_the_file_without_a_name(tmp_path):
    watch, hooks = DiskWatch(tmp_path), offload_to_disk(tmp_path)
    step(watch, hooks)
    assert {s.names for s in watch.samples} == {0}
    assert {s.nameless for s in watch.samples} == {0, 1}
    assert max(s.in_use for s in watch.samples) == 2 * 20_000 and watch.last.in_use == 0
    assert watch.last.nameless_bytes == 20_480 + 20_000  # the second starts on a page


def test_descriptor_that_is_given_anew_is_counted(tmp_path):
    with tempfile.TemporaryFile() as old:
        watch, number = DiskWatch(tmp_path), old.fileno()
    watch.mark()
    with tempfile.TemporaryFile() as new:
        assert new.fileno() == number
        assert watch.mark().nameless == 1


def test_watched_hooks_do_what_they_do_alone(tmp_path):
    plain = torch.ones(5000, requires_grad=True)
    (2 * plain).exp().exp().sum().backward()
    assert torch.equal(step(DiskWatch(tmp_path), offload_to_disk(tmp_path)), plain.grad)
    with pytest.raises(ZeroDivisionError), DiskWatch(tmp_path).watching(saved_tensors_hooks(lambda t: 1 / 0, id)):
        plain.exp()
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None


def test_what_is_no_pair_of_hooks_is_refused(tmp_path):
    watch = DiskWatch(tmp_path)
    with pytest.raises(TypeError, match="pair of saved-tensor hooks"), watch.watching(torch.no_grad()):
        pass
    outer = saved_tensors_hooks(lambda t: t.detach(), lambda t: t)
    with outer, pytest.raises(TypeError, match="pair of saved-tensor hooks"), watch.watching(torch.no_grad()):
        pass
    with outer, watch.watching(files_in(tmp_path)):  # the control: inside others it works
        torch.ones(2, requires_grad=True).exp()
    assert watch.last.names == 1


def test_folder_has_to_exist_and_may_go(tmp_path):
    with pytest.raises(NotADirectoryError, match="there is none at"):
        DiskWatch(tmp_path / "none")
    (tmp_path / "goes").mkdir()
    watch = DiskWatch(tmp_path / "goes")
    (tmp_path / "goes").rmdir()
    assert watch.mark().names == 0


def test_threads_may_share_a_watch(tmp_path):
    watch, hooks = DiskWatch(tmp_path), offload_to_disk(tmp_path)

    def work():
        with watch.watching(hooks):
            (2 * torch.ones(5000, requires_grad=True)).exp().sum().backward()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [s.call for s in watch.samples] == sorted(s.call for s in watch.samples)
    assert watch.last.call == 4 * 2 and watch.last.in_use == 0


# ---------------------------------------------------------------------------------------------------- the picture


@pytest.fixture
def leaking(tmp_path):
    watch = DiskWatch(tmp_path, "leaking")
    (tmp_path / "left").write_bytes(bytes(4096))
    step(watch, files_in(tmp_path))
    return watch


@pytest.fixture
def clean(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clean")
    watch = DiskWatch(folder, "clean")
    step(watch, offload_to_disk(folder))
    return watch


def texts(svg):
    return ["".join(node.itertext()) for node in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_picture_says_what_was_counted(leaking, clean):
    picture = draw_disk(leaking, clean)
    assert picture.alt.startswith("leaking leaves 1 file, clean leaves none. ")
    assert "leaking: 3 files, 6.0 KiB at most; 1 file, 4.0 KiB now" in picture.alt
    assert "clean: no name in the folder, 1 open file without one; 39.1 KiB in use at most, 0 B now" in picture.alt
    assert picture.data == [leaking.samples, clean.samples]
    said = texts(picture.svg)
    assert {"forward", "backward", "leaking", "clean", "files", "39.5 KiB"} <= set(
        said
    )  # the scale is the file's length
    assert draw_disk(clean).alt.startswith("Up to 39.1 KiB on disk, no name in the folder, 0 B in use now. ")
    assert "My own" in texts(draw_disk(clean, title="My own").svg)


def test_number_of_files_stands_under_each_phase(leaking):
    svg = disk._lane(leaking)
    said = texts(disk_svg([svg], "t"))
    at = said.index("files")
    assert said[at + 1 : at + 3] == ["3", "1"]


def test_picture_is_the_same_each_time(leaking):
    assert draw_disk(leaking).svg == draw_disk(leaking).svg


def test_words_stay_inside(leaking, clean):
    many = [disk._lane(w) for w in (leaking, clean)] + [Lane("a name far too long " * 9, [], [], "figures " * 5)]
    svg = disk_svg(many, "a title far too long " * 9)
    root = ET.fromstring(svg)
    assert int(root.get("width")) <= MAX_WIDTH and int(root.get("height")) == height_of(3)
    for node in root.iter("{http://www.w3.org/2000/svg}text"):
        width = text_width("".join(node.itertext()), float(node.get("font-size", 11)))
        left = float(node.get("x")) - {"end": width, "middle": width / 2}.get(node.get("text-anchor"), 0)
        assert left >= 0 and left + width <= MAX_WIDTH * 1.04, "".join(node.itertext())
    assert all(float(size) >= 11 for size in re.findall(r'font-size="([\d.]+)"', svg))


def test_empty_watch_can_be_drawn(tmp_path):
    assert draw_disk(DiskWatch(tmp_path)).alt.startswith("Up to 0 B on disk, no name in the folder")
    assert LEFT < MAX_WIDTH and "<svg" in disk_svg([Lane("n", [Point(0, 0, 0, 0, 0)], [], "")], "t")


def test_bytes_of_files_have_one_decimal():
    assert [rounded(n) for n in (0, 1023, 4096, 5 * 2**20 + 2**18)] == ["0 B", "1,023 B", "4.0 KiB", "5.2 MiB"]


@pytest.mark.parametrize("draw", [draw_disk, LiveDiskPlot])
def test_what_is_no_watch_is_refused(draw):
    for wrong in ((), ("folder",)):
        with pytest.raises(TypeError, match="takes one or more DiskWatch objects"):
            draw(*wrong)


# ---------------------------------------------------------------------------------------------------- live


@pytest.fixture
def published(monkeypatch):
    bundles = []
    monkeypatch.setattr(display.LiveOutput, "_publish", lambda self, bundle: bundles.append(bundle))
    return bundles


def test_live_plot_moves_and_leaves_a_picture(tmp_path, published, monkeypatch):
    monkeypatch.setattr(disk, "_SECONDS_A_FRAME", 0.0)
    watch = DiskWatch(tmp_path, "live")
    with LiveDiskPlot(watch) as plot:
        step(watch, offload_to_disk(tmp_path))
    assert plot.frames == len(published) - 1 >= 4
    words = [bundle["text/plain"] for bundle in published]
    assert words[0] == "Now 0 files with a name, 0 without: 0 B in use"
    assert "Now 0 files with a name, 1 without: 39.1 KiB in use" in words
    assert words[-1] == plot.picture.alt == draw_disk(watch).alt
    assert watch.listener is None


def test_live_plot_is_throttled(tmp_path, published):
    watch = DiskWatch(tmp_path)
    with LiveDiskPlot(watch):
        for _ in range(1000):
            watch.mark()
    assert len(published) < 200


def test_live_plot_leaves_a_picture_when_the_work_fails(tmp_path, published):
    watch = DiskWatch(tmp_path)
    with pytest.raises(ZeroDivisionError), LiveDiskPlot(watch) as plot:
        1 / 0  # noqa: B018
    assert plot.picture is not None and watch.listener is None
