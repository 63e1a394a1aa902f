"""The token rule of torchtune's recipes: gradients of sums, divided by the window's tokens before the step."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from accum_core.frameworks import plain
from accum_core.frameworks.contract import Outcome, Task

NAME = "torchtune"
TITLE = "torchtune's recipe"
DISTRIBUTION = ""
VERSION = "0.6.1"
ORDER = 74
EXPLANATIONS = {
    "ragged": "Its loader leaves out a last micro-batch that is smaller than the others.",
    "class_weights": "It multiplies each mean by its number of labels and divides by that of the window, but the means "
    "were divided by class weights.",
    "short_window": "It steps at every N micro-batches; what is left of an epoch stays in the gradients and the count "
    "of tokens, and joins the next epoch's first window.",
    "iterable": "Its sampler asks the data set for its length.",
    "n_above_epoch": "It steps at every N micro-batches of an epoch, so an epoch with fewer makes no update.",
    "bf16": "Its bf16 makes the parameters themselves bfloat16, and so the sums and the updates.",
    "batch_norm": "Each forward pass normalises by its own micro-batch; use layers that do not look across samples.",
}
REMARKS = {
    "empty_micro_batch": "Of a window with such a micro-batch it logs a loss that is no number.",
    "resume": "It saves at the end of an epoch, so an interrupted epoch is begun again, and only time is lost; but the "
    "gradient that a short last window leaves for the next epoch is not saved.",
}
MENDS = {
    "ragged": "Give a loader with drop_last=False, and read each window ahead.",
    "bf16": "Keep the parameters in fp32, and put autocast around the passes.",
    "class_weights": "Divide by the window's class weights.",
    "short_window": "Read each window ahead, and step the last one of an epoch too.",
    "iterable": "Read each window ahead, and step the last one of an epoch too.",
    "n_above_epoch": "Read each window ahead, and step the last one of an epoch too.",
}


def train(task: Task) -> Outcome:
    """Its training loop: means times their labels, and one division."""
    return plain.interrupted_in_an_epoch(task, epochs)


def epochs(task: Task, stop_after: int = 0) -> list[float]:
    """One process: from the checkpoint if there is one, to the end or to a micro-batch at which it is interrupted."""
    settings = task.settings
    dtype = torch.bfloat16 if settings.precision == "bfloat16" else torch.float64
    task.model.to(dtype)
    model, optimizer, loader = distributed(task), plain.optimizer(task), map_style(task)
    scheduler = plain.scheduler(task, optimizer)
    logged: list[float] = []
    count = torch.zeros((), dtype=torch.float64)
    summed = torch.zeros_like(count)
    for epoch in range(plain.epochs_saved(task, optimizer, scheduler), settings.epochs):
        for place, batch in enumerate(loader):
            update = (place + 1) % settings.accumulation_steps == 0
            if isinstance(model, DistributedDataParallel):
                model.require_backward_grad_sync = update
            inputs, labels = batch["inputs"], batch["labels"]
            labelled = ((labels != -100) & (labels != 255)).sum()
            count += labelled
            logits = model(inputs.to(dtype) if inputs.is_floating_point() else inputs)
            loss = task.loss(logits.float() if dtype == torch.bfloat16 else logits, labels) * labelled
            loss.backward()
            summed += loss.detach()
            if epoch * len(loader) + place + 1 == stop_after:
                return logged
            if not update:
                continue
            if settings.world_size > 1:
                dist.all_reduce(count)
                dist.all_reduce(summed)
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad *= settings.world_size / count  # the exchange has taken the mean over ranks
            if settings.clip_norm:
                torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad(set_to_none=True)
            logged.append((summed / count).item())
            count, summed = torch.zeros_like(count), torch.zeros_like(count)
        plain.save_epoch(task, optimizer, scheduler, epoch)
    return logged


def map_style(task: Task) -> DataLoader[Any]:
    """Its loader: a sampler of this rank's samples, and whole micro-batches alone."""
    samples: Any = task.samples if task.settings.sized else plain.Stream(task.samples)
    sampler: DistributedSampler[Any] = DistributedSampler(
        samples, num_replicas=task.settings.world_size, rank=task.rank, shuffle=False
    )
    size = task.settings.micro_batch_size
    return DataLoader(samples, batch_size=size, sampler=sampler, collate_fn=task.collate, drop_last=True)


def distributed(task: Task) -> nn.Module:
    """The network, wrapped where ranks share the training."""
    if task.settings.world_size == 1:
        return task.model
    dist.init_process_group("gloo")
    return DistributedDataParallel(task.model)


def train_mended(task: Task) -> Outcome:
    """The same rule over windows that it reads ahead, by the weight of the loss."""
    return plain.sums_over_windows(task, distributed(task))
