"""One normalising layer met by all passes of a window: its statistics, and the two halves of its gradient.

With x over all samples and pixels of the window, n values a channel, r = 1 / sqrt(var + eps) and z = (x - mean) r:

- forward, y = w z + b: passes give their own n, mean and variance, which add up to the window's
  (Chan, Golub and LeVeque 1979), then each normalises its own x;
- backward, dx = w r (dy - sum(dy) / n - z sum(dy z) / n): passes give their own sums of dy and dy z, which also are
  the gradients of b and w, then each makes its own dx (Ioffe and Szegedy 2015, section 3).

``crossing`` has what autograd sees of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor
from torch import distributed as dist

from accum_core.engine.norms.sync_batch import WindowBatchNorm
from accum_core.errors import SettingError


@dataclass(frozen=True, slots=True)
class Moments:
    """Of n values a channel: mean, and variance about it without correction, ``[C]``."""

    count: int
    mean: Tensor
    variance: Tensor

    @classmethod
    def of(cls, input: Tensor) -> Moments:
        """Of one micro-batch ``[M, C, ...]``, which may be empty; in the type that its sums are taken in."""
        if not input.numel():
            nothing = wide(input.new_zeros(input.shape[1]))
            return cls(0, nothing, nothing)
        mean, variance = torch.batch_norm_update_stats(wide(input.detach()), None, None, 0.0)
        return cls(input.numel() // input.shape[1], mean, variance)

    @classmethod
    def together(cls, parts: Sequence[Moments]) -> Moments:
        """Of all parts, in float64: about the common mean, so nothing large is subtracted."""
        means = torch.stack([part.mean for part in parts]).double()
        variances = torch.stack([part.variance for part in parts]).double()
        count = sum(part.count for part in parts)
        shares = means.new_tensor([[part.count / max(1, count)] for part in parts])
        mean = (means * shares).sum(0)
        return cls(count, mean, (((means - mean).square_() + variances) * shares).sum(0))


class Meeting:
    """All passes at one call of one layer.

    Args:
        name: of the layer, for messages.
        like: an input ``[M, C, ...]``, for its type and dimensions.
        parts: each pass's moments; of this rank.

    Attributes:
        own: each pass's mean [C], by which a second computation of the call is recognised.
        variance: without bias, for the running statistics.
    """

    def __init__(
        self, layer: WindowBatchNorm, name: str, like: Tensor, parts: Sequence[Moments], world_size: int
    ) -> None:
        self.layer, self.world_size = layer, world_size
        self.own = [part.mean for part in parts]
        window = Moments.together(parts)
        if world_size > 1:
            window = Moments.together(_over_ranks(window, world_size))
        if window.count < 2:
            raise SettingError(
                "norm", "sync_batch", f"layer {name} has one value a channel in the whole window; make it larger"
            )
        self.count, self.mean = window.count, window.mean
        self.biased = window.variance
        self.variance = window.variance * (window.count / (window.count - 1))
        self._sums: list[tuple[Tensor, Tensor]] = []
        self._task = -1  # the backward pass that they are of
        self._factors: list[Tensor] = []
        self._type, self._dimensions = wide(like.new_empty(0)).dtype, like.dim()  # its bytes are away
        weight, bias = layer.weight, layer.bias
        self._statistics = self.mean.to(self._type), self.biased.to(self._type)
        # Copies: the optimizer's step may come before a second backward pass.
        self._weight, self._bias = (
            None if part is None else part.detach().to(self._type, copy=True) for part in (weight, bias)
        )
        self._ones = torch.ones_like(self._statistics[0])

    def normalise(self, input: Tensor) -> Tensor:
        """y of one pass, without a graph."""
        work = wide(input.detach())
        mean, variance = self._statistics
        output = torch.batch_norm(
            work, self._weight, self._bias, mean, variance, False, 0.0, self.layer.eps, torch.backends.cudnn.enabled
        )
        return output.to(input.dtype)

    def add(self, input: Tensor, gradient: Tensor) -> None:
        """Take a pass's sums over its dy."""
        self._begin()
        if not input.numel():
            return
        _, along, whole = torch.ops.aten.native_batch_norm_backward.default(
            wide(gradient),
            wide(input),
            self._ones,
            *self._statistics,
            None,
            None,
            False,
            self.layer.eps,
            (False, True, True),
        )
        self._sums.append((along, whole))

    def close(self) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """All passes have given their sums: the gradients of weight and bias, of this rank's samples.

        None, and none of the input, when the loss depends on none of the outputs; what another rank's depends on is
        not known here.
        """
        self._begin()
        self._factors = []
        if not self._sums and self.world_size == 1:
            return None, None
        if self._sums:
            parts = chain.from_iterable(zip(*self._sums, strict=True))
            own = torch.stack(list(parts)).view(2, len(self._sums), -1).double().sum(1)
        else:
            own = self.mean.new_zeros(2, len(self.mean))
        window = own.clone()
        if self.world_size > 1:
            dist.all_reduce(window)
        slope = (self.biased + self.layer.eps).rsqrt()
        along = -slope.square() * window[0] / self.count
        shift = -slope * window[1] / self.count
        factors = torch.stack([slope, along, shift])
        if self._weight is not None:
            factors *= self._weight
        factors = torch.cat([factors, self.mean[None]]).to(self._type)
        self._factors = list(factors.view(4, 1, -1, *[1] * (self._dimensions - 2)))
        self._sums = []
        return own[0], own[1]

    def _begin(self) -> None:
        """Forget the sums of a backward pass that has failed on the way."""
        if self._task != (task := torch._C._current_graph_task_id()):
            self._task, self._sums = task, []

    def gradient(self, input: Tensor, gradient: Tensor | None) -> Tensor | None:
        """dx of one pass from its dy; none has come where its outputs did not count."""
        if not self._factors:
            return None
        slope, along, shift, mean = self._factors
        centred = wide(input) - mean
        result = torch.addcmul(shift, centred, along, out=centred)
        if gradient is not None:
            result.addcmul_(wide(gradient), slope)
        return result.to(input.dtype)


def wide(tensor: Tensor) -> Tensor:
    """A tensor of low precision in float32, in which its sums are taken."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def _over_ranks(own: Moments, world_size: int) -> list[Moments]:
    packed = torch.cat([own.mean, own.variance, own.mean.new_tensor([own.count])])
    parts = [torch.empty_like(packed) for _ in range(world_size)]
    dist.all_gather(parts, packed)
    channels = len(own.mean)
    return [Moments(int(part[-1]), part[:channels], part[channels:-1]) for part in parts]
