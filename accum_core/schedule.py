"""The learning rate of each update, as a share of the base rate. Plain arithmetic, no torch.

A linear warm-up over W updates, then a decay. With t updates made of T:

=========  ==================================================================================
kind       share of the base rate, before the minimum
=========  ==================================================================================
poly       warm-up times (1 - t/T)^0.9, the power of torchvision's segmentation recipe
cosine     after the warm-up (1 + cos(pi p)) / 2, p = (t - W) / (T - W)
linear     after the warm-up 1 - p
constant   after the warm-up 1
step       warm-up times ``factor`` for each milestone that is reached
=========  ==================================================================================

Everything counts updates: neither micro-batches nor ranks, so the rate of an update does not depend on N.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, get_args

from accum_core.errors import SettingError

ScheduleKind = Literal["poly", "cosine", "linear", "constant", "step"]
SCHEDULE_KINDS: Final = get_args(ScheduleKind)
POLY_POWER: Final = 0.9


# Without slots: torch's LambdaLR keeps the ``__dict__`` of what it calls in its state.
@dataclass(frozen=True)
class Schedule:
    """Share of the base rate for each update of a training.

    Args:
        kind: one of ``SCHEDULE_KINDS``.
        updates: T, all updates of the training, its tails' included.
        warmup_updates: W, fewer than T; update k of the warm-up has the share k / W.
        warmup_from: share f at which the warm-up starts, in [0, 1]: update k has f + (1 - f) k / W. With f = old rate /
            new rate it is the gradual warm-up of Goyal et al. 2017 (arXiv 1706.02677, section 2.2).
        minimum: share of the base rate that is left when all updates are made, in [0, 1]; a step schedule does not
            go below it.
        milestones: for ``step``: updates made when the rate changes, rising.
        factor: for ``step``: what a milestone multiplies the rate by, in (0, 1].

    Raises:
        SettingError: naming the field, the value and what to do.
    """

    kind: ScheduleKind
    updates: int
    warmup_updates: int = 0
    warmup_from: float = 0.0
    minimum: float = 0.0
    milestones: tuple[int, ...] = ()
    factor: float = 0.1

    def __post_init__(self) -> None:
        if self.kind not in SCHEDULE_KINDS:
            raise SettingError("schedule", self.kind, f"use one of {', '.join(SCHEDULE_KINDS)}")
        if self.updates < 1:
            raise SettingError("updates", self.updates, "must be at least 1")
        if not 0 <= self.warmup_updates < self.updates:
            raise SettingError(
                "warmup_updates", self.warmup_updates, f"must be at least 0 and smaller than updates = {self.updates}"
            )
        for field in ("warmup_from", "minimum"):
            if not 0 <= getattr(self, field) <= 1:
                raise SettingError(field, getattr(self, field), "is a share of the base rate, from 0 to 1")
        if self.kind == "constant" and self.minimum:
            raise SettingError("minimum", self.minimum, "a constant rate does not fall; leave it at 0")
        if not 0 < self.factor <= 1:
            raise SettingError("factor", self.factor, "a milestone multiplies the rate by a share above 0, at most 1")
        if bool(self.milestones) != (self.kind == "step"):
            remedy = "a step schedule needs at least one" if self.kind == "step" else "only a step schedule has them"
            raise SettingError("milestones", self.milestones, remedy)
        edges = (0, *self.milestones)
        if any(start >= end for start, end in pairwise(edges)):
            raise SettingError("milestones", self.milestones, "must rise from 1 on")

    def share(self, update: int) -> float:
        """Share of the base rate that an update (counted from 1) uses.

        The update after the last one would have exactly ``minimum`` (a step schedule: what its milestones leave; a
        constant one: the base rate).
        """
        return self(update - 1)

    def __call__(self, made: int) -> float:
        """``share`` of the next update after ``made``; the argument is what torch's schedulers count."""
        warmup = min(1.0, (made + 1) / self.warmup_updates) if self.warmup_updates else 1.0
        return (self.warmup_from + (1 - self.warmup_from) * warmup) * self._decayed(made)

    def _decayed(self, made: int) -> float:
        """What the decay alone leaves after ``made`` updates."""
        if self.kind == "constant":
            return 1.0
        if self.kind == "step":
            return max(self.minimum, self.factor ** bisect_right(self.milestones, made))
        # What is left, not what is made: 1 - t/T and 1 + cos would lose digits where little is left.
        left = max(0, self.updates - made)
        if self.kind == "poly":
            shape = float((left / self.updates) ** POLY_POWER)
        else:
            rest = min(1.0, left / (self.updates - self.warmup_updates))
            shape = rest if self.kind == "linear" else math.sin(math.pi / 2 * rest) ** 2
        return self.minimum + (1 - self.minimum) * shape
