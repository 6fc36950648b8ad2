"""Which networks do the chapters share? A few small ones in plain torch, so that chapters measure the same things.

Each function returns the module alone; its docstring says what to feed it.
"""

from __future__ import annotations

import torch
from torch import nn


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


def training_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """One step of mean squared error: gradients dropped, forward, backward, update. Returns the detached loss."""
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()
