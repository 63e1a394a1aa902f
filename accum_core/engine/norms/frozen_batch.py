"""BatchNorm by its running statistics alone, which no longer move: y = (x - mean) / sqrt(var + eps) * weight + bias.

How pretrained networks are fine-tuned with few images a device: detectors (torchvision's ``FrozenBatchNorm2d``, whose
affine values are constants too) and DeepLabv3 (Chen et al. 2017, arXiv 1706.05587, section 4.1, which freezes BatchNorm
for its second stage). Here the statistics are frozen and the affine parameters stay Parameters that train or not as
they did before: an optimizer keeps them, and a conversion to another kind and back changes nothing. For the detectors'
form call ``requires_grad_(False)`` on them as well.

Training mode computes what evaluation mode does, so it is batch-independent and exact under accumulation
(tests/test_norm_exactness.py), and equal to torchvision's layer (tests/test_norm_batch_kinds.py), which takes
images alone. What it freezes has to be there: from fresh running statistics (mean 0, variance 1), as in a run from
initial weights or after a kind that keeps none, it is x / sqrt(1 + eps) * weight + bias, an affine layer that
normalises nothing.
"""

from __future__ import annotations

from torch import Size, Tensor, nn
from torch.nn import functional as F

from accum_core.engine.channels import ChannelSource
from accum_core.engine.norms import batch

TITLE = "frozen BatchNorm"
SUMMARY = "by running statistics that no longer move; without trained ones an affine layer"
ORDER = 19
BATCH_INDEPENDENT = True


class FrozenBatchNorm(batch.BatchNormVariant):
    """BatchNorm that normalises by its running statistics in both modes and never moves them."""

    def __init__(self, num_features: int, eps: float, momentum: float | None, track_running_stats: bool) -> None:
        super().__init__(num_features, eps, momentum, track_running_stats=True)
        self.track_running_stats = track_running_stats  # as plain BatchNorm, for the way back

    def forward(self, input: Tensor) -> Tensor:
        """Scale and shift each channel; gradients reach the input and the affine parameters."""
        self._check_input_dim(input)
        return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


def build(source: ChannelSource) -> nn.Module:
    """BatchNorm frozen at the source's running statistics, or at fresh ones if it keeps none."""
    momentum, tracks = batch.plain_settings(source.module)
    return batch.with_statistics(FrozenBatchNorm(source.channels, source.eps, momentum, tracks), source)


def owns(module: nn.Module) -> bool:
    """Whether the layer is of this kind."""
    return isinstance(module, FrozenBatchNorm)


def failure(module: nn.Module, shape: Size, training: bool) -> str | None:
    """It works on any input."""
    return None
