"""Intervals over seeds, how many seeds decide, and the distance between two runs from their stored sketches.

NumPy and SciPy, no torch. Every interval is Student's t: effects are differences paired by seed, whose means are near
normal (a ratio is nearer as its logarithm), and a bootstrap of 3 to 10 seeds gives intervals that are too short
(``tests/test_statistics.py`` counts how often each covers the mean).
"""

from __future__ import annotations

import base64
import math
import statistics as exact
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accum_core.errors import SettingError

POWER = 0.8
MOST_SEEDS = 1000


@dataclass(frozen=True, slots=True)
class Interval:
    """Mean over seeds with the two-sided interval of the given level."""

    mean: float
    low: float
    high: float
    level: float


def seed_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Student's t interval of the mean over independent seeds.

    mean +- t((1 + level) / 2, n - 1) s / sqrt(n), with s the sample standard deviation. Right for few seeds if what
    they give is near normal; differences paired by seed are passed as their differences.

    Args:
        values: one value a seed.
        level: coverage of the interval, in (0, 1).

    Raises:
        SettingError: with fewer than two values, or one that is not finite.
    """
    if len(values) < 2:
        raise SettingError("seeds", len(values), "an interval needs at least 2 seeds")
    data = np.asarray(values, dtype=np.float64)
    if not np.isfinite(data).all():
        raise SettingError("values", list(values), "every seed's value must be finite")
    # Imported here, as pages that show no interval do without it; scipy.stats would take a second longer.
    from scipy.special import stdtrit

    # Summed exactly: equal values have themselves as their mean, and an interval of width zero around it.
    mean = exact.mean(data.tolist())
    half = float(stdtrit(data.size - 1, (1 + level) / 2)) * exact.stdev(data.tolist()) / math.sqrt(data.size)
    return Interval(mean, mean - half, mean + half, level)


def deviation_behind(half_width: float, seeds: int, level: float = 0.95) -> float:
    """The standard deviation over seeds from which ``seed_interval`` made an interval of this half-width; its inverse.

    Args:
        half_width: in the effect's unit.
        seeds: how many the interval rests on, at least 2.
    """
    from scipy.special import stdtrit

    return half_width * math.sqrt(seeds) / float(stdtrit(seeds - 1, (1 + level) / 2))


def seeds_needed(margin: float, deviation: float, power: float = POWER, level: float = 0.95) -> int | None:
    """The fewest seeds with which an interval clears a threshold that the true effect keeps a margin from.

    The interval of ``seed_interval`` keeps clear of the threshold when (mean - threshold) sqrt(n) / s exceeds the t
    quantile, and that ratio follows the noncentral t distribution of n - 1 degrees of freedom and noncentrality
    sqrt(n) margin / deviation: exact for normal effects (``tests/test_statistics.py``: published tables, simulation).

    Args:
        margin: distance of the true effect from the threshold, in the effect's unit, at least 0.
        deviation: standard deviation of the effect over seeds, in the same unit, at least 0.
        power: probability of a verdict, in (0, 1).
        level: coverage of the interval, in (0, 1).

    Returns:
        At least 2; None where even ``MOST_SEEDS`` are too few.

    Raises:
        SettingError: for a margin or deviation that is negative or not finite.
    """
    for name, value in (("margin", margin), ("deviation", deviation)):
        if not 0 <= value < math.inf:
            raise SettingError(name, value, "must be finite and at least 0")
    if deviation == 0:
        return 2 if margin else None
    from scipy.special import nctdtr, stdtrit  # here for the reason given above

    def missed(seeds: int) -> float:
        clear = stdtrit(seeds - 1, (1 + level) / 2)
        return float(nctdtr(seeds - 1, math.sqrt(seeds) * margin / deviation, clear))

    return next((seeds for seeds in range(2, MOST_SEEDS + 1) if missed(seeds) <= 1 - power), None)


def decode_sketch(text: str) -> NDArray[np.float32]:
    """The stored text of a sketch as its float32 values (little endian)."""
    return np.frombuffer(base64.b64decode(text), dtype="<f4")


def encode_sketch(values: NDArray[np.floating]) -> str:
    """A sketch as text for a record; inverse of ``decode_sketch``."""
    return base64.b64encode(np.asarray(values, dtype="<f4").tobytes()).decode("ascii")


def sketch_distance(sketch: str, reference: str, reference_norm: float) -> float:
    """norm(w - w_ref) / norm(w_ref), estimated from two sketches made with the same seed.

    A count sketch of k values (Charikar, Chen and Farach-Colton 2002) estimates norm(w - w_ref)^2 without bias and
    with a relative standard deviation of at most sqrt(2 / k), so the distance is off by about 1 / sqrt(2 k).

    Args:
        sketch, reference: texts from ``encode_sketch``, of equal length.
        reference_norm: norm(w_ref), which the record holds exactly.

    Raises:
        SettingError: for sketches of different lengths.
    """
    a, b = decode_sketch(sketch), decode_sketch(reference)
    if a.size != b.size:
        raise SettingError("sketch", a.size, f"cannot be compared with a sketch of {b.size} values")
    distance = float(np.linalg.norm(a.astype(np.float64) - b.astype(np.float64)))
    return distance / reference_norm if reference_norm else math.inf if distance else 0.0
