"""EvoNorm-S0: a norm and an activation in one, found by search (Liu et al. 2020, arXiv 2004.02967).

    y = x * sigmoid(v x) / sqrt(var + eps) * weight + bias

with the variance over groups of channels and pixels of one sample, as in GroupNorm, and v learned for each channel,
from 1. The mean is not taken off.

It replaces norm and activation. A conversion therefore takes away the rectifier (ReLU and its kin, Swish) that follows
the norm directly within an ``nn.Sequential``, and puts it back on the way to another kind. What a network calls in a
``forward`` of its own, as torchvision's ResNet does, cannot be seen from its layers and stays: there the function is
ReLU(EvoNorm-S0). A norm without an activation behind it becomes EvoNorm-S0 too, with its sigmoid.

Looks at no samples but one: batch-independent, so exact under accumulation (tests/test_norm_exactness.py). v is a
parameter that other kinds do not have: it is lost on the way to one of them and starts from 1 on the way back.
"""

from __future__ import annotations

import torch
from torch import Size, Tensor, nn

from accum_core.engine import activations
from accum_core.engine.channels import ChannelSource
from accum_core.engine.norms import group
from accum_core.engine.norms.none import ChannelAffine, along_channels

TITLE = "EvoNorm-S0"
SUMMARY = "over groups of channels of one sample, with an activation of its own"
ORDER = 44
BATCH_INDEPENDENT = True
LOST = ("running statistics", "function in evaluation mode")
ADDS = ("v",)
OPTIONS = {"num_groups": "norm_groups", "channels_per_group": "norm_channels_per_group"}


class EvoNormS0(ChannelAffine):
    """EvoNorm-S0 of an input ``[M, C, ...]`` of any rank above 1."""

    def __init__(self, num_channels: int, eps: float, num_groups: int) -> None:
        super().__init__(num_channels, eps)
        self.num_groups = num_groups
        self.v = nn.Parameter(torch.ones(num_channels))

    def forward(self, input: Tensor) -> Tensor:
        """Gate each value, divide by its group's deviation, scale and shift."""
        wide = input.to(torch.promote_types(input.dtype, torch.float32))
        variance = wide.reshape(len(input), self.num_groups, -1).var(dim=2, correction=0)
        deviation = (variance + self.eps).sqrt().repeat_interleave(self.num_channels // self.num_groups, dim=1)
        gated = wide * torch.sigmoid(along_channels(self.v, wide) * wide)
        return super().forward((gated / deviation.view(deviation.shape + (1,) * (input.dim() - 2))).to(input.dtype))


def build(source: ChannelSource, num_groups: int = 8, channels_per_group: int | None = None) -> nn.Module:
    """EvoNorm-S0 with the groups that ``group.groups`` counts; errors are its. A source of this kind passes v on."""
    number = group.groups(source, num_groups, channels_per_group)
    layer = source.finish(EvoNormS0(source.channels, source.eps, number))
    if isinstance(source.module, EvoNormS0):
        layer.v = source.module.v
    return layer


def prepare(model: nn.Module) -> None:
    """Take the activations away that follow a norm of this kind."""
    activations.absorb(model, owns)


def restore(model: nn.Module) -> None:
    """Put them back."""
    activations.release(model)


def owns(module: nn.Module) -> bool:
    """Whether the layer is of this kind."""
    return isinstance(module, EvoNormS0)


def failure(module: nn.Module, shape: Size, training: bool) -> str | None:
    """As GroupNorm: a group of one value has no variance."""
    return group.failure(module, shape, training)
