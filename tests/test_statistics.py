"""Seed intervals against tables, SciPy and simulated coverage; sketch distances against exact distances."""

from __future__ import annotations

import base64
import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from accum_core.errors import SettingError
from accum_core.statistics import decode_sketch, encode_sketch, seed_interval, sketch_distance

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
