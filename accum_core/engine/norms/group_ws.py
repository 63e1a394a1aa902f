"""GroupNorm with weight standardisation (Qiao et al. 2019, arXiv 1903.10520).

Each filter of a convolution before a norm, its weights W over input channels and kernel, is used as

    (W - mean(W)) / sqrt(var(W) + eps)

and what it gives goes through GroupNorm (``group.py``). torch's ``layer_norm`` computes it. eps is 1e-10, the square of
the 1e-5 that the paper's published code adds to the deviation: beside the variance of a wide layer's weights, 1e-5
would not be small.

Which convolutions: one is taken to feed a norm when it is the layer with parameters that the model names directly
before it and has as many output channels. So a head's last convolution keeps its weights as they are, and one whose
output goes elsewhere first (into the concatenation of a DenseNet) does too. A filter of a single weight, which has no
variance, and transposed convolutions, for which the paper has no formula, are left alone.

How: such a convolution becomes an instance of a subclass that standardises in ``forward``, and its own class again when
the model is converted to another kind. The object, its Parameters, hooks and names stay, so optimizers, checkpoints,
``deepcopy``, pickling, ``functional_call`` and activation checkpointing see no difference. torch's
``parametrize`` also exchanges the class, but renames the weight to ``parametrizations.weight.original``, and with it
what checkpoints, sketches and gradients are known by.

Looks at no samples but one: batch-independent, so exact under accumulation (tests/test_norm_exactness.py). A way to
this kind and back leaves every weight as it was (tests/test_norm_group_ws.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Size, Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

from accum_core.engine.channels import ChannelSource
from accum_core.engine.norms import group

TITLE = "GroupNorm, standardised weights"
SUMMARY = "over groups of channels of one sample, filters of mean 0 and variance 1"
ORDER = 25
BATCH_INDEPENDENT = True
LOST = ("running statistics", "function in evaluation mode")
OPTIONS = {"num_groups": "norm_groups", "channels_per_group": "norm_channels_per_group"}
EPS = 1e-10


class WeightStandardizedGroupNorm(group.GroupNormVariant):
    """GroupNorm after convolutions whose weights are standardised."""


def standardized(weight: Tensor) -> Tensor:
    """Filters ``[out, in / groups, ...]``, each of mean 0 and variance 1."""
    return F.layer_norm(weight, weight.shape[1:], eps=EPS)


class StandardizedConv1d(nn.Conv1d):
    """``Conv1d`` with standardised filters."""

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self._conv_forward(input, standardized(self.weight), self.bias)
        return output


class StandardizedConv2d(nn.Conv2d):
    """``Conv2d`` with standardised filters."""

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self._conv_forward(input, standardized(self.weight), self.bias)
        return output


class StandardizedConv3d(nn.Conv3d):
    """``Conv3d`` with standardised filters."""

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self._conv_forward(input, standardized(self.weight), self.bias)
        return output


STANDARDIZED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv1d: StandardizedConv1d,
    nn.Conv2d: StandardizedConv2d,
    nn.Conv3d: StandardizedConv3d,
}
PLAIN = {standardizing: plain for plain, standardizing in STANDARDIZED.items()}


def prepare(model: nn.Module) -> None:
    """Have the convolutions before the model's norms of this kind standardise their weights."""
    for convolution in list(_before_norms(model)):
        convolution.__class__ = STANDARDIZED[type(convolution)]


def restore(model: nn.Module) -> None:
    """Have every convolution use its weights as they are."""
    for module in model.modules():
        if type(module) in PLAIN:
            module.__class__ = PLAIN[type(module)]


def _before_norms(model: nn.Module) -> Iterator[nn.Module]:
    previous: nn.Module | None = None
    for module in model.modules():
        if owns(module) and type(previous) in STANDARDIZED and isinstance(previous, _ConvNd):
            fits = isinstance(module, nn.GroupNorm) and previous.out_channels == module.num_channels
            if fits and previous.weight[0].numel() > 1:
                yield previous
        is_layer = any(True for _ in module.parameters(recurse=False))
        if is_layer or owns(module):
            previous = module


def build(source: ChannelSource, num_groups: int = 8, channels_per_group: int | None = None) -> nn.Module:
    """GroupNorm with the groups that ``group.groups`` counts; errors are its."""
    number = group.groups(source, num_groups, channels_per_group)
    return source.finish(WeightStandardizedGroupNorm(number, source.channels, eps=source.eps, affine=False))


def owns(module: nn.Module) -> bool:
    """Whether the layer is of this kind."""
    return isinstance(module, WeightStandardizedGroupNorm)


def failure(module: nn.Module, shape: Size, training: bool) -> str | None:
    """As GroupNorm: a group of one value is normalised to zero whatever the input."""
    return group.failure(module, shape, training)
