"""Sharing as told and drawn, against addresses written out one by one and against writes that show or do not show."""

from __future__ import annotations

import dataclasses
import doctest
import gc
import hashlib
import itertools
import os
import random
import re
import subprocess
import sys
import time
import weakref
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from helpers import _overlap, _storage_read, storage
from helpers._memory_map import look
from helpers._storage_layout import chosen, is_rounded, scale, short, with_gaps
from helpers.display import MAX_WIDTH, Picture, text_width
from helpers.storage import describe, draw_storage, same_storage, shares_memory, shares_version_counter

# -- the oracle: every byte that a tensor or an array reaches ----------------------------------------------------------


def bytes_of(thing) -> set[int]:
    """The address of each byte of each element, found by going through the indices one by one."""
    if isinstance(thing, np.ndarray):
        start, size, strides = thing.ctypes.data, thing.itemsize, thing.strides
    else:
        start, size = thing.data_ptr(), thing.element_size()
        strides = [step * size for step in thing.stride()]
    reached = set()
    for index in itertools.product(*map(range, thing.shape)):
        at = start + sum(i * step for i, step in zip(index, strides))
        reached.update(range(at, at + size))
    return reached


def random_view(base: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """Any strided view: stride 0, overlapping windows, gaps, up to four dimensions."""
    while True:
        shape = [rng.randint(1, 4) for _ in range(rng.randint(0, 4))]
        stride = [rng.choice([0, 1, 1, 2, 3, 5, 7, 12]) for _ in shape]
        reach = sum((n - 1) * s for n, s in zip(shape, stride))
        if reach < base.numel():
            return base.as_strided(shape, stride, rng.randrange(base.numel() - reach))


@pytest.mark.parametrize("seed", range(8))
def test_overlap_of_random_views_agrees_with_addresses_and_with_what_a_write_shows(seed):
    rng = random.Random(seed)
    base = torch.zeros(40, dtype=torch.uint8)
    answers = []
    for _ in range(80):
        a, b = random_view(base, rng), random_view(base, rng)
        base.zero_()
        a.fill_(1)
        expected = not bytes_of(a).isdisjoint(bytes_of(b))
        assert bool(b.any()) == expected  # the oracle itself
        assert shares_memory(a, b) == shares_memory(b, a) == expected
        answers.append(expected)
    assert 10 < sum(answers) < 75  # both answers occur


@pytest.mark.parametrize("seed", range(8))
def test_overlap_of_mixed_dtypes_tensors_and_arrays_agrees_with_addresses(seed):
    rng = random.Random(100 + seed)
    array = np.zeros(96, np.uint8)
    imports = [torch.from_numpy(array), torch.from_numpy(array[8:])]
    answers = []
    for _ in range(60):
        pair = []
        for _ in range(2):
            flat = rng.choice(imports).view(rng.choice([torch.uint8, torch.bfloat16, torch.float32, torch.complex64]))
            view = random_view(flat, rng)
            if view.dtype is torch.float32 and rng.random() < 0.5:
                view = view.numpy()[(..., *[slice(None, None, rng.choice([-1, 1]))] * view.ndim)]
            pair.append(view)
        expected = not bytes_of(pair[0]).isdisjoint(bytes_of(pair[1]))
        assert shares_memory(*pair) == expected
        answers.append(expected)
    assert 5 < sum(answers) < 58


# -- the three questions over the named cases --------------------------------------------------------------------------


def plain():
    return torch.arange(24.0)


def imported_twice():
    array = np.arange(6.0)
    return torch.from_numpy(array), torch.from_numpy(array)


def imported_with_its_slice():
    array = np.arange(6.0)
    return torch.from_numpy(array), torch.from_numpy(array[2:])


def two_halves_of_an_array():
    array = np.arange(6.0)
    return torch.from_numpy(array[:3]), torch.from_numpy(array[3:])


def pair(make):
    """Both of ``make``'s views of one fresh tensor."""
    return lambda: make(plain())


CASES = {  # what is compared -> same storage, memory in common, version counter in common
    "itself": (pair(lambda x: (x, x)), True, True, True),
    "view": (pair(lambda x: (x, x.view(4, 6))), True, True, True),
    "disjoint slices": (pair(lambda x: (x[:12], x[12:])), True, False, True),
    "touching slices": (pair(lambda x: (x[:13], x[12:])), True, True, True),
    "interleaved slices": (pair(lambda x: (x[::2], x[1::2])), True, False, True),
    "interleaved, meeting": (pair(lambda x: (x[::2], x[1::3])), True, True, True),
    "columns": (pair(lambda x: (x.view(4, 6)[:, 1], x.view(4, 6)[:, 2])), True, False, True),
    "row and column": (pair(lambda x: (x.view(4, 6)[1], x.view(4, 6)[:, 2])), True, True, True),
    "transpose": (pair(lambda x: (x.view(4, 6).t(), x.view(4, 6)[3])), True, True, True),
    "expand": (pair(lambda x: (x[:3].expand(5, 3), x[2])), True, True, True),
    "expand, beside": (pair(lambda x: (x[:3].expand(5, 3), x[3])), True, False, True),
    "expand, enormous": (pair(lambda x: (x[:1].expand(2**40, 2**20), x[0])), True, True, True),
    "as_strided": (pair(lambda x: (x.as_strided((3, 3), (7, 2)), x[18:])), True, True, True),
    "as_strided, beside": (pair(lambda x: (x.as_strided((3, 3), (7, 2)), x[19:])), True, False, True),
    "detach": (pair(lambda x: (x, x.detach())), True, True, True),
    ".data": (pair(lambda x: (x, x.data)), True, True, False),
    "reshape of the contiguous": (pair(lambda x: (x, x.reshape(4, 6))), True, True, True),
    "reshape of the transposed": (pair(lambda x: (x, x.view(4, 6).t().reshape(24))), False, False, False),
    "viewable, not contiguous": (pair(lambda x: (x, x.view(2, 3, 4)[:, :, :1].reshape(-1))), True, True, True),
    "flatten": (pair(lambda x: (x, x.flatten())), True, True, True),
    "type_as, nothing to do": (pair(lambda x: (x, x.expand(2, 24).type_as(torch.zeros(1)))), True, True, True),
    "double": (pair(lambda x: (x, x.double())), False, False, False),
    "memory_format": (pair(lambda x: (x, x.to(memory_format=torch.contiguous_format))), True, True, True),
    "index by an integer tensor": (pair(lambda x: (x, x.view(4, 6)[torch.tensor(1)])), True, True, True),
    "index by a list": (pair(lambda x: (x, x.view(4, 6)[[1]])), False, False, False),
    "index by True": (pair(lambda x: (x, x[True])), False, False, False),
    "chunks": (pair(lambda x: x.chunk(2)), True, False, True),
    "clone": (pair(lambda x: (x, x.clone())), False, False, False),
    "0-dim": (pair(lambda x: (x[3], x[3:4])), True, True, True),
    "0-dim, beside": (pair(lambda x: (x[3], x[4])), True, False, True),
    "conj": (lambda: (lambda c: (c.conj(), c))(torch.ones(3, dtype=torch.complex64)), True, True, True),
    "neg, real against imaginary": (
        lambda: (lambda c: (c.conj().imag, c.real))(torch.ones(3, dtype=torch.complex64)),
        True,
        False,
        True,
    ),
    "bfloat16": (pair(lambda x: (x.view(torch.bfloat16)[1::2], x)), True, True, True),
    "float8": (lambda: (lambda t: (t, t[1:]))(torch.ones(3).to(torch.float8_e4m3fn)), True, True, True),
    "bool": (lambda: (lambda t: (t, t[::2]))(torch.ones(5, dtype=torch.bool)), True, True, True),
    "bytes of one element": (pair(lambda x: (x[1], x.view(torch.uint8)[7])), True, True, True),
    "bytes of the next": (pair(lambda x: (x[1], x.view(torch.uint8)[8])), True, False, True),
    "fourteen dimensions": (
        lambda: (lambda t: (t[(..., 0)], t[(..., 1)]))(torch.zeros((2,) * 14)),
        True,
        False,
        True,
    ),
    "parameter": (lambda: (lambda p: (p, p.t()))(nn.Parameter(torch.ones(2, 3))), True, True, True),
    "imported twice": (imported_twice, False, True, False),
    "imported with its slice": (imported_with_its_slice, False, True, False),
    "two halves of an array": (two_halves_of_an_array, False, False, False),
    # nothing to share
    "empty": (lambda: (torch.empty(0), torch.empty(0)), False, False, False),
    "empty slice": (pair(lambda x: (x, x[5:5])), False, False, True),
    "meta": (lambda: (torch.empty(3, device="meta"), torch.empty(3, device="meta")), False, False, False),
    "meta view": (lambda: (lambda m: (m, m.view(3)))(torch.empty(3, device="meta")), False, False, True),
    "resized to nothing": (lambda: nothing_left(), False, False, True),
}


def nothing_left():
    x = plain()
    view = x[:3]
    x.untyped_storage().resize_(0)
    return x, view


@pytest.mark.parametrize("name", CASES)
def test_three_questions(name):
    make, storage, memory, counter = CASES[name]
    a, b = make()
    for one, other in ((a, b), (b, a)):
        assert same_storage(one, other) is storage
        assert shares_memory(one, other) is memory
        assert shares_version_counter(one, other) is counter


ARRAYS = {  # a tensor or array, an array over the same memory or not -> any byte in common
    "numpy()": (lambda: (lambda t: (t, t.numpy()))(plain()), True),
    "reversed": (lambda: (lambda t: (t, t.numpy()[::-1]))(plain()), True),
    "reversed, every second": (lambda: (lambda t: (t[::2], t.numpy()[::-2]))(plain()), False),
    "reversed twice": (lambda: (lambda a: (a[::-1], a[:1]))(np.arange(5)), True),
    "read-only": (lambda: read_only(), True),
    "broadcast": (lambda: (lambda a: (torch.from_numpy(a), np.broadcast_to(a, (4, 6))))(np.arange(6.0)), True),
    "field of records": (lambda: (lambda a: (a["i"], a["f"]))(np.zeros(3, [("i", "i4"), ("f", "f8")])), False),
    "field against records": (lambda: (lambda a: (a["i"], a))(np.zeros(3, [("i", "i4"), ("f", "f8")])), True),
    "frombuffer": (lambda: (lambda a: (torch.frombuffer(a, dtype=torch.int64), a))(np.arange(4)), True),
    "dlpack": (lambda: (lambda a: (torch.from_dlpack(a), a[2:]))(np.arange(4)), True),
    "as_tensor": (lambda: (lambda a: (torch.as_tensor(a), a))(np.arange(4)), True),
    "torch.tensor copies": (lambda: (lambda a: (torch.tensor(a), a))(np.arange(4)), False),
    "the cure for a flipped array": (lambda: (lambda a: (torch.from_numpy(a.copy()), a))(np.arange(4)[::-1]), False),
    "empty array": (lambda: (np.zeros(0), np.zeros(0)), False),
    "0-dim array": (lambda: (lambda a: (a, torch.from_numpy(a)))(np.array(3.0)), True),
    "objects": (lambda: (lambda a: (a, a[1:]))(np.array([1, "a"], object)), True),
}


def read_only():
    array = np.arange(4.0)
    tensor = torch.from_numpy(array)
    array.flags.writeable = False
    return tensor, array


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_share_bytes_and_never_a_storage(name):
    make, expected = ARRAYS[name]
    a, b = make()
    assert shares_memory(a, b) is shares_memory(b, a) is expected
    assert same_storage(a, b) is same_storage(b, a) is False
    with pytest.raises(TypeError, match=r"NumPy arrays have no version counter.*shares_memory"):
        shares_version_counter(a, b)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensors_are_asked_by_their_parts():
    coo = torch.eye(3).to_sparse()
    csr = torch.eye(3).to_sparse_csr()
    assert same_storage(coo, coo.values()) and shares_memory(coo.indices(), coo)
    assert shares_memory(csr, csr.crow_indices()) and same_storage(csr.values(), csr)
    assert not same_storage(coo, csr) and not shares_memory(coo, torch.eye(3).to_sparse())
    twice = torch.sparse_coo_tensor(coo.indices(), coo.values() * 2, (3, 3))  # other values, the same indices
    assert same_storage(coo, twice) and shares_memory(coo, twice) and not shares_version_counter(coo, twice)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_subclasses_nested_and_wrapper_tensors():
    class Labelled(torch.Tensor):
        pass

    x = plain()
    labelled = x.as_subclass(Labelled)
    assert same_storage(x, labelled) and shares_memory(labelled[1:], x) and not shares_memory(labelled[:2], x[2:])
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    assert same_storage(jagged, jagged.values()) and shares_memory(jagged, jagged.values()[4:])
    strided = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    first, last = strided.unbind()
    assert shares_memory(strided, last) and not shares_memory(first, last)


def test_what_has_no_address_is_refused_and_never_guessed():
    opaque = torch.ones(3).to_mkldnn()
    with pytest.raises(TypeError, match=r"a is a Tensor of layout torch\._mkldnn.*to_dense"):
        shares_memory(opaque, torch.ones(3))
    assert not same_storage(opaque, torch.ones(3))
    asked = []

    def inside(v):
        with pytest.raises(TypeError, match=r"ask outside of torch\.func"):
            shares_memory(v, v)
        with pytest.raises(TypeError, match=r"ask outside of torch\.func"):
            same_storage(v, v)
        assert describe(v).facts["t1"]["storage"] == "none (no address here)"
        asked.append(v)
        return v.sum()

    torch.func.grad(inside)(torch.ones(3))
    assert asked
    with FakeTensorMode():
        fake = torch.ones(3)
    for ask in (shares_memory, same_storage):
        with pytest.raises(TypeError, match=r"a is a FakeTensor .*FakeTensorMode"):
            ask(fake, fake)
    assert describe(fake).facts["t1"]["storage"] == "none (no address here)"


def test_equal_addresses_on_two_devices_are_two_places():
    here, there = (_overlap.Region(device, 4096, 4, (3,), (4,)) for device in ("cuda:0", "cuda:1"))
    assert _overlap.overlap(here, here) and not _overlap.overlap(here, there)


def tangled() -> tuple[np.ndarray, np.ndarray]:
    """Two arrays of 2**14 elements whose strides look like a subset-sum puzzle; nothing but their addresses exists."""
    rng = random.Random(0)
    strides = [[rng.randint(10**9, 10**10) * 6 for _ in range(14)] for _ in range(2)]
    ground = np.zeros(1, np.uint8)
    first, second = (np.lib.stride_tricks.as_strided(ground, (2,) * 14, s) for s in strides)
    return first, second


def test_strides_beyond_the_work_limit_raise_and_say_so(monkeypatch):
    first, second = tangled()
    monkeypatch.setattr(_overlap, "MAX_WORK", 1000)
    region = _overlap.regions_of(second, "b")[0]
    moved = _overlap.Region(region.device, region.address + 6 * 10**9, 1, region.shape, region.strides)
    with pytest.raises(RuntimeError) as caught:
        _overlap.overlap(_overlap.regions_of(first, "a")[0], moved)
    assert shares_memory(first, second)  # they start together, which needs no search
    for part in (str(first.shape), str(first.strides), str(second.strides), "1,000 attempts", "smaller slices"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (3, "b is an int, .* a plain number"),
        ([1.0], "b is a list, .* pass what is in it, one by one"),
        (nn.Linear(1, 1), "b is a Linear, .* pass its parameters"),
        (torch.ones(1).untyped_storage(), "b is an UntypedStorage, .* pass a tensor that lies over it"),
        (None, "b is a NoneType"),
    ],
)
def test_others_than_tensors_and_arrays_are_named(wrong, words):
    for ask in (same_storage, shares_memory, shares_version_counter):
        with pytest.raises(TypeError, match=words):
            ask(torch.ones(1), wrong)
        with pytest.raises(TypeError, match=words.replace("b is", "a is", 1)):
            ask(wrong, torch.ones(1))
    for show in (describe, draw_storage):
        with pytest.raises(TypeError, match=words.replace("b is", "t2 is", 1)):
            show(torch.ones(1), wrong)


def test_inference_tensors_have_no_counter_to_share():
    with torch.inference_mode():
        inside, outside = torch.ones(3), torch.ones(3)
    with pytest.raises(RuntimeError, match=r"a was made under torch\.inference_mode\(\).*clone it outside"):
        shares_version_counter(inside, outside)
    assert not shares_version_counter(inside.clone(), torch.ones(3))
    x = torch.ones(3)
    with torch.inference_mode():  # asking there about tensors from elsewhere is fine
        assert shares_version_counter(x, x)
    assert x._version == 0
    assert describe(inside=inside).facts["inside"]["version"] is None


# -- no trace ----------------------------------------------------------------------------------------------------------


class Watch(TorchDispatchMode):
    """Counts the operators that reach PyTorch."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def test_asking_leaves_no_trace():
    leaf = torch.ones(3, 4, requires_grad=True)
    x = leaf * 2
    y = x.t()
    x.detach().add_(1)
    things = {"leaf": leaf, "x": x, "y": y, "data": x.data, "twice": torch.from_numpy(np.arange(4.0))}

    def state():
        return [
            (
                *(t._version, t.requires_grad, t.is_leaf, t.grad_fn, t.data_ptr(), t.stride(), t.tolist()),
                *(s.nbytes(), s.resizable(), s._cdata),
            )
            for t in things.values()
            for s in [t.untyped_storage()]
        ]

    before = state()
    with Watch() as watch:
        for a, b in itertools.product(things.values(), repeat=2):
            same_storage(a, b), shares_memory(a, b), shares_version_counter(a, b)
        describe(**things)
        draw_storage(**things)
    assert watch.seen == []  # not one operator ran
    assert state() == before
    (x * y.t()).sum().backward()  # and autograd has nothing to complain of
    with Watch() as control:
        x.view(12)
    assert control.seen


def test_a_question_about_memory_reads_none():
    """A page that may not be read ends the process when it is."""
    program = """
import ctypes, mmap, numpy as np, torch
from helpers.storage import same_storage, shares_memory, describe
page = mmap.mmap(-1, 8192)
t = torch.frombuffer(page, dtype=torch.float32)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mprotect(ctypes.c_void_p(t.data_ptr()), ctypes.c_size_t(8192), 0) == 0
assert shares_memory(t, t[5:]) and not shares_memory(t[::2], t[1::2]) and same_storage(t, t[1:])
describe(t=t)
print("asked", flush=True)
t[0].item()
"""
    done = run(program)
    assert done.stdout.strip() == "asked" and done.returncode < 0  # the control: reading does end it


def run(program: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        cwd=os.path.dirname(os.path.dirname(os.path.abspath(_overlap.__file__))),
    )


def test_a_counter_is_put_back_when_the_comparison_fails(monkeypatch):
    x = torch.ones(3)

    def broken(tensor):
        original(tensor)
        raise KeyboardInterrupt

    original = torch.autograd.graph.increment_version
    monkeypatch.setattr(torch.autograd.graph, "increment_version", broken)
    with pytest.raises(KeyboardInterrupt):
        shares_version_counter(x, x.view(3))
    assert x._version == 0


# -- describe ----------------------------------------------------------------------------------------------------------


def test_a_card_says_where_the_elements_are():
    x = torch.arange(12.0).view(3, 4)
    card = describe(x=x, column=x[:, 1], copy=x.clone()).facts
    assert [c["storage"] for c in card.values()] == ["A", "A", "B"]
    assert card["column"] == {
        "storage": "A",
        "offset": 1,
        "shape": (3,),
        "stride": (4,),
        "dtype": "float32",
        "contiguous": False,
        "leaf": True,
        "requires_grad": False,
        "version": 0,
        "base": "a tensor not shown here",  # arange's result, which has no name
        "owner": "torch",
        "storage bytes": "48 B",
    }


def test_a_card_says_how_autograd_counts():
    w = torch.ones(3, requires_grad=True)
    y = w * 2
    y.add_(1)
    cards = describe(w, y=y, view=y[1:], cut=y.detach(), data=y.data).facts
    assert cards["t1"]["leaf"] and cards["t1"]["requires_grad"] and cards["t1"]["base"] == "none"
    assert not cards["y"]["leaf"] and cards["view"]["base"] == "y"
    assert [cards[n]["version"] for n in ("y", "view", "cut", "data")] == [1, 1, 1, 0]
    assert not cards["cut"]["requires_grad"] and cards["cut"]["leaf"]


def test_different_storages_over_the_same_bytes_show():
    array = np.arange(6.0)
    cards = describe(array, t=torch.from_numpy(array), tail=torch.from_numpy(array[2:]), back=array[::-1]).facts
    lies = ["none: the bytes of A", "A", "B (part of the bytes of A)", "none: the bytes of A"]
    assert [c["storage"] for c in cards.values()] == lies
    assert {c["owner"] for c in cards.values()} == {"NumPy"}
    assert (cards["back"]["offset"], cards["back"]["stride"], cards["back"]["base"]) == (5, (-1,), "t1")
    assert cards["t1"]["version"] is cards["t1"]["leaf"] is cards["t1"]["storage bytes"] is None
    twice = torch.from_numpy(array)
    cards = describe(t=torch.from_numpy(array), twice=twice, tail=torch.from_numpy(array[2:])).facts
    assert [c["storage"] for c in cards.values()] == ["A", "B (the same bytes as A)", "C (part of the bytes of A)"]


def test_an_array_has_no_storage_and_its_card_says_whose_bytes_it_reads():
    x = torch.ones(4)
    table = describe(x=x, array=x.numpy())
    assert [c["storage"] for c in table.facts.values()] == ["A", "none: the bytes of A"]
    assert table.caption.startswith("2 tensors and arrays in 1 storage (lent")
    assert not same_storage(x, x.numpy()) and table.facts["array"]["base"] == "a tensor"
    array = np.arange(4.0)
    tail = torch.from_numpy(array[2:])
    table = describe(array=array, tail=tail)
    assert [c["storage"] for c in table.facts.values()] == ["none: the bytes of A and more", "A"]
    one, other = np.frombuffer(buffer := bytearray(8), np.uint8), np.frombuffer(buffer, np.uint8)[:4]
    cards = describe(one=one, again=one[::2], other=other).facts
    assert [c["storage"] for c in cards.values()][:2] == ["none: bytes a"] * 2
    assert cards["other"]["storage"] == "none: bytes b (the same bytes as a)"
    assert cards["again"]["base"] == "one"
    assert describe(cut=np.arange(4.0)[1:]).facts["cut"]["base"] == "an array not shown here"


def test_a_picture_gives_an_array_no_storage():
    array = np.arange(4.0)
    tail = torch.from_numpy(array[2:])
    text = draw_storage(array=array, tail=tail).text
    assert text.startswith("One tensor and one array read the same 32 B; 2 cells are read by both\n")
    assert "storage A in an array · 32 B" in text and "a NumPy array: no storage, no version" in text
    text = draw_storage(array=array, t=torch.from_numpy(array)).text
    assert text.startswith("One tensor and one array read one storage of 4 numbers; every cell is read by both\n")
    assert "storage A · 32 B" in text and "storage B" not in text
    text = draw_storage(array=array).text
    assert text.startswith("array reads all 4 numbers of its memory\n") and "no storage · 32 B" in text


def test_the_owner_is_told_as_far_as_it_can_be_known():
    x = plain()
    assert describe(x=x).facts["x"]["owner"] == "torch"
    view = x.numpy()
    cards = describe(x=x, view=view)
    assert [c["owner"] for c in cards.facts.values()] == ["torch or NumPy (lent)"] * 2
    assert [c["storage"] for c in cards.facts.values()] == ["A", "none: the bytes of A"] and "lent:" in cards.caption
    assert describe(t=torch.from_numpy(np.ones(2))).facts["t"]["owner"] == "torch or NumPy (lent)"
    buffer = bytearray(8)
    assert describe(a=np.frombuffer(buffer, np.uint8)).facts["a"]["owner"] == "bytearray"


def test_what_has_no_storage_says_why():
    cards = describe(
        empty=torch.empty(0),
        meta=torch.empty(3, device="meta"),
        sparse=torch.eye(2).to_sparse(),
        opaque=torch.ones(3).to_mkldnn(),
        nothing=np.zeros(0),
    ).facts
    storages = [c["storage"] for c in cards.values()]
    assert storages == ["none (empty)", "none (meta)", "A, B", "none (opaque)", "none (empty)"]
    assert cards["sparse"]["stride"] is None and cards["meta"]["owner"] == "none"
    assert cards["meta"]["storage bytes"] == "0 B" and cards["sparse"]["storage bytes"] == "40 B"


def test_the_table_reads_as_text_and_as_html():
    x = plain().requires_grad_()
    table = describe(x=x, tail=x[20:].detach())
    assert repr(table).splitlines()[:4] == [
        "2 tensors in 1 storage",
        "               x        tail",
        "storage        A        A",
        "offset         0        20",
    ]
    assert re.search(r"requires_grad +yes +no", repr(table))
    assert table._repr_mimebundle_()["text/html"].count("<td") == 1 + 12 * 3  # over the rows' names there is none
    assert describe(np.zeros(1)).caption == "1 array in no storage"
    assert describe(np.zeros(1), x).caption == "2 tensors and arrays in 1 storage"


def test_letters_go_on_after_z():
    many = describe(*(torch.ones(1) for _ in range(28)))
    assert [c["storage"] for c in many.facts.values()][24:] == ["Y", "Z", "AA", "AB"]


def test_names_are_checked():
    with pytest.raises(ValueError, match="t1 is taken, use another name"):
        describe(torch.ones(1), t1=torch.ones(1))
    with pytest.raises(TypeError, match=r"draw_storage\(\) has nothing to look at: .* draw_storage\(x=x, y=y\)"):
        draw_storage()


# -- the picture -------------------------------------------------------------------------------------------------------


def gallery() -> dict[str, Picture]:
    x = torch.arange(12).view(3, 4)
    v = torch.tensor([1.0, 2.0, 3.0])
    array = np.arange(6.0)
    big = torch.arange(10_000.0).view(100, 100)
    f = torch.tensor([1.0, -2.0])
    c = torch.tensor([1 + 2j, 3 - 4j])
    s = torch.arange(8.0)
    cube = torch.arange(24.0).view(2, 3, 4)
    w = torch.arange(6.0)
    before = draw_storage(w=w, odd=w[1::2])
    w[3:5] = 1e-5
    return {
        "views": draw_storage(x=x, transposed=x.t(), column=x[:, 1], rows=x[::2]),
        "expand": draw_storage(v=v, e=v.expand(4, 3)),
        "numpy": draw_storage(array=array, t=torch.from_numpy(array), tail=torch.from_numpy(array[2:])),
        "long": draw_storage(big=big, row=big[50], column=big[:, 3]),
        "bytes": draw_storage(f=f, raw=f.view(torch.uint8), whole=f.view(torch.int32)),
        "complex": draw_storage(c=c, conj=c.conj(), imag=c.conj().imag),
        "windows": draw_storage(s=s, windows=s.unfold(0, 3, 1), back=s.numpy()[::-2]),
        "cube": draw_storage(cube=cube, slab=cube[:, 1]),
        "dtypes": draw_storage(
            half=torch.tensor([1.5, -2.25], dtype=torch.bfloat16),
            flags=torch.tensor([True, False]),
            large=torch.tensor([2**62, -(2**40)]),
            eight=torch.ones(2).to(torch.float8_e5m2),
            odd=torch.tensor([-0.123456, float("nan"), float("-inf")]),
        ),
        "small": draw_storage(zero=torch.tensor(5), none=torch.empty(0), slice=x[:0], one=x[1, 1]),
        "<&>": draw_storage(**{"a<b>&'c'": w, "n" * 90: w[2:]}),
        "written": draw_storage(w=w, odd=w[1::2], before=before),
        "many dimensions": draw_storage(x=torch.zeros(2, 2, 2, 2, 2)),
    }


@pytest.fixture(scope="module")
def pictures() -> dict[str, Picture]:
    return gallery()


SVG = "{http://www.w3.org/2000/svg}"


def test_pictures_are_well_formed_and_fit_the_page(pictures):
    for name, picture in pictures.items():
        root = ET.fromstring(picture.svg)
        width, height = float(root.get("width")), float(root.get("height"))
        assert width <= MAX_WIDTH and height < 900, name
        paper = root.find(f"{SVG}rect")
        assert paper.get("fill") == "#ffffff" and float(paper.get("width")) >= width - 1
        assert float(root.get("font-size")) >= 11
        for text in root.iter(f"{SVG}text"):
            size = float(text.get("font-size", 11))
            x, reach = float(text.get("x")), text_width("".join(text.itertext()), size)
            left = {"start": x, "middle": x - reach / 2, "end": x - reach}[text.get("text-anchor")]
            assert size >= 11 and 0 <= float(text.get("y")) <= height
            assert left >= -1 and left + reach <= width + 12, (name, text.text)  # widths are upper estimates
        for rect in root.iter(f"{SVG}rect"):
            if rect.get("x"):
                assert float(rect.get("x")) + float(rect.get("width")) <= width
        assert picture.html.startswith("<img alt=")


def titles(picture: Picture) -> str:
    return picture.text.splitlines()[0]


def test_titles_are_the_finding(pictures):
    assert {name: titles(picture) for name, picture in pictures.items() if name != "<&>"} == {
        "views": "Four tensors read one storage of 12 numbers; every cell is read by two or more",
        "expand": "Two tensors read one storage of 3 numbers; every cell is read by both",
        "numpy": "Two tensors and one array read the same 48 B through two storages; every cell is read by two or more",
        "long": "Three tensors read one storage of 10,000 numbers; 199 cells are read by two or more",
        "bytes": "Three tensors read one storage of 8 numbers; every cell is read by all",
        "complex": "Three tensors read one storage of 4 numbers; every cell is read by two or more",
        "windows": "Two tensors and one array read one storage of 8 numbers; every cell is read by two or more",
        "cube": "Two tensors read one storage of 24 numbers; 8 cells are read by both",
        "dtypes": "Five tensors read five pieces of memory, and no cell is read by two of them",
        "small": "Two tensors read two pieces of memory, and no cell is read by two of them",
        "written": "One write changed 2 cells, and w and odd both see it",
        "many dimensions": "x reads all 32 numbers of its storage",
    }
    x = plain()
    assert titles(draw_storage(a=x[::2], b=x[1::2])).endswith(
        "lie in one storage of 24 numbers, and no cell is read by two of them"
    )
    assert titles(draw_storage(part=x[5:9])) == "part reads 4 of the 24 numbers in its storage"
    assert titles(draw_storage(e=x[:3].expand(4, 3))) == "e shows 12 elements, but reads 3 cells: each is seen 4 times"
    assert titles(draw_storage(none=torch.empty(0))) == "none: no elements, nothing to read"


def test_the_data_says_which_cells_are_read_and_by_how_many():
    x = torch.arange(12).view(3, 4)
    data = draw_storage(x=x, column=x[:, 1], back=x.numpy()[::-1, 0]).data
    (strip,) = data.strips
    assert strip.readers.tolist() == [2, 2, 1, 1, 2, 2, 1, 1, 2, 2, 1, 1]
    assert strip.values == list(range(12)) and all(type(v) is int for v in strip.values)
    back = data.rows[2]
    assert (back.first, back.steps, back.reached.tolist()) == (8, (-4,), [0, 4, 8])


@pytest.mark.parametrize("seed", range(5))
def test_the_drawn_cells_are_the_bytes_that_are_reached(seed):
    rng = random.Random(seed)
    base = torch.arange(40, dtype=torch.int32)
    for _ in range(30):
        a, b = random_view(base, rng), random_view(base.view(rng.choice([torch.int16, torch.int32, torch.uint8])), rng)
        data = draw_storage(a=a, b=b).data
        unit = data.strips[0].unit
        for row, thing in zip(data.rows, (a, b)):
            drawn = {base.data_ptr() + c * unit + i for c in row.reached.tolist() for i in range(unit)}
            assert drawn == bytes_of(thing)
            for index in itertools.product(*map(range, thing.shape)):
                assert row.value(data.strips[0].raw, unit, row.cell(index)) == thing[index].item()
        assert bool((data.strips[0].readers > 1).any()) == shares_memory(a, b)


def test_values_are_read_as_pytorch_reads_them(pictures):
    data = pictures["complex"].data
    conj, imag = data.rows[1:]
    (strip,) = data.strips
    assert [conj.value(strip.raw, strip.unit, conj.cell((i,))) for i in range(2)] == [1 - 2j, 3 + 4j]
    assert [imag.value(strip.raw, strip.unit, imag.cell((i,))) for i in range(2)] == [-2.0, 4.0]
    assert strip.values == [1.0, 2.0, 3.0, -4.0]
    assert pictures["dtypes"].data.strips[0].values == [1.5, -2.25]
    assert pictures["dtypes"].data.strips[3].values == [1.0, 1.0]
    f = torch.tensor([1.0, -2.0])
    both = draw_storage(f=f, i=f.view(torch.int32)).data.strips[
        0
    ]  # neither reading is the right one: bytes as they lie
    assert both.values == ["0000803f", "000000c0"] and both.kind == "4 bytes"


def test_a_write_marks_the_cells_in_every_grid():
    x = torch.arange(12).view(3, 4)
    y, z, far = x.view(12)[2:8], x[:, 2], x[0, :2]
    before = draw_storage(x=x, y=y, z=z, far=far)
    z[:2] = 100
    after = draw_storage(x=x, y=y, z=z, far=far, before=before)
    assert titles(after) == "One write changed 2 cells, and x, y and z all see it, far does not"
    assert after.data.strips[0].changed == [2, 6]
    assert "cell 2: 2 became 100" in after.text and "version 0 → 1" in after.text
    # struck in the strip and in three grids, two cells each
    assert after.svg.count("line-through") == 8 and before.svg.count("line-through") == 0
    assert "became" in after.alt and before.data.strips[0].changed == []


def test_writes_that_no_version_counter_saw():
    w = torch.ones(4)
    before = draw_storage(w=w, array=w.numpy())
    w.numpy()[1] = 7
    title = titles(draw_storage(w=w, array=w.numpy(), before=before))
    assert title == "One cell changed and no version counter moved: w and array both see it, autograd does not"
    data = w.data
    before = draw_storage(w=w, data=data)
    data[0] = 5
    title = titles(draw_storage(w=w, data=data, before=before))
    assert title == "One write changed 1 cell, and w and data both see it, but the version of w did not move"
    array = np.zeros(3)
    before = draw_storage(array)
    array[:2] = 1
    assert titles(draw_storage(array, before=before)) == "Two cells changed, and t1 sees it"


def test_nothing_is_said_of_a_version_that_cannot_be_compared():
    w = torch.ones(4)
    before = draw_storage(w=w)
    w.add_(1)
    w.mul_(3)
    after = draw_storage(v=w, before=before)  # another name
    assert titles(after) == "Four cells changed, and v sees it" and "→" not in after.text
    after = draw_storage(w=w.data, before=before)  # another counter, under the same name
    assert titles(after) == "Four cells changed, and w sees it" and "→" not in after.text
    data = w.data
    before = draw_storage(w=w)
    data.add_(1)
    assert titles(draw_storage(w=w, data=data, before=before)) == "Four cells changed, and w and data both see it"
    before = draw_storage(part=w[:2])
    w[0] = 70  # the control: another view, and the counter of both is that of w
    assert titles(draw_storage(part=w[:2], before=before)) == "One write changed 1 cell, and part sees it"


def test_a_write_elsewhere_is_not_taken_for_the_one_that_changed_the_cells():
    w, other = torch.ones(4), torch.ones(4)
    before = draw_storage(w=w, other=other)
    w.data[0] = 5
    other.add_(0)
    title = titles(draw_storage(w=w, other=other, before=before))
    assert title == "One cell changed and its version counter did not move: only w sees it, autograd does not"


def test_a_write_to_an_expanded_tensor_shows_everywhere():
    v = torch.tensor([1.0, 2.0, 3.0])
    e = v.expand(4, 3)
    before = draw_storage(v=v, e=e)
    e[0, 0] = 5
    after = draw_storage(v=v, e=e, before=before)
    assert titles(after) == "One write changed 1 cell, and v and e both see it (e in 4 places)"
    assert after.svg.count("line-through") == 1 + 1 + 4


def test_a_new_tensor_under_an_old_name_is_no_write():
    w = torch.ones(4)
    before = draw_storage(w=w)
    w = w + 1
    after = draw_storage(w=w, before=before)
    assert titles(after) == "w now reads other memory: nothing was written to the old"
    assert after.data.strips[0].changed == [] and after.data.rows[0].rebound
    w = torch.ones(4)
    before = draw_storage(w=w)
    w += 1  # the control
    assert titles(draw_storage(w=w, before=before)) == "One write changed 4 cells, and w sees it"


def test_freed_memory_that_was_given_out_again_is_not_taken_for_the_old():
    for _ in range(20):
        w = torch.ones(4)
        before = draw_storage(w=w)
        del w
        w = torch.zeros(4)
        assert draw_storage(w=w, before=before).data.rows[0].rebound


def test_nothing_changed_and_writes_that_change_nothing():
    x = plain()
    before = draw_storage(x=x)
    assert titles(draw_storage(x=x, before=before)) == "Nothing has changed since the picture before"
    x.add_(0)
    assert titles(draw_storage(x=x, before=before)) == "One write left every value as it was"
    x.fill_(float("nan"))
    again = draw_storage(x=x, before=before)
    x.fill_(float("nan"))
    assert draw_storage(x=x, before=again).data.strips[0].changed == []  # compared by bytes: nan is what it was


def test_a_tensor_that_came_later_is_aligned_with_the_picture_before():
    array = np.arange(6.0)
    tail = torch.from_numpy(array[2:])
    before = draw_storage(tail=tail)
    array[3] = 50
    after = draw_storage(array=array, tail=tail, before=before)
    assert after.data.strips[0].changed == [3] and "cell 3: 3.0 became 50.0" in after.text


def test_long_storages_are_folded_and_say_by_how_much(pictures):
    picture = pictures["long"]
    shown = [int(n.replace(",", "")) for n in re.findall(r">… ([\d,]+)</text><text[^>]*>more<", picture.svg)]
    indices = re.findall(r'fill="#5a5a5a">([\d,]+)</text>', picture.svg)
    assert shown and "9,999" in indices and "5,000" in indices
    cells = len(re.findall(r'height="26', picture.svg))
    assert sum(shown) + cells >= 10_000  # a shared cell is drawn as two rectangles


def test_a_changed_cell_is_not_hidden_by_the_fold():
    big = torch.zeros(10_000)
    before = draw_storage(big=big)
    big[7777] = 3
    after = draw_storage(big=big, before=before)
    assert ">7,777<" in after.svg and after.svg.count("line-through") == 2


def test_limits_are_stated():
    with pytest.raises(ValueError, match=r"13 tensors were given and at most 12"):
        draw_storage(*[torch.ones(1)] * 13)
    with pytest.raises(ValueError, match=r"big has 1,000,001 elements and at most 1,000,000 .* big\[:10\]\.clone\(\)"):
        draw_storage(big=torch.empty(1_000_001))
    with pytest.raises(ValueError, match=r"the storage under part has 2,000,000 cells"):
        draw_storage(part=torch.empty(2_000_000)[:5])
    start = time.perf_counter()
    draw_storage(whole=torch.zeros(1_000_000), wide=torch.zeros(3).expand(10**9, 3))
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (lambda: torch.empty(3, device="meta"), "x has no memory that could be drawn .device meta."),
        (lambda: torch.eye(2).to_sparse(), r"x has the layout torch\.sparse_coo, .* draw its parts"),
        (lambda: nothing_left()[0], "x has no memory that could be drawn"),
        (lambda: np.array([{}]), "x is an array of object, not of numbers"),
    ],
)
def test_what_cannot_be_drawn_says_what_to_draw(thing, words):
    with pytest.raises(TypeError, match=words):
        draw_storage(x=thing())


def test_before_must_be_such_a_picture():
    other = Picture('<svg xmlns="http://www.w3.org/2000/svg"/>', alt="another")
    for wrong in (other, torch.ones(1)):
        with pytest.raises(TypeError, match=r"before is a (Picture|Tensor): pass a picture that draw_storage"):
            draw_storage(x=torch.ones(1), before=wrong)


def test_what_autograd_saved_is_drawn_like_any_tensor():
    x = torch.zeros(3, requires_grad=True)
    y = x.exp()
    picture = draw_storage(y=y, saved=y.grad_fn._saved_result)
    assert titles(picture) == "Two tensors read one storage of 3 numbers; every cell is read by both"
    assert len(draw_storage(x=x, saved=y.grad_fn._saved_result).data.strips) == 2  # exp does not keep its input
    y.sum().backward()
    assert x.grad.tolist() == [1.0] * 3


def test_memory_off_the_cpu_is_read_through_a_copy():
    x = torch.arange(6.0)
    (memory,) = look({"x": x[2:]})[0].memories
    elsewhere = dataclasses.replace(memory, device="cpu:0")  # any device but "cpu" goes by way of operators
    read = [_storage_read._bytes_of([m], m.address, m.nbytes) for m in (memory, elsewhere)]
    assert read == [x.numpy().tobytes()] * 2


def test_a_copy_on_write_alias_survives_the_questions():
    x = plain()
    lazy = torch._lazy_clone(x)
    same_storage(x, lazy), shares_memory(x, lazy), shares_version_counter(x, lazy), describe(x=x, lazy=lazy)
    draw_storage(x=x, lazy=lazy)
    assert torch._C._is_cow_tensor(lazy)
    lazy.data_ptr()
    assert not torch._C._is_cow_tensor(lazy)  # the control


def test_arrays_made_by_stride_tricks_lie_in_the_array_they_came_from():
    array = np.arange(6.0)
    windows = np.lib.stride_tricks.sliding_window_view(array, 3)
    wide = np.broadcast_to(array[:3], (4, 3))
    cards = describe(array=array, windows=windows, wide=wide).facts
    assert [c["storage"] for c in cards.values()] == ["none: bytes a"] * 3


def test_describing_and_drawing_keep_nothing_alive():
    x = torch.arange(12.0)
    array = np.arange(4.0)
    kept = [describe(x=x, a=array), draw_storage(x=x, a=array), draw_storage(x=x, a=array, before=draw_storage(x=x))]
    watched = [weakref.ref(x), weakref.ref(x.untyped_storage()), weakref.ref(array)]
    del x, array
    gc.collect()
    assert [ref() for ref in watched] == [None] * 3 and len(kept) == 3


def everything_shown(pictures: dict[str, Picture]) -> str:
    array = np.arange(4.0)
    cards = describe(torch.ones(3), a=array, t=torch.from_numpy(array))
    return repr(cards) + cards.html + "".join(p.svg + p.text for p in pictures.values())


def test_output_is_the_same_in_every_process(pictures):
    program = f"""
import hashlib, importlib.util
spec = importlib.util.spec_from_file_location("tests_of_storage", {__file__!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(hashlib.sha256(module.everything_shown(module.gallery()).encode()).hexdigest())
"""
    there = run(program, PYTHONHASHSEED="7")
    here = everything_shown(pictures)
    assert there.stdout.strip() == hashlib.sha256(here.encode()).hexdigest(), there.stderr
    address = r"0x[0-9a-f]{6}|(?<![.\d])[1-9]\d{11}"
    assert not re.search(address, here) and re.search(address, f"{array_address()}")


def array_address() -> int:
    return np.zeros(3).ctypes.data


def test_the_examples_in_the_docstrings_are_what_happens():
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    found = doctest.testmod(storage, extraglobs={"torch": torch}, optionflags=flags)
    assert found.attempted > 10 and found.failed == 0


# -- numbers and folds -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (7, "7"),
        (-1234567, "-1234567"),
        (2**62, "4.61e18"),
        (True, "True"),
        (3.0, "3.0"),
        (-0.123456, "-0.123"),
        (1.5e-5, "1.5e-5"),
        (0.10000000149, "0.1"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (1 + 2j, "1+2j"),
        (complex(-0.5, -3), "-0.5-3j"),
        ("0000803f", "0000803f"),
    ],
)
def test_short_numbers(value, written):
    assert short(value) == written


def test_rounding_is_known():
    assert is_rounded(-0.123456) and is_rounded(2**62 + 1) and is_rounded(0.123456j)
    assert not any(map(is_rounded, (0.10000000149, 3.0, 7, True, float("nan"), float("inf"), "3f")))
    assert "values to three digits" in draw_storage(torch.tensor([0.123456])).svg
    assert "values to three digits" not in draw_storage(torch.tensor([0.125])).svg


def test_folding_keeps_what_is_wanted():
    assert chosen(5, [4], 9) == [0, 1, 2, 3, 4]
    assert chosen(100, [99, 50], 4) == [0, 1, 50, 99]
    assert with_gaps([0, 1, 50], 100) == [0, 1, (2, 49), 50, (51, 99)]
    assert with_gaps([], 0) == []


@pytest.mark.parametrize("total", [1, 5, 20, 23, 30, 1000, 10**6])
@pytest.mark.parametrize("value", [6, 30, 70, 140])
def test_cells_fit_their_room_and_none_is_lost(total, value):
    laid = scale(total, [0, total // 2], value, 100, 500)
    assert laid.right <= 600.01 and laid.cell >= 20
    assert len(laid.at) + sum(last - first + 1 for first, last, _ in laid.gaps) == total
    assert total // 2 in laid.at


def test_a_quantised_tensor_is_drawn_with_its_bits_and_does_not_end_the_process():
    done = run(
        "import torch; from helpers.storage import draw_storage; "
        "q = torch.quantize_per_tensor(torch.arange(4.), 1, 0, torch.qint8); print(draw_storage(q=q).svg)"
    )
    assert done.returncode == 0, done.stderr
    assert ">03<" in done.stdout


def test_what_cannot_be_drawn_says_so_in_words():
    freed = torch.arange(8.0)
    last = freed[4:]
    freed.untyped_storage().resize_(12)
    for x in (freed, last):
        with pytest.raises(ValueError, match="x reads up to byte 32 of a storage that has 12 bytes"):
            draw_storage(x=x)
    assert draw_storage(x=freed[:3])
    with pytest.raises(TypeError, match=r"n is a nested tensor.*n\.unbind\(\)"):
        draw_storage(n=torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))
    with pytest.raises(TypeError, match=r"m has the layout torch\._mkldnn.*m\.to_dense\(\)"):
        draw_storage(m=torch.ones(2).to_mkldnn())
    with pytest.raises(ValueError, match=r"x has 66 dimensions and at most 63 can be drawn: draw x\.squeeze"):
        draw_storage(x=torch.ones((1,) * 66))
    assert draw_storage(x=torch.ones((1,) * 63))


def test_what_xml_cannot_write_is_left_out_of_names():
    name = "a\x00\x1b\x0bb\ud800\uffff"
    assert "ab" in "".join(ET.fromstring(draw_storage(**{name: torch.ones(2)}).svg).itertext())
