"""What the table of exactness holds: every combination, and what each must come to. Plain arithmetic, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from accum_core import catalogue
from accum_core.batching import BatchPlan
from accum_core.reduction import REDUCTION_KINDS, TAIL_RULES

FULL: Final = "full window"
WINDOWS: Final = (FULL, *TAIL_RULES)
WORLDS: Final = (1, 2, 4)
SAMPLES, TAIL_SAMPLES, MICRO_BATCH = 20, 9, 4
TYPES: Final = (
    "float64",
    "float32",
    "bfloat16 autocast",
    "float16 autocast",
    "bfloat16, sums in float32",
)


@dataclass(frozen=True, slots=True)
class Case:
    """How one window is accumulated.

    Args:
        norm: a file under ``norms``.
        reduction: what divides what.
        tail: ``FULL``, or the rule for a tail, which the window then is.
        precision: one of ``TYPES``.
        world_size: ranks that share the window.
        checkpointing: whether activations are computed again in the backward pass.
    """

    norm: str
    reduction: str
    tail: str
    precision: str
    world_size: int
    checkpointing: bool

    @property
    def samples(self) -> int:
        """Samples of the window, over all ranks."""
        return SAMPLES if self.tail == FULL else TAIL_SAMPLES

    @property
    def plan(self) -> BatchPlan:
        """How a full window is split."""
        return BatchPlan(SAMPLES, MICRO_BATCH, self.world_size, allow_tail=True)

    @property
    def makes_an_update(self) -> bool:
        """Whether there is a gradient at all."""
        return self.tail != "drop"

    @property
    def is_exact(self) -> bool:
        """Whether the gradient must be that of the whole window in one pass."""
        return self.reduction == "exact" and self.tail in (FULL, "rescale") and sees_the_window(self.norm)


def sees_the_window(norm: str) -> bool:
    """Whether splitting the window leaves the layer's work as it is; otherwise it sees one micro-batch at a time.

    True of layers that look at one sample at a time, and of those whose file says EXACT_UNDER_ACCUMULATION.
    """
    constants = catalogue.entries("norms")[norm]
    return bool(constants.get("EXACT_UNDER_ACCUMULATION", constants["BATCH_INDEPENDENT"]))


def cases() -> list[Case]:
    """Every combination of norm, reduction, tail, number type, number of ranks and checkpointing."""
    norms = catalogue.entries("norms")
    return [Case(*choice) for choice in product(norms, REDUCTION_KINDS, WINDOWS, TYPES, WORLDS, (False, True))]


def coefficients(case: Case, weights: Sequence[Sequence[float]]) -> list[list[float]]:
    """What the gradient of each micro-batch's summed loss is multiplied by in the window's gradient.

    Gradients are averaged over the ranks, as DistributedDataParallel does, so what a rank divides without asking the
    others is divided by their number once more.

    Args:
        weights: valid labels of each rank's micro-batches.
    """
    ranks, steps = len(weights), case.plan.accumulation_steps
    divided_by_n = case.tail == "divide_by_n"
    found = []
    for own in weights:
        passes = steps if divided_by_n else len(own)
        match case.reduction:
            case "exact":
                short = sum(map(len, weights)) / (ranks * steps) if divided_by_n else 1.0
                found.append([short / sum(map(sum, weights))] * len(own))
            case "mean_of_means":
                found.append([1 / (weight * passes * ranks) for weight in own])
            case "sum_of_means":
                found.append([1 / (weight * ranks) for weight in own])
            case "sum":
                found.append([1 / ranks] * len(own))
    return found
