"""What a user of PyTorch brings to a framework that does not make it: the loader, the optimizer and the schedule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import optim
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import DataLoader, IterableDataset

from accum_core.frameworks.contract import Sample, Task


class Stream(IterableDataset[Sample]):
    """The samples one after the other; nobody knows how many will come."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Sample]:
        """From the first sample on."""
        return iter(self.samples)


def loader(task: Task, kind: type[DataLoader[Any]] = DataLoader, *, dealt: bool = False) -> DataLoader[Any]:
    """Micro-batches in the order of the samples; the last one may be smaller.

    ``dealt``: of this rank's samples alone, every world-size-th of all of them, none twice.
    """
    samples = task.samples[task.rank :: task.settings.world_size] if dealt else task.samples
    source: Any = samples if task.settings.sized else Stream(samples)
    return kind(source, batch_size=task.settings.micro_batch_size, collate_fn=task.collate)


def optimizer(task: Task) -> optim.Optimizer:
    """Plain SGD or AdamW, as the settings say."""
    kind = optim.SGD if task.settings.optimizer == "sgd" else optim.AdamW
    made: optim.Optimizer = kind(
        task.model.parameters(), lr=task.settings.learning_rate, weight_decay=task.settings.weight_decay
    )
    return made


def scheduler(task: Task, steps: optim.Optimizer) -> ExponentialLR:
    """One that multiplies the rate by ``gamma`` at each step; by 1 where the rate stays."""
    return ExponentialLR(steps, task.settings.gamma or 1.0)
