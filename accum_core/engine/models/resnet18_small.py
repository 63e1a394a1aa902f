"""ResNet-18 for pictures of 32 x 32 pixels: torchvision's, with a stem that keeps their resolution.

The stem is a 3 x 3 convolution at stride 1 in the place of 7 x 7 at stride 2 and max pooling, which would leave one
pixel to the last blocks. As in torchvision's own, weights begin as He et al. 2015 have them, and the last norm of each
block with weight 0.
"""

from __future__ import annotations

from torch import nn
from torchvision.models import resnet18

TITLE = "ResNet-18 for 32 × 32 pixels"


def build(in_channels: int, num_classes: int) -> nn.Module:
    """Logits ``[M, classes]`` from images ``[M, channels, 32, 32]``."""
    model: nn.Module = resnet18(num_classes=num_classes, zero_init_residual=True)
    stem = nn.Conv2d(in_channels, 64, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    model.conv1 = stem
    model.maxpool = nn.Identity()
    return model
