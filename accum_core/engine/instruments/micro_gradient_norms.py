"""L2 norm of what each micro-batch adds to the window's gradient, and what of the window's weight it has.

The shares add up to the accumulated gradient; with equal weights, N times a share is the gradient of that
micro-batch's own mean loss. From these ``accum_core.noise_scale`` estimates the gradient noise scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accum_core.engine.instrument import Instrument, Window
from accum_core.engine.norm_layers import norm_layers, runs_in_step
from accum_core.engine.sample_weights import sample_weights

TITLE = "Micro-batch gradient norms"


class MicroGradientNorms(Instrument):
    """Fields, all of the micro-batches that this rank passes:

    ``norms``, one a micro-batch; none for a model whose passes run in step, with one backward pass for all.
    ``window_norm``, of their sum; penalties are not in it.
    ``samples`` of the window, and ``effective_samples``: (sum u)^2 / sum u^2 over the weights u of its samples.
    ``weights``: each micro-batch's part of the window's weight. It and ``effective_samples`` are None where there is no
    one weight: in a loss whose samples meet, or of several terms that weigh samples differently.
    ``across``: the first layer that looks across samples, if any: micro-batch gradients do not estimate the window's.
    """

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
        self._norms.append(_norm(steps))
        self._previous = [gradient.clone() for gradient in present]

    def measure(self, window: Window) -> dict[str, Any]:
        """The norms of this window's micro-batches, in their order, and what they weigh."""
        norms = (torch.stack([*self._norms, _norm(self._previous)]) / window.loss_scale).tolist()
        self._previous = []
        samples = [sample for _, targets in window.micro_batches for sample in targets.split(1)]
        weights = sample_weights(window.objective, samples)
        ends = np.cumsum([len(inputs) for inputs, _ in window.micro_batches])
        parts = effective = None
        if weights is not None:
            total = weights.sum()
            parts = [float(part.sum() / total) for part in np.split(weights, ends[:-1])]
            effective = float(total**2 / np.square(weights).sum())
        across = next((layer.name for layer in norm_layers(window.model) if layer.across), None)
        return {
            "norms": [] if runs_in_step(window.model) else norms[:-1],
            "window_norm": norms[-1],
            "samples": int(ends[-1]),
            "weights": parts,
            "effective_samples": effective,
            "across": across,
        }


def _norm(parts: Sequence[Tensor]) -> Tensor:
    norm: Tensor = torch.stack([part.double().norm() for part in parts]).norm()
    return norm


def create() -> Instrument:
    """A new instrument for micro-batch gradients."""
    return MicroGradientNorms()
