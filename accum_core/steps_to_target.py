"""Updates and samples that runs need to reach one target, and where a larger effective batch stops paying. No torch.

McCandlish et al. 2018, arXiv 1812.06162, section 2.3: of runs with different batch sizes B that reach one target, each
at its best learning rate, the updates S and the samples E = B S obey

    (S / S_min - 1) (E / E_min - 1) = 1,    which is    S = S_min + E_min / B

S_min is what no batch size, and E_min what no number of updates, brings it below. The critical batch size
B_crit = E_min / S_min needs twice the updates and twice the samples of the two extremes: below it a larger batch saves
updates at little cost, above it samples are spent for few updates less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from accum_core.errors import SettingError
from accum_core.records import UpdateRecord


@dataclass(frozen=True, slots=True)
class Reached:
    """Where a run came to its target; neither is a whole number, as the validations around it are interpolated."""

    updates: float
    samples: float


@dataclass(frozen=True, slots=True)
class Tradeoff:
    """The fitted hyperbola.

    Attributes:
        least_updates: S_min.
        least_samples: E_min.
    """

    least_updates: float
    least_samples: float

    @property
    def critical_batch(self) -> float:
        """B_crit, in samples."""
        return self.least_samples / self.least_updates

    def updates(self, batch: float) -> float:
        """S at an effective batch of that many samples."""
        return self.least_updates + self.least_samples / batch


def reached(
    records: Sequence[UpdateRecord], target: float, measure: Literal["loss", "error"] = "loss"
) -> Reached | None:
    """Where a validation first is at or below the target, interpolated linearly from the validation before.

    Where the first validation is, there is nothing to interpolate from and its own update stands. A course that is
    noisy is met at one of its low points: the smaller the batch the earlier, by little where it falls steeply.

    Returns:
        None for a run that does not get there.
    """
    before: tuple[float, float, float] | None = None
    for record in records:
        value = None if record.validation is None else getattr(record.validation, measure)
        if value is None:
            continue
        if value <= target:
            if before is None:
                return Reached(record.update, record.samples)
            share = (before[2] - target) / (before[2] - value)
            spans = record.update - before[0], record.samples - before[1]
            return Reached(before[0] + share * spans[0], before[1] + share * spans[1])
        before = record.update, record.samples, value
    return None


def fit(batches: Sequence[float], updates: Sequence[float]) -> Tradeoff:
    """The hyperbola through the updates that each effective batch needed, by least squares of log S.

    Runs differ by shares of their updates, which logarithms weigh alike. Exact for points that lie on a hyperbola
    (tests/test_steps_to_target.py). Batches that all lie far on one side of B_crit tell one of its two ends alone: the
    other is then no more than a bound.

    Args:
        batches: effective batch sizes in samples, at least two different ones.
        updates: S of each.

    Raises:
        SettingError: for fewer than two sizes, or a number that is not above 0.
    """
    if len(set(batches)) < 2:
        raise SettingError("batches", list(batches), "a hyperbola has two ends; give at least 2 effective batch sizes")
    if len(batches) != len(updates) or not all(math.isfinite(x) and x > 0 for x in (*batches, *updates)):
        raise SettingError("updates", list(updates), "needs one number above 0 for each effective batch size")
    # Imported here, as pages that fit nothing do without it.
    from scipy.optimize import least_squares

    size, needed = np.log(batches), np.log(updates)

    def off(ends: NDArray[np.float64]) -> NDArray[np.float64]:
        apart: NDArray[np.float64] = np.logaddexp(ends[0], ends[1] - size) - needed
        return apart

    # Both ends are positive, so their logarithms are sought, beginning with an equal part of each in the middle.
    middle = float(np.median(needed)) - math.log(2)
    found = least_squares(off, (middle, middle + float(np.median(size))), method="lm").x
    return Tradeoff(float(np.exp(found[0])), float(np.exp(found[1])))
