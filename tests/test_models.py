"""The shared networks: sizes by hand, shapes by their docstrings, and a training step that trains."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from helpers.models import convnet, mlp, resnet, training_step, transformer


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


@pytest.mark.parametrize(
    ("depth", "parameters"),  # as published with torchvision's weights, https://docs.pytorch.org/vision/stable/models
    [(18, 11_689_512), (34, 21_797_672), (50, 25_557_032), (101, 44_549_160), (152, 60_192_808)],
)
def test_resnets_have_the_published_number_of_parameters(depth, parameters):
    with torch.device("meta"):
        model = resnet(depth)
        out = model.eval()(torch.empty(2, 3, 224, 224))
    assert size(model) == parameters and out.shape == (2, 1000)
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    shortcuts = 3 if depth < 50 else 4
    assert len(convolutions) + 1 == depth + shortcuts  # the name counts the linear layer and no shortcut


def test_resnet_by_hand():
    model = resnet(18, width=4, classes=5)
    stem = 3 * 4 * 49 + 2 * 4
    first = 2 * 2 * (4 * 4 * 9 + 2 * 4)
    others = sum(
        into * out * 9 + 3 * out * out * 9 + into * out + 5 * 2 * out for into, out in ((4, 8), (8, 16), (16, 32))
    )
    assert size(model) == stem + first + others + 32 * 5 + 5
    assert model(torch.rand(2, 3, 40, 33)).shape == (2, 5)


@pytest.fixture
def one_thread():
    """Threads that wait for each other on a busy machine take seconds over small tensors."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("depth", [18, 50])
def test_resnet_gives_the_same_in_place(depth, one_thread):
    torch.manual_seed(0)
    plain = resnet(depth, width=4, classes=5)
    inplace = resnet(depth, width=4, classes=5, inplace=True)
    inplace.load_state_dict(plain.state_dict())
    x = torch.rand(2, 3, 32, 32)
    a, b = plain(x), inplace(x)
    assert torch.equal(a, b)
    a.sum().backward()
    b.sum().backward()
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(plain.parameters(), inplace.parameters(), strict=True))
    assert all(m.inplace for m in inplace.modules() if isinstance(m, nn.ReLU))


def test_resnet_has_five_depths():
    with pytest.raises(ValueError, match="18, 34, 50, 101, 152, got 20"):
        resnet(20)


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
