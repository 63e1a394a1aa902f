"""L2 norm of what each micro-batch adds to the window's gradient.

The shares add up to the accumulated gradient; with equal weights, N times a share is the gradient of that
micro-batch's own mean loss.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from accum_core.engine.instrument import Instrument, Window

TITLE = "Micro-batch gradient norms"


class MicroGradientNorms(Instrument):
    """Field: ``norms``, one a micro-batch."""

    def __init__(self) -> None:
        self._previous: list[Tensor] = []
        self._norms: list[Tensor] = []

    def after_micro_batch(self, window: Window, index: int) -> None:
        """Take what the gradient has grown by since the last micro-batch."""
        present = [parameter.grad for parameter in window.model.parameters() if parameter.grad is not None]
        if index == 0:
            self._norms = []
            self._previous = [torch.zeros_like(gradient) for gradient in present]
        steps = torch._foreach_sub(present, self._previous)
        self._norms.append(torch.stack([step.double().norm() for step in steps]).norm())
        self._previous = [gradient.clone() for gradient in present]

    def measure(self, window: Window) -> dict[str, Any]:
        """The norms of this window's micro-batches, in their order."""
        self._previous = []
        return {"norms": (torch.stack(self._norms) / window.loss_scale).tolist()}


def create() -> Instrument:
    """A new instrument for micro-batch gradients."""
    return MicroGradientNorms()
