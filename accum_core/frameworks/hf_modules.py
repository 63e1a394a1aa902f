"""The modules that a user of the Trainer writes, data that is iterable and has a length, and an end in mid-window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils.data import IterableDataset
from transformers import TrainerCallback

from accum_core.frameworks.contract import Sample, Task


class Own(nn.Module):
    """A module as the Trainer wants one: its forward takes the batch's entries and gives the loss."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.network, self.loss = task.model, task.loss

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.network(inputs)
        return {"loss": self.loss(logits, labels), "logits": logits}


class TakesAnything(Own):
    """The same with ``**kwargs``, which says to the Trainer that the loss will be divided here."""

    def forward(self, inputs: Tensor, labels: Tensor, **kwargs: Any) -> dict[str, Tensor]:
        return super().forward(inputs, labels)


class DividesByItems(Own):
    """The same, and it does divide here."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.total = task.total

    def forward(
        self, inputs: Tensor, labels: Tensor, num_items_in_batch: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Tensor]:
        logits = self.network(inputs)
        if num_items_in_batch is None:
            return {"loss": self.loss(logits, labels), "logits": logits}
        return {"loss": self.total(logits, labels) / num_items_in_batch, "logits": logits}


class NoLoss(nn.Module):
    """A module that leaves the loss to ``compute_loss_func``."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.network = task.model

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        return {"logits": self.network(inputs)}


MODULES = {"kwargs_ignored": TakesAnything, "kwargs_used": DividesByItems, "loss_func": NoLoss}


class SizedStream(IterableDataset[Sample]):
    """Samples one after the other, whose number is known."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Sample]:
        """From the first sample on."""
        return iter(self.samples)

    def __len__(self) -> int:
        return len(self.samples)


class Interrupted(Exception):
    """What ends a process in the middle of a training."""


class Interrupt(TrainerCallback):
    """Ends a training after some micro-batches, inside a window."""

    def __init__(self, after: int) -> None:
        self.left = after

    def on_substep_end(self, *_: Any, **__: Any) -> None:
        """After a micro-batch that no update follows."""
        self.left -= 1
        if self.left == 0:
            raise Interrupted

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """After one that an update follows."""
        self.left -= 1
