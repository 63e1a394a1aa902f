"""DeepLabv3 with ResNet-101 and an auxiliary head, as torchvision has it (Chen et al. 2017, arXiv 1706.05587)."""

from __future__ import annotations

from torch import nn

from accum_core.engine import segmentation_models

TITLE = "DeepLabv3, ResNet-101"


def build(in_channels: int, num_classes: int) -> nn.Module:
    """Logits by head from images ``[M, 3, H, W]``; arguments and errors are ``segmentation_models.build``'s."""
    return segmentation_models.build("deeplabv3_resnet101", in_channels, num_classes)
