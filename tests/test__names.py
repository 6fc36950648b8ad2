"""What a line writes into, read off its statement."""

from __future__ import annotations

import linecache

import pytest
import torch
from torch import nn

from helpers._names import assigned, name_of, target_of
from helpers._source import Place

LINES = {
    "h += r": ("add_", "h", "h = h + r"),
    "h -= a * b": ("sub_", "h", "h = h - (a * b)"),
    "h[0] += 1": ("add_", "h", ""),
    "self.cache[i] = v": ("copy_", "self.cache", ""),
    "h[mask] = 0": ("index_put_", "h", ""),
    "h.add_(1)": ("add_", "h", "h = h.add(1)"),
    "h.clamp_(min=0)": ("clamp_", "h", "h = h.clamp(min=0)"),
    "h.zero_()": ("zero_", "h", ""),
    "h.data.mul_(2)": ("mul_", "h", ""),
    "h.detach().view(-1)[3].fill_(0)": ("fill_", "h", ""),
    "torch.relu_(h)": ("relu_", "h", ""),
    "nn.init.zeros_(lin.weight)": ("zero_", "lin.weight", ""),
    "torch.exp(x, out=y)": ("exp", "y", "y = torch.exp(x)"),
    "y = F.relu(h, inplace=True)": ("relu_", "h", "y = F.relu(h)"),
    "F.dropout(h, 0.5, inplace=True)": ("mul_", "h", "h = F.dropout(h, 0.5)"),
    "if ready: h.mul_(2)": ("mul_", "h", "h = h.mul(2)"),
    "a.add_(1); b.mul_(2)": ("mul_", "b", "b = b.mul(2)"),
    "a.add_(1); b.add_(2)": ("add_", "", ""),  # which is meant is not known
    "f(a.add_(1), b.add_(2))": ("add_", "", ""),  # nor here
    "f(a.add_(1), b.mul_(2))": ("mul_", "b", "b = b.mul(2)"),
    "loss.backward()": ("add_", "", ""),
    "optimizer.step()": ("add_", "", ""),
    "%timeit h.add_(1)": ("add_", "", ""),  # no Python
}


def placed(source: str, line: int = 1) -> Place:
    file = f"<names {abs(hash(source))}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    return Place(file, line, source.splitlines()[line - 1])


@pytest.mark.parametrize(("source", "said"), LINES.items(), ids=LINES)
def test_what_a_line_writes_into(source, said):
    operator, target, mend = said
    assert target_of(placed(source + "\n"), operator) == (target, mend)


def test_a_statement_over_several_lines_and_under_a_magic():
    assert target_of(placed("h.add_(\n    1,\n)\n", 2), "add_") == ("h", "h = h.add(1)")
    assert target_of(placed("%%explain_inplace model\n\nh += 1\n", 3), "add_") == ("h", "h = h + 1")


def test_what_a_line_assigns():
    assert assigned(placed("y = x.exp()\n")) == "y"
    assert assigned(placed("self.y = a * b\n")) == "self.y"
    assert assigned(placed("a, b = x.chunk(2)\n")) == assigned(placed("y[0] = x.exp()\n")) == assigned(None) == ""


def address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def test_names_by_storage():
    import sys

    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    weight = model[0].weight
    frame = sys._getframe()
    asked = {
        "0.weight": weight,
        "0.weight, transposed": weight.t(),
        "0.weight, a view of it": weight[1:],
        "1.running_var": model[1].running_var,
    }
    for name, tensor in asked.items():
        found = name_of(address(tensor), tuple(tensor.shape), tensor.stride(), model, None)
        assert found == (name, "buffer" if "running" in name else "parameter")
    del asked, tensor, weight
    hidden = [torch.ones(2), {"k": torch.ones(2)}]
    kept = {"k": torch.ones(2)}
    for name, tensor in (("hidden[0]", hidden[0]), ("kept['k']", kept["k"])):
        where, shape, stride = address(tensor), tuple(tensor.shape), tensor.stride()
        del tensor
        assert name_of(where, shape, stride, None, frame) == (name, "variable")
    bias = model[0].bias
    where = address(bias)
    del bias
    assert name_of(where, (4,), (1,), None, frame) == ("model.0.bias", "parameter")
    assert name_of(0, (), (), model, frame) == ("", "")
    assert name_of(address(torch.ones(1)), (1,), (1,), model, None) == ("", "")
