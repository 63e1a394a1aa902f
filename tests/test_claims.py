"""Claims: supported, refuted or inconclusive by where the interval over seeds lies."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from accum_core.claims import Claim
from accum_core.errors import SettingError

# The 95 % interval of (1, 2, 3) is 2 +- 4.3027 * 1 / sqrt(3), from -0.4841 to 4.4841.
HALF = 4.302653 / math.sqrt(3)


def claim(**bounds: float) -> Claim:
    return Claim(id="c", statement="A statement.", effect="loss of mIoU", **bounds)


@pytest.mark.parametrize(
    ("bounds", "verdict"),
    [
        ({"at_least": -0.49}, "supported"),
        ({"at_least": -0.48}, "inconclusive"),
        ({"at_least": 4.48}, "inconclusive"),
        ({"at_least": 4.49}, "refuted"),
        ({"at_most": 4.49}, "supported"),
        ({"at_most": 4.48}, "inconclusive"),
        ({"at_most": -0.48}, "inconclusive"),
        ({"at_most": -0.49}, "refuted"),
        ({"at_least": -0.49, "at_most": 4.49}, "supported"),
        ({"at_least": 1.0, "at_most": 3.0}, "inconclusive"),
        ({"at_least": -0.49, "at_most": 4.4}, "inconclusive"),
        ({"at_least": 5.0, "at_most": 6.0}, "refuted"),
        ({"at_least": -6.0, "at_most": -5.0}, "refuted"),
    ],
)
def test_verdict_follows_from_the_interval_and_the_bounds(bounds: dict[str, float], verdict: str):
    judged = claim(**bounds).judge([1.0, 2.0, 3.0])
    assert judged.verdict == verdict
    assert judged.effect == pytest.approx(2)
    assert (judged.low, judged.high) == pytest.approx((2 - HALF, 2 + HALF), rel=1e-5)
    assert judged.num_seeds == 3
    assert (judged.id, judged.statement) == ("c", "A statement.")


def test_seeds_to_decide_follow_from_the_margin_and_the_spread():
    """(1, 2, 3) spread by 1 around 2; R's one-sample power calculation gives 199 for a fifth of the deviation."""
    judged = claim(at_least=1.8).judge([1.0, 2.0, 3.0])
    assert claim(at_least=1.8).seeds_to_decide(judged) == 199
    assert claim(at_least=-50.0, at_most=2.2).seeds_to_decide(judged) == 199
    assert claim(at_least=2.0).seeds_to_decide(judged) is None


def test_between_two_bounds_the_seeds_have_to_clear_both():
    """The same spread at 0.2 from either bound. Known deviation: ((z(0.9) + z(0.975)) / 0.2)^2 = 262.7 seeds; Student's
    quantile adds about z(0.975)^2 / 2 = 1.9."""
    judged = claim(at_least=1.8, at_most=2.2).judge([1.0, 2.0, 3.0])
    assert claim(at_least=1.8, at_most=2.2).seeds_to_decide(judged) in (264, 265, 266)
    assert claim(at_least=1.5, at_most=1.8).seeds_to_decide(judged) == 199  # outside, one bound decides


def test_a_bound_that_is_met_exactly_supports():
    """Seeds that all give 20 have the interval [20, 20]; 0.1 and 0.15 are no binary fractions, and three of them
    summed in float64 and divided by 3 are not what they were."""
    for value in (20.0, 0.1, 0.15):
        assert claim(at_least=value).judge([value] * 3).verdict == "supported"
        assert claim(at_most=value).judge([value] * 3).verdict == "supported"


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=6), st.floats(-100, 100))
def test_a_claim_and_its_opposite_are_never_both_supported(effects: list[float], bound: float):
    above, below = claim(at_least=bound).judge(effects), claim(at_most=bound).judge(effects)
    opposite = {"supported": "refuted", "refuted": "supported", "inconclusive": "inconclusive"}
    if above.low < bound or above.high > bound:  # otherwise the interval is the bound itself, and both hold
        assert below.verdict == opposite[above.verdict] or bound in (above.low, above.high)


def test_one_seed_decides_nothing():
    with pytest.raises(SettingError, match="at least 2 seeds"):
        claim(at_least=0.0).judge([1.0])


def test_a_claim_without_a_bound_claims_nothing_and_is_refused():
    with pytest.raises(ValidationError, match="at_least"):
        claim()


def test_bounds_that_exclude_each_other_are_refused():
    with pytest.raises(ValidationError, match="at_least"):
        claim(at_least=2.0, at_most=1.0)
