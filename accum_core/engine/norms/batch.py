"""BatchNorm: statistics over the samples and pixels of one micro-batch, as every framework computes them.

y = (x - mean) / sqrt(var + eps) * weight + bias, a mean and variance for each channel over the micro-batch and its
pixels (Ioffe and Szegedy 2015, arXiv 1502.03167). Not exact under accumulation: N micro-batches of n are what N
workers with unsynchronised BatchNorm compute (tests/test_norms.py perturbs one sample and sees the others move,
tests/test_norm_exactness.py measures the gradient's error).
"""

from __future__ import annotations

from torch import Size, Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from accum_core.engine.channels import ChannelSource

TITLE = "BatchNorm"
SUMMARY = "over the samples of one micro-batch"
ORDER = 10
BATCH_INDEPENDENT = False


class ChannelBatchNorm(_BatchNorm):
    """BatchNorm over dimension 1 of an input of any rank, for layers whose rank is not known beforehand."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected an input [M, C, ...], got {list(input.shape)}")


class BatchNormVariant(ChannelBatchNorm):
    """Base of the BatchNorms that are a kind of their own, which ``batch`` does not own.

    Attributes:
        plain_momentum: what ``momentum`` is as plain BatchNorm; a conversion from one kind to another starts from it.
    """

    def __init__(self, num_features: int, eps: float, momentum: float | None, track_running_stats: bool) -> None:
        super().__init__(num_features, eps, momentum, affine=False, track_running_stats=track_running_stats)
        self.plain_momentum = momentum


def with_statistics(layer: ChannelBatchNorm, source: ChannelSource) -> ChannelBatchNorm:
    """The layer in the source's place, with its running statistics (the same tensors) if both keep some."""
    source.finish(layer)
    if getattr(source.module, "running_mean", None) is not None and layer.running_mean is not None:
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            setattr(layer, name, getattr(source.module, name))
    return layer


def plain_settings(module: nn.Module) -> tuple[float | None, bool]:
    """Momentum and ``track_running_stats`` of a layer as plain BatchNorm; PyTorch's defaults for another layer."""
    if not isinstance(module, _BatchNorm):
        return 0.1, True
    momentum = module.plain_momentum if isinstance(module, BatchNormVariant) else module.momentum
    return momentum, module.track_running_stats


def build(source: ChannelSource) -> nn.Module:
    """BatchNorm with fresh running statistics; a layer that is BatchNorm already stays as it is.

    One of another kind of BatchNorm passes its running statistics and its plain momentum on.
    """
    if isinstance(source.module, _BatchNorm) and not isinstance(source.module, BatchNormVariant):
        return source.module
    momentum, tracks = plain_settings(source.module)
    layer = ChannelBatchNorm(source.channels, source.eps, momentum, affine=False, track_running_stats=tracks)
    return with_statistics(layer, source)


def owns(module: nn.Module) -> bool:
    """Whether the layer is a BatchNorm of any rank and no kind of its own."""
    return isinstance(module, _BatchNorm) and not isinstance(module, BatchNormVariant)


def failure(module: nn.Module, shape: Size, training: bool) -> str | None:
    """One value a channel has no variance; in evaluation mode the running statistics serve."""
    if training and shape.numel() == shape[1]:
        return "one value a channel to normalise over"
    return None
