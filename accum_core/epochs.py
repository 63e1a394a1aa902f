"""A run's records put together by epoch, so that runs of unequal batches can be drawn beside one another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from accum_core.records import UpdateRecord


class EpochLoss(NamedTuple):
    """One epoch of a run.

    Attributes:
        epoch: counted from 1.
        update: the last one of it.
        loss: mean of its windows' losses before their steps, each by its samples.
    """

    epoch: int
    update: int
    loss: float


def epoch_losses(records: Sequence[UpdateRecord]) -> list[EpochLoss]:
    """The training loss of each epoch, by rising epoch; a window counts to the epoch that it began in.

    Args:
        records: of a whole run, from its first update on.
    """
    sums: dict[int, tuple[int, int, float]] = {}
    seen = 0
    for record in records:
        samples, seen = record.samples - seen, record.samples
        _, weight, total = sums.get(record.epoch, (0, 0, 0.0))
        sums[record.epoch] = record.update, weight + samples, total + samples * record.loss
    return [EpochLoss(epoch + 1, update, total / weight) for epoch, (update, weight, total) in sorted(sums.items())]
