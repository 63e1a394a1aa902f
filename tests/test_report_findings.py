"""Verdicts with their arithmetic: each number against hand calculation and SciPy, each sentence against its numbers."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import made_findings
import made_results
import pytest
from scipy import stats

import experiments
from accum_core.claims import Claim
from accum_core.errors import DataError
from accum_core.quantities import bound, quantity
from experiments.report import findings, words
from experiments.report.findings import Judged
from experiments.report.settings import compare


def judged(effects: dict[int, float], **claim: object) -> Judged:
    stated = Claim.model_validate({"id": "x", "statement": "It is so.", "effect": "x"} | claim)
    return Judged(stated, effects, stated.judge(list(effects.values())), "")


def test_the_arithmetic_is_that_of_students_interval() -> None:
    loses, holds, *_ = made_findings.found().judged
    assert loses.effects == pytest.approx({11: 0.2, 12: 0.3, 13: 0.4})
    assert loses.deviation == pytest.approx(0.1)
    assert loses.quantile == pytest.approx(stats.t.ppf(0.975, 2))
    assert loses.half_width == pytest.approx(made_findings.HALF)
    low, high = stats.ttest_1samp(list(loses.effects.values()), 0).confidence_interval(0.95)
    assert (loses.verdict.low, loses.verdict.high) == pytest.approx((low, high))
    assert words.arithmetic(loses) == (
        "mean 30.00 points, s = 10.00 points, n = 3; t(0.975, 2) = 4.303; t s / √n = 24.84 points; "
        "interval 5.16 to 54.84 points"
    )
    assert words.conclusion(loses).startswith(
        "The claim asks for at least 15.0 points: the interval lies on both sides of a bound, so it is inconclusive. "
    )
    assert holds.deviation == pytest.approx(0.01)
    assert words.condition(holds.claim) == "between −2.0 points and 2.0 points"
    small = holds.claim.model_copy(update={"at_least": None, "at_most": 0.0001})
    assert words.condition(small) == "at most 0.01 points"


def test_the_answer_counts_the_claims_and_names_those_that_do_not_hold() -> None:
    answer = words.answer(made_findings.found().judged)
    assert answer.startswith("Of 4 claims 2 are supported and 2 are inconclusive. Inconclusive: BatchNorm at micro-")
    assert "(it is 30.0 points, 95 % interval 5.2 to 54.8 points)." in answer
    assert words.counts(["refuted"]) == "The claim is refuted."
    assert words.counts(["supported"] * 3) == "All 3 claims are supported."
    assert words.counts(["supported", "refuted"]) == "Of 2 claims 1 is supported and 1 is refuted."


@pytest.mark.parametrize(
    ("effects", "word", "where"),
    [
        ({1: 1.0, 2: 1.1, 3: 1.2}, "supported", "lies where the claim holds"),
        ({1: -1.0, 2: -1.1, 3: -1.2}, "refuted", "lies where the claim does not hold"),
        ({1: -1.0, 2: 1.0}, "inconclusive", "lies on both sides of a bound"),
    ],
)
def test_the_conclusion_says_where_the_interval_lies(effects: dict[int, float], word: str, where: str) -> None:
    one = judged(effects, at_least=0.5)
    assert one.verdict.verdict == word
    assert where in words.conclusion(one)
    assert f"so it is {word}." in words.conclusion(one)


def test_an_undecided_claim_says_how_many_seeds_might_decide() -> None:
    # Margin 0.15, s = 0.1: n = 6 gives a noncentral t(5) of noncentrality 3.67 beyond 2.571 with probability 0.83.
    one = made_findings.found().judged[0]
    power = [stats.nct.sf(stats.t.ppf(0.975, n - 1), n - 1, n**0.5 * 1.5) for n in (5, 6)]
    assert power[0] < 0.8 < power[1]
    assert words.to_decide(one) == (
        "Were this mean the true effect, 6 seeds of this spread would decide it with probability 0.8."
    )
    at_the_bound = judged({1: 0.4, 2: 0.5, 3: 0.6}, at_least=0.5)
    assert "1000 seeds would be too few" in words.to_decide(at_the_bound)


def test_a_remark_stands_for_its_verdict_alone() -> None:
    experiment, result = experiments.find(made_findings.NAME), made_findings.committed()
    ours = replace(experiment, remarks={"batch_norm_loses": {"refuted": "Not so.", "inconclusive": "We wait."}})
    assert [one.remark for one in findings.find(ours, result).judged] == ["We wait.", "", "", ""]


def test_a_result_of_other_runs_is_refused_in_a_sentence() -> None:
    experiment = experiments.find(made_findings.NAME)
    with pytest.raises(
        DataError, match=r"^segmentation_batch_size: the runs .* not those .*group_whole.* run it again"
    ):
        findings.find(experiment, made_results.usual())
    one_seed = made_findings.committed().model_copy(update={"runs": made_findings.committed().runs[:4]})
    with pytest.raises(DataError, match="batch_norm_loses cannot be judged: .*at least 2 seeds"):
        findings.find(experiment, one_seed)


def test_settings_are_shared_or_differ() -> None:
    settings = compare(made_findings.found().runs)
    assert settings.differing == ("norm", "micro_batch_size")
    assert settings.runs["group_2"] == {"norm": "group", "micro_batch_size": 2}
    assert settings.seeds["batch_whole"] == made_findings.SEEDS
    assert settings.shared["effective_batch_size"] == 8
    assert not {"norm", "micro_batch_size", "seed"} & set(settings.shared)


@pytest.mark.parametrize(
    ("unit", "values", "text"),
    [
        ("mIoU", (0.293,), "29.3 points"),
        ("error", (-0.037, 0.027), "−3.7 to 2.7 points"),
        ("mIoU", (-0.0001,), "0.0 points"),
        ("", (1.113,), "1.11"),
        ("", (2.44e-6, 2.76e-6), "2.4 × 10⁻⁶ to 2.8 × 10⁻⁶"),
        ("nats", (-0.25,), "−0.25 nats"),
    ],
)
def test_quantities_carry_their_unit(unit: str, values: tuple[float, ...], text: str) -> None:
    assert quantity(unit, *values) == text


@pytest.mark.parametrize(
    ("share", "text"), [(0.01, "1 point (0.01)"), (0.005, "0.5 points (0.005)"), (0.07, "7 points (0.07)")]
)
def test_a_bound_is_told_in_points_and_as_a_share(share: float, text: str) -> None:
    assert bound(share) == text


def test_seeds_and_settings_are_written_for_people() -> None:
    assert words.seeds_listed((11, 12, 13)) == "11 to 13"
    assert words.seeds_listed((11, 13)) == "11, 13"
    assert words.setting(None) == words.setting(()) == "none"
    assert (words.setting(True), words.setting((60, 120)), words.setting(0.05)) == ("yes", "60, 120", "0.05")


def test_deviation_divides_by_one_less_than_the_seeds() -> None:
    assert judged({1: 1.0, 2: 3.0}, at_least=0).deviation == pytest.approx(sqrt(2))
