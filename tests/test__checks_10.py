"""The exercises of chapter 10: right answers pass, and each wrong one hears its own sentence."""

from __future__ import annotations

import io
import os
import uuid
import weakref
from pathlib import Path

import torch
from exercise_answers import answers_tested

from helpers import offload_to_cpu, offload_to_disk
from helpers.exercises import check


def one_layer(model, x, folder):
    with offload_to_disk(folder, model, min_bytes=0, policy=model[2]) as hooks:
        return model(x), hooks


def one_layer_by_hand(model, x, folder):
    hooks = offload_to_disk(folder, model, min_bytes=0)
    h = model[1](model[0](x))
    with hooks:
        h = model[2](h)
    return model[4](model[3](h)), hooks


def all_layers(model, x, folder):
    with offload_to_disk(folder, model, min_bytes=0) as hooks:
        return model(x), hooks


def only_large(model, x, folder):
    with offload_to_disk(folder, model, policy=model[2]) as hooks:
        return model(x), hooks


def to_memory(model, x, folder):
    with offload_to_cpu(model, min_bytes=0, policy=model[2]) as hooks:
        return model(x), hooks


def half_the_model(model, x, folder):
    with offload_to_disk(folder, model, min_bytes=0, policy=model[2]) as hooks:
        return model[:3](x), hooks


def without_a_graph(model, x, folder):
    output, hooks = one_layer(model, x, folder)
    return output.detach(), hooks


def of_another_call(model, x, folder):
    with offload_to_disk(folder, model, min_bytes=0, policy=model[2]) as hooks:
        model(x)
    return model(x), hooks


def with_the_graph_of_another_call(model, x, folder):
    output, hooks = one_layer(model, x, folder)
    hooks.held = output  # the first graph stays, but is not the one that is returned
    return model(x), hooks


def path_in(folder):
    return os.path.join(folder, uuid.uuid4().hex)


def threshold(of=lambda t: t.nbytes, copied=torch.clone, above=False, detached=True):
    """Makes an answer to the second exercise, by default a right one."""

    def threshold_hooks(folder, min_bytes):
        def pack(t):
            if of(t) < min_bytes or (above and of(t) == min_bytes):
                return t.detach() if detached else t
            torch.save(copied(t.detach()), path := path_in(folder))
            return path

        return pack, lambda kept: torch.load(kept) if isinstance(kept, str) else kept

    return threshold_hooks


def reads_once(folder, min_bytes):
    pack, unpack = threshold()(folder, min_bytes)

    def once(kept):
        tensor = unpack(kept)
        if isinstance(kept, str):
            os.remove(kept)
        return tensor

    return pack, once


class Handle:
    def __init__(self, tensor, folder):
        self.path = Path(folder, uuid.uuid4().hex)
        weakref.finalize(self, self.path.unlink, missing_ok=True)
        torch.save(tensor.detach(), self.path)


class WithDel:
    """By default a right answer too: ``__del__`` does while Python runs."""

    quiet = True

    def __init__(self, tensor, folder):
        self.path = self.name(tensor, folder)
        torch.save(tensor.detach(), self.path)

    def name(self, tensor, folder):
        return path_in(folder)

    def __del__(self):
        if not self.quiet or os.path.exists(self.path):
            os.remove(self.path)


class Noisy(WithDel):
    quiet = False


class Counted(WithDel):
    def name(self, tensor, folder):
        return os.path.join(folder, str(len(os.listdir(folder))))


class ById(WithDel):
    def name(self, tensor, folder):
        return os.path.join(folder, str(id(tensor)))


class HoldsItself(Handle):
    def __init__(self, tensor, folder):
        self.path = Path(folder, uuid.uuid4().hex)
        weakref.finalize(self, lambda: self.path.unlink(missing_ok=True))
        torch.save(tensor.detach(), self.path)


def files_of(kind):
    return lambda folder: (lambda t: kind(t, folder), lambda kept: torch.load(kept.path))


def never_deleted(folder):
    def pack(t):
        torch.save(t.detach(), path := path_in(folder))
        return path

    return pack, torch.load


def deleted_when_read(folder):
    pack, _ = never_deleted(folder)

    def unpack(path):
        tensor = torch.load(path)
        os.remove(path)
        return tensor

    return pack, unpack


def in_files_without_a_name(folder):
    def pack(t):
        file = io.BytesIO()
        torch.save(t.detach(), file)
        return file  # as of `tempfile.TemporaryFile(dir=folder)`, the folder knows nothing

    def unpack(file):
        file.seek(0)
        return torch.load(file)

    return pack, unpack


RIGHT = {
    "one_layer_on_disk": [one_layer, one_layer_by_hand],
    "threshold_hooks": [threshold()],
    "file_hooks": [files_of(Handle), files_of(WithDel)],
}
WRONG = [
    (
        "one_layer_on_disk",
        lambda model, x, folder: model(x),
        ["it returned a float32 tensor", "`return output, hooks`"],
    ),
    ("one_layer_on_disk", all_layers, ["instead of the 512 B", "`policy=model[2]`"]),
    ("one_layer_on_disk", only_large, ["0 B were written", "`min_bytes=0`"]),
    ("one_layer_on_disk", to_memory, ["not an offload_to_disk"]),
    ("one_layer_on_disk", half_the_model, ["should return the output of the whole model"]),
    ("one_layer_on_disk", of_another_call, ["0 B are on disk while", "under the hooks"]),
    ("one_layer_on_disk", with_the_graph_of_another_call, ["read nothing from the disk", "a graph of its own"]),
    ("one_layer_on_disk", without_a_graph, ["to the last bit", "RuntimeError"]),
    ("threshold_hooks", lambda folder, min_bytes: folder, ["not two functions"]),
    ("threshold_hooks", threshold(of=torch.numel), ["600 elements of float64, 4,800 B, made no file", "`t.nbytes`"]),
    (
        "threshold_hooks",
        threshold(above=True),
        ["1,024 elements of float32, 4,096 B, made no file", '"At least" includes'],
    ),
    (
        "threshold_hooks",
        threshold(of=lambda t: t.untyped_storage().nbytes()),
        ["250 elements of float32, 1,000 B from a storage of 400,000 B, went to disk", "the slice alone"],
    ),
    ("threshold_hooks", threshold(of=lambda t: 0), ["made no file"]),
    ("threshold_hooks", threshold(copied=lambda t: t), ["a slice of 8,000 B wrote 39", "a clone has one that fits"]),
    ("threshold_hooks", threshold(copied=lambda t: t.half().float()), ["the gradient of h * h is wrong"]),
    ("threshold_hooks", threshold(detached=False), ["still in memory", "`t.detach()`"]),
    ("threshold_hooks", reads_once, ["FileNotFoundError", "asks twice"]),
    (
        "file_hooks",
        lambda folder: (lambda t: t.detach(), lambda t: t),
        ["has 0 files in the folder", "must have a name"],
    ),
    ("file_hooks", in_files_without_a_name, ["has 0 files in the folder", "without a name is the better idea"]),
    ("file_hooks", never_deleted, ["of a graph that was dropped", "delete the file then"]),
    ("file_hooks", deleted_when_read, ["FileNotFoundError", "asks twice", "of a graph that was dropped"]),
    ("file_hooks", files_of(Noisy), ["FileNotFoundError, where nobody can catch it", "`missing_ok=True`"]),
    ("file_hooks", files_of(Counted), ["keep the files of several graphs apart", "come again"]),
    ("file_hooks", files_of(ById), ["has 1 file in the folder", "Two slots"]),
    ("file_hooks", files_of(HoldsItself), ["of a graph that was dropped", "must not hold the object itself"]),
]


TestAnswers = answers_tested(RIGHT, WRONG)


def test_no_folder_stays_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name, answers in RIGHT.items():
        assert check(answers[0], name).passed
    assert os.listdir(tmp_path) == []
