"""Steps to a target and the hyperbola through them: made records, points on a known curve, and SciPy's other solver."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq, minimize
from small_runs import record

from accum_core.errors import SettingError
from accum_core.records import UpdateRecord, Validation
from accum_core.steps_to_target import Reached, Tradeoff, fit, reached

SIZES = (8, 16, 32, 64, 128, 256)


def course(*losses: float | None, measure: str = "loss") -> list[UpdateRecord]:
    """Updates of 4 samples, validated where a value is given."""
    return [
        record(k, validation=None if loss is None else Validation(**{"loss": 9.0, measure: loss}))
        for k, loss in enumerate(losses, start=1)
    ]


def test_the_target_is_met_between_two_validations() -> None:
    """From 2.0 after update 2 to 1.0 after update 4: 1.25 lies three quarters of the way, at 3.5 updates."""
    assert reached(course(None, 2.0, None, 1.0, 0.5), 1.25) == Reached(3.5, 14.0)


def test_the_first_crossing_counts_and_a_target_may_be_hit_exactly() -> None:
    assert reached(course(3.0, 1.0, 3.0, 1.0), 2.0) == Reached(1.5, 6.0)
    assert reached(course(3.0, 2.0, 1.0), 2.0) == Reached(2.0, 8.0)
    assert reached(course(None, 1.0), 2.0) == Reached(2, 8)


def test_a_run_that_does_not_get_there_has_none() -> None:
    assert reached(course(3.0, 2.5), 2.0) is None
    assert reached(course(None, None), 2.0) is None
    assert reached(course(math.nan, 2.5), 2.0) is None


def test_another_measure_can_be_the_target() -> None:
    assert reached(course(0.5, 0.3, measure="error"), 0.4, "error") == Reached(1.5, 6.0)
    assert reached(course(0.5, 0.3), 0.4, "error") is None


def test_it_counts_the_samples_of_the_records() -> None:
    """Windows that differ in size: 4 samples after the first validation and 10 after the second."""
    first, second = course(2.0, 1.0)
    assert reached([first, second.model_copy(update={"samples": 10})], 1.5) == Reached(1.5, 7.0)


@pytest.mark.parametrize(("least_updates", "least_samples"), [(20.0, 1000.0), (3.0, 900.0), (150.0, 400.0)])
def test_points_of_the_papers_curve_give_its_two_ends(least_updates: float, least_samples: float) -> None:
    """S solved from (S / S_min - 1)(B S / E_min - 1) = 1 by bisection, not from the form that is fitted."""

    def updates(size: float) -> float:
        low = max(least_updates, least_samples / size)
        return brentq(
            lambda s: (s / least_updates - 1) * (size * s / least_samples - 1) - 1, low, 1e6, xtol=1e-12, rtol=1e-14
        )

    found = fit(SIZES, [updates(size) for size in SIZES])
    assert (found.least_updates, found.least_samples) == pytest.approx((least_updates, least_samples), rel=1e-6)
    assert found.critical_batch == pytest.approx(least_samples / least_updates, rel=1e-6)


def test_at_the_critical_batch_both_are_twice_their_least() -> None:
    tradeoff = Tradeoff(20.0, 1000.0)
    assert tradeoff.critical_batch == 50
    assert tradeoff.updates(50) == 2 * 20
    assert 50 * tradeoff.updates(50) == 2 * 1000


def test_noisy_points_have_the_least_squares_of_another_solver() -> None:
    draw = np.random.default_rng(3)
    updates = [(20 + 1000 / size) * math.exp(0.2 * draw.normal()) for size in SIZES]

    def loss(ends: np.ndarray) -> float:
        return float(
            sum((math.log(ends[0] + ends[1] / b) - math.log(s)) ** 2 for b, s in zip(SIZES, updates, strict=True))
        )

    best = minimize(loss, (30.0, 500.0), method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-14, "maxiter": 2000})
    found = fit(SIZES, updates)
    assert (found.least_updates, found.least_samples) == pytest.approx(tuple(best.x), rel=1e-5)


def test_batches_on_one_side_give_one_end_and_a_bound_of_the_other() -> None:
    """Updates that halve with every doubling: E_min is theirs, and S_min lies far below the fewest updates."""
    found = fit(SIZES, [1000 / size for size in SIZES])
    assert found.least_samples == pytest.approx(1000, rel=1e-3)
    assert found.least_updates < 0.01 * 1000 / 256
    assert found.critical_batch > 256


@pytest.mark.parametrize(
    ("batches", "updates", "told"),
    [
        ((8, 8), (5, 6), "batches.*at least 2"),
        ((8, 16), (5,), "updates.*one number above 0"),
        ((8, 16), (5, 0), "updates.*one number above 0"),
        ((8, 16), (5, math.inf), "updates.*one number above 0"),
    ],
)
def test_what_cannot_be_fitted_is_refused(batches: tuple[int, ...], updates: tuple[float, ...], told: str) -> None:
    with pytest.raises(SettingError, match=told):
        fit(batches, updates)
