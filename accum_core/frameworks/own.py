"""Our own loop: windows of a loader, an objective that says what its mean divides by, and an updater."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from accum_core.engine import Precision, Updater, windows
from accum_core.engine.accumulate import MicroBatch
from accum_core.engine.norms import sync_batch
from accum_core.engine.objectives.objective import Predict
from accum_core.engine.window import Accumulation
from accum_core.frameworks import plain
from accum_core.frameworks.contract import Outcome, Task
from accum_core.reduction import LossReduction

NAME = "accum_core"
TITLE = "our own loop"
DISTRIBUTION = ""
ORDER = 0


class TaskLoss:
    """The task's loss as an objective: a sum, and the weight that its mean divides by."""

    coefficients = MappingProxyType({"loss": 1.0})

    def __init__(self, task: Task) -> None:
        self.task = task

    def weights(self, targets: Tensor) -> dict[str, float]:
        """Of the labels of one micro-batch."""
        return {"loss": self.task.weight(targets)}

    def sums(self, model: Predict, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Of one micro-batch."""
        return {"loss": self.task.total(model(inputs), targets)}


def train(task: Task) -> Outcome:
    """The README's loop: cut the loader into windows, and make an update of each."""
    settings = task.settings
    if settings.stop_after:
        return interrupted(task, settings.stop_after)
    model: nn.Module = sync_batch.convert(task.model)
    if settings.world_size > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
    optimizer = plain.optimizer(task)
    updater = Updater(model, optimizer, scheduler=plain.scheduler(task, optimizer), clip_norm=settings.clip_norm)
    autocast = torch.bfloat16 if settings.precision == "bfloat16" else None
    losses = []
    for _ in range(settings.epochs):
        for window in windows(micro_batches(task), settings.accumulation_steps):
            update = updater.update(window, TaskLoss(task), world_size=settings.world_size, autocast=autocast)
            losses.append(update.window.loss)
    return Outcome(logged=losses)


def micro_batches(task: Task) -> Iterator[MicroBatch]:
    """One epoch's inputs and labels; of several ranks each takes every so many samples."""
    own = task.samples[task.rank :: task.settings.world_size]
    return ((batch["inputs"], batch["labels"]) for batch in plain.loader(replace(task, samples=own)))


def interrupted(task: Task, stop_after: int) -> Outcome:
    """A training that ends after some micro-batches, inside a window, and goes on from its checkpoint."""
    file = task.folder / "checkpoint.pt"
    one_life(task, file, stop_after)
    for parameter in task.model.parameters():
        parameter.grad = None  # a new process has none
    return Outcome(logged=one_life(task, file))


def one_life(task: Task, file: Path, stop_after: int | None = None) -> list[float]:
    """One process's part of an epoch; what it leaves is the weights, the updater, and the window it was in."""
    steps = task.settings.accumulation_steps
    losses: list[float] = []
    optimizer = plain.optimizer(task)
    updater = Updater(task.model, optimizer, scheduler=plain.scheduler(task, optimizer))
    inside = None
    if file.exists():
        saved = torch.load(file)
        task.model.load_state_dict(saved["model"])
        updater.load_state_dict(saved["updater"])
        inside = saved["window"]
    for window in islice(windows(micro_batches(task), steps), updater.updates, None):
        passes = Accumulation(task.model, window, TaskLoss(task), LossReduction(), precision=Precision())
        if inside is not None:
            passes.load_state_dict(inside)
            inside = None
        while passes.left:
            passes.advance()
            if updater.updates * steps + passes.index == stop_after:
                state = {"model": task.model.state_dict(), "updater": updater.state_dict()}
                torch.save(state | {"window": passes.state_dict()}, file)
                return losses
        losses.append(updater.step(passes.finish()).window.loss)
    return losses
