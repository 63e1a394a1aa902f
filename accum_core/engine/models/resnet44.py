"""ResNet-44 for pictures of 32 x 32 pixels (He et al. 2015, arXiv 1512.03385, section 4.2).

Three stages of seven blocks at 16, 32 and 64 channels, of torchvision's basic blocks. Where the channels double, the
shortcut is a 1 x 1 convolution with a norm, as in the code published with Hoffer et al. 2017.
"""

from __future__ import annotations

from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

TITLE = "ResNet-44 for 32 × 32 pixels"
BLOCKS = 7


class ResNet44(nn.Module):
    """Logits ``[M, classes]`` from images ``[M, channels, 32, 32]``."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(in_channels, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.layer1 = _stage(16, 16)
        self.layer2 = _stage(16, 32)
        self.layer3 = _stage(32, 64)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, num_classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """One forward pass."""
        logits: Tensor = self.head(self.layer3(self.layer2(self.layer1(self.stem(images)))))
        return logits


def _stage(before: int, channels: int) -> nn.Sequential:
    """Seven blocks; the first halves the resolution where the channels double."""
    stride, shortcut = channels // before, None
    if stride > 1:
        shortcut = nn.Sequential(nn.Conv2d(before, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))
    return nn.Sequential(
        BasicBlock(before, channels, stride, shortcut), *[BasicBlock(channels, channels) for _ in range(BLOCKS - 1)]
    )


def build(in_channels: int, num_classes: int) -> nn.Module:
    """The network, its convolutions' weights as He et al. 2015 have them (arXiv 1502.01852)."""
    return ResNet44(in_channels, num_classes)
