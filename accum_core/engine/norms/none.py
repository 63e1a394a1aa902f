"""No normalisation: y = x * weight + bias, a weight and a bias for each channel.

The affine part stays, so that a change to another norm and back loses no parameter. Batch-independent, so exact under
accumulation (tests/test_norm_exactness.py).
"""

from __future__ import annotations

from torch import Size, Tensor, nn

from accum_core.engine.channels import ChannelSource

TITLE = "no norm"
SUMMARY = "a weight and a bias for each channel, nothing else"
ORDER = 50
BATCH_INDEPENDENT = True
LOST = ("running statistics", "function in evaluation mode")


def along_channels(values: Tensor, like: Tensor) -> Tensor:
    """One value a channel ``[C]`` as ``[1, C, 1, ...]``, of the rank of ``like``."""
    return values.view((1, -1) + (1,) * (like.dim() - 2))


class ChannelAffine(nn.Module):
    """A weight and a bias for each channel of an input ``[M, C, ...]``; the identity without them.

    Also the base of norms that torch does not have: they compute what comes before the affine part.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, num_channels: int, eps: float) -> None:
        super().__init__()
        self.num_channels = num_channels
        self.eps = eps  # kept for the norm that may take this layer's place
        self.register_parameter("weight", None)
        self.register_parameter("bias", None)

    def forward(self, input: Tensor) -> Tensor:
        """Scale and shift each channel."""
        if self.weight is not None:
            input = input * along_channels(self.weight, input)
        return input if self.bias is None else input + along_channels(self.bias, input)

    def extra_repr(self) -> str:
        """Channels, for the model's printout."""
        return str(self.num_channels)


def build(source: ChannelSource) -> nn.Module:
    """The affine part alone."""
    return source.finish(ChannelAffine(source.channels, eps=source.eps))


def owns(module: nn.Module) -> bool:
    """Whether the layer is a bare channel-wise affine map."""
    return type(module) is ChannelAffine


def failure(module: nn.Module, shape: Size, training: bool) -> str | None:
    """It works on any input."""
    return None
