"""InstanceNorm: statistics over the pixels of one channel of one sample (Ulyanov et al. 2016, arXiv 1607.08022).

y = (x - mean) / sqrt(var + eps) * weight + bias, a mean and variance for each sample and channel.
Batch-independent, so exact under accumulation (tests/test_norm_exactness.py). It cannot normalise one pixel, which is
what image pooling leaves: use a network without it.
"""

from __future__ import annotations

from torch import Size, Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.instancenorm import _InstanceNorm

from accum_core.engine.channels import ChannelSource

TITLE = "InstanceNorm"
SUMMARY = "over the pixels of one channel of one sample"
ORDER = 40
BATCH_INDEPENDENT = True
LOST = ("running statistics", "function in evaluation mode")


class ChannelInstanceNorm(_InstanceNorm):
    """InstanceNorm of an input ``[M, C, ...]`` of any rank above 2, without running statistics."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise each channel of each sample."""
        return F.instance_norm(input, weight=self.weight, bias=self.bias, eps=self.eps)


def build(source: ChannelSource) -> nn.Module:
    """InstanceNorm with the source's affine parameters."""
    return source.finish(ChannelInstanceNorm(source.channels, eps=source.eps, affine=False))


def owns(module: nn.Module) -> bool:
    """Whether the layer is an InstanceNorm of any rank."""
    return isinstance(module, _InstanceNorm)


def failure(module: nn.Module, shape: Size, training: bool) -> str | None:
    """One pixel has no variance."""
    return "one pixel a channel to normalise over" if shape[2:].numel() == 1 else None
