"""A small network in the manner of DeepLabv3+ (Chen et al. 2018, arXiv 1802.02611) for 64 x 64 tiles.

An encoder to a quarter of the resolution, parallel dilated convolutions beside image pooling (the branch in which
BatchNorm has one value a channel and sample), and a decoder with one skip. 84 thousand parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TITLE = "DeepLab-style, image pooling"


def _block(in_channels: int, out_channels: int, kernel: int = 3, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    """Convolution without bias, norm, ReLU; keeps the resolution at stride 1."""
    padding = dilation * (kernel // 2)
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel, stride, padding, dilation, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )


class DeepLab(nn.Module):
    """Logits ``[M, classes, H, W]`` from images ``[M, channels, H, W]``; H and W are multiples of 4."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        self.stem = _block(in_channels, 24, stride=2)
        self.encoder1 = _block(24, 24)
        self.encoder2 = _block(24, 48, stride=2)
        self.encoder3 = _block(48, 48)
        self.point = _block(48, 24, kernel=1)
        self.dilated2 = _block(48, 24, dilation=2)
        self.dilated4 = _block(48, 24, dilation=4)
        self.image_pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), *_block(48, 24, kernel=1))
        self.fuse = _block(96, 48, kernel=1)
        self.skip = _block(24, 16, kernel=1)
        self.decoder = _block(64, 32)
        self.head = nn.Conv2d(32, num_classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """One forward pass."""
        fine = self.encoder1(self.stem(images))
        coarse = self.encoder3(self.encoder2(fine))
        pooled = self.image_pool(coarse).expand(-1, -1, *coarse.shape[2:])
        context = torch.cat([self.point(coarse), self.dilated2(coarse), self.dilated4(coarse), pooled], dim=1)
        context = F.interpolate(self.fuse(context), size=fine.shape[2:], mode="bilinear", align_corners=False)
        logits = self.head(self.decoder(torch.cat([context, self.skip(fine)], dim=1)))
        return F.interpolate(logits, size=images.shape[2:], mode="bilinear", align_corners=False)


def build(in_channels: int, num_classes: int) -> nn.Module:
    """The network with PyTorch's default initial weights."""
    return DeepLab(in_channels, num_classes)
