"""Cross-entropy over classes, pixels or tokens."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional as F

from accum_core.engine.objectives.objective import Predict
from accum_core.errors import SettingError


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
        """Valid labels of ``targets``, or the sum of their class weights.

        Raises:
            SettingError: for targets that are shares of classes and no labels.
        """
        if targets.is_floating_point():
            remedy = "are no labels; give class numbers, or an objective of your own for soft labels"
            raise SettingError("targets", str(targets.dtype), remedy)
        valid = targets != self.ignore_index
        if self.class_weights is None:
            return {"cross_entropy": float(torch.count_nonzero(valid))}
        return {"cross_entropy": self.class_weights.double().to(targets.device)[targets[valid]].sum().item()}

    def sums(self, model: Predict, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """The summed cross-entropy of the micro-batch; 0, with a graph, when no label is valid."""
        logits = model(inputs)
        if logits.dtype in (torch.float16, torch.bfloat16):
            logits = logits.float()  # a sum over pixels passes the largest float16, 65504, soon
        if logits.ndim == 3:
            logits, targets = logits.flatten(0, 1), targets.flatten()
        class_weights = None if self.class_weights is None else self.class_weights.to(logits)
        total = F.cross_entropy(logits, targets, class_weights, ignore_index=self.ignore_index, reduction="sum")
        return {"cross_entropy": total}
