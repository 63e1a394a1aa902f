"""Windows with micro-batches whose loss or gradient is not finite."""

from __future__ import annotations

from typing import Any

import torch
from small_nets import dense
from torch import Tensor, nn

from accum_core.engine.window import MicroBatch

EXPLODES = 77.0  # an input from which the gradient, and not the loss, becomes infinite


class Explosion(torch.autograd.Function):
    """Identity with an infinite derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * torch.inf


class Explosive(nn.Module):
    """Vectors [M, 3] to [M, 4]; the derivative is infinite where an input is 77."""

    def __init__(self) -> None:
        super().__init__()
        self.net = dense()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.net(inputs / 77)
        return Explosion.apply(outputs) if (inputs == EXPLODES).any() else outputs


def samples(steps: int, targets: str = "labels") -> list[MicroBatch]:
    """Micro-batches of 1, 2, 3, ... samples."""
    numbers = torch.Generator().manual_seed(steps)
    batches = []
    for size in range(1, steps + 1):
        labels = torch.randint(4, (size,), generator=numbers)
        values = torch.randn(size, generator=numbers, dtype=torch.float64)
        inputs = torch.randn(size, 3, generator=numbers, dtype=torch.float64)
        batches.append((inputs, labels if targets == "labels" else values))
    return batches


def spoiled(batches: list[MicroBatch], bad: set[int], value: float) -> list[MicroBatch]:
    """The same, with one value of each bad micro-batch replaced."""
    out = [(inputs.clone(), targets) for inputs, targets in batches]
    for index in bad:
        out[index][0][0, 0] = value
    return out
