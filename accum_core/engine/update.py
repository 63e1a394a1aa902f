"""One update: everything between the last backward pass of a window and the first pass of the next one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from accum_core.engine.accumulate import accumulate_gradients
from accum_core.engine.averaging import WeightAverage
from accum_core.engine.objectives import Objective
from accum_core.engine.precision import Precision
from accum_core.engine.ranks import bare
from accum_core.engine.snapshot import Snapshot
from accum_core.engine.window import MicroBatch, WindowResult
from accum_core.errors import NonFiniteLossError
from accum_core.records import Incident, NonFinitePolicy
from accum_core.reduction import LossReduction

PARTS = ("optimizer", "scheduler", "scaler", "average")


@dataclass(frozen=True, slots=True)
class Update:
    """What one window came to.

    Attributes:
        window: its passes.
        gradient_norm: L2 norm of its gradient in float32, unscaled and before clipping.
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
        self._after_update = after_update
        self.updates = self.samples = self.micro_batches = self.skipped = 0

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
        return self.scaler.scale(torch.ones((), device=next(self.model.parameters()).device)).item()

    def update(
        self,
        micro_batches: Sequence[MicroBatch],
        objective: Objective,
        *,
        reduction: LossReduction | None = None,
        world_size: int = 1,
        autocast: torch.dtype | None = None,
    ) -> Update:
        """Accumulate a window's gradient and step.

        Raises:
            NonFiniteLossError: with ``non_finite = "stop"``, before anything was stepped.
        """
        start = Snapshot(bare(self.model)) if self.non_finite != "stop" else None
        window = accumulate_gradients(
            self.model,
            micro_batches,
            objective,
            reduction=reduction or LossReduction(),
            world_size=world_size,
            precision=Precision(autocast=autocast, loss_scale=self.loss_scale),
            non_finite="skip_micro_batch" if self.non_finite == "skip_micro_batch" else "keep",
        )
        if start is not None and not math.isfinite(window.loss):
            start.restore(bare(self.model))  # a skipped window leaves nothing behind in running statistics
        return self.step(window)

    def step(self, window: WindowResult, before_step: Callable[[], None] | None = None) -> Update:
        """Make the update of a window whose gradient stands in ``.grad``; afterwards every gradient is None.

        Args:
            before_step: called with the unscaled gradient in ``.grad``, before it is clipped; not for a window that a
                micro-batch was left out of, whose gradient is not that of its samples.

        Raises:
            NonFiniteLossError: with ``non_finite = "stop"``, before anything was stepped.
        """
        incidents = []
        if window.skipped:
            text = f"{window.skipped} micro-batch(es) not finite: left out of the window's sum and weight"
            incidents.append(Incident(kind="skipped_micro_batches", text=text))
        self.samples += window.samples
        self.micro_batches += window.micro_batches
        norm = math.nan
        if window.empty and window.skipped:
            text = "no micro-batch of a window with a valid label was finite: no update was made"
            incidents.append(Incident(kind="non_finite", text=text))
        elif window.empty:
            incidents.append(Incident(kind="no_valid_label", text="a window held no valid label: no update was made"))
        elif not math.isfinite(window.loss):
            incidents.append(self._not_finite("loss", window.loss))
        else:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            norm = self._norm()
            if self.scaler is None and not math.isfinite(norm):
                incidents.append(self._not_finite("gradient norm", norm))
            else:
                if before_step is not None and math.isfinite(norm) and not window.skipped:
                    before_step()
                self._clip()
                if (overflow := self._step()) is not None:
                    incidents.append(overflow)
        self._clear()
        made = all(incident.kind == "skipped_micro_batches" for incident in incidents)
        update = Update(window, norm, made, tuple(incidents))
        if made:
            self._move(update)
        else:
            self.skipped += 1
        return update

    def state_dict(self) -> dict[str, Any]:
        """Optimizer, schedule, scaler, average and counters."""
        parts = {name: getattr(self, name) for name in PARTS}
        return {
            **{name: part.state_dict() for name, part in parts.items() if part is not None},
            "counts": [self.updates, self.samples, self.micro_batches, self.skipped],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of an updater with the same parts."""
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

    def _step(self) -> Incident | None:
        """The optimizer's step, unless the scaler saw an overflow."""
        if self.scaler is None:
            self.optimizer.step()
            return None
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        after = self.scaler.get_scale()
        if after >= before > 0:
            return None
        return Incident(
            kind="overflow",
            text=f"a float16 gradient overflowed: no update was made, the loss scale went from {before:g} to {after:g}",
        )

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
            self._clear()
            raise NonFiniteLossError(self.updates + 1, value, quantity)
        return Incident(kind="non_finite", text=f"{quantity} = {value}: the window was skipped, no update was made")
