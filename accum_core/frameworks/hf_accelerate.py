"""Hugging Face Accelerate: a loop of the user's own, whose parts the accelerator prepares."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import islice

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import DataLoaderConfiguration

from accum_core.frameworks import plain
from accum_core.frameworks.contract import Outcome, Task
from accum_core.frameworks.harness.problem import Problem
from accum_core.frameworks.harness.rank_problems import rank_problem

NAME = "accelerate"
TITLE = "Accelerate"
DISTRIBUTION = "accelerate"
ORDER = 30
KINDS = {"ranks": "a module and a loss of your own, on two ranks"}
DUTIES = (
    "own/ragged",
    "unequal_tokens",
    "ignored_pixels",
    "class_weights",
    "empty_micro_batch",
    "two_ranks",
    "logged_loss",
)
EXPLANATIONS = {
    "ragged": "Each micro-batch's mean is divided by N in backward, so a smaller one counts as much as a full one.",
    "unequal_tokens": "Each micro-batch's mean is divided by N in backward, so a token among few counts more.",
    "ignored_pixels": "Each micro-batch's mean is divided by N in backward, however few of its pixels are valid.",
    "class_weights": "Each micro-batch's mean is divided by N in backward, whatever its class weights add up to.",
    "empty_micro_batch": "Without a label the mean is no number and its gradient in torch zero; the others' means are "
    "still divided by N.",
    "short_window": "The end of the loader makes the last window an update, but backward had divided it by the full N.",
    "iterable": "The end of the loader makes the last window an update, but backward had divided it by the full N.",
    "n_above_epoch": "The end of the loader makes the window an update, but backward had divided it by the full N.",
    "two_ranks": "Each rank adds up its micro-batches' means over N, and the exchange takes the mean over ranks.",
    "batch_norm": "Each forward pass normalises by its own micro-batch, and no option changes that; use layers that do "
    "not look across samples.",
    "resume": "What save_state writes has the weights and the count of micro-batches, but not the gradients that an "
    "open window had summed; and the window that goes on is still divided by N.",
    "logged_loss": "The accelerator logs what it is given, and adds up no loss over a window.",
    "ranks/ragged": "For ranks to get alike, even_batches fills up the last micro-batch with the first samples again, "
    "which then count twice.",
    "ranks/schedule": "A prepared schedule steps at every update as often as there are ranks.",
}
MENDS = {
    "ragged": "Add up sums, and divide by the window's samples, as its guide for samples of variable size does.",
    "unequal_tokens": "Add up sums, and divide by the window's tokens, as its guide for samples of variable size does.",
    "ignored_pixels": "Add up sums, and divide by the window's valid pixels, as its guide does with tokens.",
    "class_weights": "Add up sums, and divide by the window's class weights, as its guide does with tokens.",
    "empty_micro_batch": "Add up sums, which are 0 for such a micro-batch, and divide by the window's tokens.",
    "short_window": "Read the window ahead, and divide by what it holds, times N for what backward divides by.",
    "iterable": "Read the window ahead, and divide by what it holds, times N for what backward divides by.",
    "n_above_epoch": "Read the window ahead, and divide by what it holds, times N for what backward divides by.",
    "two_ranks": "Add up sums, times the ranks, and divide by the tokens of all of them, as its guide does.",
    "resume": "Call save_state only after an update, where sync_gradients is true, and resume from there.",
    "logged_loss": "Add up the window's sums, reduce them over ranks, and divide by the window's weight.",
    "ranks/ragged": "Use DataLoaderConfiguration(even_batches=False), and divide sums by what all ranks hold.",
    "ranks/schedule": "Use Accelerator(step_scheduler_with_optimizer=False), and step the schedule once an update.",
}

DEFECTS = (
    (
        "A short last window is divided by N",
        "At the end of a loader an update is made of the micro-batches that are there, but backward divided each by N.",
        """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

weight = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(weight.weight)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
inputs = DataLoader(torch.tensor([[1.0], [2.0], [3.0]]), batch_size=1)
model, optimizer, inputs = accelerator.prepare(weight, torch.optim.SGD(weight.parameters(), lr=1.0), inputs)
for batch in inputs:
    with accelerator.accumulate(model):
        accelerator.backward(model(batch).mean())
        optimizer.step()
        optimizer.zero_grad()
print(weight.weight.item(), "instead of", -((1 + 2) / 2 + 3))
""",
    ),
    (
        "A checkpoint inside a window loses gradients",
        "save_state writes the count of micro-batches: after load_state the window goes on, without its gradients.",
        """
import tempfile
import torch
from accelerate import Accelerator

def start():
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    return accelerator, *accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))

with tempfile.TemporaryDirectory() as folder:
    for number in 1.0, 2.0:
        accelerator, model, optimizer = start()
        if number == 2.0:
            accelerator.load_state(folder)
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.tensor([[number]])).mean())
            optimizer.step()
        accelerator.save_state(folder)
print(model.weight.item(), "instead of", -(1 + 2) / 2)
""",
    ),
)


def problem(kind: str, case: str) -> Problem | None:
    """Those of the kind ``ranks``."""
    return rank_problem(case)


def train(task: Task) -> Outcome:
    """The finished code of its guide to gradient accumulation; clipping and checkpoints as in its examples."""
    stop = task.settings.stop_after
    if stop:
        accumulate(task, stop_after=stop)
        task.model.zero_grad()  # what the interrupted process held goes with it
    accumulate(task, resume_after=stop or 0)
    return Outcome()


def accumulate(task: Task, stop_after: int | None = None, resume_after: int = 0) -> None:
    """The life of one process: to the end, or until it saves its state after some micro-batches."""
    settings = task.settings
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=settings.accumulation_steps,
        mixed_precision="bf16" if settings.precision == "bfloat16" else "no",
    )
    optimizer = plain.optimizer(task)
    scheduler = plain.scheduler(task, optimizer)
    model, optimizer, loader, scheduler = accelerator.prepare(task.model, optimizer, plain.loader(task), scheduler)
    batches = loader
    if resume_after:
        accelerator.load_state(str(task.folder))
        batches = skip_first_batches(loader, resume_after)
    for _ in range(settings.epochs):
        for passed, batch in enumerate(batches, 1):
            with accelerator.accumulate(model):
                loss = task.loss(model(batch["inputs"]), batch["labels"])
                accelerator.backward(loss)
                if accelerator.sync_gradients and settings.clip_norm:
                    accelerator.clip_grad_norm_(model.parameters(), settings.clip_norm)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if passed == stop_after:
                accelerator.save_state(str(task.folder))
                return
        batches = loader


def train_mended(task: Task) -> Outcome:
    """The loop of its guide for samples of variable size, for loaders of any length, saved only between windows."""
    steps = task.settings.accumulation_steps
    saved = (task.settings.stop_after or 0) // steps
    if saved:
        accumulate_sums(task, stop_after=saved)
        task.model.zero_grad()
    return Outcome(logged=accumulate_sums(task, resume_after=saved))


def accumulate_sums(task: Task, stop_after: int | None = None, resume_after: int = 0) -> Sequence[float]:
    """The life of one process, in windows; it gives the loss of each."""
    settings, steps = task.settings, task.settings.accumulation_steps
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=steps,
        mixed_precision="bf16" if settings.precision == "bfloat16" else "no",
        step_scheduler_with_optimizer=False,
        dataloader_config=DataLoaderConfiguration(even_batches=False),
    )
    optimizer = plain.optimizer(task)
    scheduler = plain.scheduler(task, optimizer)
    model, optimizer, loader, scheduler = accelerator.prepare(task.model, optimizer, plain.loader(task), scheduler)
    batches = iter(loader)
    if resume_after:
        accelerator.load_state(str(task.folder))
        batches = iter(skip_first_batches(loader, resume_after * steps))
    losses: list[float] = []
    for _ in range(settings.epochs):
        while window := list(islice(batches, steps)):
            own = sum(task.weight(batch["labels"]) for batch in window)
            weight = accelerator.reduce(torch.tensor(own, dtype=torch.float64), reduction="sum").item()
            if not weight:
                continue
            summed = torch.zeros((), dtype=torch.float64)
            for left, batch in zip(reversed(range(len(window))), window, strict=True):
                with accelerator.no_sync(model) if left else nullcontext():
                    total = task.total(model(batch["inputs"]), batch["labels"])
                    summed += total.detach()
                    # The accelerator divides by the accumulation steps, and the exchange by the number of ranks.
                    accelerator.backward(total * steps * accelerator.num_processes / weight)
            if settings.clip_norm:
                accelerator.clip_grad_norm_(model.parameters(), settings.clip_norm)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(accelerator.reduce(summed, reduction="sum").item() / weight)
            if len(losses) == stop_after:
                accelerator.save_state(str(task.folder))
                return losses
        batches = iter(loader)
    return losses
