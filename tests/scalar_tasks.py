"""Tasks for frameworks whose gradients are known by hand: weights w, and the loss of a value x is w * x."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from accum_core.conformance.cases import Settings
from accum_core.frameworks.contract import Sample, Task

IGNORED = -100


class Scalars(nn.Module):
    """Inputs ``[M, T, D]`` to logits ``[M, T]``, each the product with the weights ``[D]``."""

    def __init__(self, weights: Sequence[float]) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.tensor(weights, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.weights


def scalar_task(
    samples: Sequence[Sequence[Any]], folder: Path, *, start: Sequence[float] = (0.0,), **settings: Any
) -> Task:
    """A sample is its values, each a number or a vector; None is a value whose label is ignored.

    The mean loss divides by the values that are not ignored. Samples of a micro-batch have as many values.
    """
    return Task(
        settings=Settings(**{"micro_batch_size": 1, "learning_rate": 1.0} | settings),
        model=Scalars(start),
        samples=[_sample(values, len(start)) for values in samples],
        collate=lambda chosen: {name: torch.stack([one[name] for one in chosen]) for name in ("inputs", "labels")},
        loss=lambda logits, labels: _total(logits, labels) / (labels != IGNORED).sum(),
        total=_total,
        weight=lambda labels: float((labels != IGNORED).sum()),
        folder=folder,
    )


def _sample(values: Sequence[Any], width: int) -> Sample:
    vectors = [torch.as_tensor(0.0 if value is None else value, dtype=torch.float64) for value in values]
    labels = [IGNORED if value is None else 0 for value in values]
    return {
        "inputs": torch.stack([vector.expand(width) for vector in vectors]),
        "labels": torch.tensor(labels),
    }


def _total(logits: Tensor, labels: Tensor) -> Tensor:
    return torch.where(labels == IGNORED, 0.0, logits).sum()


def moved(task: Task) -> list[float]:
    """The weights, that is, minus the rate times the sum of the gradients of all updates."""
    weights: list[float] = next(iter(task.model.parameters())).tolist()
    return weights
