"""BatchNorm whose running statistics move over a window as far as one large batch would move them.

Each micro-batch moves the running statistics by the momentum m, so N of them move them by 1 - (1 - m)^N: 0.3439 for
m = 0.1 and N = 4. Here a layer's momentum is 1 - (1 - m)^(1/N), which moves them by m in a window of N.

That mends the rate alone, and so evaluation mode where the micro-batches are alike. What is normalised by, and what the
running mean follows, are still micro-batch statistics, and the running variance is still the mean of the micro-batches'
own: it misses how far their means lie apart. The gradient is that of plain BatchNorm at the same micro-batch. Not exact
under accumulation (tests/test_batch_corrected.py, tests/test_norm_exactness.py). In a tail of n micro-batches they move
by 1 - (1 - m)^(n/N).
"""

from __future__ import annotations

from torch import Size, nn

from accum_core.engine.channels import ChannelSource
from accum_core.engine.norms import batch
from accum_core.errors import SettingError

TITLE = "BatchNorm, corrected momentum"
SUMMARY = "over the samples of one micro-batch, running statistics at the large batch's rate"
ORDER = 15
BATCH_INDEPENDENT = False
OPTIONS = {"accumulation_steps": "accumulation_steps"}


class CorrectedBatchNorm(batch.BatchNormVariant):
    """BatchNorm with a momentum of 1 - (1 - ``plain_momentum``)^(1 / ``accumulation_steps``).

    A momentum of None, PyTorch's mean over all that was seen, has no rate to correct and stays.
    """

    def __init__(
        self, num_features: int, eps: float, momentum: float | None, track_running_stats: bool, accumulation_steps: int
    ) -> None:
        super().__init__(num_features, eps, momentum, track_running_stats)
        self.accumulation_steps = accumulation_steps
        if momentum is not None and accumulation_steps > 1:
            self.momentum = 1 - (1 - momentum) ** (1 / accumulation_steps)


def build(source: ChannelSource, accumulation_steps: int = 1) -> nn.Module:
    """BatchNorm corrected for windows of N micro-batches, from the source's plain momentum.

    The running statistics of a source that is BatchNorm of any kind move over, so that a change of N keeps them.

    Raises:
        SettingError: for an N below 1.
    """
    if accumulation_steps < 1:
        raise SettingError("accumulation_steps", accumulation_steps, "must be at least 1")
    momentum, tracks = batch.plain_settings(source.module)
    layer = CorrectedBatchNorm(source.channels, source.eps, momentum, tracks, accumulation_steps)
    return batch.with_statistics(layer, source)


def owns(module: nn.Module) -> bool:
    """Whether the layer is of this kind."""
    return isinstance(module, CorrectedBatchNorm)


def failure(module: nn.Module, shape: Size, training: bool) -> str | None:
    """As BatchNorm: one value a channel has no variance."""
    return batch.failure(module, shape, training)
