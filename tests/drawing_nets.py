"""Networks that draw numbers and keep running statistics: what a window must put back, or go on with, bit for bit."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from tiny_workload import TinyNet
from torch import Tensor, nn


def seed(number: int) -> None:
    """Of every library that draws here."""
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


def same_draws(a: Any, b: Any) -> bool:
    """Whether two of ``random_states`` would draw the same."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_draws(a[name], b[name]) for name in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same_draws, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


class Drawing(nn.Module):
    """Vectors [M, 3] to logits [M, 4] through BatchNorm and dropout, times numbers of NumPy and of Python."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 4))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs) * (0.5 + np.random.rand()) * (0.5 + random.random())


class DrawingTinyNet(TinyNet):
    """The tiny workload's network with the same draws."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) * (0.5 + np.random.rand()) * (0.5 + random.random())
