"""Batch renormalisation: BatchNorm corrected towards its running statistics (Ioffe 2017, arXiv 1702.03275).

Algorithm 1, with s_B = sqrt(var_B + eps) of the micro-batch and s = sqrt(running_var + eps) from before it:

    r = s_B / s, clipped to [1 / r_max, r_max]        d = (mean_B - running_mean) / s, clipped to [-d_max, d_max]
    y = ((x - mean_B) / s_B * r + d) * weight + bias

No gradient flows through r and d. Where nothing is clipped, y is what evaluation mode computes; the gradient still
crosses samples through mean_B and s_B. The paper moves a running s; here the running statistics are BatchNorm's own
(the unbiased variance), so that they move over from a trained BatchNorm and evaluation mode stays its function.

The paper trains with r_max = 1 and d_max = 0, which is BatchNorm, for 5 thousand steps, and then relaxes d_max to 5
until step 25 thousand and r_max to 3 until step 40 thousand (section 4). Here W passes of BatchNorm stand for
the 5 thousand and the rest keeps these proportions: linear until pass 5 W and 8 W. Passes are counted, not updates,
because it is the running statistics that have to settle and each pass moves them; ``num_batches_tracked`` counts them,
so a trained BatchNorm is past its warm-up at once. W = 0 has no warm-up.

Not exact under accumulation: a micro-batch of 2 has another mean_B than the window, and the running statistics move
within a window (tests/test_norm_batch_kinds.py).
"""

from __future__ import annotations

import torch
from torch import Size, Tensor, nn
from torch.nn import functional as F

from accum_core.engine.channels import ChannelSource
from accum_core.engine.norms import batch
from accum_core.errors import SettingError

TITLE = "batch renorm"
SUMMARY = "over the samples of one micro-batch, corrected towards the running statistics"
ORDER = 18
BATCH_INDEPENDENT = False
OPTIONS = {"r_max": "renorm_r_max", "d_max": "renorm_d_max", "warmup": "renorm_warmup"}
R_RELAXED, D_RELAXED = 8, 5  # the paper's 40 and 25 thousand steps, in units of its 5 thousand of BatchNorm


class BatchRenorm(batch.BatchNormVariant):
    """BatchNorm with the correction r and d; without running statistics it is plain BatchNorm.

    Args:
        r_max, d_max: bounds of the correction when it is relaxed; at least 1 and 0.
        warmup: W, passes of plain BatchNorm from fresh running statistics.
    """

    def __init__(
        self,
        num_features: int,
        eps: float,
        momentum: float | None,
        track_running_stats: bool,
        *,
        r_max: float,
        d_max: float,
        warmup: int,
    ) -> None:
        super().__init__(num_features, eps, momentum, track_running_stats)
        self.r_max, self.d_max, self.warmup = r_max, d_max, warmup

    def forward(self, input: Tensor) -> Tensor:
        """Normalise and correct; in evaluation mode as BatchNorm."""
        if not self.training or self.running_mean is None or self.num_batches_tracked is None:
            return super().forward(input)
        self._check_input_dim(input)
        # (x_hat r + d) weight + bias is BatchNorm with another weight and bias.
        weight, shift = self._correction(input)
        bias = shift
        if self.weight is not None:
            weight, bias = self.weight * weight, self.weight * shift
        if self.bias is not None:
            bias = bias + self.bias
        self.num_batches_tracked.add_(1)
        moved = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        return F.batch_norm(
            input, self.running_mean, self.running_var, weight, bias, training=True, momentum=moved, eps=self.eps
        )

    @torch.no_grad()
    def _correction(self, input: Tensor) -> tuple[Tensor, Tensor]:
        """r and d, one a channel ``[C]``, from the running statistics as they are."""
        assert self.running_mean is not None and self.running_var is not None
        others = [dimension for dimension in range(input.dim()) if dimension != 1]
        wide = torch.promote_types(self.running_var.dtype, torch.float32)
        variance, mean = torch.var_mean(input.to(wide), others, correction=0)
        deviation = (self.running_var.to(wide) + self.eps).sqrt()
        r_max = 1 + (self.r_max - 1) * self._relaxed(R_RELAXED, wide)
        d_max = self.d_max * self._relaxed(D_RELAXED, wide)
        r = ((variance + self.eps).sqrt() / deviation).clamp(1 / r_max, r_max)
        d = ((mean - self.running_mean) / deviation).clamp(-d_max, d_max)
        return r.to(self.running_var.dtype), d.to(self.running_var.dtype)

    def _relaxed(self, end: int, dtype: torch.dtype) -> Tensor:
        """The share of a bound that this pass may use: 0 until pass W, 1 from pass ``end`` W on."""
        assert self.num_batches_tracked is not None
        passes = self.num_batches_tracked.to(dtype)
        if not self.warmup:
            return torch.ones_like(passes)
        return ((passes - self.warmup) / ((end - 1) * self.warmup)).clamp(0, 1)


def build(source: ChannelSource, r_max: float = 3.0, d_max: float = 5.0, warmup: int = 0) -> nn.Module:
    """Batch renormalisation, with the running statistics of a source that is BatchNorm of any kind.

    Raises:
        SettingError: for bounds that leave no room for r = 1 and d = 0, or a negative warm-up.
    """
    for field, value, least in (("renorm_r_max", r_max, 1), ("renorm_d_max", d_max, 0), ("renorm_warmup", warmup, 0)):
        if not value >= least:
            raise SettingError(field, value, f"must be at least {least}")
    momentum, tracks = batch.plain_settings(source.module)
    layer = BatchRenorm(source.channels, source.eps, momentum, tracks, r_max=r_max, d_max=d_max, warmup=warmup)
    return batch.with_statistics(layer, source)


def owns(module: nn.Module) -> bool:
    """Whether the layer is of this kind."""
    return isinstance(module, BatchRenorm)


def failure(module: nn.Module, shape: Size, training: bool) -> str | None:
    """As BatchNorm: one value a channel has no variance."""
    return batch.failure(module, shape, training)
