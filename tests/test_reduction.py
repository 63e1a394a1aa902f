"""LossReduction against its formulas in exact fractions: sums s, weights w, N micro-batches in a full window."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accum_core.errors import SettingError
from accum_core.reduction import REDUCTION_KINDS, LossReduction

counts = st.lists(st.integers(1, 2000), min_size=1, max_size=12)
# Class weights make weights that are not whole numbers. Sums that only a subnormal number can hold are no losses.
weights_and_sums = st.lists(
    st.tuples(st.floats(1e-3, 1e4), st.floats(-1e4, 1e4).filter(lambda s: s == 0 or abs(s) > 1e-100)),
    min_size=1,
    max_size=12,
)


def reduced(reduction: LossReduction, sums: list[float], weights: list[float]) -> float:
    return math.fsum(factor * value for factor, value in zip(reduction.factors(weights), sums, strict=True))


def close(value: float, expected: Fraction, sums: list[float], factors: list[Fraction]) -> bool:
    """Equal to a few roundings of the largest product that is added up."""
    scale = max(abs(factor * Fraction(s)) for factor, s in zip(factors, sums, strict=True))
    return abs(Fraction(value) - expected) <= Fraction(1e-14) * len(sums) * scale


@given(weights_and_sums)
def test_each_kind_equals_its_formula(window: list[tuple[float, float]]):
    weights, sums = [w for w, _ in window], [s for _, s in window]
    w, s, n = [Fraction(x) for x in weights], [Fraction(x) for x in sums], len(window)
    formulas = {
        "exact": [1 / sum(w)] * n,
        "mean_of_means": [1 / (x * n) for x in w],
        "sum_of_means": [1 / x for x in w],
        "sum": [Fraction(1)] * n,
    }
    assert set(formulas) == set(REDUCTION_KINDS)
    for kind, factors in formulas.items():
        expected = sum((f * x for f, x in zip(factors, s, strict=True)), Fraction(0))
        assert close(reduced(LossReduction(kind), sums, weights), expected, sums, factors), kind  # type: ignore[arg-type]


@given(counts)
def test_exact_does_not_depend_on_where_the_window_is_cut(weights: list[int]):
    """All samples have loss 1 here: any split has the mean 1, and the mean of means agrees for equal weights only."""
    sums = [float(weight) for weight in weights]
    assert reduced(LossReduction("exact"), sums, list(map(float, weights))) == pytest.approx(1, rel=1e-14)


@given(st.floats(0.1, 100), st.lists(st.floats(-10, 10), min_size=1, max_size=9))
def test_with_equal_weights_the_mean_of_means_is_exact(weight: float, sums: list[float]):
    weights = [weight] * len(sums)
    exact, means = (LossReduction(kind).factors(weights) for kind in ("exact", "mean_of_means"))
    assert exact == pytest.approx(means, rel=1e-13)


def test_the_worked_example_of_short_and_long_sequences():
    """One token with gradient 10 and three with gradient 2: (10 + 3 * 2) / 4 = 4, and (10 + 2) / 2 = 6 by means."""
    sums, weights = [10.0, 6.0], [1.0, 3.0]
    expected = {"exact": 4.0, "mean_of_means": 6.0, "sum_of_means": 12.0, "sum": 16.0}
    assert {kind: reduced(LossReduction(kind), sums, weights) for kind in REDUCTION_KINDS} == pytest.approx(expected)


@pytest.mark.parametrize("kind", REDUCTION_KINDS)
def test_a_micro_batch_without_weight_adds_nothing(kind: str):
    """Its factor is 0; exact leaves the others as they were without it, 1 / (3 + 5)."""
    factors = LossReduction(kind).factors([3.0, 0.0, 5.0])  # type: ignore[arg-type]
    assert factors[1] == 0
    assert all(math.isfinite(factor) and factor > 0 for factor in (factors[0], factors[2]))
    assert LossReduction("exact").factors([3.0, 0.0, 5.0]) == pytest.approx((1 / 8, 0, 1 / 8))
    assert LossReduction(kind).factors([0.0, 0.0]) == (0, 0)  # type: ignore[arg-type]
    assert LossReduction(kind).factors([]) == ()  # type: ignore[arg-type]


def test_other_ranks_weight_counts_in_the_total():
    """This rank holds 1 of 4 tokens."""
    assert LossReduction("exact").factors([1.0], total_weight=4.0) == (0.25,)


def test_the_tail_divided_by_n_is_n_over_full_times_the_rescaled_one():
    """2 micro-batches of a window of 4: the exact 1 / (1 + 3) and the means 1 / (w 2) are both halved."""
    weights = [1.0, 3.0]
    for kind, rescaled in (("exact", [1 / 4, 1 / 4]), ("mean_of_means", [1 / 2, 1 / 6])):
        assert LossReduction(kind, "rescale").factors(weights) == pytest.approx(rescaled)  # type: ignore[arg-type]
        by_n = LossReduction(kind, "divide_by_n", 4).factors(weights)  # type: ignore[arg-type]
        assert by_n == pytest.approx([factor / 2 for factor in rescaled])
        full = LossReduction(kind, "divide_by_n", 2).factors(weights)  # type: ignore[arg-type]
        assert full == pytest.approx(rescaled)


def test_reductions_that_divide_nothing_have_no_tail():
    assert LossReduction("sum", "divide_by_n", 4).factors([1.0, 3.0]) == (1, 1)


@pytest.mark.parametrize(
    ("settings", "field", "value"),
    [
        ({"kind": "average"}, "reduction", "average"),
        ({"tail": "pad"}, "tail", "pad"),
        ({"tail": "divide_by_n"}, "accumulation_steps", None),
        ({"tail": "divide_by_n", "accumulation_steps": 0}, "accumulation_steps", 0),
        ({"tail": "divide_by_n", "accumulation_steps": -2}, "accumulation_steps", -2),
    ],
)
def test_refusals_name_the_field_and_the_value(settings: dict[str, object], field: str, value: object):
    with pytest.raises(SettingError, match=re.escape(f"{field} = {value!r}")):
        LossReduction(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("weight", [-1.0, math.nan])
def test_a_weight_that_is_no_weight_is_refused(weight: float):
    with pytest.raises(SettingError, match=f"weight = {weight}"):
        LossReduction().factors([1.0, weight])
