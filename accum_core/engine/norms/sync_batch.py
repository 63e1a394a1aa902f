"""BatchNorm whose statistics run over all samples of a window, and over all ranks: exact under accumulation.

y = (x - mean) / sqrt(var + eps) * weight + bias with mean and variance over the window's samples and their pixels,
where BatchNorm takes those of one micro-batch (Ioffe and Szegedy 2015, arXiv 1502.03167). The running statistics move
once a window, as those of one large batch. docs/sync_batch_norm.md has the mathematics.

Exact for any split: gradients and running statistics are those of BatchNorm over one batch of all samples
(tests/test_sync_batch.py). A window's passes wait for one another at each layer, which ``accumulate_gradients`` does
by itself for a model that holds such layers, and ``accum_core.engine.lockstep.in_step`` for a loop of one's own.
Outside of a window a layer is plain BatchNorm over what it is given; in evaluation mode it uses running statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, Protocol, get_args

import torch
from torch import Size, Tensor, nn

from accum_core.engine.channels import ChannelSource
from accum_core.engine.norms import batch
from accum_core.errors import SettingError
from accum_core.run_config import Offload

TITLE = "BatchNorm over the window"
SUMMARY = "over the samples of all micro-batches of a window, exactly"
ORDER = 17
BATCH_INDEPENDENT = False
EXACT_UNDER_ACCUMULATION = True
OPTIONS = {"offload": "offload"}
IN_A_PASS: Final = ContextVar("whether a pass of a window in step runs here", default=False)


class InStep(Protocol):
    """A window whose passes run in step, as its layers see it."""

    def waits(self) -> bool:
        """Whether a layer that is called now belongs to a pass of this window."""
        ...

    def normalise(self, layer: WindowBatchNorm, input: Tensor) -> Tensor:
        """The layer's output ``[M, C, ...]`` by the statistics of all passes."""
        ...


class WindowBatchNorm(batch.BatchNormVariant):
    """BatchNorm over the window that it is part of.

    Attributes:
        offload: where a window keeps what its backward pass needs.
        window: gives the one that runs or, while its graph is there, ran last; a copy of the layer belongs to none.
    """

    def __init__(
        self, num_features: int, eps: float, momentum: float | None, track_running_stats: bool, offload: Offload
    ) -> None:
        super().__init__(num_features, eps, momentum, track_running_stats)
        self.offload: Offload = offload
        self.window: Callable[[], InStep | None] = _none

    def forward(self, input: Tensor) -> Tensor:
        """Normalise ``[M, C, ...]``.

        Raises:
            SettingError: in a pass of a window in step that this layer is no part of.
        """
        window = self.window()
        if not (self.training or self.running_mean is None):
            return super().forward(input)
        if window is None or not window.waits():
            if IN_A_PASS.get():
                remedy = "layer is in no model that in_step was given; give it one that holds all that a pass calls"
                raise SettingError("norm", "sync_batch", remedy)
            return super().forward(input)
        self._check_input_dim(input)
        return window.normalise(self, input)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "window": _none}

    def move(self, mean: Tensor, variance: Tensor) -> None:
        """Move the running statistics by those of one window: ``mean``, and ``variance`` without bias, both [C]."""
        if not self.training or self.running_mean is None or self.running_var is None:
            return
        with torch.no_grad():
            rate = self.momentum
            if self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(1)
                rate = 1 / self.num_batches_tracked.item() if rate is None else rate
            self.running_mean.lerp_(mean.to(self.running_mean), rate or 0.0)
            self.running_var.lerp_(variance.to(self.running_var), rate or 0.0)


def _none() -> None:
    """No window."""


def build(source: ChannelSource, offload: Offload = "host") -> nn.Module:
    """BatchNorm over the window, with the source's running statistics and plain momentum if it is a BatchNorm.

    Args:
        offload: where a window keeps what its backward pass needs: ``host``, so that the device holds one
            micro-batch's work; ``recompute``, on the host too, but for what is cheap to compute again; ``none``, on the
            device, which then holds what one batch of all samples needs.

    Raises:
        SettingError: for an unknown place.
    """
    if offload not in get_args(Offload):
        raise SettingError("offload", offload, f"use one of {', '.join(get_args(Offload))}")
    momentum, tracks = batch.plain_settings(source.module)
    layer = WindowBatchNorm(source.channels, source.eps, momentum, tracks, offload)
    return batch.with_statistics(layer, source)


def owns(module: nn.Module) -> bool:
    """Whether the layer is of this kind."""
    return isinstance(module, WindowBatchNorm)


def failure(module: nn.Module, shape: Size, training: bool) -> str | None:
    """None: one sample of one pixel has the rest of its window, which the micro-batch's shape does not tell."""
    return None


def convert(model: nn.Module, offload: Offload = "host") -> nn.Module:
    """Turn every channel normalisation of a model into this one, as ``convert_norms(model, "sync_batch")`` does."""
    from accum_core.engine.normalization import convert_norms  # it imports every kind of norm

    return convert_norms(model, "sync_batch", offload=offload)
