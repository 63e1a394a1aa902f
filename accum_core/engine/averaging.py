"""An exponential moving average of the weights, moved once an update."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from accum_core.errors import SettingError

_HALF = (torch.float16, torch.bfloat16)


class WeightAverage(AveragedModel):
    """The average e of a model's parameters w: e_1 = w_1 after update 1, then e_k = d e_(k-1) + (1 - d) w_k.

    torch's ``AveragedModel`` with three differences. Parameters in half precision are averaged in float32, where the
    small share 1 - d of a change is not rounded away. The buffers are averaged like the parameters, because running
    statistics of BatchNorm that belong to the present weights do not fit the averaged ones; but what is no statistic
    is copied: integers (BatchNorm's count of batches), which would be rounded down at each move, and infinite entries
    (of attention masks), whose average is not a number. And a model of another structure is refused, where
    torch would pair its tensors wrongly in silence.

    Call ``update_parameters(model)`` after each update: the average counts updates, so it does not depend on N
    (tests/test_averaging.py). ``module`` is the averaged network, ``n_averaged`` the moves so far, and ``state_dict``
    holds both.

    Args:
        model: the network in training, bare (not wrapped for several ranks); its weights now are where it starts.
        decay: d, at least 0 and below 1.
        warmup: use min(d, (1 + n) / (10 + n)) after n moves, so that a short run's average is not its first weights;
            as the ``num_updates`` of TensorFlow's ``tf.train.ExponentialMovingAverage``.

    Raises:
        SettingError: for a decay outside [0, 1); by ``update_parameters``, for a model of another structure.
    """

    def __init__(self, model: nn.Module, decay: float = 0.999, *, warmup: bool = False) -> None:
        if not 0 <= decay < 1:
            raise SettingError("decay", decay, "must be at least 0 and below 1")

        def move(averaged: list[Tensor], present: list[Tensor], moves: Tensor) -> None:
            made = int(moves) if warmup else 0
            kept = min(decay, (1 + made) / (10 + made)) if warmup else decay
            get_ema_multi_avg_fn(kept)(averaged, present, moves)

        super().__init__(model, multi_avg_fn=move, use_buffers=True)  # type: ignore[arg-type]
        self.requires_grad_(False)
        self.module._apply(_widened)

    def update_parameters(self, model: nn.Module) -> None:
        """Move the average towards the model's weights; nothing of the model is changed."""
        if _structure(model) != _structure(self.module):
            raise SettingError(
                "model",
                type(model).__name__,
                "its parameters and buffers are not those that the average began with; change `module` as well",
            )
        super().update_parameters(cast(nn.Module, _InFloat32(model)))
        for averaged, present in zip(self.module.buffers(), model.buffers(), strict=True):
            if averaged.is_floating_point():
                averaged.copy_(torch.where(averaged.isfinite(), averaged, present))
            else:
                averaged.copy_(present)


class _InFloat32:
    """What ``AveragedModel`` asks of a model, with its tensors in half precision as float32."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def parameters(self) -> Iterator[Tensor]:
        return map(_widened, self._model.parameters())

    def buffers(self) -> Iterator[Tensor]:
        return map(_widened, self._model.buffers())


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in _HALF else tensor


def _structure(model: nn.Module) -> list[tuple[str, torch.Size]]:
    return [(name, tensor.shape) for part in (model.named_parameters(), model.named_buffers()) for name, tensor in part]
