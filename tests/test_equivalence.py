"""Seeds that bring an interval between two thresholds: against SciPy's quadrature, simulation, one threshold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from accum_core.equivalence import probability, seeds_between
from accum_core.errors import SettingError
from accum_core.statistics import seed_interval, seeds_needed


def by_quadrature(near: float, far: float, seeds: int) -> float:
    """The same probability by SciPy's distributions: over the chi distribution of s, instead of its quantiles."""
    freedom, root = seeds - 1, math.sqrt(seeds)
    mean, clear = stats.norm(scale=1 / root), stats.t.ppf(0.975, freedom)

    def weighed(ratio: float) -> float:
        half = clear * ratio / root
        inside = mean.cdf(far - half) - mean.cdf(half - near)
        return float(inside * root_freedom * stats.chi.pdf(ratio * root_freedom, freedom))

    root_freedom = math.sqrt(freedom)
    widest = (near + far) / 2 * root / clear
    found, _ = integrate.quad(weighed, 0, min(widest, 6.0), points=[min(1.0, widest / 2)], epsabs=1e-11, limit=200)
    return float(found)


@pytest.mark.parametrize(("near", "far"), [(1.0, 1.0), (1.0, 1.2), (0.3, 0.9), (2.0, 3.0), (0.0, 1.0)])
@pytest.mark.parametrize("seeds", [2, 3, 8, 40, 400])
def test_the_probability_is_that_of_scipys_quadrature(near: float, far: float, seeds: int) -> None:
    assert probability(near, far, seeds) == pytest.approx(by_quadrature(near, far, seeds), abs=1e-9)


@pytest.mark.parametrize(("near", "far"), [(1.0, 1.0), (1.0, 1.2), (0.7, 3.0)])
def test_with_these_seeds_a_verdict_comes_as_often_as_asked_and_with_one_fewer_it_does_not(
    near: float, far: float
) -> None:
    """Simulated: effects of mean 0 and deviation 1 between -near and far; 5 standard errors."""
    seeds = seeds_between(near, far, 1.0)
    assert seeds is not None

    def share(count: int) -> float:
        draws = np.random.default_rng(count).normal(size=(2000, count))
        intervals = [seed_interval(row) for row in draws]
        return float(np.mean([interval.low >= -near and interval.high <= far for interval in intervals]))

    error = math.sqrt(0.8 * 0.2 / 2000)
    assert share(seeds) > 0.8 - 5 * error
    assert share(seeds - 1) < 0.8 + 5 * error


def test_a_threshold_that_is_far_away_changes_nothing_and_one_that_is_as_near_asks_for_more() -> None:
    """At equal distances each side may be missed half as often: z(0.9) + z(0.975) in the place of z(0.8) + z(0.975)."""
    one = seeds_needed(0.2, 1.0)
    assert one == 199  # as R's power calculation prints it
    assert seeds_between(0.2, math.inf, 1.0) == seeds_between(0.2, 9.0, 1.0) == one
    both = seeds_between(0.2, 0.2, 1.0)
    normal = ((stats.norm.ppf(0.9) + stats.norm.ppf(0.975)) / 0.2) ** 2
    assert both is not None and normal < both < normal + 4  # Student's quantile adds some z(0.975)^2 / 2


def test_the_ends() -> None:
    assert seeds_between(0.1, 0.1, 0.0) == 2  # equal effects have an interval of width zero
    assert seeds_between(0.0, 1.0, 1.0) is None  # nothing decides an effect that lies on the threshold
    assert seeds_between(0.098, 0.098, 1.0) is None  # one of them alone would take 820 seeds
    assert seeds_needed(0.098, 1.0) is not None
    with pytest.raises(SettingError, match="far = 0.5: must be at least near"):
        seeds_between(1.0, 0.5, 1.0)
