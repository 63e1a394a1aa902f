"""Losses as sums and weights, so that a window can be divided by what it holds.

An objective is a sum of named terms, ``coefficient * sum_i / weight`` each. A term's weight comes from the targets
alone, so a window's total weight is known before its first backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

Predict = Callable[[Tensor], Tensor]


class Objective(Protocol):
    """What ``accumulate_gradients`` asks of a loss."""

    @property
    def coefficients(self) -> Mapping[str, float]:
        """The factor on each term's weighted mean, by the term's name."""
        ...

    def weights(self, targets: Tensor) -> Mapping[str, float]:
        """What each term's mean divides by, from the targets ``[M, ...]`` of one micro-batch alone."""
        ...

    def sums(self, model: Predict, inputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """Each term's loss summed over the micro-batch, a scalar tensor with its graph."""
        ...


class CrossEntropy:
    """Cross-entropy over classes; its mean divides by the valid labels, or by their class weights.

    Logits are ``[M, C]`` with targets ``[M]``, ``[M, C, H, W]`` with ``[M, H, W]`` (pixels), or ``[M, T, C]`` with
    ``[M, T]`` (tokens). Exact under accumulation for every split of a window.

    Args:
        ignore_index: label that adds nothing to the sum and nothing to the weight.
        class_weights: ``[C]``; the weight of a label is its class's, as in ``torch.nn.CrossEntropyLoss``.
    """

    coefficients: Mapping[str, float] = MappingProxyType({"cross_entropy": 1.0})

    def __init__(self, ignore_index: int = -100, class_weights: Tensor | None = None) -> None:
        self.ignore_index = ignore_index
        self.class_weights = class_weights

    def weights(self, targets: Tensor) -> dict[str, float]:
        """Valid labels of ``targets``, or the sum of their class weights."""
        valid = targets != self.ignore_index
        if self.class_weights is None:
            return {"cross_entropy": float(torch.count_nonzero(valid))}
        return {"cross_entropy": self.class_weights.double().to(targets.device)[targets[valid]].sum().item()}

    def sums(self, model: Predict, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """The summed cross-entropy of the micro-batch; 0, with a graph, when no label is valid."""
        logits = model(inputs)
        if logits.ndim == 3:
            logits, targets = logits.flatten(0, 1), targets.flatten()
        class_weights = None if self.class_weights is None else self.class_weights.to(logits)
        total = F.cross_entropy(logits, targets, class_weights, ignore_index=self.ignore_index, reduction="sum")
        return {"cross_entropy": total}


def window_loss(sums: Mapping[str, float], weights: Mapping[str, float], coefficients: Mapping[str, float]) -> float:
    """The window's loss from its summed terms: sum over terms of coefficient * sum / weight (0 for a weight of 0)."""
    return sum(coefficients[name] * (sums[name] / weights[name] if weights[name] else 0.0) for name in sums)


def mean_loss(objective: Objective, model: Predict, inputs: Tensor, targets: Tensor) -> Tensor:
    """The objective of one batch as a scalar tensor with its graph, each term divided by the batch's own weight."""
    weights = objective.weights(targets)
    sums = objective.sums(model, inputs, targets)
    terms = [objective.coefficients[name] * total / weights[name] for name, total in sums.items() if weights[name]]
    return torch.stack(terms).sum() if terms else torch.stack([0.0 * total for total in sums.values()]).sum()
