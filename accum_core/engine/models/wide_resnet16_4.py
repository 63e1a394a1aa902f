"""Wide ResNet 16-4 for pictures of 32 x 32 pixels (Zagoruyko and Komodakis 2016, arXiv 1605.07146).

Three stages of two blocks at 64, 128 and 256 channels, four times those of a ResNet; norm and ReLU come before each
convolution. Where the channels change, the shortcut is a 1 x 1 convolution of the block's first activation.
"""

from __future__ import annotations

from torch import Tensor, nn

TITLE = "Wide ResNet 16-4"


class WideBlock(nn.Module):
    """Two convolutions and a shortcut, ``[M, in_channels, H, W]`` to ``[M, channels, H / stride, W / stride]``."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.activation = nn.Sequential(nn.BatchNorm2d(in_channels), nn.ReLU())
        self.first = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        convolution = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(), convolution)
        self.shortcut = None if in_channels == channels else nn.Conv2d(in_channels, channels, 1, stride, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        """One forward pass."""
        activated = self.activation(input)
        kept = input if self.shortcut is None else self.shortcut(activated)
        summed: Tensor = kept + self.second(self.first(activated))
        return summed


class WideResNet(nn.Module):
    """Logits ``[M, classes]`` from images ``[M, channels, 32, 32]``."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
        self.layer1 = nn.Sequential(WideBlock(16, 64, 1), WideBlock(64, 64, 1))
        self.layer2 = nn.Sequential(WideBlock(64, 128, 2), WideBlock(128, 128, 1))
        self.layer3 = nn.Sequential(WideBlock(128, 256, 2), WideBlock(256, 256, 1))
        self.head = nn.Sequential(
            nn.BatchNorm2d(256), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, num_classes)
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """One forward pass."""
        logits: Tensor = self.head(self.layer3(self.layer2(self.layer1(self.stem(images)))))
        return logits


def build(in_channels: int, num_classes: int) -> nn.Module:
    """The network, its convolutions' weights as He et al. 2015 have them (arXiv 1502.01852)."""
    return WideResNet(in_channels, num_classes)
