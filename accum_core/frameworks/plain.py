"""What a user of PyTorch brings to a framework that does not make it: the loader, the optimizer and the schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from itertools import islice
from typing import Any

import torch
from torch import distributed as dist
from torch import nn, optim
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import DataLoader, IterableDataset

from accum_core.frameworks.contract import Outcome, Sample, Task


class Stream(IterableDataset[Sample]):
    """The samples one after the other; nobody knows how many will come."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Sample]:
        """From the first sample on."""
        return iter(self.samples)


def loader(
    task: Task, kind: type[DataLoader[Any]] = DataLoader, *, dealt: bool = False, drop_last: bool = False
) -> DataLoader[Any]:
    """Micro-batches in the order of the samples; the last one may be smaller, unless ``drop_last`` leaves it out.

    ``dealt``: of this rank's samples alone, every world-size-th of all of them, none twice.
    """
    samples = task.samples[task.rank :: task.settings.world_size] if dealt else task.samples
    source: Any = samples if task.settings.sized else Stream(samples)
    return kind(source, batch_size=task.settings.micro_batch_size, collate_fn=task.collate, drop_last=drop_last)


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


def interrupted_in_an_epoch(task: Task, process: Callable[..., list[float]]) -> Outcome:
    """A process to the end, after one that was interrupted where the task has such; a new one has new weights."""
    if stop := task.settings.stop_after:
        new = deepcopy(task.model.state_dict())
        process(task, stop_after=stop)
        task.model.load_state_dict(new)
        task.model.zero_grad()
    return Outcome(logged=process(task))


def save_epoch(task: Task, optimizer: optim.Optimizer, schedule: ExponentialLR, epoch: int) -> None:
    """The checkpoint of a script that saves at the end of an epoch; written where an interruption is to come."""
    if task.settings.stop_after and task.rank == 0:
        parts: dict[str, Any] = {"model": task.model, "optimizer": optimizer, "scheduler": schedule}
        states = {name: part.state_dict() for name, part in parts.items()}
        torch.save(states | {"epoch": epoch}, task.folder / "last.pt")


def epochs_saved(task: Task, optimizer: optim.Optimizer, schedule: ExponentialLR) -> int:
    """Read what ``save_epoch`` wrote, if it did; the epoch to begin with."""
    file = task.folder / "last.pt"
    if not file.exists():
        return 0
    saved = torch.load(file)
    task.model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    schedule.load_state_dict(saved["scheduler"])
    return int(saved["epoch"]) + 1


def sums_over_windows(task: Task, model: nn.Module) -> Outcome:
    """The exact loop: each window is read ahead, and its sums are divided by what it holds, over all ranks."""
    settings = task.settings
    steps, optimized = settings.accumulation_steps, optimizer(task)
    schedule, logged = scheduler(task, optimized), []
    for _ in range(settings.epochs):
        batches = iter(loader(task, dealt=True))
        while window := list(islice(batches, steps)):
            weight = torch.tensor(sum(task.weight(batch["labels"]) for batch in window), dtype=torch.float64)
            summed = torch.zeros((), dtype=torch.float64)
            if settings.world_size > 1:
                dist.all_reduce(weight)
            for batch in window:
                with torch.autocast("cpu", torch.bfloat16, enabled=settings.precision == "bfloat16"):
                    total = task.total(model(batch["inputs"]), batch["labels"])
                (total * (settings.world_size / weight.item())).backward()  # ranks exchange means
                summed += total.detach()
            if settings.world_size > 1:
                dist.all_reduce(summed)
            if settings.clip_norm:
                nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
            optimized.step()
            schedule.step()
            optimized.zero_grad()
            logged.append((summed / weight).item())
    return Outcome(logged=logged)
