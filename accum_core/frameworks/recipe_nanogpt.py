"""nanoGPT's way to accumulate, as a recipe: micro-batches of an endless loader, each loss divided by N."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accum_core.frameworks import plain
from accum_core.frameworks.contract import Batch, Outcome, Task

NAME = "nanogpt"
TITLE = "nanoGPT's recipe"
DISTRIBUTION = ""
VERSION = "recipe of commit 553f949"
ORDER = 70
DUTIES = (
    "ragged",
    "unequal_tokens",
    "ignored_pixels",
    "class_weights",
    "empty_micro_batch",
    "two_ranks",
    "logged_loss",
)
EXPLANATIONS = {
    "ragged": "Each loss is divided by N; its own batches all hold as many tokens, so nothing else is needed there.",
    "unequal_tokens": "Each loss is divided by N; its own batches all hold as many tokens, so nothing else is needed.",
    "ignored_pixels": "Each loss is divided by N; its own batches all hold as many labels, so nothing else is needed.",
    "class_weights": "Each loss is divided by N, whatever its class weights add up to.",
    "empty_micro_batch": "Each loss is divided by N, a micro-batch without a label included.",
    "short_window": "An update takes N micro-batches from an endless loader, so a short window goes on into the next "
    "epoch.",
    "iterable": "An update takes N micro-batches from an endless loader, so a short window goes on.",
    "n_above_epoch": "An update takes N micro-batches from an endless loader, so it goes on into the next epoch.",
    "two_ranks": "Each rank divides by its share of N, and the exchange takes the mean over ranks.",
    "logged_loss": "It logs the last micro-batch's loss, times N to undo the division.",
    "batch_norm": "Each forward pass normalises by its own micro-batch.",
}
MENDS = {
    "ragged": "Sum instead, and divide by what the window holds.",
    "unequal_tokens": "Sum instead, and divide by the window's tokens.",
    "ignored_pixels": "Sum instead, and divide by the window's valid pixels.",
    "class_weights": "Sum instead, and divide by the window's class weights.",
    "empty_micro_batch": "Sum instead, and divide by the window's tokens.",
    "two_ranks": "Sum instead, and divide by the tokens of all ranks.",
    "logged_loss": "Sum instead, divide by the window's tokens, and add up what is logged.",
}


def train(task: Task) -> Outcome:
    """Its training loop, with the data's own order."""
    settings = task.settings
    if settings.stop_after:
        raise RuntimeError(
            "this recipe refuses in the script's place, which saves after an update alone and draws its data anew"
        )
    model, optimizer = distributed(task), plain.optimizer(task)
    scheduler, batches, logged = plain.scheduler(task, optimizer), endless(task), []
    steps, autocast = settings.accumulation_steps, settings.precision == "bfloat16"
    for _ in range(updates(task)):
        for micro_step in range(steps):
            if isinstance(model, DistributedDataParallel):
                model.require_backward_grad_sync = micro_step == steps - 1
            batch = next(batches)
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = task.loss(model(batch["inputs"]), batch["labels"]) / steps
            loss.backward()
        if settings.clip_norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        logged.append(loss.item() * steps)
    return Outcome(logged=logged)


def endless(task: Task) -> Iterator[Batch]:
    """One epoch after another."""
    while True:
        yield from plain.loader(task, dealt=True)


def updates(task: Task) -> int:
    """As many as the epochs' micro-batches make."""
    settings = task.settings
    own = -(-len(task.samples) // (settings.micro_batch_size * settings.world_size))
    return settings.epochs * own // settings.accumulation_steps


def distributed(task: Task) -> nn.Module:
    """The network, wrapped where ranks share the training."""
    if task.settings.world_size == 1:
        return task.model
    dist.init_process_group("gloo")
    return DistributedDataParallel(task.model)


def train_mended(task: Task) -> Outcome:
    """The same loop over windows that it reads ahead, with sums over what they hold."""
    return plain.sums_over_windows(task, distributed(task))
