"""PyTorch Lightning's Trainer: a LightningModule, and ``accumulate_grad_batches``."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler

from accum_core.frameworks import plain
from accum_core.frameworks.contract import Batch, Outcome, Task
from accum_core.frameworks.harness.own_problems import own_problem
from accum_core.frameworks.harness.problem import Problem
from accum_core.frameworks.harness.rank_problems import rank_problem

NAME = "lightning"
TITLE = "PyTorch Lightning Trainer"
DISTRIBUTION = "lightning"
ORDER = 40
KINDS = {
    "ranks": "a module and a loss of your own, on two ranks",
    "no_interval": "a schedule without an interval",
    "epoch_log": "a loss logged with on_epoch=True",
}
TOKENS, SHORT = ("unequal_tokens", "ignored_pixels", "class_weights"), ("short_window", "iterable", "n_above_epoch")
EXPLANATIONS = {
    **dict.fromkeys(TOKENS, "The mean of a micro-batch is divided by N, so that a label among few counts more."),
    **dict.fromkeys(SHORT, "An epoch's last micro-batch makes an update, but each mean was divided by the full N."),
    "ragged": "The mean of a micro-batch is divided by N, so that a smaller one counts as much as a full one.",
    "empty_micro_batch": "Without a label the mean is no number and its gradient in torch zero; the others' means are "
    "still divided by N.",
    "two_ranks": "Each rank adds up its means over N, and the exchange takes the mean over ranks.",
    "batch_norm": "Each pass normalises by its own micro-batch; sync_batchnorm shares that between ranks alone. Use "
    "layers that do not look across samples.",
    "resume": "The epoch goes on at the micro-batch that the checkpoint names, but a loader without state_dict and "
    "load_state_dict starts again from its first sample.",
    "logged_loss": "At an update the logger is given what self.log was last given: the mean of one micro-batch.",
    "ranks/ragged": "DistributedSampler deals samples out one by one, and each micro-batch's mean is divided by N, so "
    "that a smaller one counts as much as a full one.",
    "ranks/iterable": "Every rank passes all samples of an iterable data set, which nothing deals out.",
    "no_interval/schedule": "Where configure_optimizers names no interval, it is an epoch.",
    "epoch_log/logged_loss": "An epoch's value weighs each micro-batch's mean by its samples, not by its tokens.",
}
MENDS = {
    **dict.fromkeys(TOKENS, "Use manual optimization: add up sums, and divide the gradient by the window's weight."),
    **dict.fromkeys(SHORT, "Use manual optimization: divide by what the window holds, and step at is_last_batch too."),
    "ragged": "Use manual optimization: add up sums, and divide the gradient by the window's samples.",
    "empty_micro_batch": "Use manual optimization: add up sums, which are 0 here, and divide by the window's tokens.",
    "two_ranks": "Use manual optimization: add up sums, times the ranks, and divide by the tokens of all of them.",
    "resume": "Give a loader with state_dict and load_state_dict, and save at an update (every_n_train_steps).",
    "logged_loss": "Add up the window's sums, divide by its weight, and give that to the logger.",
    "ranks/ragged": "Set use_distributed_sampler=False, deal the samples out, and train on sums as on one rank.",
    "ranks/iterable": "Give a data set that yields its rank's samples alone, and train on sums as on one rank.",
    "no_interval/schedule": 'Return an lr_scheduler with "interval": "step".',
    "epoch_log/logged_loss": "Give self.log the tokens as batch_size; and train on sums, as for unequal tokens.",
}
DEFECTS = (
    (
        "A short last window is divided by N",
        "An epoch's last micro-batch makes an update, but each was divided by accumulate_grad_batches.",
        """
import lightning
import torch
from torch.utils.data import DataLoader

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
    def training_step(self, batch):
        return (self.weight * batch).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)

module = Module()
trainer = lightning.Trainer(accelerator="cpu", max_epochs=1, accumulate_grad_batches=2, logger=False, barebones=True)
trainer.fit(module, DataLoader(torch.tensor([1.0, 2.0, 3.0]), batch_size=1))
print(module.weight.item(), "instead of", -((1 + 2) / 2 + 3))
""",
    ),
    (
        "A schedule's frequency counts micro-batches",
        "Of an interval of steps, it is compared at each update with the micro-batches of the epoch.",
        """
import lightning
import torch
from torch.utils.data import DataLoader

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
    def training_step(self, batch):
        return (self.weight * batch).mean()
    def configure_optimizers(self):
        self.optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        halving = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5)
        return [self.optimizer], [{"scheduler": halving, "interval": "step", "frequency": 2}]

module = Module()
trainer = lightning.Trainer(accelerator="cpu", max_epochs=1, accumulate_grad_batches=4, barebones=True)
trainer.fit(module, DataLoader(torch.ones(16), batch_size=1))
print(module.optimizer.param_groups[0]["lr"], "instead of", 0.5 ** (4 // 2), "after 4 updates")
""",
    ),
)


def problem(kind: str, case: str) -> Problem | None:
    """The problem of a module of the user's: on two ranks, with a schedule, or with an epoch of one window."""
    own = own_problem(case)
    if kind == "ranks":
        return rank_problem(case)
    if kind == "no_interval" and case == "schedule":
        return own
    if kind == "epoch_log" and case == "logged_loss":
        return replace(own, settings=replace(own.settings, accumulation_steps=len(own.samples)))
    return None


class Module(lightning.LightningModule):
    """The user's network, its loss and its optimizer."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task
        self.model = task.model

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        """The mean loss of one micro-batch."""
        loss = self.task.loss(self.model(batch["inputs"]), batch["labels"])
        if self.task.kind == "epoch_log":
            self.log("loss", loss, on_step=False, on_epoch=True)
        else:
            self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> dict[str, Any]:
        """A schedule in updates; without an interval it would be one in epochs."""
        optimizer = plain.optimizer(self.task)
        schedule: dict[str, Any] = {"scheduler": plain.scheduler(self.task, optimizer)}
        if self.task.kind != "no_interval":
            schedule["interval"] = "step"
        return {"optimizer": optimizer, "lr_scheduler": schedule}


def train(task: Task) -> Outcome:
    """Automatic optimization; after an interruption it goes on from the checkpoint of the last update."""
    loader = plain.loader(task)
    if task.settings.world_size > 1 and task.settings.sized:
        # The one that the Trainer would make shuffles.
        sampler: DistributedSampler[Any] = DistributedSampler(
            loader.dataset, task.settings.world_size, task.rank, shuffle=False
        )
        loader = DataLoader(loader.dataset, loader.batch_size, sampler=sampler, collate_fn=task.collate)
    options = {
        "accumulate_grad_batches": task.settings.accumulation_steps,
        "gradient_clip_val": task.settings.clip_norm,
    }
    return fit(task, Module, lambda: loader, options)


class SummingModule(Module):
    """Use manual optimization: losses are summed, and the window's gradient is divided by the window's weight."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.automatic_optimization = False
        self.window = torch.zeros(2, dtype=torch.float64)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        """One micro-batch, and a step after the last one of a window."""
        settings = self.task.settings
        total = self.task.total(self.model(batch["inputs"]), batch["labels"])
        self.manual_backward(total)
        self.window += torch.tensor([total.item(), weight := self.task.weight(batch["labels"])], dtype=torch.float64)
        if self.task.kind == "epoch_log" and weight:
            self.log("loss", total / weight, on_step=False, on_epoch=True, batch_size=int(weight))
        if (batch_idx + 1) % settings.accumulation_steps and not self.trainer.is_last_batch:
            return None
        summed, weight = self.trainer.strategy.reduce(self.window, reduce_op="sum").tolist()
        optimizer = self.optimizers()
        if weight:
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad *= self.trainer.world_size / weight  # the exchange between ranks gave the mean
            self.clip_gradients(optimizer, settings.clip_norm, "norm")
            optimizer.step()
            self.lr_schedulers().step()
            if self.task.kind != "epoch_log":
                self.logger.log_metrics({"loss": summed / weight}, step=self.global_step)
        optimizer.zero_grad()
        self.window = torch.zeros(2, dtype=torch.float64)
        return None


class ResumableLoader(DataLoader[Any]):
    """A loader that a checkpoint can put back to where it was."""

    first = given = 0

    def __iter__(self) -> Any:
        self.given, self.first = self.first, 0
        for batch in islice(super().__iter__(), self.given, None):
            self.given += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """The micro-batches given in this epoch."""
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Leave those out that were given."""
        self.first = state["given"]


def train_mended(task: Task) -> Outcome:
    """Manual optimization, and a loader that can be resumed; for a schedule without an interval, that option."""
    if task.kind == "no_interval":
        return train(replace(task, kind="own"))
    return fit(task, SummingModule, lambda: plain.loader(task, ResumableLoader, dealt=True), {})


def fit(task: Task, module: type[Module], loader: Callable[[], DataLoader[Any]], options: dict[str, Any]) -> Outcome:
    """Train, with an interruption if the task has one."""
    checkpoint = None
    if task.settings.stop_after:
        saving = ModelCheckpoint(dirpath=task.folder, every_n_train_steps=1)
        interrupted = trainer(task, options, [saving, Interruption(task.settings.stop_after)])
        interrupted.fit(module(task), loader())
        task.model.zero_grad()  # what the interrupted process held goes with it
        checkpoint = saving.best_model_path
    fitting = trainer(task, options)
    fitting.fit(module(task), loader(), ckpt_path=checkpoint)
    return Outcome(logged=logged(fitting))


class Interruption(Callback):
    """The end of a process after some micro-batches."""

    def __init__(self, stop_after: int) -> None:
        self.stop_after = stop_after

    def on_train_batch_end(self, trainer: lightning.Trainer, *passed: Any) -> None:
        """Stop in the middle of the epoch."""
        trainer.should_stop = trainer.fit_loop.total_batch_idx + 1 == self.stop_after


def trainer(task: Task, options: dict[str, Any], callbacks: Sequence[Callback] = ()) -> lightning.Trainer:
    """A trainer that writes what is logged to a file, after each update."""
    settings = task.settings
    return lightning.Trainer(
        accelerator="cpu",
        devices=settings.world_size,
        strategy="ddp" if settings.world_size > 1 else "auto",
        precision="bf16-mixed" if settings.precision == "bfloat16" else "64-true",
        max_epochs=settings.epochs,
        logger=CSVLogger(task.folder),
        log_every_n_steps=1,
        callbacks=list(callbacks),
        enable_checkpointing=bool(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        **options,
    )


def logged(fitted: lightning.Trainer) -> list[float]:
    """The losses in the logger's file."""
    file = Path(fitted.logger.log_dir) / "metrics.csv"
    if not file.exists():  # of another rank, which logs nothing
        return []
    with file.open(encoding="utf-8") as lines:
        return [float(row["loss"]) for row in csv.DictReader(lines) if row["loss"]]
