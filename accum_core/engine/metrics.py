"""Segmentation quality from a confusion matrix."""

from __future__ import annotations

import torch
from torch import Tensor


def confusion(predictions: Tensor, targets: Tensor, num_classes: int, ignore_index: int = -100) -> Tensor:
    """Counts of valid pixels, int64 ``[classes, classes]``: row = target, column = prediction.

    Args:
        predictions, targets: class indices of equal shape.
    """
    valid = targets != ignore_index
    cells = targets[valid] * num_classes + predictions[valid]
    return torch.bincount(cells, minlength=num_classes**2).view(num_classes, num_classes)


def class_iou(matrix: Tensor) -> Tensor:
    """Intersection over union of each class, float64 ``[classes]``; NaN where a class is in neither map."""
    matrix = matrix.double()
    intersection = matrix.diagonal()
    return intersection / (matrix.sum(0) + matrix.sum(1) - intersection)


def pixel_accuracy(matrix: Tensor) -> float:
    """Share of valid pixels whose class is right; NaN without valid pixels."""
    matrix = matrix.double()
    return (matrix.diagonal().sum() / matrix.sum()).item()
