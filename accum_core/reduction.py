"""What divides what: the factor on each micro-batch's summed loss. Plain arithmetic, no torch.

An objective gives for each term and micro-batch a *sum* s_i and a *weight* w_i (samples, valid pixels, valid tokens,
class weights). The large batch's loss is sum(s_i) / sum(w_i). What a training loop computes depends on the factor
f_i that it puts on s_i before the backward pass:

==============  ==========================  ===============================================================
kind            f_i                         who does it
==============  ==========================  ===============================================================
exact           1 / sum(w)                  torchtitan, torchtune, transformers; equals the large batch
mean_of_means   1 / (w_i N)                 nanoGPT, timm, Lightning, Accelerate; exact for equal weights only
sum_of_means    1 / w_i                     a loop that forgets to divide by N
sum             1                           reduction="sum" and no division at all
==============  ==========================  ===============================================================

The tail, a last window of n < N micro-batches, has its own rule: ``rescale`` divides by what the tail holds,
``divide_by_n`` divides as if it were full (each factor times n / N), ``drop`` leaves it out: ``engine.windows`` does,
and a window that comes all the same is divided as with ``rescale``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from accum_core.errors import SettingError

ReductionKind = Literal["exact", "mean_of_means", "sum_of_means", "sum"]
TailRule = Literal["rescale", "drop", "divide_by_n"]
REDUCTION_KINDS: Final = get_args(ReductionKind)
TAIL_RULES: Final = get_args(TailRule)


@dataclass(frozen=True, slots=True)
class LossReduction:
    """A reduction and a tail rule.

    Args:
        kind: one of ``REDUCTION_KINDS``.
        tail: one of ``TAIL_RULES``.
        accumulation_steps: N of a full window; needed by ``divide_by_n`` alone.

    Raises:
        SettingError: for an unknown name, or ``divide_by_n`` without N.
    """

    kind: ReductionKind = "exact"
    tail: TailRule = "rescale"
    accumulation_steps: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in REDUCTION_KINDS:
            raise SettingError("reduction", self.kind, f"use one of {', '.join(REDUCTION_KINDS)}")
        if self.tail not in TAIL_RULES:
            raise SettingError("tail", self.tail, f"use one of {', '.join(TAIL_RULES)}")
        if self.tail == "divide_by_n" and self.accumulation_steps is None:
            raise SettingError("accumulation_steps", None, "the tail rule divide_by_n needs the N of a full window")
        steps = self.accumulation_steps
        if steps is not None and (not isinstance(steps, int) or isinstance(steps, bool) or steps < 1):
            raise SettingError("accumulation_steps", steps, "must be a whole number of at least 1")

    def factors(self, weights: Sequence[float], *, total_weight: float | None = None) -> tuple[float, ...]:
        """The factor on each micro-batch's summed loss, for one term of one window.

        Args:
            weights: the term's weight in each micro-batch.
            total_weight: the window's weight when other ranks hold a part of it; ``sum(weights)`` by default.

        Returns:
            One factor a micro-batch. A micro-batch of weight 0 gets 0: it has nothing to add. With a total weight
            of 0 every factor is 0.

        Raises:
            SettingError: for a negative weight, or, with ``divide_by_n``, more micro-batches than N.
        """
        for weight in weights:
            if not weight >= 0:
                raise SettingError("weight", weight, "a weight is a count or a sum of class weights, 0 or more")
        total = sum(weights) if total_weight is None else total_weight
        count = len(weights)
        if self.kind == "exact":
            raw = [1 / total if weight else 0.0 for weight in weights] if total else [0.0] * count
        elif self.kind == "mean_of_means":
            raw = [1 / (weight * count) if weight else 0.0 for weight in weights]
        elif self.kind == "sum_of_means":
            raw = [1 / weight if weight else 0.0 for weight in weights]
        else:
            raw = [1.0 if weight else 0.0 for weight in weights]
        divides = self.kind in ("exact", "mean_of_means")
        if divides and self.tail == "divide_by_n" and self.accumulation_steps is not None:
            if count > self.accumulation_steps:
                remedy = f"a window of {count} micro-batches is more than full; give the N of a full window"
                raise SettingError("accumulation_steps", self.accumulation_steps, remedy)
            raw = [factor * count / self.accumulation_steps for factor in raw]
        return tuple(raw)
