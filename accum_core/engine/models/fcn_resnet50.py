"""FCN with a dilated ResNet-50 and an auxiliary head, as torchvision has it.

Long, Shelhamer and Darrell 2015, arXiv 1411.4038.
"""

from __future__ import annotations

from torch import nn

from accum_core.engine import segmentation_models

TITLE = "FCN, ResNet-50"


def build(in_channels: int, num_classes: int) -> nn.Module:
    """Logits by head from images ``[M, 3, H, W]``; arguments and errors are ``segmentation_models.build``'s."""
    return segmentation_models.build("fcn_resnet50", in_channels, num_classes)
