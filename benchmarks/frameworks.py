"""Our loop against one written by hand and against the frameworks' own, on the same micro-batches.

Every way takes its micro-batches from a ``DataLoader`` of the same kind and steps plain SGD; a hook of the optimizer
takes the time, so what a framework does before its first update and after its last is not counted.
"""

from __future__ import annotations

import copy
import logging
import random
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import islice, pairwise
from statistics import median
from typing import Any

import lightning
import torch
import transformers
from accelerate import Accelerator
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD
from torch.utils.data import DataLoader

from accum_core.engine import CrossEntropy, accumulate_gradients
from accum_core.engine.accumulate import MicroBatch
from accum_core.engine.workloads import load
from benchmarks import Result

STEPS = 8
BAR_BY_HAND, BAR_FRAMEWORK = 1.05, 1.0

Loader = DataLoader[MicroBatch]
Way = Callable[[nn.Module, SGD, Loader], object]


def cross_entropy(logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """What a user writes: over the labels of one micro-batch, of classes, pixels or tokens."""
    if logits.ndim == 3:
        logits, labels = logits.flatten(0, 1), labels.flatten()
    return F.cross_entropy(logits, labels, reduction=reduction)


def windows(loader: Loader) -> Iterator[list[MicroBatch]]:
    """N micro-batches at a time."""
    batches = iter(loader)
    while window := list(islice(batches, STEPS)):
        yield window


def ours(model: nn.Module, optimizer: SGD, loader: Loader) -> None:
    """``accumulate_gradients`` and a step."""
    objective = CrossEntropy()
    for window in windows(loader):
        accumulate_gradients(model, window, objective)
        optimizer.step()


def hand(model: nn.Module, optimizer: SGD, loader: Loader) -> None:
    """The exact loop in plain PyTorch."""
    for window in windows(loader):
        weight = sum(int((labels != -100).sum()) for _, labels in window)
        total = torch.zeros((), dtype=torch.float64)
        for inputs, labels in window:
            loss = cross_entropy(model(inputs), labels, "sum") / weight
            loss.backward()
            total += loss.detach()
        total.item()  # a loop that is watched reads its loss
        optimizer.step()
        optimizer.zero_grad()


def with_accelerate(model: nn.Module, optimizer: SGD, loader: Loader) -> None:
    """The finished code of Accelerate's guide."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=STEPS)
    model, stepping, batches = accelerator.prepare(model, optimizer, loader)
    for inputs, labels in batches:
        with accelerator.accumulate(model):
            accelerator.backward(cross_entropy(model(inputs), labels))
            stepping.step()
            stepping.zero_grad()


def with_fabric(model: nn.Module, optimizer: SGD, loader: Loader) -> None:
    """The code of Fabric's guide, divided and counted so that each window is full."""
    fabric = Fabric(accelerator="cpu", devices=1)
    wrapped, stepping = fabric.setup(model, optimizer)
    for iteration, (inputs, labels) in enumerate(fabric.setup_dataloaders(loader), 1):
        is_accumulating = iteration % STEPS != 0
        with fabric.no_backward_sync(wrapped, enabled=is_accumulating):
            fabric.backward(cross_entropy(wrapped(inputs), labels) / STEPS)
        if not is_accumulating:
            stepping.step()
            stepping.zero_grad()


class Module(lightning.LightningModule):
    """What Lightning's Trainer asks for."""

    def __init__(self, model: nn.Module, optimizer: SGD) -> None:
        super().__init__()
        self.model, self.optimizer = model, optimizer

    def training_step(self, batch: MicroBatch, batch_idx: int) -> Tensor:
        """The loss of one micro-batch."""
        inputs, labels = batch
        return cross_entropy(self.model(inputs), labels)

    def configure_optimizers(self) -> SGD:
        """The optimizer that takes the time."""
        return self.optimizer


def with_lightning(model: nn.Module, optimizer: SGD, loader: Loader) -> None:
    """Lightning's Trainer, with everything off that is not training."""
    lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        accumulate_grad_batches=STEPS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Module(model, optimizer), loader)


class WithLoss(nn.Module):
    """What the Trainer of transformers asks for: a loss in what the network gives."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """One forward pass."""
        return {"loss": cross_entropy(self.model(inputs), labels)}


class Batches(transformers.Trainer):
    """A Trainer that is given micro-batches."""

    def get_train_dataloader(self) -> Any:
        """Those of the loader, named."""
        return self.accelerator.prepare(self.train_dataset)


def with_transformers(model: nn.Module, optimizer: SGD, loader: Loader) -> None:
    """The Trainer of transformers, with everything off that is not training."""
    named = [{"inputs": inputs, "labels": labels} for inputs, labels in loader.dataset]
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            use_cpu=True,
            num_train_epochs=1,
            gradient_accumulation_steps=STEPS,
            max_grad_norm=0,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        constant = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1)
        source = DataLoader(named, batch_size=None)
        trainer = Batches(WithLoss(model), arguments, train_dataset=source, optimizers=(optimizer, constant))
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()


WAYS: Mapping[str, Way] = {
    "the loop written by hand": hand,
    "Accelerate": with_accelerate,
    "Lightning Fabric": with_fabric,
    "Lightning's Trainer": with_lightning,
    "transformers' Trainer": with_transformers,
}


def seconds(way: Way, model: nn.Module, window: list[MicroBatch], count: int) -> float:
    """What a window takes, from one update to the next: the least of ``count``, which other work disturbs least."""
    optimizer = SGD(model.parameters(), lr=1e-6)
    ticks: list[float] = []
    optimizer.register_step_post_hook(lambda *_: ticks.append(time.perf_counter()))
    way(model, optimizer, DataLoader(window * (count + 1), batch_size=None))
    assert len(ticks) == count + 1, f"{len(ticks)} updates instead of {count + 1}"
    return min(later - earlier for earlier, later in pairwise(ticks))


def ratios(model: nn.Module, window: list[MicroBatch], repetitions: int, count: int) -> dict[str, float]:
    """Median over repetitions of (our time) / (a way's time), for every way; their order is drawn each time."""
    ways = {"ours": ours, **WAYS}
    models = {name: copy.deepcopy(model) for name in ways}
    measured: dict[str, list[float]] = {name: [] for name in WAYS}
    orders = random.Random(0)
    for repetition in range(repetitions + 1):
        taken = {
            name: seconds(ways[name], models[name], window, count) for name in orders.sample(list(ways), len(ways))
        }
        if repetition:  # the first one only warms up
            for name in WAYS:
                measured[name].append(taken["ours"] / taken[name])
    return {name: median(values) for name, values in measured.items()}


def split(inputs: Tensor, targets: Tensor, size: int) -> list[MicroBatch]:
    """Micro-batches of ``size`` samples."""
    return list(zip(inputs.split(size), targets.split(size), strict=True))


def measure() -> list[Result]:
    """A tiny network, a segmentation network and a language model, a window of 8 micro-batches each."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    landcover = load("landcover")
    text = load("tiny_lm")
    cases = {
        "two-layer network, micro-batches of 8": (
            nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)),
            split(torch.randn(64, 32), torch.randint(10, (64,)), 8),
            45,
            40,
        ),
        "landcover, micro-batches of 2": (
            landcover.build_model("deeplab"),
            split(*landcover.samples(range(16)), 2),
            20,
            4,
        ),
        "tiny_lm, micro-batches of 256 tokens": (
            text.build_model("tiny_lm"),
            split(*text.samples(range(8)), 1),
            10,
            3,
        ),
    }
    results = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice of the frameworks on loaders, loggers and devices
        for case, (model, window, repetitions, count) in cases.items():
            for name, value in ratios(model, window, repetitions, count).items():
                bar = BAR_BY_HAND if name == "the loop written by hand" else BAR_FRAMEWORK
                detail = f"median of {repetitions} interleaved ratios, each of the least of {count} windows"
                results.append(Result(f"{case}: ours to {name}", value, bar, "x", detail))
    return results
