"""Which networks do the chapters share? A few small ones in plain torch, so that chapters measure the same things.

Each function returns the module alone; its docstring says what to feed it.
"""

from __future__ import annotations

import torch
from torch import nn

# Blocks in each of the four stages, https://arxiv.org/abs/1512.03385, table 1.
_DEPTHS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


def mlp(width: int = 1024, depth: int = 12, *, inplace: bool = False) -> nn.Sequential:
    """``depth`` times Linear and ReLU, all ``width`` wide; takes ``(batch, width)``.

    Args:
        inplace: whether the ReLUs overwrite their input.

    Example:
        >>> sum(p.numel() for p in mlp(width=10, depth=2).parameters())
        220
    """
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU(inplace)]
    return nn.Sequential(*layers)


def transformer(width: int = 256, heads: int = 4, depth: int = 4, *, dropout: float = 0.1) -> nn.TransformerEncoder:
    """``depth`` encoder layers with a feed-forward part four times as wide; takes ``(batch, length, width)``.

    Raises:
        AssertionError: by PyTorch, when ``heads`` does not divide ``width``.
    """
    layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=dropout, batch_first=True)
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)


def convnet(channels: int = 32, classes: int = 10) -> nn.Sequential:
    """Two convolutions with batch norm, ReLU and pooling, and a linear head; takes ``(batch, 3, 32, 32)``."""
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, 2 * channels, 3, padding=1),
        nn.BatchNorm2d(2 * channels),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(2 * channels * 16, classes),
    )


class ResidualBlock(nn.Module):
    """A residual block: two 3x3 convolutions if ``basic``, else a 1x1, a 3x3, and a 1x1 that is four times as wide."""

    def __init__(self, channels: int, width: int, stride: int, *, basic: bool, inplace: bool):
        super().__init__()
        out = width if basic else 4 * width
        # (kernel, output channels, stride) of each convolution
        plan = [(3, width, stride), (3, out, 1)] if basic else [(1, width, 1), (3, width, stride), (1, out, 1)]
        self.residual = nn.Sequential()
        into = channels
        for number, (kernel, channels_out, step) in enumerate(plan, 1):
            if number > 1:
                self.residual.add_module(f"relu{number - 1}", nn.ReLU(inplace))
            convolution = nn.Conv2d(into, channels_out, kernel, step, padding=kernel // 2, bias=False)
            self.residual.add_module(f"conv{number}", convolution)
            self.residual.add_module(f"norm{number}", nn.BatchNorm2d(channels_out))
            into = channels_out
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != out:
            self.shortcut.add_module("conv", nn.Conv2d(channels, out, 1, stride, bias=False))
            self.shortcut.add_module("norm", nn.BatchNorm2d(out))
        self.relu = nn.ReLU(inplace)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.residual(x) + self.shortcut(x))


def resnet(depth: int = 152, width: int = 64, classes: int = 1000, *, inplace: bool = False) -> nn.Sequential:
    """A residual network for pictures, as in https://arxiv.org/abs/1512.03385; takes ``(batch, 3, height, width)``.

    The stride of a bottleneck block is in its 3x3 convolution, as in torchvision, and the number of parameters is
    torchvision's too. Height and width are free, as the last pooling averages over whatever is left; a size of 224 is
    the usual one and is divided by 32 on the way.

    Args:
        depth: 18 or 34 (basic blocks), 50, 101 or 152 (bottleneck blocks).
        width: channels of the first stage; 64 is the usual one.
        classes: how many numbers come out for each picture.
        inplace: whether the ReLUs overwrite their input.

    Raises:
        ValueError: for another depth.

    Example:
        >>> with torch.device("meta"):
        ...     sum(p.numel() for p in resnet(152).parameters())
        60192808
    """
    if depth not in _DEPTHS:
        raise ValueError(f"resnet has depths {', '.join(map(str, _DEPTHS))}, got {depth!r}")
    basic = depth < 50
    model = nn.Sequential()
    model.stem = nn.Sequential()
    model.stem.add_module("conv", nn.Conv2d(3, width, 7, 2, padding=3, bias=False))
    model.stem.add_module("norm", nn.BatchNorm2d(width))
    model.stem.add_module("relu", nn.ReLU(inplace))
    model.stem.add_module("pool", nn.MaxPool2d(3, 2, padding=1))
    channels = width
    for stage, blocks in enumerate(_DEPTHS[depth]):
        layer = nn.Sequential()
        for number in range(blocks):
            stride = 2 if stage and not number else 1
            layer.append(ResidualBlock(channels, width << stage, stride, basic=basic, inplace=inplace))
            channels = (width << stage) * (1 if basic else 4)
        model.add_module(f"stage{stage + 1}", layer)
    model.head = nn.Sequential()
    model.head.add_module("pool", nn.AdaptiveAvgPool2d(1))
    model.head.add_module("flatten", nn.Flatten())
    model.head.add_module("linear", nn.Linear(channels, classes))
    return model


def training_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """One step of mean squared error: gradients dropped, forward, backward, update. Returns the detached loss."""
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()
