"""GroupNorm: statistics over groups of channels of one sample (Wu and He 2018, arXiv 1803.08494, equation 7).

y = (x - mean) / sqrt(var + eps) * weight + bias, a mean and variance for each sample and group of channels, over the
group's channels and pixels. What is set is the number of groups, or the channels in each (the paper's table 3 compares
both). torch has the layer. Batch-independent, so exact under accumulation (tests/test_norm_exactness.py).
"""

from __future__ import annotations

from torch import Size, nn

from accum_core.engine.channels import ChannelSource
from accum_core.errors import SettingError

TITLE = "GroupNorm"
SUMMARY = "over groups of channels of one sample"
ORDER = 20
BATCH_INDEPENDENT = True
LOST = ("running statistics", "function in evaluation mode")
OPTIONS = {"num_groups": "norm_groups", "channels_per_group": "norm_channels_per_group"}


class GroupNormVariant(nn.GroupNorm):
    """Base of the GroupNorms that are a kind of their own, which neither ``group`` nor ``layer`` owns."""


def groups(source: ChannelSource, num_groups: int, channels_per_group: int | None) -> int:
    """How many groups the source's channels make: as many as asked for, or of ``channels_per_group`` each, if given.

    Raises:
        SettingError: when the channels do not divide so, naming the field that asks for it.
    """
    if channels_per_group is None:
        field, asked, into = "norm_groups", num_groups, f"into {num_groups} groups"
    else:
        field, asked, into = "norm_channels_per_group", channels_per_group, f"into groups of {channels_per_group}"
    if asked < 1 or source.channels % asked:
        divisors = [n for n in range(1, source.channels + 1) if source.channels % n == 0]
        raise SettingError(
            field,
            asked,
            f"layer {source.name} has {source.channels} channels, which do not divide {into}; "
            f"use one of {', '.join(map(str, divisors))}",
        )
    return num_groups if channels_per_group is None else source.channels // channels_per_group


def build(source: ChannelSource, num_groups: int = 8, channels_per_group: int | None = None) -> nn.Module:
    """GroupNorm with the groups that ``groups`` counts; errors are its."""
    number = groups(source, num_groups, channels_per_group)
    return source.finish(nn.GroupNorm(number, source.channels, eps=source.eps, affine=False))


def owns(module: nn.Module) -> bool:
    """Whether the layer is a GroupNorm with more than one group and no kind of its own."""
    return isinstance(module, nn.GroupNorm) and module.num_groups > 1 and not isinstance(module, GroupNormVariant)


def failure(module: nn.Module, shape: Size, training: bool) -> str | None:
    """A group of one value is normalised to zero whatever the input."""
    if shape[1:].numel() == getattr(module, "num_groups", 1):
        return "one value a group to normalise over"
    return None
