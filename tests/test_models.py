"""The shared networks: sizes by hand, shapes by their docstrings, and a training step that trains."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from helpers.models import convnet, mlp, training_step, transformer


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_mlp_by_hand():
    model = mlp(width=10, depth=3)
    assert size(model) == 3 * (10 * 10 + 10) != size(mlp(width=10, depth=4))
    assert [type(layer) for layer in model] == [nn.Linear, nn.ReLU] * 3
    assert model(torch.ones(4, 10)).shape == (4, 10)


@pytest.mark.parametrize("inplace", [True, False])
def test_mlp_in_place_overwrites_what_linear_made(inplace):
    model = mlp(width=10, depth=1, inplace=inplace)
    linear = model[0](torch.ones(4, 10))
    assert (model[1](linear) is linear) == inplace


def test_transformer_by_hand():
    width, depth = 8, 2
    attention = 4 * (width * width + width)
    feed_forward = width * 4 * width + 4 * width + 4 * width * width + width
    norms = 2 * 2 * width
    assert size(transformer(width, heads=2, depth=depth)) == depth * (attention + feed_forward + norms)
    assert transformer(width, heads=2, depth=1)(torch.ones(3, 5, width)).shape == (3, 5, width)


def test_transformer_dropout_can_be_left_out():
    x = torch.randn(3, 5, 8)
    still, noisy = transformer(8, 2, 1, dropout=0.0), transformer(8, 2, 1, dropout=0.5)
    assert torch.equal(still(x), still(x))
    assert not torch.equal(noisy(x), noisy(x))


def test_transformer_wants_heads_that_divide_its_width():
    with pytest.raises(AssertionError, match="divisible"):
        transformer(width=10, heads=3)


def test_convnet_by_hand():
    channels, classes = 4, 5
    convolutions = 3 * channels * 9 + channels + channels * 2 * channels * 9 + 2 * channels
    norms = 2 * channels + 2 * 2 * channels
    head = 2 * channels * 16 * classes + classes
    assert size(convnet(channels, classes)) == convolutions + norms + head
    assert convnet(channels, classes)(torch.ones(2, 3, 32, 32)).shape == (2, classes)


def test_training_step_is_the_step_written_out():
    torch.manual_seed(0)
    model, x, target = mlp(width=6, depth=2), torch.randn(4, 6), torch.randn(4, 6)
    twin = copy.deepcopy(model)
    loss = training_step(model, torch.optim.SGD(model.parameters(), 0.1), x, target)

    expected = nn.functional.mse_loss(twin(x), target)
    expected.backward()
    assert torch.equal(loss, expected.detach())
    assert not loss.requires_grad
    for stepped, before in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(stepped, before - 0.1 * before.grad)
        assert torch.equal(stepped.grad, before.grad)


def test_training_step_drops_old_gradients_and_trains():
    torch.manual_seed(0)
    model, x, target = mlp(width=6, depth=2), torch.randn(4, 6), torch.randn(4, 6)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    losses = [training_step(model, optimizer, x, target).item() for _ in range(20)]
    assert losses[-1] < losses[0]
    gradient = model[0].weight.grad
    training_step(model, optimizer, x, target)
    assert model[0].weight.grad is not gradient
