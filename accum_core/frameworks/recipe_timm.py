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
VERSION = "commit 2aabaef"
ORDER = 72
DUTIES = (
    "unequal_tokens",
    "ignored_pixels",
    "class_weights",
    "empty_micro_batch",
    "two_ranks",
    "logged_loss",
)
EXPLANATIONS = {
    "ragged": "Its loader for training leaves out a last micro-batch that is smaller than the others.",
    "unequal_tokens": "Each loss is divided by the window's number of micro-batches, so a token among few counts more.",
    "ignored_pixels": "Each loss is divided by the window's number of micro-batches, however few pixels are valid.",
    "class_weights": "Each loss is divided by the window's number of micro-batches, whatever its class weights.",
    "empty_micro_batch": "Each loss is divided by the window's number of micro-batches, empty ones included.",
    "iterable": "It asks the loader for its length.",
    "two_ranks": "Each rank divides by its own micro-batches, and the exchange takes the mean over ranks.",
    "logged_loss": "It logs the last micro-batch's loss, and beside it the mean over the epoch's samples so far.",
    "batch_norm": "Each forward pass normalises by its own micro-batch; use layers that do not look across samples.",
}
REMARKS = {
    "resume": "It saves at the end of an epoch, so an interrupted epoch is begun again, and only time is lost; what "
    "--recovery-interval saves inside an epoch is resumed at the next one, and the rest is never seen.",
}
MENDS = {
    "ragged": "Give a loader with drop_last=False, and divide sums by what the window holds.",
    "unequal_tokens": "Sum instead, and divide by the window's tokens.",
    "ignored_pixels": "Sum instead, and divide by the window's valid pixels.",
    "class_weights": "Sum instead, and divide by the window's class weights.",
    "empty_micro_batch": "Sum instead, and divide by the window's tokens.",
    "iterable": "Read each window ahead, and divide by what it holds.",
    "two_ranks": "Sum instead, and divide by the tokens of all ranks.",
    "logged_loss": "Sum instead, divide by the window's tokens, and add up what is logged.",
}
DEFECTS = (
    (
        "A short last window can be stepped twice",
        "In an epoch's short window N becomes that window's number, by which the number of the micro-batch may be "
        "divisible before the window ends.",
        """
micro_batches, steps = 7, 4
left, updates = micro_batches % steps, []
for place in range(micro_batches):
    if place == micro_batches - 1 or (place + 1) % steps == 0:
        updates.append(place + 1)
    if place >= micro_batches - left:
        steps = left
print("updates after micro-batches", updates, "instead of", [4, 7])
""",
    ),
)


def train(task: Task) -> Outcome:
    """Its training loop: the last micro-batches of an epoch are divided by their own number."""
    return plain.interrupted_in_an_epoch(task, epochs)


def epochs(task: Task, stop_after: int = 0) -> list[float]:
    """One process: from the checkpoint if there is one, to the end or to a micro-batch at which it is interrupted."""
    settings = task.settings
    model, optimizer, loader = distributed(task), plain.optimizer(task), plain.loader(task, dealt=True, drop_last=True)
    scheduler, autocast = plain.scheduler(task, optimizer), settings.precision == "bfloat16"
    logged: list[float] = []
    left = len(loader) % settings.accumulation_steps
    for epoch in range(plain.epochs_saved(task, optimizer, scheduler), settings.epochs):
        optimizer.zero_grad()
        steps = settings.accumulation_steps
        for place, batch in enumerate(loader):
            update = place == len(loader) - 1 or (place + 1) % steps == 0
            if place >= len(loader) - left:
                steps = left
            if isinstance(model, DistributedDataParallel):
                model.require_backward_grad_sync = update
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = task.loss(model(batch["inputs"]), batch["labels"])
            (loss / steps).backward()
            if epoch * len(loader) + place + 1 == stop_after:
                return logged
            if update:
                logged.append(loss.item())
                if settings.clip_norm:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        plain.save_epoch(task, optimizer, scheduler, epoch)
    return logged


def distributed(task: Task) -> nn.Module:
    """The network, wrapped where ranks share the training."""
    if task.settings.world_size == 1:
        return task.model
    dist.init_process_group("gloo")
    return DistributedDataParallel(task.model)


def train_mended(task: Task) -> Outcome:
    """The same loop over windows that it reads ahead, with sums over what they hold."""
    return plain.sums_over_windows(task, distributed(task))
