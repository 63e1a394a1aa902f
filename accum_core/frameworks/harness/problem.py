"""What a framework is to train: a network, its samples, and the mathematics of its loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from accum_core.conformance.cases import Settings
from accum_core.frameworks.contract import Batch, Sample, Task


@dataclass(frozen=True, slots=True)
class Problem:
    """One network, its data and its loss, as a sum over samples and the weight that its mean divides by.

    A file with kinds of its own gives one for each (``problem(kind, case)``). The loss of a batch is
    ``batch_total(model, batch) / batch_weight(batch) + beside(model, batch)``; whatever the batch's model needs (an
    attention mask, say) is in the samples beside ``inputs`` and ``labels``.

    Attributes:
        settings: of the case.
        build: the network with its initial weights, the same at each call, in float64 and in training mode.
        samples: in the order of an epoch.
        collate: samples to a batch.
        loss, total, weight: as in ``Task``, of logits and labels.
        batch_total: the summed loss of a batch, a scalar with its graph; of logits and labels by default.
        batch_weight: what its mean divides by; of the labels by default.
        beside: a part of the loss that is a mean over the batch already and no sum over samples, such as a mixture's
            load-balancing loss; its coefficient is in it.
        rounding: relative error of the gradient that the network's own passes bring in, such as a head's that computes
            its loss in float32 whatever the parameters' type.
        counts: other counts of a batch by which a framework may divide, by the name that the formula then has.
    """

    settings: Settings
    build: Callable[[], nn.Module]
    samples: Sequence[Sample]
    collate: Callable[[Sequence[Sample]], Batch]
    loss: Callable[[Tensor, Tensor], Tensor]
    total: Callable[[Tensor, Tensor], Tensor]
    weight: Callable[[Tensor], float]
    batch_total: Callable[[nn.Module, Batch], Tensor] | None = None
    batch_weight: Callable[[Batch], float] | None = None
    beside: Callable[[nn.Module, Batch], Tensor] | None = None
    counts: Mapping[str, Callable[[Batch], float]] = field(default_factory=dict)
    rounding: float = 0.0

    def sum_of(self, model: nn.Module, batch: Batch) -> Tensor:
        """The summed loss of a batch, a scalar with its graph."""
        if self.batch_total is not None:
            return self.batch_total(model, batch)
        return self.total(model(batch["inputs"]), batch["labels"])

    def weight_of(self, batch: Batch) -> float:
        """What the mean of a batch divides by."""
        return self.weight(batch["labels"]) if self.batch_weight is None else self.batch_weight(batch)

    def task(self, folder: Path, *, kind: str, case: str, rank: int = 0) -> Task:
        """A new task; under bfloat16 with parameters and inputs in float32, as autocast has them."""
        model, samples = self.build(), self.samples
        if self.settings.precision == "bfloat16":
            model, samples = model.float(), [{name: _single(value) for name, value in s.items()} for s in samples]
        return Task(
            settings=self.settings,
            model=model,
            samples=samples,
            collate=self.collate,
            loss=self.loss,
            total=self.total,
            weight=self.weight,
            folder=folder,
            rank=rank,
            kind=kind,
            case=case,
        )


def _single(value: Tensor) -> Tensor:
    return value.float() if value.is_floating_point() else value


def seeded(build: Callable[[], nn.Module], seed: int = 0) -> Callable[[], nn.Module]:
    """``build`` under a seed, in float64 and in training mode: the same weights at each call."""

    def built() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return build().double().train()

    return built
