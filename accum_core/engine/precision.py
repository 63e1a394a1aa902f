"""Number types of a window: what the passes compute in, what the gradients are summed in, and the loss's scale."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn

UNCHANGED = nullcontext()
LOW = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Precision:
    """How a window is computed.

    Args:
        autocast: type of the forward passes under ``torch.autocast``; None leaves the model's own.
        accumulators: gradients of bfloat16 and float16 parameters are summed over the window in this type and rounded
            once, at its end. bfloat16 keeps 8 bits: 1 and then 1000 times 0.001 stay 1.0 there, and are 2.0 in float32
            (tests/test_precision.py). None sums in the parameters' own type.
        loss_scale: factor on every term before its backward pass, of a GradScaler; it stays in ``.grad``.
    """

    autocast: torch.dtype | None = None
    accumulators: torch.dtype | None = torch.float32
    loss_scale: float = 1.0

    def forward(self, device: torch.device) -> AbstractContextManager[object]:
        """The context of the forward passes."""
        return UNCHANGED if self.autocast is None else torch.autocast(device.type, self.autocast)

    def widened(self, parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        """The trainable parameters whose gradients are summed in another type than their own."""
        if self.accumulators is None:
            return []
        return [
            parameter
            for parameter in parameters
            # One whose gradients are kept in the wider type anyway, by its owner's choice, stays so.
            if parameter.requires_grad and parameter.dtype in LOW and parameter.grad_dtype == parameter.dtype
        ]


def widen(parameters: Iterable[nn.Parameter], accumulators: torch.dtype | None) -> None:
    """Have autograd sum into ``.grad`` of ``widened`` parameters in the wider type; the gradients must be None."""
    for parameter in parameters:
        parameter.grad_dtype = accumulators


def narrow(parameters: Iterable[nn.Parameter]) -> None:
    """Round the sums to the parameters' own types, which optimizers need, and have the next ones in them again."""
    for parameter in parameters:
        gradient, parameter.grad = parameter.grad, None
        parameter.grad_dtype = parameter.dtype
        if gradient is not None:
            parameter.grad = gradient.to(parameter.dtype)
