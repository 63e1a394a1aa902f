"""One update: everything between the last backward pass of a window and the first pass of the next one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import nn
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from accum_core.engine.accumulate import accumulate_gradients
from accum_core.engine.averaging import WeightAverage
from accum_core.engine.objectives import Objective
from accum_core.engine.precision import Precision
from accum_core.engine.ranks import bare
from accum_core.engine.snapshot import Snapshot
from accum_core.engine.window import MicroBatch, WindowResult
from accum_core.errors import NonFiniteLossError, SettingError
from accum_core.records import Incident, NonFinitePolicy
from accum_core.reduction import LossReduction, ReductionKind

PARTS = ("optimizer", "scheduler", "scaler", "average")


@dataclass(frozen=True, slots=True)
class Update:
    """What one window came to.

    Attributes:
        window: its passes.
        gradient_norm: L2 norm of its gradient, unscaled and before clipping; float32 for gradients in low precision.
        made: whether the optimizer stepped. If not, schedule, average and the count of updates stood still.
        incidents: why not, or what was left out.
    """

    window: WindowResult
    gradient_norm: float
    made: bool
    incidents: tuple[Incident, ...]


class Updater:
    """Clips, steps, moves the schedule and the average, and counts: each once an update, never once a micro-batch.

    Args:
        model: the network in training, or its DistributedDataParallel.
        optimizer: of its parameters; one that steps once an update.
        scheduler: stepped after each update that was made.
        scaler: of float16; its loss scale is undone once a window, and an overflow anywhere in the window halves the
            scale, makes no update and is an incident.
        clip_norm, clip_value: bounds on the window's gradient, applied after its loss scale was undone.
        average: moved after each update.
        non_finite: ``stop`` raises; otherwise a window that is not finite makes no update.
        after_update: called after each update that was made.

    Attributes:
        updates, samples, micro_batches: made and seen, the samples over all ranks.
        skipped: windows that made no update.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        scheduler: LRScheduler | None = None,
        scaler: torch.amp.GradScaler | None = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        average: WeightAverage | None = None,
        non_finite: NonFinitePolicy = "stop",
        after_update: Sequence[Callable[[Update], None]] = (),
    ) -> None:
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        # One that is switched off looks for no overflow, so it is as good as none.
        self.scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self.average = average
        self.clip_norm, self.clip_value = clip_norm, clip_value
        self.non_finite = non_finite
        self._check()
        self._after_update = after_update
        self.updates = self.samples = self.micro_batches = self.skipped = 0

    def _check(self) -> None:
        for field in ("clip_norm", "clip_value"):
            bound = getattr(self, field)
            if bound is not None and not bound > 0:
                raise SettingError(field, bound, "must be above 0, or None for no bound")
        if self.non_finite not in get_args(NonFinitePolicy):
            raise SettingError("non_finite", self.non_finite, f"use one of {', '.join(get_args(NonFinitePolicy))}")
        if isinstance(self.scheduler, ReduceLROnPlateau):
            remedy = "steps by a measure of quality and not by updates; step it yourself after each validation"
            raise SettingError("scheduler", type(self.scheduler).__name__, remedy)
        if isinstance(self.optimizer, LBFGS):
            raise SettingError("optimizer", "LBFGS", "makes passes of its own in each step; use one that steps once")
        if self.scaler is not None and any(p.dtype == torch.float16 for p in self._trainable()):
            raise SettingError("scaler", "GradScaler", "needs float32 parameters; compute in float16 by autocast")

    @property
    def learning_rate(self) -> float:
        """That the next update uses, of the first parameter group."""
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def loss_scale(self) -> float:
        """The factor that the next window's terms carry."""
        if self.scaler is None:
            return 1.0
        # A scaler makes its scale when it first scales something; before that it unscales nothing.
        first = next(self.model.parameters(), None)
        return self.scaler.scale(torch.ones((), device=None if first is None else first.device)).item()

    def update(
        self,
        micro_batches: Sequence[MicroBatch],
        objective: Objective,
        *,
        reduction: ReductionKind | LossReduction = "exact",
        world_size: int = 1,
        autocast: torch.dtype | None = None,
    ) -> Update:
        """Accumulate a window's gradient and step.

        Args:
            micro_batches: one window, as ``windows`` cuts them.
            objective, reduction, world_size: as for ``accumulate_gradients``.
            autocast: number type of the passes under ``torch.autocast``.

        Raises:
            NonFiniteLossError: with ``non_finite = "stop"``, before anything was stepped.
        """
        start = Snapshot(bare(self.model))
        window = accumulate_gradients(
            self.model,
            micro_batches,
            objective,
            reduction=reduction,
            world_size=world_size,
            precision=Precision(autocast=autocast, loss_scale=self.loss_scale),
            non_finite="skip_micro_batch" if self.non_finite == "skip_micro_batch" else "keep",
        )
        return self.step(window, start=start)

    def step(
        self, window: WindowResult, before_step: Callable[[], None] | None = None, start: Snapshot | None = None
    ) -> Update:
        """Make the update of a window whose gradient stands in ``.grad``; afterwards every gradient is None.

        Args:
            before_step: called with the unscaled gradient in ``.grad``, before it is clipped; not for a window that a
                micro-batch was left out of, whose gradient is not that of its samples.
            start: the model before the window: its buffers are put back when no update is made, so that running
                statistics keep nothing of a window that was not finite.

        Raises:
            NonFiniteLossError: with ``non_finite = "stop"``, before anything was stepped.
        """
        incidents = []
        if window.skipped:
            text = f"{window.skipped} micro-batch(es) not finite: left out of the window's sum and weight"
            incidents.append(Incident(kind="skipped_micro_batches", text=text))
        norm, made = math.nan, False
        try:
            if window.empty and window.skipped:
                text = "no micro-batch of a window with a valid label was finite: no update was made"
                incidents.append(Incident(kind="non_finite", text=text))
            elif window.empty:
                text = "a window held no valid label: no update was made"
                incidents.append(Incident(kind="no_valid_label", text=text))
            elif not math.isfinite(window.loss):
                incidents.append(self._not_finite("loss", window.loss))
            else:
                norm, problem = self._clip_and_step(None if window.skipped else before_step)
                made = problem is None
                incidents += [] if problem is None else [problem]
        finally:
            self._clear()
            if not made and start is not None:
                start.restore_buffers(bare(self.model))
        self.samples += window.samples
        self.micro_batches += window.micro_batches
        update = Update(window, norm, made, tuple(incidents))
        if made:
            self._move(update)
        else:
            self.skipped += 1
        return update

    def _clip_and_step(self, before_step: Callable[[], None] | None) -> tuple[float, Incident | None]:
        """The norm of the gradient, and why the optimizer did not step, if it did not."""
        scale = self.loss_scale
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        try:
            norm = self._norm()
            # At a scale of 1 or less it is not the scale that overflows.
            if not math.isfinite(norm) and scale <= 1:
                return norm, self._not_finite("gradient norm", norm)
            if before_step is not None and math.isfinite(norm):
                before_step()
            self._clip()
            if self.scaler is None:
                self.optimizer.step()
            else:
                self.scaler.step(self.optimizer)
        finally:
            # Whatever came of it, the scaler must be ready for the next window.
            if self.scaler is not None:
                self.scaler.update()
        if self.scaler is None or (after := self.scaler.get_scale()) >= scale:
            return norm, None
        text = f"a float16 gradient overflowed: no update was made, the loss scale went from {scale:g} to {after:g}"
        return norm, Incident(kind="overflow", text=text)

    def state_dict(self) -> dict[str, Any]:
        """Optimizer, schedule, scaler, average and counters."""
        parts = {name: getattr(self, name) for name in PARTS}
        return {
            **{name: part.state_dict() for name, part in parts.items() if part is not None},
            "counts": [self.updates, self.samples, self.micro_batches, self.skipped],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of an updater with the same parts.

        Raises:
            SettingError: when the state has a part more or less.
        """
        for name in PARTS:
            if (getattr(self, name) is None) != (name not in state):
                told = "the state has one and this updater has none" if name in state else "the state has none"
                raise SettingError(name, getattr(self, name), f"{told}; make both with the same parts")
        for name in PARTS:
            if (part := getattr(self, name)) is not None:
                part.load_state_dict(state[name])
        self.updates, self.samples, self.micro_batches, self.skipped = state["counts"]

    def _norm(self) -> float:
        gradients = [parameter.grad for parameter in self._trainable() if parameter.grad is not None]
        low = any(gradient.dtype in (torch.bfloat16, torch.float16) for gradient in gradients)
        # A norm in eight bits would be off by a percent.
        return torch.nn.utils.get_total_norm([g.float() for g in gradients] if low else gradients).item()

    def _clip(self) -> None:
        parameters = self._trainable()
        if self.clip_value is not None:
            torch.nn.utils.clip_grad_value_(parameters, self.clip_value)
        if self.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, self.clip_norm)

    def _trainable(self) -> list[nn.Parameter]:
        """What a frozen parameter holds in ``.grad`` is not this window's: it is neither measured nor clipped."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def _clear(self) -> None:
        self.optimizer.zero_grad()
        for parameter in self._trainable():
            parameter.grad = None

    def _move(self, update: Update) -> None:
        self.updates += 1
        if self.scheduler is not None:
            self.scheduler.step()
        if self.average is not None:
            self.average.update_parameters(bare(self.model))
        for hook in self._after_update:
            hook(update)

    def _not_finite(self, quantity: str, value: float) -> Incident:
        if self.non_finite == "stop":
            raise NonFiniteLossError(self.updates + 1, value, quantity)
        return Incident(kind="non_finite", text=f"{quantity} = {value}: the window was skipped, no update was made")
