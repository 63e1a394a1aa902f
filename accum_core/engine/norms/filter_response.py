"""Filter response normalisation with thresholded linear units (Singh and Krishnan 2019, arXiv 1911.09737).

    y = x / sqrt(nu2 + eps) * weight + bias        z = max(y, tau)

with nu2 the mean of x^2 over the pixels of one channel of one sample, and tau learned
for each channel, from 0. The mean is not taken off, which is why the threshold moves.

It replaces norm and activation: as for ``evonorm_s0.py``, a conversion takes away the rectifier that follows the norm
directly within an ``nn.Sequential`` and puts it back on the way to another kind; one that a network calls in a
``forward`` of its own stays.

eps is that of the layer that it replaces. On one pixel, which image pooling leaves, x / sqrt(x^2 + eps) is nearly the
sign of x and next to no gradient passes; the paper learns eps in such layers, which is not done here.

Looks at no samples but one: batch-independent, so exact under accumulation (tests/test_norm_exactness.py). tau is a
parameter that other kinds do not have: it is lost on the way to one of them and starts from 0 on the way back.
"""

from __future__ import annotations

import torch
from torch import Size, Tensor, nn

from accum_core.engine import activations
from accum_core.engine.channels import ChannelSource
from accum_core.engine.norms.none import ChannelAffine, along_channels

TITLE = "filter response norm"
SUMMARY = "over the pixels of one channel of one sample, its mean kept, with a learned threshold"
ORDER = 46
BATCH_INDEPENDENT = True
LOST = ("running statistics", "function in evaluation mode")
ADDS = ("tau",)


class FilterResponseNorm(ChannelAffine):
    """Filter response norm and threshold of an input ``[M, C, ...]`` of any rank above 1."""

    def __init__(self, num_channels: int, eps: float) -> None:
        super().__init__(num_channels, eps)
        self.tau = nn.Parameter(torch.zeros(num_channels))

    def forward(self, input: Tensor) -> Tensor:
        """Divide each channel by its root mean square, scale, shift and threshold."""
        wide = input.to(torch.promote_types(input.dtype, torch.float32))
        square = wide.square().reshape(*input.shape[:2], -1).mean(dim=2)
        size = (square + self.eps).sqrt().view(square.shape + (1,) * (input.dim() - 2))
        output = super().forward((wide / size).to(input.dtype))
        return torch.maximum(output, along_channels(self.tau, output))


def build(source: ChannelSource) -> nn.Module:
    """Filter response norm with the source's affine parameters; a source of this kind passes tau on."""
    layer = source.finish(FilterResponseNorm(source.channels, source.eps))
    if isinstance(source.module, FilterResponseNorm):
        layer.tau = source.module.tau
    return layer


def prepare(model: nn.Module) -> None:
    """Take the activations away that follow a norm of this kind."""
    activations.absorb(model, owns)


def restore(model: nn.Module) -> None:
    """Put them back."""
    activations.release(model)


def owns(module: nn.Module) -> bool:
    """Whether the layer is of this kind."""
    return isinstance(module, FilterResponseNorm)


def failure(module: nn.Module, shape: Size, training: bool) -> str | None:
    """It works on any input."""
    return None
