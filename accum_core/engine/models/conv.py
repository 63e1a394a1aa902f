"""Three convolutions on 8 x 8 pixels: each channel has 64 or 16 values a sample, so every norm works in it.

BatchNorm at micro-batch 2 still has 128 or 32 values a channel. 31 thousand parameters.
"""

from __future__ import annotations

from torch import Tensor, nn

TITLE = "small convolutional network"


def _block(in_channels: int, out_channels: int, stride: int = 1) -> nn.Sequential:
    """3 x 3 convolution without bias, norm, ReLU."""
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )


class Convolutional(nn.Module):
    """Logits ``[M, classes]`` from images ``[M, channels, 8, 8]``."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        self.block1 = _block(in_channels, 32)
        self.block2 = _block(32, 32)
        self.block3 = _block(32, 48, stride=2)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(48 * 16, num_classes))

    def forward(self, images: Tensor) -> Tensor:
        """One forward pass."""
        logits: Tensor = self.head(self.block3(self.block2(self.block1(images))))
        return logits


def build(in_channels: int, num_classes: int) -> nn.Module:
    """The network with PyTorch's default initial weights."""
    return Convolutional(in_channels, num_classes)
