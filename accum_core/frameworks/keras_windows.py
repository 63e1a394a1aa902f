"""What makes a window right in the mended loop of ``keras_fit``: a weight for each label, and the window's loss."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "torch"  # read when keras is imported

from collections.abc import Iterator
from itertools import islice
from typing import Any

import keras
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from accum_core.frameworks import plain
from accum_core.frameworks.contract import Task


class Shares(IterableDataset[Any]):
    """Micro-batches with a weight a label: N over the weight of the window, as the optimizer divides by N.

    A short window is filled up with labels of weight 0, for the optimizer steps at every N-th micro-batch alone.

    Args:
        task: what to train.
        skipped: micro-batches of the first epoch that were seen before an interruption.
    """

    def __init__(self, task: Task, skipped: int) -> None:
        self.task = task
        self.skipped = skipped

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        yield from islice(self.epoch(), self.skipped, None)
        self.skipped = 0

    def epoch(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """All of them, over several ranks those of this one."""
        settings, steps = self.task.settings, self.task.settings.accumulation_steps
        batches = iter(plain.loader(self.task, dealt=True))
        while window := list(islice(batches, steps)):
            own = sum(self.task.weight(batch["labels"]) for batch in window)
            weight = torch.tensor(own, dtype=torch.float64)
            if settings.world_size > 1:
                torch.distributed.all_reduce(weight)
                weight /= settings.world_size  # DistributedDataParallel takes the mean of the ranks' gradients
            for number in range(steps):
                batch = window[min(number, len(window) - 1)]
                share = steps / weight.item() if number < len(window) else 0.0
                weights = torch.full(batch["labels"].shape, share, dtype=torch.float64) * batch.get("weights", 1.0)
                yield batch["inputs"], batch["labels"], weights


class WindowLosses(keras.callbacks.Callback):
    """The loss of each window: its metric is begun anew with the first micro-batch and read after the last."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.losses: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Forget the window before."""
        if batch % self.steps == 0:
            self.model.reset_metrics()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keep the mean over the window."""
        if (batch + 1) % self.steps == 0:
            self.losses.append(float(logs["loss"]))
