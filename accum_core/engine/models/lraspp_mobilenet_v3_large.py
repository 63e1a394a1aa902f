"""LR-ASPP with MobileNetV3 and no auxiliary head, as torchvision has it (Howard et al. 2019, arXiv 1905.02244)."""

from __future__ import annotations

from torch import nn

from accum_core.engine import segmentation_models

TITLE = "LR-ASPP, MobileNetV3-Large"


def build(in_channels: int, num_classes: int) -> nn.Module:
    """Logits by head from images ``[M, 3, H, W]``; arguments and errors are ``segmentation_models.build``'s."""
    return segmentation_models.build("lraspp_mobilenet_v3_large", in_channels, num_classes)
