"""Which samples come in which window: a fresh order every epoch, the same for every split of the effective batch."""

from __future__ import annotations

import numpy as np

from accum_core.batching import BatchPlan
from accum_core.errors import SettingError


class WindowSampler:
    """Windows of sample indices, epoch after epoch.

    The order of an epoch depends on the seed and the epoch's number alone, so any position can be taken up again.

    Args:
        num_samples: samples in an epoch.
        plan: its effective batch size is a window's length.
        drop_tail: leave out an epoch's last window when it is not full.
        seed: of the order.

    Raises:
        SettingError: when an epoch holds no window.

    Attributes:
        epoch: epochs finished.
        position: windows of the present epoch already taken.
    """

    def __init__(self, num_samples: int, plan: BatchPlan, *, drop_tail: bool, seed: int) -> None:
        self._windows = plan.windows(num_samples, drop_tail=drop_tail)
        self._num_samples = num_samples
        self._seed = seed
        self.epoch = 0
        self.position = 0
        if not self._windows:
            raise SettingError(
                "effective_batch_size",
                plan.effective_batch_size,
                f"is more than the {num_samples} training samples and the tail is dropped; "
                f"use at most {num_samples}, or tail = 'rescale'",
            )

    @property
    def windows_an_epoch(self) -> int:
        """Updates in an epoch."""
        return len(self._windows)

    @property
    def tail(self) -> int:
        """Samples in an epoch's last window; those of a full window when nothing is left over."""
        return len(self._windows[-1])

    def next(self) -> list[int]:
        """Indices of the next window's samples."""
        if self.position == len(self._windows):
            self.epoch, self.position = self.epoch + 1, 0
        order = np.random.default_rng((self._seed, self.epoch)).permutation(self._num_samples)
        window = self._windows[self.position]
        self.position += 1
        indices: list[int] = order[window.start : window.stop].tolist()
        return indices
