"""The way of timm's training script, as a recipe: each loss over N, or over the number of the last ones."""

from __future__ import annotations

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accum_core.frameworks import plain
from accum_core.frameworks.contract import Outcome, Task

NAME = "timm"
TITLE = "timm's recipe"
DISTRIBUTION = ""
VERSION = "recipe of commit 2aabaef"
ORDER = 72
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
    "ragged": "Each loss is divided by the window's number of micro-batches, so a smaller one counts as much.",
    "unequal_tokens": "Each loss is divided by the window's number of micro-batches, so a token among few counts more.",
    "ignored_pixels": "Each loss is divided by the window's number of micro-batches, however few pixels are valid.",
    "class_weights": "Each loss is divided by the window's number of micro-batches, whatever its class weights.",
    "empty_micro_batch": "Each loss is divided by the window's number of micro-batches, empty ones included.",
    "iterable": "It asks the loader for its length.",
    "two_ranks": "Each rank divides by its own micro-batches, and the exchange takes the mean over ranks.",
    "logged_loss": "It logs single micro-batches' losses and their mean over samples so far.",
    "batch_norm": "Each forward pass normalises by its own micro-batch.",
    "resume": "It saves at an epoch's end alone.",
}
MENDS = {
    "ragged": "Sum instead, and divide by what the window holds.",
    "unequal_tokens": "Sum instead, and divide by the window's tokens.",
    "ignored_pixels": "Sum instead, and divide by the window's valid pixels.",
    "class_weights": "Sum instead, and divide by the window's class weights.",
    "empty_micro_batch": "Sum instead, and divide by the window's tokens.",
    "iterable": "Read the window ahead, and divide by what it holds.",
    "two_ranks": "Sum instead, and divide by the tokens of all ranks.",
    "logged_loss": "Sum instead, divide by the window's tokens, and add up what is logged.",
}


def train(task: Task) -> Outcome:
    """Its training loop: the last micro-batches of an epoch are divided by their own number."""
    settings = task.settings
    if settings.stop_after:
        raise RuntimeError("the script saves at the end of an epoch alone")
    model, optimizer, loader = distributed(task), plain.optimizer(task), plain.loader(task, dealt=True)
    scheduler, autocast, logged = plain.scheduler(task, optimizer), settings.precision == "bfloat16", []
    left = len(loader) % settings.accumulation_steps
    for _ in range(settings.epochs):
        for place, batch in enumerate(loader):
            steps = left if left and place >= len(loader) - left else settings.accumulation_steps
            update = place == len(loader) - 1 or (place + 1) % steps == 0
            if isinstance(model, DistributedDataParallel):
                model.require_backward_grad_sync = update
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = task.loss(model(batch["inputs"]), batch["labels"])
            (loss / steps).backward()
            logged.append(loss.item())
            if update:
                if settings.clip_norm:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    return Outcome(logged=logged)


def distributed(task: Task) -> nn.Module:
    """The network, wrapped where ranks share the training."""
    if task.settings.world_size == 1:
        return task.model
    dist.init_process_group("gloo")
    return DistributedDataParallel(task.model)


def train_mended(task: Task) -> Outcome:
    """The same loop over windows that it reads ahead, with sums over what they hold."""
    return plain.sums_over_windows(task, distributed(task))
