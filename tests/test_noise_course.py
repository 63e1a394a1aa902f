"""The noise scale along a watched run: made windows with known numbers, and a run without noise summed by hand."""

from __future__ import annotations

import pytest
from small_runs import record
from watched_noise import watched_record

from accum_core.noise_course import Stretch, Watched, mean_until, pooled, stretches, watched
from accum_core.noise_scale import Estimate
from accum_core.steps_to_target import Tradeoff


def windows(*estimates: tuple[float, float], exact: tuple[float, float] = (1.0, 20.0)) -> list[Watched]:
    """Updates 1, 3, 5, ... with the given |G|^2 and S."""
    return [Watched(1 + 2 * k, Estimate(*found), Estimate(*exact)) for k, found in enumerate(estimates)]


def test_windows_are_those_that_both_instruments_saw() -> None:
    both = watched_record(3, (2.0, 30.0), (1.0, 20.0))
    alone = both.model_copy(update={"instruments": {"micro_gradient_norms": {}}})
    refused = {name: dict(fields) for name, fields in both.instruments.items()}
    refused["sample_noise"] |= {"gradient_square": None, "noise": None, "reason": "Layer norm looks across samples."}
    (found,) = watched([record(1), alone, both.model_copy(update={"instruments": refused}), both])
    assert (found.update, found.exact) == (3, Estimate(1.0, 20.0))
    assert (found.estimate.gradient_square, found.estimate.noise) == pytest.approx((2.0, 30.0), rel=1e-12)
    assert found.relative == pytest.approx(15 / 20, rel=1e-12)


def test_a_stretch_divides_the_sums_of_its_windows() -> None:
    """(10 + 50) / (1 + 3) = 15 and not the mean of 10 and 16.7; the fifth window is left over."""
    found = stretches(windows((1.0, 10.0), (3.0, 50.0), (2.0, 60.0), (2.0, 100.0), (9.0, 9.0)), 2)
    assert found == [Stretch(2.0, 15.0, 20.0), Stretch(6.0, 40.0, 20.0)]


def test_without_a_gradient_or_windows_there_is_no_course() -> None:
    assert stretches(windows((1.0, 10.0), (-2.0, 50.0)), 2) is None
    assert stretches(windows((1.0, 10.0)), 2) is None
    assert stretches([], 4) is None


def test_the_mean_is_the_critical_batch_of_a_run_summed_update_by_update() -> None:
    """Noise scales 20, 40 and 90 with borders at updates 10 and 20; S = sum of 1 + B(s) / B over the first 24."""
    parts = [Stretch(5.0, 20.0, 1.0), Stretch(15.0, 40.0, 1.0), Stretch(25.0, 90.0, 1.0)]
    scales = [20.0] * 10 + [40.0] * 10 + [90.0] * 4
    for batch in (8, 64):
        summed = sum(1 + scale / batch for scale in scales)
        assert Tradeoff(24, 24 * mean_until(parts, 24)).updates(batch) == pytest.approx(summed, rel=1e-12)
    assert mean_until(parts, 7) == 20.0
    assert mean_until(parts, 40) == pytest.approx((10 * 20 + 10 * 40 + 20 * 90) / 40, rel=1e-12)


def test_pooled_windows_tell_the_ratio_of_averages_and_the_average_of_ratios() -> None:
    """Windows that are right on average, 2 and 20 over two of them: ratios 60 and 10 / 1.5 or so."""
    found = pooled(windows((0.5, 30.0), (1.5, 10.0)))
    assert found[0] == pytest.approx((60 / 20, 60 / 20), rel=1e-12)
    assert found[1] == pytest.approx((1.0, (60 + 10 / 1.5) / 40), rel=1e-12)
