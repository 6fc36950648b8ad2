"""Which tensors stay where they are, and that the list of them does not grow."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from helpers._staying import Staying


@pytest.mark.filterwarnings("ignore")  # quantisation is on its way out of PyTorch
def test_reasons():
    staying, leaf = Staying(100), torch.ones(100, requires_grad=True)
    made = leaf * 1
    assert staying.reason(made) is None
    assert staying.reason(leaf) == "leaf" and staying.reason(leaf[3:].view(-1, 1)) == "leaf"
    assert staying.reason(leaf.detach()) == "leaf"  # by storage, once it has been seen
    assert staying.reason(made[:0]) == "small" and staying.reason((leaf * 1)[:24].clone()) == "small"
    assert staying.reason((leaf * 1)[:25].clone()) is None
    assert staying.reason(made[:2]) is None  # its storage is large
    assert staying.reason(torch.ones(100).to_sparse()) == "layout or device"
    assert staying.reason(torch.ones(100, device="meta")) == "layout or device"
    assert staying.reason(torch.quantize_per_tensor(torch.ones(100), 0.1, 0, torch.qint8)) == "layout or device"

    class Odd(torch.Tensor):
        pass

    assert staying.reason(torch.ones(100).as_subclass(Odd)) == "subclass"
    assert Staying(0).reason(made[:0]) == "small" and Staying(0).reason(made[0]) is None


def test_a_model_stays_by_storage():
    model = nn.Sequential(nn.Linear(10, 10), nn.BatchNorm1d(10)).requires_grad_(False)
    staying = Staying(0)
    assert staying.reason(model[0].weight.t()) is None  # frozen, and nobody has said whose it is
    staying.look_at(model)
    assert staying.reason(model[0].weight.t()) == "parameter"
    assert staying.reason(model[1].running_mean) == "buffer"


def test_what_is_gone_is_forgotten():
    staying = Staying(0)
    for _ in range(50):
        held = [torch.ones(10, requires_grad=True) for _ in range(20)]
        assert [staying.reason(leaf) for leaf in held] == ["leaf"] * 20
    assert len(staying._storages) <= 40
    del held
    gc.collect()
    assert len(staying._storages) == 0
