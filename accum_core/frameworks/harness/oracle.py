"""What a formula makes of a problem: the whole course of a training, in float64, written as mathematics.

It shares nothing with the engine's loop: for the right formula, a window is one batch of all its samples, its loss is
their sum over their weight, torch clips and steps once, and the rate is multiplied by gamma once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from accum_core.frameworks.contract import Batch, Sample
from accum_core.frameworks.harness.cuts import cut_epoch, in_parts
from accum_core.frameworks.harness.formulas import RIGHT_CLIPS, Counted, Formula, Resume
from accum_core.frameworks.harness.problem import Problem

NOWHERE: Final = Path()
Gradient = tuple[Tensor, ...]
Window = Sequence[Sequence[Sample]]
Weights = Mapping[str, Tensor]
LOGS: Final = MappingProxyType(
    {
        "sum over weight": "the window's loss",
        "mean of means": "the mean of the micro-batches' means",
        "last micro-batch": "the last micro-batch's mean",
        "first micro-batch": "the first micro-batch's mean",
        "sum of means": "the sum of the micro-batches' means",
        "mean over N again": "the mean of the micro-batches' means, divided by N again",
        "last over N": "the last micro-batch's mean, divided by N",
        "sum": "the sum over the window's labels",
    }
)
"""What may be logged of a window."""


@dataclass(frozen=True, slots=True)
class Course:
    """What a training comes to.

    Attributes:
        weights: at its end, by name.
        updates, final_lr: made, and the rate that the next one would have.
        losses: for each update, what may be logged of it, by ``LOGS``.
        micro_losses: each micro-batch's mean.
    """

    weights: Weights
    updates: int
    final_lr: float
    losses: Sequence[Mapping[str, float]]
    micro_losses: Sequence[float]


def course(problem: Problem, formula: Formula) -> Course:
    """Train the problem by a formula, from its initial weights."""
    return _Training(problem, formula).run()


def mean_gradient(problem: Problem, *, autocast: bool = False) -> Weights:
    """The gradient of the first window's mean loss in one batch; ``autocast``: of float32 parameters in bfloat16."""
    settings = problem.settings
    full = settings.accumulation_steps * settings.micro_batch_size * settings.world_size
    task = problem.task(NOWHERE, kind="", case="") if autocast else None
    model = task.model if task is not None else problem.build()
    samples = task.samples if task is not None else problem.samples
    batch = problem.collate(samples[:full])
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = problem.sum_of(model, batch) / problem.weight_of(batch)
    named = dict(model.named_parameters())
    return dict(zip(named, (g.double() for g in torch.autograd.grad(loss, list(named.values()))), strict=True))


class _Training:
    def __init__(self, problem: Problem, formula: Formula) -> None:
        self.problem, self.formula, settings = problem, formula, problem.settings
        self.model = problem.build()
        self._parts = cut_epoch(problem.samples, settings, formula.cut)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.steps = settings.accumulation_steps * settings.world_size
        kinds = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
        kind = kinds[settings.optimizer]
        self.optimizer = kind(self.parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay)
        self.updates = 0
        self.losses: list[Mapping[str, float]] = []
        self.micro_losses: list[float] = []

    def run(self) -> Course:
        """Epoch after epoch."""
        if self.formula.resume != "inside":
            self._interrupted(self.problem.settings.stop_after or 0)
            return self._course()
        if self.formula.tail == "added":
            self._added(in_parts(self._parts, self.steps))
            return self._course()
        held: list[Sequence[Sample]] = []
        for _ in range(self.problem.settings.epochs):
            # What was left in the buffers joins the next epoch's first window, which still takes N of its own.
            room = len(held) + self.steps if self.formula.tail == "left over" else self.steps
            if self.formula.tail == "first alone":
                room = len(held) + self.problem.settings.world_size
            for micro_batch in self._parts:
                held.append(micro_batch)
                if len(held) == room:
                    self._window(held)
                    held, room = [], self.steps
            held = self._tail(held)
            if self.formula.pace == "schedule an epoch":
                self._decay(1)
        return self._course()

    def _interrupted(self, stop: int) -> None:
        """One epoch that was interrupted after some micro-batches, inside a window."""
        begun = stop // self.steps
        for place, window in enumerate(_windows(self._parts, self.steps, stop, self.formula.resume)):
            is_lost = place == begun and self.formula.resume in ("lost", "rest of first")
            if is_lost and self.formula.pace in ("schedule", "schedule ahead"):
                self._decay(stop - begun * self.steps)  # it had stepped for the micro-batches that are lost
            self._window(window)

    def _added(self, windows: list[Window]) -> None:
        """As many updates as there are windows, of full ones alone, from which an epoch's short one is left."""
        *full, short = windows
        due = len(windows) * self.problem.settings.epochs
        left: Window = []
        while full and self.updates < due:
            for window in full[: due - self.updates]:
                self._window(window, left)
                left = []
            left = short

    def _course(self) -> Course:
        return Course(
            weights={name: p.detach().clone() for name, p in self.model.named_parameters()},
            updates=self.updates,
            final_lr=float(self.optimizer.param_groups[0]["lr"]),
            losses=self.losses,
            micro_losses=self.micro_losses,
        )

    def _tail(self, held: list[Sequence[Sample]]) -> list[Sequence[Sample]]:
        """What an epoch's end makes of a window that is not full, and what it leaves for the next epoch."""
        if not held or self.formula.tail in ("counted on", "left over", "first alone"):
            return held
        if self.formula.tail == "stepped":
            self._window(held)
        elif self.formula.tail == "last alone":
            self._window(held[-1:])
        return []

    def _window(self, window: Window, left: Window | None = None) -> None:
        """One update of a window, and of what is ``left`` in the buffers, whose parts are divided by what it held."""
        self._note(window)
        passes = [*(self._passes(left) if left else []), *self._passes(window)]
        if self.formula.pace == "optimizer":
            for one in passes:
                self._step(self._clipped([self._gradient(*one)]))
            return
        beside_the_update = len(window) - 1
        if self.formula.pace == "schedule ahead":
            self._decay(beside_the_update)
        self._step(self._clipped([self._gradient(*one) for one in passes]))
        if self.formula.pace == "schedule":
            self._decay(beside_the_update)
        if self.formula.pace == "schedule a rank":
            self._decay(self.problem.settings.world_size - 1)

    def _passes(self, window: Window) -> list[tuple[Batch, float, float]]:
        """Batches, each with the factor on its sum and that on the loss beside it."""
        if self.formula.whole:
            whole = self.problem.collate([sample for samples in window for sample in samples])
            return [(whole, 1 / self.problem.weight_of(whole), 1.0)]
        batches, counted = self._counted(window)
        share = 1.0 if self.formula.beside == "sum" else 1 / len(batches)
        factors = self.formula.factors(counted)
        return [(batch, factor, share) for batch, factor in zip(batches, factors, strict=True)]

    def _counted(self, window: Window) -> tuple[list[Batch], Counted]:
        problem, batches = self.problem, [self.problem.collate(samples) for samples in window]
        counted = Counted(
            weights=[problem.weight_of(batch) for batch in batches],
            samples=[len(samples) for samples in window],
            others={name: [count(batch) for batch in batches] for name, count in problem.counts.items()},
            steps=self.steps,
            ranks=[index % problem.settings.world_size for index in range(len(window))],
        )
        return batches, counted

    def _gradient(self, batch: Batch, factor: float, beside: float) -> Gradient:
        loss = self.problem.sum_of(self.model, batch) * factor
        if self.problem.beside is not None:
            loss = loss + self.problem.beside(self.model, batch) * beside
        return torch.autograd.grad(loss, self.parameters, materialize_grads=True)

    def _clipped(self, gradients: Sequence[Gradient]) -> Gradient:
        bound, clip = self.problem.settings.clip_norm, self.formula.clip
        total = tuple(torch.zeros_like(p) for p in self.parameters)
        for gradient in gradients:
            added = _bounded(gradient, bound) if clip == "micro-batch" else gradient
            total = tuple(a + b for a, b in zip(total, added, strict=True))
            if clip == "running sum":
                total = _bounded(total, bound)
        return _bounded(total, bound, margin=0.0 if clip == "exactly" else 1e-6) if clip in RIGHT_CLIPS else total

    def _step(self, gradient: Gradient) -> None:
        for parameter, value in zip(self.parameters, gradient, strict=True):
            parameter.grad = value
        self.optimizer.step()
        self._decay(self.formula.pace != "schedule an epoch")
        self.updates += 1

    def _decay(self, times: int) -> None:
        self.optimizer.param_groups[0]["lr"] *= (self.problem.settings.gamma or 1.0) ** times

    @torch.no_grad()
    def _note(self, held: Window) -> None:
        batches, counted = self._counted(held)
        sums = [self.problem.sum_of(self.model, batch).item() for batch in batches]
        window = sum(sums) / sum(counted.weights)
        if self.formula.whole and len(batches) > 1:
            # Where a layer looks across samples, the window's loss is that of one batch.
            whole = self.problem.collate([sample for samples in held for sample in samples])
            window = self.problem.sum_of(self.model, whole).item() / self.problem.weight_of(whole)
        means = [s / w if w else float("nan") for s, w in zip(sums, counted.weights, strict=True)]
        self.micro_losses += means
        self.losses.append(
            {
                "sum over weight": window,
                "mean of means": sum(means) / len(means),
                "last micro-batch": means[-1],
                "first micro-batch": means[0],
                "sum of means": sum(means),
                "mean over N again": sum(means) / len(means) ** 2,
                "last over N": means[-1] / counted.steps,
                "sum": sum(sums),
            }
        )


def _windows(parts: Window, steps: int, stop: int, resume: Resume) -> list[Window]:
    """The windows of an interrupted epoch, by where it goes on."""
    begun, due = stop - stop % steps, stop - stop % steps + steps  # where the interrupted window begins and ends
    before = in_parts(parts[:begun], steps)
    if resume == "first samples":
        return [*before, *in_parts(parts[: len(parts) - begun], steps)]
    if resume == "rest of first":
        return [*before, parts[: due - stop], *in_parts(parts[due - stop : len(parts) - stop], steps)]
    if resume == "epoch inside":
        passed = [*parts[:stop], *parts]
        return in_parts(passed[: len(passed) - len(passed) % steps], steps)
    begin = {"lost": due, "skipped": due, "stepped": stop, "new window": stop, "new epoch": 0}[resume]
    between = {"lost": [parts[stop:due]], "stepped": [parts[begun:stop]]}.get(resume, [])
    return [*before, *between, *in_parts(parts[begin:], steps)]


def _bounded(gradient: Gradient, bound: float | None, margin: float = 1e-6) -> Gradient:
    """Scaled down to a norm of ``bound`` if it is longer; torch adds a margin to the norm."""
    if bound is None:
        return gradient
    norm = torch.nn.utils.get_total_norm(gradient)
    return tuple(value * torch.clamp(bound / (norm + margin), max=1.0) for value in gradient)
