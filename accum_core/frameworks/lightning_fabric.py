"""Lightning Fabric: a loop of the user's own on what Fabric sets up."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import torch
from lightning.fabric import Fabric

from accum_core.conformance.cases import CASES
from accum_core.frameworks import plain
from accum_core.frameworks.contract import Outcome, Task
from accum_core.frameworks.harness.own_problems import own_problem
from accum_core.frameworks.harness.problem import Problem

NAME = "fabric"
TITLE = "Lightning Fabric"
DISTRIBUTION = "lightning"
ORDER = 50
KINDS = {"divided": "a count from one and a division by N, as in LitGPT, the makers' own recipes"}
DUTIES = tuple(CASES)
EXPLANATIONS = dict.fromkeys(
    CASES,
    "The guide's condition counts from zero, so that a first window of one micro-batch is stepped "
    "and what is left at the end is not; and what the loss is divided by is left open, so nothing divides it.",
) | {
    "own/batch_norm": "Each pass normalises by its own micro-batch, beside what the condition of the guide does.",
    "batch_norm": "Each forward pass normalises by its own micro-batch; use layers that do not look across samples.",
    "logged_loss": "Fabric logs what it is given, and adds up no loss over a window.",
    "divided/ragged": "Each micro-batch's mean is divided by N, so a smaller one counts as much as a full one.",
    "divided/unequal_tokens": "Each micro-batch's mean is divided by N, so a token of a short sequence counts more.",
    "divided/ignored_pixels": "Each micro-batch's mean is divided by N, however few of its pixels are valid.",
    "divided/class_weights": "Each micro-batch's mean is divided by N, whatever its class weights add up to.",
    "divided/empty_micro_batch": "Without a label the mean is no number and its gradient in torch zero; the others' "
    "means are still divided by N.",
    "divided/short_window": "The count, and so a window, goes on over an epoch's end; the last one is not stepped.",
    "divided/iterable": "The count, and so a window, goes on over an epoch's end; the last one is not stepped.",
    "divided/n_above_epoch": "The count, and so a window, goes on over an epoch's end; the last one is not stepped.",
    "divided/two_ranks": "Each rank adds up its means over N, and the exchange takes the mean over ranks.",
}
MENDS = dict.fromkeys(
    [case for case in CASES if case != "batch_norm"],
    "Cut the loader into windows, add up sums, and divide by what the window holds on all ranks.",
) | {
    "bf16": "Cut the loader into windows, and divide each by what it holds.",
    "resume": "Save only after an update, and leave out the micro-batches that were passed.",
    "logged_loss": "Add up the window's sums, reduce them over ranks, and divide by the window's weight.",
}
DEFECTS = (
    (
        "The guide's condition makes a first window of one micro-batch",
        "In the guide and in no_backward_sync's docstring iterations count from 0, and N divides those of updates.",
        """
import torch
from lightning.fabric import Fabric

fabric = Fabric(accelerator="cpu", devices=1)
model = torch.nn.Linear(1, 1)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=1.0))
window, windows = 0, []
for iteration in range(24):
    is_accumulating = iteration % 8 != 0
    with fabric.no_backward_sync(model, enabled=is_accumulating):
        fabric.backward(model(torch.ones(1, 1)).mean())
    window += 1
    if not is_accumulating:
        optimizer.step()
        optimizer.zero_grad()
        windows, window = [*windows, window], 0
print("windows of", windows, "and", window, "left over instead of", [8, 8, 8])
""",
    ),
    (
        "With 64-true the loss is computed in float32",
        "A module's output is converted to torch's default type: unless that is float64 too, losses are float32.",
        """
import torch
from lightning.fabric import Fabric

fabric = Fabric(accelerator="cpu", devices=1, precision="64-true")
model = fabric.setup(torch.nn.Linear(1, 1, bias=False))
fabric.backward(model(torch.ones(1, 1, dtype=torch.float64)).sum() / 3)
print(model.weight.grad.item(), "instead of", 1 / 3)
""",
    ),
)


def problem(kind: str, case: str) -> Problem | None:
    """The problem of a module of the user's; only the loop is another."""
    return None if case == "logged_loss" else own_problem(case)


def train(task: Task) -> Outcome:
    """The loop of the kind; after an interruption, from what ``save`` wrote."""
    settings, stop = task.settings, task.settings.stop_after or 0
    if task.kind == "divided":
        loop, stop = divided, stop // settings.accumulation_steps * settings.accumulation_steps
    else:
        loop = guide
    if stop:
        loop(task, stop_after=stop)
        task.model.zero_grad()  # what the interrupted process held goes with it
    loop(task, resume_after=stop)
    return Outcome()


def guide(task: Task, stop_after: int = 0, resume_after: int = 0) -> None:
    """The code of Fabric's guide to gradient accumulation, its condition and its undivided loss included."""
    fabric, state, loader = set_up(task, resume_after)
    model, steps = state["model"], task.settings.accumulation_steps
    for _ in range(task.settings.epochs):
        for iteration, batch in enumerate(islice(loader, resume_after, None), resume_after):
            is_accumulating = iteration % steps != 0
            with fabric.no_backward_sync(model, enabled=is_accumulating):
                fabric.backward(task.loss(model(batch["inputs"]), batch["labels"]))
            if not is_accumulating:
                step(task, fabric, state)
            if iteration + 1 == stop_after:
                fabric.save(task.folder / "state.ckpt", state)
                return
        resume_after = 0


def divided(task: Task, stop_after: int = 0, resume_after: int = 0) -> None:
    """Micro-batches are counted from one on and over all epochs; the mean of each is divided by N."""
    fabric, state, loader = set_up(task, resume_after)
    model, steps = state["model"], task.settings.accumulation_steps
    iteration = resume_after
    for epoch in range(task.settings.epochs):
        for batch in islice(loader, 0 if epoch else resume_after, None):
            iteration += 1
            is_accumulating = iteration % steps != 0
            with fabric.no_backward_sync(model, enabled=is_accumulating):
                fabric.backward(task.loss(model(batch["inputs"]), batch["labels"]) / steps)
            if not is_accumulating:
                step(task, fabric, state)
            if iteration == stop_after:
                fabric.save(task.folder / "state.ckpt", state)
                return


def train_mended(task: Task) -> Outcome:
    """In windows, whose sums are divided by what the window holds; saved only between windows."""
    steps = task.settings.accumulation_steps
    stop = (task.settings.stop_after or 0) // steps * steps
    if stop:
        summed(task, stop_after=stop)
        task.model.zero_grad()
    return Outcome(logged=summed(task, resume_after=stop))


def summed(task: Task, stop_after: int = 0, resume_after: int = 0) -> list[float]:
    """The loss of each window, up to a micro-batch at which one ends."""
    fabric, state, loader = set_up(task, resume_after, dealt=True)
    model, losses, steps = state["model"], [], task.settings.accumulation_steps
    for epoch in range(task.settings.epochs):
        batches = islice(loader, 0 if epoch else resume_after, None)
        while window := list(islice(batches, steps)):
            own = sum(task.weight(batch["labels"]) for batch in window)
            weight = fabric.all_reduce(torch.tensor(own, dtype=torch.float64), reduce_op="sum").item()
            if not weight:
                continue
            loss = torch.zeros((), dtype=torch.float64)
            for left, batch in zip(reversed(range(len(window))), window, strict=True):
                with fabric.no_backward_sync(model, enabled=left > 0):
                    total = task.total(model(batch["inputs"]), batch["labels"])
                    # The exchange between ranks divides by their number.
                    fabric.backward(total * fabric.world_size / weight)
                loss += total.detach()
            step(task, fabric, state)
            losses.append(fabric.all_reduce(loss, reduce_op="sum").item() / weight)
            if len(losses) * steps == stop_after:
                fabric.save(task.folder / "state.ckpt", state)
                return losses
    return losses


def set_up(task: Task, resume_after: int, *, dealt: bool = False) -> tuple[Any, Mapping[str, Any], Any]:
    """Fabric, the parts that it saves, and the loader, which with ``dealt`` repeats no sample on any rank."""
    settings = task.settings
    fabric = Fabric(
        accelerator="cpu",
        devices=settings.world_size,
        strategy="ddp" if settings.world_size > 1 else "auto",
        precision="bf16-mixed" if settings.precision == "bfloat16" else None,
    )
    fabric.launch()
    optimizer = plain.optimizer(task)
    scheduler = plain.scheduler(task, optimizer)
    model, optimizer = fabric.setup(task.model, optimizer)
    loader = fabric.setup_dataloaders(plain.loader(task, dealt=dealt), use_distributed_sampler=not dealt)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    if resume_after:
        fabric.load(task.folder / "state.ckpt", state)
    return fabric, state, loader


def step(task: Task, fabric: Any, state: Mapping[str, Any]) -> None:
    """One update."""
    if task.settings.clip_norm:
        fabric.clip_gradients(state["model"], state["optimizer"], max_norm=task.settings.clip_norm)
    state["optimizer"].step()
    state["optimizer"].zero_grad()
    state["scheduler"].step()
