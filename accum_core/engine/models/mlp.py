"""Three layers of 128 units on 8 x 8 pixels: each unit is a channel with one value a sample.

So BatchNorm at micro-batch M has M values a channel, GroupNorm and LayerNorm have groups of units, and InstanceNorm,
one value, cannot be. 43 thousand parameters.
"""

from __future__ import annotations

from torch import Tensor, nn

TITLE = "3 × 128 perceptron"
WIDTH = 128


def _layer(in_features: int) -> list[nn.Module]:
    """Linear map without bias, norm, ReLU."""
    return [nn.Linear(in_features, WIDTH, bias=False), nn.BatchNorm1d(WIDTH), nn.ReLU(inplace=True)]


class Perceptron(nn.Module):
    """Logits ``[M, classes]`` from images ``[M, channels, 8, 8]``."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(nn.Flatten(), *_layer(in_channels * 64))
        self.layer2 = nn.Sequential(*_layer(WIDTH))
        self.layer3 = nn.Sequential(*_layer(WIDTH))
        self.head = nn.Linear(WIDTH, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """One forward pass."""
        logits: Tensor = self.head(self.layer3(self.layer2(self.layer1(images))))
        return logits


def build(in_channels: int, num_classes: int) -> nn.Module:
    """The network with PyTorch's default initial weights."""
    return Perceptron(in_channels, num_classes)
