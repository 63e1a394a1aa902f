"""BatchNorm: statistics over the samples and pixels of one micro-batch, as every framework computes them.

y = (x - mean) / sqrt(var + eps) * weight + bias, a mean and variance for each channel over the micro-batch and its
pixels (Ioffe and Szegedy 2015, arXiv 1502.03167). Not exact under accumulation: N micro-batches of n are what N
workers with unsynchronised BatchNorm compute (tests/test_norms.py perturbs one sample and sees the others move).
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


def build(source: ChannelSource) -> nn.Module:
    """BatchNorm with fresh running statistics; a layer that is BatchNorm already stays as it is."""
    if isinstance(source.module, _BatchNorm):
        return source.module
    return source.finish(ChannelBatchNorm(source.channels, eps=source.eps, affine=False))


def owns(module: nn.Module) -> bool:
    """Whether the layer is a BatchNorm of any rank."""
    return isinstance(module, _BatchNorm)


def failure(module: nn.Module, shape: Size, training: bool) -> str | None:
    """One value a channel has no variance; in evaluation mode the running statistics serve."""
    if training and shape.numel() == shape[1]:
        return "one value a channel to normalise over"
    return None
