"""LayerNorm: statistics over all channels and pixels of one sample (Ba, Kiros and Hinton 2016, arXiv 1607.06450).

y = (x - mean) / sqrt(var + eps) * weight + bias, a mean and variance for each sample. For convolutions this is
GroupNorm with one group and a weight for each channel (Wu and He 2018, section 3.1), which is how it is built here.
Batch-independent, so exact under accumulation (tests/test_norm_exactness.py).
"""

from __future__ import annotations

from torch import Size, nn

from accum_core.engine.channels import ChannelSource
from accum_core.engine.norms.group import GroupNormVariant

TITLE = "LayerNorm"
SUMMARY = "over all channels of one sample"
ORDER = 30
BATCH_INDEPENDENT = True
LOST = ("running statistics", "function in evaluation mode")


def build(source: ChannelSource) -> nn.Module:
    """GroupNorm with one group."""
    return source.finish(nn.GroupNorm(1, source.channels, eps=source.eps, affine=False))


def owns(module: nn.Module) -> bool:
    """Whether the layer is a GroupNorm with one group and no kind of its own."""
    return isinstance(module, nn.GroupNorm) and module.num_groups == 1 and not isinstance(module, GroupNormVariant)


def failure(module: nn.Module, shape: Size, training: bool) -> str | None:
    """A sample of one value is normalised to zero whatever the input."""
    return "one value a sample to normalise over" if shape[1:].numel() == 1 else None
