"""A small U-Net (Ronneberger, Fischer and Brox 2015, arXiv 1505.04597): no image pooling, so every norm works in it.

Three resolutions, skips by concatenation, upsampling by bilinear interpolation. 93 thousand parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TITLE = "U-Net"


def _block(in_channels: int, out_channels: int, stride: int = 1) -> nn.Sequential:
    """3 x 3 convolution without bias, norm, ReLU."""
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """Logits ``[M, classes, H, W]`` from images ``[M, channels, H, W]``; H and W are multiples of 8."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        self.stem = _block(in_channels, 16, stride=2)
        self.down1 = _block(16, 32, stride=2)
        self.down2 = nn.Sequential(_block(32, 48, stride=2), _block(48, 48))
        self.up1 = _block(48 + 32, 48)
        self.up2 = _block(48 + 16, 32)
        self.head = nn.Conv2d(32, num_classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """One forward pass."""
        fine = self.stem(images)
        middle = self.down1(fine)
        deep = self.down2(middle)
        middle = self.up1(torch.cat([_to(deep, middle), middle], dim=1))
        fine = self.up2(torch.cat([_to(middle, fine), fine], dim=1))
        return _to(self.head(fine), images)


def _to(small: Tensor, like: Tensor) -> Tensor:
    return F.interpolate(small, size=like.shape[2:], mode="bilinear", align_corners=False)


def build(in_channels: int, num_classes: int) -> nn.Module:
    """The network with PyTorch's default initial weights."""
    return UNet(in_channels, num_classes)
