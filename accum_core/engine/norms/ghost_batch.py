"""Ghost BatchNorm: a micro-batch is cut into ghost batches that are normalised apart (Hoffer et al. 2017).

arXiv 1705.08741, algorithm 1: for each ghost batch B of g samples y = (x - mean_B) / sqrt(var_B + eps) * weight + bias,
and the running statistics r move by each in turn, r <- (1 - m) r + m s_B. In evaluation mode it is BatchNorm. A last
ghost batch is smaller when g does not divide the micro-batch.

The reverse teaching case: one batch of 32 with g = 2 has the gradient and the running statistics that 16 micro-batches
of 2 have with plain BatchNorm, so it shows what accumulation does to BatchNorm without any accumulation. And where g
divides the micro-batch, the split no longer matters: a window's ghost batches are the same for every N, so gradients
and running statistics are exact under accumulation although samples look at one another (both in
tests/test_norm_batch_kinds.py).
"""

from __future__ import annotations

import torch
from torch import Size, Tensor, nn

from accum_core.engine.channels import ChannelSource
from accum_core.engine.norms import batch
from accum_core.errors import SettingError

TITLE = "ghost BatchNorm"
SUMMARY = "over ghost batches, into which a micro-batch is cut"
ORDER = 16
BATCH_INDEPENDENT = False
OPTIONS = {"ghost_batch_size": "ghost_batch_size"}
REMEDY = "a ghost batch size of 2 or more that divides the micro-batch, or a norm that does not look across samples"


class GhostBatchNorm(batch.BatchNormVariant):
    """BatchNorm over ``ghost_batch_size`` samples at a time."""

    def __init__(
        self, num_features: int, eps: float, momentum: float | None, track_running_stats: bool, ghost_batch_size: int
    ) -> None:
        super().__init__(num_features, eps, momentum, track_running_stats)
        self.ghost_batch_size = ghost_batch_size

    def forward(self, input: Tensor) -> Tensor:
        """Normalise each ghost batch; in evaluation mode all samples at once."""
        if not self.training:
            return super().forward(input)
        normalise = super().forward
        return torch.cat([normalise(ghost) for ghost in input.split(self.ghost_batch_size)])


def build(source: ChannelSource, ghost_batch_size: int = 2) -> nn.Module:
    """Ghost BatchNorm, with the running statistics of a source that is BatchNorm of any kind.

    Raises:
        SettingError: for a ghost batch of less than one sample.
    """
    if ghost_batch_size < 1:
        raise SettingError("ghost_batch_size", ghost_batch_size, "must be at least 1")
    momentum, tracks = batch.plain_settings(source.module)
    layer = GhostBatchNorm(source.channels, source.eps, momentum, tracks, ghost_batch_size)
    return batch.with_statistics(layer, source)


def owns(module: nn.Module) -> bool:
    """Whether the layer is of this kind."""
    return isinstance(module, GhostBatchNorm)


def failure(module: nn.Module, shape: Size, training: bool) -> str | None:
    """As BatchNorm, for the smallest ghost batch: one value a channel has no variance."""
    size = module.ghost_batch_size if isinstance(module, GhostBatchNorm) else shape[0]
    smallest = shape[0] % size or min(size, shape[0])
    if training and smallest * shape[2:].numel() == 1:
        return "one value a channel to normalise over in a ghost batch of 1"
    return None
