"""Which samples come in which window: a fresh order every epoch, the same for every split of the effective batch."""

from __future__ import annotations

import numpy as np

from accum_core.errors import SettingError
from accum_core.records import RunConfig


class WindowSampler:
    """Windows of sample indices, epoch after epoch.

    The order of an epoch depends on the seed and the epoch's number alone, so any position can be taken up again.

    Args:
        num_samples: samples in an epoch.
        drop_tail: leave out an epoch's last window when it is not full.
        seed: of the order.

    Attributes:
        epoch: epochs finished.
        position: samples of the present epoch already taken.
    """

    def __init__(self, num_samples: int, *, drop_tail: bool, seed: int) -> None:
        self.num_samples = num_samples
        self._drop_tail = drop_tail
        self._seed = seed
        self.epoch = 0
        self.position = 0

    def check(self, size: int) -> None:
        """Refuse windows of a size that no epoch holds.

        Raises:
            SettingError: naming the size and what an epoch holds.
        """
        if self._drop_tail and size > self.num_samples:
            raise SettingError(
                "effective_batch_size",
                size,
                f"is more than the {self.num_samples} training samples and the tail is dropped; "
                f"use at most {self.num_samples}, or tail = 'rescale'",
            )

    def windows_an_epoch(self, size: int) -> int:
        """Windows of a size in an epoch, the tail included where it is kept."""
        return self.num_samples // size if self._drop_tail else -(-self.num_samples // size)

    def tail(self, size: int) -> int:
        """Samples in an epoch's last window; those of a full window when nothing is left over or it is dropped."""
        return size if self._drop_tail or self.num_samples % size == 0 else self.num_samples % size

    def next(self, size: int) -> list[int]:
        """Indices of the next window's samples: ``size`` of them, fewer in the tail."""
        left = self.num_samples - self.position
        if left == 0 or (self._drop_tail and left < size):
            self.epoch, self.position = self.epoch + 1, 0
        order = np.random.default_rng((self._seed, self.epoch)).permutation(self.num_samples)
        indices: list[int] = order[self.position : self.position + size].tolist()
        self.position += len(indices)
        return indices


def micro_batch_sizes(config: RunConfig, sampler: WindowSampler, world_size: int) -> list[int]:
    """Micro-batch sizes that a run will meet: the usual one first, then those that close an epoch.

    Raises:
        SettingError: for windows that no epoch holds, or that do not divide among the ranks.
    """
    plans = [config.plan_at(update, world_size) for update in (1, *(made + 1 for made in config.milestones))]
    sizes = [plans[0].micro_batch_size]
    for plan in plans:
        sampler.check(plan.effective_batch_size)
        for rank in (0, world_size - 1):  # the largest and the smallest share
            tail = plan.share(rank, sampler.tail(plan.effective_batch_size))
            sizes += [part.stop - part.start for part in plan.slices(tail.stop - tail.start)[-1:]]
    return list(dict.fromkeys(sizes))
