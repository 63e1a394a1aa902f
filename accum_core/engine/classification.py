"""Quality of a classifier on held-out samples."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn
from torch.nn import functional as F

from accum_core.records import Validation


def validate(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Validation:
    """Share of wrong samples and mean cross-entropy; call in evaluation mode without gradients.

    Args:
        model: gives logits ``[M, classes]``.
        batches: inputs ``[M, ...]`` and class indices ``[M]``, on the CPU; at least one sample in all.
    """
    first = next(model.parameters())
    wrong, loss, samples = 0, 0.0, 0
    for inputs, targets in batches:
        logits, targets = model(inputs.to(first)), targets.to(first.device)
        loss += F.cross_entropy(logits, targets, reduction="sum").item()
        wrong += int((logits.argmax(1) != targets).sum().item())
        samples += len(targets)
    return Validation(error=wrong / samples, loss=loss / samples)
