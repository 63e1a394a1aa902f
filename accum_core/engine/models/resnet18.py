"""ResNet-18 as torchvision has it (He et al. 2015, arXiv 1512.03385), the last norm of each block with weight 0."""

from __future__ import annotations

from torch import nn
from torchvision.models import resnet18

from accum_core.errors import SettingError

TITLE = "ResNet-18"


def build(in_channels: int, num_classes: int) -> nn.Module:
    """Logits ``[M, classes]`` from images ``[M, 3, H, W]``.

    Raises:
        SettingError: for other than three colours, for which torchvision has no stem.
    """
    if in_channels != 3:
        raise SettingError("in_channels", in_channels, "must be 3, the colours that torchvision's stem takes")
    model: nn.Module = resnet18(num_classes=num_classes, zero_init_residual=True)
    return model
