"""nanoGPT's way to accumulate, as a recipe: micro-batches of an endless loader, each loss divided by N."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accum_core.frameworks import plain
from accum_core.frameworks.contract import Batch, Outcome, Task

NAME = "nanogpt"
TITLE = "nanoGPT's recipe"
DISTRIBUTION = ""
VERSION = "commit 553f949"
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
    "two_ranks": "Each rank divides each of its losses by their number N, and the exchange takes the mean over ranks.",
    "logged_loss": "It logs the last micro-batch's loss, times N to undo the division.",
    "batch_norm": "Each forward pass normalises by its own micro-batch; use layers that do not look across samples.",
    "resume": "Its checkpoint is written between two updates and holds the number of updates but no place in the data, "
    "which are drawn from the same seed again: what was seen first is seen again.",
}
MENDS = {
    "ragged": "Sum instead, and divide by what the window holds.",
    "unequal_tokens": "Sum instead, and divide by the window's tokens.",
    "ignored_pixels": "Sum instead, and divide by the window's valid pixels.",
    "class_weights": "Sum instead, and divide by the window's class weights.",
    "empty_micro_batch": "Sum instead, and divide by the window's tokens.",
    "two_ranks": "Sum instead, and divide by the tokens of all ranks.",
    "logged_loss": "Sum instead, divide by the window's tokens, and add up what is logged.",
    "resume": "Draw as many batches as the updates before the checkpoint took, and leave them out.",
}


def train(task: Task) -> Outcome:
    """Its training loop, with the data's own order; after an interruption with ``init_from=resume``."""
    if task.settings.stop_after:
        iterations(task, stop_after=task.settings.stop_after)
        task.model.zero_grad()  # what the interrupted process held goes with it
    return Outcome(logged=iterations(task))


def iterations(task: Task, *, stop_after: int = 0, passing_over: bool = False) -> list[float]:
    """One process: from the checkpoint if there is one, to the end or to a micro-batch at which it is interrupted."""
    settings, file = task.settings, task.folder / "ckpt.pt"
    model, optimizer = distributed(task), plain.optimizer(task)
    scheduler, batches = plain.scheduler(task, optimizer), endless(task)
    logged: list[float] = []
    steps, autocast, first = settings.accumulation_steps, settings.precision == "bfloat16", 0
    if file.exists():
        checkpoint = torch.load(file)
        task.model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])  # theirs has no state: the rate follows from iter_num
        first = checkpoint["iter_num"]
    if passing_over:
        batches = islice(batches, first * steps, None)
    for iter_num in range(first, updates(task)):
        if settings.stop_after and iter_num:  # at every eval_interval, which is 1 here
            parts: dict[str, Any] = {"model": task.model, "optimizer": optimizer, "scheduler": scheduler}
            torch.save({name: part.state_dict() for name, part in parts.items()} | {"iter_num": iter_num}, file)
        for micro_step in range(steps):
            if isinstance(model, DistributedDataParallel):
                model.require_backward_grad_sync = micro_step == steps - 1
            batch = next(batches)
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = task.loss(model(batch["inputs"]), batch["labels"]) / steps
            loss.backward()
            if iter_num * steps + micro_step + 1 == stop_after:
                return logged
        if settings.clip_norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        logged.append(loss.item() * steps)
    return logged


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
    """The same loop over windows that it reads ahead, with sums over what they hold; or behind what was seen."""
    if task.settings.stop_after:
        iterations(task, stop_after=task.settings.stop_after)
        task.model.zero_grad()
        return Outcome(logged=iterations(task, passing_over=True))
    return plain.sums_over_windows(task, distributed(task))
