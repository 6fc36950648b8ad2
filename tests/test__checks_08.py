"""The exercises of chapter 08: right answers pass, and each wrong one hears its own sentence."""

from __future__ import annotations

import torch
from exercise_answers import answers_tested
from torch.autograd.graph import saved_tensors_hooks


def counted(fn, x):
    calls = []

    def pack(t):
        calls.append(1)
        return t.detach()

    with saved_tensors_hooks(pack, lambda kept: kept):
        fn(x)
    return len(calls)


def different(fn, x):
    seen = set()
    with saved_tensors_hooks(lambda t: seen.add(t.data_ptr()) or t.detach(), lambda kept: kept):
        fn(x)
    return len(seen)


def small():
    def pack(t):
        kept = t.detach()
        return (kept.to(torch.bfloat16) if kept.is_floating_point() else kept), t.dtype

    return pack, lambda pair: pair[0].to(pair[1])


def in_float16():
    def pack(t):
        kept = t.detach()
        return (kept.half() if kept.is_floating_point() else kept), t.dtype

    return pack, lambda pair: pair[0].to(pair[1])


def without_small_numbers():
    pack, unpack = small()
    return lambda t: pack(t.where(t.abs() > 1e-20, 0)), unpack


def safe():
    def unpack(pair):
        kept, version = pair
        if kept._version != version:
            raise RuntimeError("overwritten")
        return kept

    return lambda t: (t.detach(), t._version), unpack


def in_a_list():
    kept = []

    def pack(t):
        kept.append(t.detach())
        return len(kept) - 1, t._version

    def unpack(pair):
        if kept[pair[0]]._version != pair[1]:
            raise RuntimeError("overwritten")
        return kept[pair[0]]

    return pack, unpack


def once():
    store = {}

    def pack(t):
        store[len(store)] = t.detach().clone()
        return len(store) - 1

    return pack, store.pop


RIGHT = {"packs_of": [counted], "compressing_hooks": [small], "safe_hooks": [safe]}
WRONG = [
    ("packs_of", different, ["1 instead of 2", "when two slots hold one tensor"]),
    ("packs_of", lambda fn, x: fn(x), ["it returned a float32 tensor"]),
    ("compressing_hooks", lambda: lambda t: t, ["not two functions"]),
    ("compressing_hooks", lambda: (lambda t: t.detach(), lambda t: t), ["are kept in 4,000 B"]),
    (
        "compressing_hooks",
        lambda: (lambda t: t.detach().to(torch.bfloat16), lambda t: t.float()),
        ["x[positions]", "positions must stay whole numbers"],
    ),
    ("compressing_hooks", in_float16, ["1e+30 comes back as inf", "float16 has as few bytes"]),
    ("compressing_hooks", without_small_numbers, ["1e-30 comes back as 0", "the range of float32"]),
    ("safe_hooks", lambda: (lambda t: t, lambda t: t), ["still in memory", "backward raised nothing"]),
    ("safe_hooks", lambda: (lambda t: t.detach(), lambda t: t), ["backward raised nothing", "`t._version`"]),
    ("safe_hooks", in_a_list, ["never forgets"]),
    ("safe_hooks", once, ["KeyError", "asks twice"]),
    ("safe_hooks", lambda: (lambda t: t.detach() * 3, lambda t: t / 3), ["to the last bit", "x[positions]"]),
]


TestAnswers = answers_tested(RIGHT, WRONG)
