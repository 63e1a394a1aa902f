"""Seed intervals and counts against tables, SciPy and simulated coverage; sketch distances against exact distances."""

from __future__ import annotations

import base64
import math
import statistics
import struct
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from accum_core.errors import SettingError
from accum_core.statistics import (
    decode_sketch,
    deviation_behind,
    encode_sketch,
    seed_interval,
    seeds_needed,
    sketch_distance,
)

# Two-sided 95 % points of Student's t by degrees of freedom, as any printed table gives them.
T_TABLE = {1: 12.706, 2: 4.303, 4: 2.776, 9: 2.262, 29: 2.045}


@pytest.mark.parametrize(("freedom", "point"), T_TABLE.items())
def test_interval_follows_the_t_table(freedom: int, point: float):
    """Values -1 and 1 in turn around 5: the half width is t s / sqrt(n)."""
    values = [5 + (-1) ** k for k in range(freedom + 1)]
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / freedom)
    half = point * deviation / math.sqrt(len(values))
    interval = seed_interval(values)
    assert interval.mean == pytest.approx(mean)
    assert interval.high - interval.mean == pytest.approx(half, rel=3e-4)
    assert interval.mean - interval.low == pytest.approx(half, rel=3e-4)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=12), st.floats(0.5, 0.999))
def test_interval_agrees_with_scipy(values: list[float], level: float):
    interval = seed_interval(values, level)
    error = stats.sem(values)
    scale = max(1e-9, *map(abs, values))
    if error == 0:
        assert (interval.low, interval.high) == pytest.approx((values[0], values[0]))
    else:
        expected = stats.t.interval(level, len(values) - 1, loc=np.mean(values), scale=error)
        assert (interval.low, interval.high) == pytest.approx(expected, rel=1e-9, abs=1e-9 * scale)
    assert interval.level == level


def test_interval_covers_the_mean_as_often_as_it_says():
    """4000 experiments of 3 seeds each: the share that covers is binomial around 0.95 (5 standard deviations)."""
    draws = np.random.default_rng(20).normal(3.0, 2.0, size=(4000, 3))
    intervals = [seed_interval(row) for row in draws]
    covered = np.mean([interval.low <= 3.0 <= interval.high for interval in intervals])
    assert abs(covered - 0.95) < 5 * math.sqrt(0.95 * 0.05 / 4000)


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_a_bootstrap_of_few_seeds_covers_less_often_than_the_t_interval(seeds: int):
    """The reason for Student's t: SciPy's BCa intervals of normal effects miss the mean by several standard errors."""
    draws = np.random.default_rng(7).normal(0.0, 1.0, size=(1000, seeds))
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # three seeds have resamples that are all alike
        found = stats.bootstrap((draws,), np.mean, axis=-1, n_resamples=300, rng=np.random.default_rng(8))
    low, high = found.confidence_interval
    standard_error = math.sqrt(0.95 * 0.05 / len(draws))
    assert np.mean((low <= 0) & (high >= 0)) < 0.95 - 3 * standard_error


# One-sample t tests, sample sizes as R's power calculations print them: standardised effect, two-sided level of the
# test, power -> seeds. (0.2: table of the package pwr; 1 / 1.91: its one-sample call, which prints n = 30.75.) They
# count an interval on the wrong side as found, at most 7e-5 here: the row (0.2, 0.1, 0.7), which that decides, is left
# out.
PUBLISHED = [
    (0.2, 0.01, 0.7, 244), (0.2, 0.01, 0.8, 296), (0.2, 0.01, 0.9, 376), (0.2, 0.05, 0.7, 157), (0.2, 0.05, 0.8, 199),
    (0.2, 0.05, 0.9, 265), (0.2, 0.1, 0.8, 156), (0.2, 0.1, 0.9, 216), (1 / 1.91, 0.05, 0.8, 31),
]  # fmt: skip


@pytest.mark.parametrize(("effect", "significance", "power", "seeds"), PUBLISHED)
def test_seeds_needed_are_those_of_published_tables(effect: float, significance: float, power: float, seeds: int):
    assert seeds_needed(3 * effect, 3.0, power, level=1 - significance) == seeds


@pytest.mark.parametrize("ratio", [1.0, 2.0, 5.0])
def test_with_the_seeds_needed_a_verdict_comes_as_often_as_asked_and_with_one_fewer_it_does_not(ratio: float):
    """Simulated: effects of mean 0 and deviation 1 against a threshold at -ratio; 5 standard errors."""
    seeds = seeds_needed(ratio, 1.0, 0.8)
    assert seeds is not None

    def share(count: int) -> float:
        draws = np.random.default_rng(count).normal(size=(2000, count))
        return float(np.mean([seed_interval(row).low > -ratio for row in draws]))

    error = math.sqrt(0.8 * 0.2 / 2000)
    assert share(seeds) > 0.8 - 5 * error
    assert share(seeds - 1) < 0.8 + 5 * error


def test_seeds_needed_at_the_ends():
    assert seeds_needed(0.1, 0.0) == 2  # equal effects have an interval of width zero
    assert seeds_needed(1e9, 1.0) == 2
    assert seeds_needed(0.0, 1.0) is None  # nothing decides an effect that lies on the threshold
    assert seeds_needed(0.0, 0.0) is None
    assert seeds_needed(0.05, 1.0) is None  # 2.8^2 / 0.05^2 = 3136 seeds, as normal quantiles estimate it


@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf])
def test_seeds_needed_refuses_what_is_no_distance(bad: float):
    with pytest.raises(SettingError, match="margin = "):
        seeds_needed(bad, 1.0)
    with pytest.raises(SettingError, match="deviation = "):
        seeds_needed(1.0, bad)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=12), st.floats(0.5, 0.999))
def test_the_deviation_is_found_again_from_its_interval(values: list[float], level: float):
    interval = seed_interval(values, level)
    found = deviation_behind(interval.high - interval.mean, len(values), level)
    assert found == pytest.approx(statistics.stdev(values), rel=1e-9, abs=1e-9)


def test_one_seed_has_no_interval():
    with pytest.raises(SettingError, match="seeds = 1: .*at least 2"):
        seed_interval([0.5])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_seed_without_a_finite_value_is_refused(bad: float):
    with pytest.raises(SettingError, match=f"values.*{bad}"):
        seed_interval([0.5, bad, 0.7])


@given(st.lists(st.floats(width=32, allow_nan=False), max_size=40))
def test_sketch_text_is_little_endian_float32_in_base64(values: list[float]):
    text = encode_sketch(np.array(values))
    assert text == base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()
    assert decode_sketch(text).tolist() == values


def count_sketch(vector: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Charikar, Chen and Farach-Colton's sketch, one row: each coordinate, with a random sign, into a random bucket."""
    draw = np.random.default_rng(seed)
    buckets = draw.integers(0, size, vector.size)
    signs = draw.choice([-1.0, 1.0], vector.size)
    return np.bincount(buckets, weights=signs * vector, minlength=size)


def estimates(size: int, draws: int) -> np.ndarray:
    """Estimated over exact distance between two vectors of 3000 values, over independent sketches."""
    numbers = np.random.default_rng(4)
    reference = numbers.normal(size=3000)
    other = reference + 0.1 * numbers.standard_t(3, size=3000)
    norm = float(np.linalg.norm(reference))
    exact = float(np.linalg.norm(other - reference)) / norm
    found = [
        sketch_distance(
            encode_sketch(count_sketch(other, size, seed)), encode_sketch(count_sketch(reference, size, seed)), norm
        )
        for seed in range(draws)
    ]
    return np.array(found) / exact


@pytest.mark.parametrize("size", [64, 512])
def test_distance_from_sketches_is_unbiased_and_within_its_stated_error(size: int):
    """The square has mean 1 and standard deviation at most sqrt(2 / k); tolerances are 4 standard errors of them."""
    draws = 300
    squares = estimates(size, draws) ** 2
    stated = math.sqrt(2 / size)
    assert abs(squares.mean() - 1) < 4 * stated / math.sqrt(draws)
    assert squares.std(ddof=1) < stated * (1 + 4 / math.sqrt(2 * draws))
    assert estimates(size, draws).std(ddof=1) < 1.3 / math.sqrt(2 * size)


def test_distance_of_known_sketches():
    """(3, 4) against the origin is 5 long; over a norm of 10 that is 0.5."""
    far, origin = encode_sketch(np.array([3.0, 4.0])), encode_sketch(np.zeros(2))
    assert sketch_distance(far, origin, 10.0) == 0.5
    assert sketch_distance(far, far, 10.0) == 0
    assert sketch_distance(far, origin, 0.0) == math.inf
    assert sketch_distance(origin, origin, 0.0) == 0


def test_sketches_of_different_lengths_are_refused_with_both():
    with pytest.raises(SettingError, match="sketch = 3: .*2 values"):
        sketch_distance(encode_sketch(np.zeros(3)), encode_sketch(np.zeros(2)), 1.0)
