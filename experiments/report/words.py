"""Sentences about a finished experiment, made from its numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from accum_core.claims import Claim, Verdict, VerdictWord
from accum_core.provenance import code_version
from accum_core.quantities import number, quantity
from accum_core.result_file import ResultHeader
from accum_core.statistics import MOST_SEEDS, POWER
from experiments.report.findings import Judged

EXACT = 2
"""Digits behind the point, of points, in arithmetic."""


def answer(judged: Sequence[Judged]) -> str:
    """What the experiment found, in a sentence or two: how many claims hold, and which do not."""
    return counts([one.verdict.verdict for one in judged]) + "".join(
        f" {one.verdict.verdict.capitalize()}: {one.claim.statement.rstrip('.')} (it is {measured(one)})."
        for one in judged
        if one.verdict.verdict != "supported"
    )


def counts(found: Sequence[VerdictWord]) -> str:
    """How many claims are supported, refuted and inconclusive, as a sentence."""
    if len(set(found)) == 1:
        return f"The claim is {found[0]}." if len(found) == 1 else f"All {len(found)} claims are {found[0]}."
    told = [
        f"{found.count(word)} {'is' if found.count(word) == 1 else 'are'} {word}"
        for word in ("supported", "refuted", "inconclusive")
        if word in found
    ]
    return f"Of {len(found)} claims {', '.join(told[:-1])} and {told[-1]}."


def measured(one: Judged) -> str:
    """The effect with its interval."""
    verdict, unit = one.verdict, one.claim.unit
    return f"{quantity(unit, verdict.effect)}, 95 % interval {quantity(unit, verdict.low, verdict.high)}"


def condition(claim: Claim) -> str:
    """Where the effect has to lie for the statement to hold."""
    low, high = claim.at_least, claim.at_most
    # A bound of a hundredth of a point is not one of none.
    digits = 1 if all(math.isclose(round(bound, 3), bound) for bound in (low, high) if bound is not None) else EXACT
    if low is None or high is None:
        bound = quantity(claim.unit, (low if high is None else high) or 0.0, digits=digits)
        return f"at {'least' if high is None else 'most'} {bound}"
    return f"between {quantity(claim.unit, low, digits=digits)} and {quantity(claim.unit, high, digits=digits)}"


def arithmetic(one: Judged) -> str:
    """From the effects to the interval, each number with its letter."""
    unit, count = one.claim.unit, len(one.effects)

    def shown(*values: float) -> str:
        return quantity(unit, *values, digits=EXACT)

    return (
        f"mean {shown(one.verdict.effect)}, s = {shown(one.deviation)}, n = {count}; "
        f"t(0.975, {count - 1}) = {one.quantile:.3f}; t s / √n = {shown(one.half_width)}; "
        f"interval {shown(one.verdict.low, one.verdict.high)}"
    )


def conclusion(one: Judged) -> str:
    """From the interval to the verdict."""
    where = {
        "supported": "the whole interval lies where the claim holds",
        "refuted": "the whole interval lies where the claim does not hold",
        "inconclusive": "the interval lies on both sides of a bound",
    }[one.verdict.verdict]
    told = f"The claim asks for {condition(one.claim)}: {where}, so it is {one.verdict.verdict}."
    return f"{told} {to_decide(one)}" if one.verdict.verdict == "inconclusive" else told


def to_decide(one: Judged) -> str:
    """How many seeds might decide a claim that these did not."""
    seeds = one.claim.seeds_to_decide(one.verdict)
    if seeds is None:
        return f"Were this mean the true effect, {MOST_SEEDS} seeds would be too few: it lies too near to a bound."
    return f"Were this mean the true effect, {seeds} seeds of this spread would decide it with probability {POWER:g}."


def effect(one: Judged, seed: int) -> str:
    """One seed's effect."""
    return quantity(one.claim.unit, one.effects[seed], digits=EXACT)


def brief(verdict: Verdict, unit: str) -> str:
    """A verdict's numbers for a card."""
    return f"{quantity(unit, verdict.effect)} ({quantity(unit, verdict.low, verdict.high)})"


def seeds_listed(seeds: Sequence[int]) -> str:
    """Seeds for people: a range where they follow one another."""
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds))


def provenance(result: ResultHeader) -> str:
    """Where a result comes from, and whether the present code is the code that made it."""
    environment = result.environment
    threads = "1 thread" if environment.threads == 1 else f"{environment.threads} threads"
    standing = (
        "That is the present code."
        if environment.code_version == code_version()
        else f"The present code is version {code_version()}."
    )
    return (
        f"Preset {result.preset}, seeds {seeds_listed(result.seeds)}, computed on {environment.date} by code version "
        f"{environment.code_version} on {environment.processor} ({environment.platform}), {threads} a run, Python "
        f"{environment.python}, torch {environment.torch}. {standing}"
    )


def setting(value: object) -> str:
    """A setting's value."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value, 3)
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
