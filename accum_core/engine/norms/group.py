"""GroupNorm: statistics over groups of channels of one sample (Wu and He 2018, arXiv 1803.08494, equation 7).

Batch-independent, so exact under accumulation (tests/test_norms.py, tests/test_accumulate.py).
"""

from __future__ import annotations

from torch import Size, nn

from accum_core.engine.channels import ChannelSource
from accum_core.errors import SettingError

TITLE = "GroupNorm"
SUMMARY = "over groups of channels of one sample"
ORDER = 20
BATCH_INDEPENDENT = True
OPTIONS = {"num_groups": "norm_groups"}


def build(source: ChannelSource, num_groups: int = 8) -> nn.Module:
    """GroupNorm with ``num_groups`` groups.

    Raises:
        SettingError: when the layer's channels do not divide into the groups.
    """
    if num_groups < 1 or source.channels % num_groups:
        divisors = [n for n in range(1, source.channels + 1) if source.channels % n == 0]
        raise SettingError(
            "norm_groups",
            num_groups,
            f"layer {source.name} has {source.channels} channels, which do not divide into {num_groups} groups; "
            f"use one of {', '.join(map(str, divisors))}",
        )
    return source.finish(nn.GroupNorm(num_groups, source.channels, eps=source.eps, affine=False))


def owns(module: nn.Module) -> bool:
    """Whether the layer is a GroupNorm with more than one group."""
    return isinstance(module, nn.GroupNorm) and module.num_groups > 1


def failure(module: nn.Module, shape: Size, training: bool) -> str | None:
    """A group of one value is normalised to zero whatever the input."""
    groups = module.num_groups if isinstance(module, nn.GroupNorm) else 1
    if shape[1:].numel() == groups:
        return "one value a group to normalise over"
    return None
