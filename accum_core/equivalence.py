"""How many seeds bring an interval between two thresholds, which is less likely than to clear one of them.

NumPy and SciPy, no torch. The one threshold is ``accum_core.statistics.seeds_needed``.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from accum_core.errors import SettingError
from accum_core.statistics import MOST_SEEDS, POWER, seeds_needed

NODES: Final = 64
TAIL: Final = 1e-13
"""Of the quadrature in ``probability``: its places, and what it leaves out at either end."""


def seeds_between(near: float, far: float, deviation: float, power: float = POWER, level: float = 0.95) -> int | None:
    """The fewest seeds whose interval probably lies between two thresholds, where the true effect lies.

    Args:
        near, far: distances of the true effect from the nearer and the other threshold, in the effect's unit, at
            least 0; ``far`` may be infinite.
        deviation: standard deviation of the effect over seeds, in the same unit, at least 0.
        power: probability of the verdict, in (0, 1).
        level: coverage of the interval, in (0, 1).

    Returns:
        At least 2; None where even ``MOST_SEEDS`` are too few.

    Raises:
        SettingError: for a ``near`` or ``deviation`` that is negative or not finite, or a ``far`` below ``near``.
    """
    if not near <= far:
        raise SettingError("far", far, f"must be at least near = {near}")
    least = seeds_needed(near, deviation, power, level)
    if least is None or deviation == 0 or far == math.inf:
        return least
    return next(
        (
            seeds
            for seeds in range(least, MOST_SEEDS + 1)
            if probability(near / deviation, far / deviation, seeds, level) >= power
        ),
        None,
    )


def probability(near: float, far: float, seeds: int, level: float = 0.95) -> float:
    """That the interval of ``accum_core.statistics.seed_interval`` lies between both thresholds, for normal effects.

    In units of the mean's standard error the mean Z is normal around 0, and the interval reaches t r to either side of
    it, t being Student's quantile and (n - 1) r^2 chi-squared with n - 1 degrees of freedom. So this is the mean of
    P(t r - near sqrt(n) <= Z <= far sqrt(n) - t r) over the r with which the interval is no wider than the thresholds
    are apart: exact but for the quadrature, by Gauss and Legendre's nodes.

    Args:
        near, far: distances of the true effect from the thresholds, in standard deviations over seeds, finite.
        seeds: n, at least 2.
        level: coverage of the interval, in (0, 1).
    """
    # Imported here, as pages that show no interval do without it.
    from scipy.special import chdtri, gammaln, ndtr, stdtrit, xlogy

    freedom, root = seeds - 1, math.sqrt(seeds)
    quantile = float(stdtrit(freedom, (1 + level) / 2))
    least, most = np.sqrt(chdtri(freedom, [1 - TAIL, TAIL]) / freedom)
    most = min(most, root * (near + far) / (2 * quantile))
    if most <= least:
        return 0.0
    places, weights = np.polynomial.legendre.leggauss(NODES)
    ratio = least + (most - least) * (places + 1) / 2
    half = freedom / 2
    density = 2 * np.exp(half * math.log(half) - gammaln(half) + xlogy(freedom - 1, ratio) - half * ratio**2)
    inside = ndtr(root * far - quantile * ratio) - ndtr(quantile * ratio - root * near)
    return float((most - least) / 2 * np.sum(weights * density * inside))
