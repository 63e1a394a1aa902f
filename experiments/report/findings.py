"""A result read anew: effects by seed from the records, the arithmetic of each verdict, and what the figures draw."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from accum_core.claims import Claim, Verdict
from accum_core.errors import DataError, SettingError
from accum_core.experiment import Drawn, Experiment, SeedRuns
from accum_core.records import RunResult
from accum_core.result_file import ResultFile


@dataclass(frozen=True, slots=True)
class Judged:
    """A claim with the arithmetic that leads to its verdict.

    Attributes:
        effects: seed -> effect, of the seeds that have it.
        verdict: mean, interval and word, from these effects.
        remark: what the experiment's authors think of this verdict; "" for nothing.
    """

    claim: Claim
    effects: Mapping[int, float]
    verdict: Verdict
    remark: str

    @property
    def deviation(self) -> float:
        """s, the sample standard deviation of the effects over seeds."""
        return statistics.stdev(self.effects.values())

    @property
    def quantile(self) -> float:
        """t(0.975, n - 1) of Student's distribution."""
        from scipy.special import stdtrit

        return float(stdtrit(len(self.effects) - 1, 0.975))

    @property
    def half_width(self) -> float:
        """t s / sqrt(n)."""
        return self.quantile * self.deviation / math.sqrt(len(self.effects))


@dataclass(frozen=True, slots=True)
class Findings:
    """An experiment with one of its results.

    Attributes:
        runs: seed -> label -> run.
        judged: in the order of the claims.
        drawn: figure's key -> its lines.
    """

    experiment: Experiment
    result: ResultFile
    runs: Mapping[int, SeedRuns]
    judged: tuple[Judged, ...]
    drawn: Mapping[str, Drawn]


def find(experiment: Experiment, result: ResultFile) -> Findings:
    """Everything that follows from a result's records.

    Raises:
        DataError: for a result whose runs are not those that the experiment measures (any more), or cannot be judged.
    """
    runs: dict[int, dict[str, RunResult]] = {}
    for run in result.runs:
        runs.setdefault(run.seed, {})[run.label] = run.result
    try:
        judged = judge(experiment, result.preset, runs)
        drawn = {figure.key: figure.lines(runs) for figure in experiment.figures}
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        raise DataError(
            f"{experiment.name}: the runs of its result are not those that it measures now "
            f"({type(error).__name__}: {error}); run it again."
        ) from None
    return Findings(experiment, result, runs, judged, drawn)


def judge(experiment: Experiment, preset: str, runs: Mapping[int, SeedRuns]) -> tuple[Judged, ...]:
    """Each claim of a preset with its arithmetic.

    Raises:
        DataError: for a claim that cannot be judged: an effect that too few seeds have, or one that is not finite.
    """
    measured = {seed: experiment.measure(of_seed) for seed, of_seed in runs.items()}
    judged = []
    for claim in experiment.claims_of(preset):
        effects = {seed: found[claim.effect] for seed, found in measured.items() if claim.effect in found}
        try:
            verdict = claim.judge(list(effects.values()))
        except SettingError as error:
            raise DataError(f"{experiment.name}: the claim {claim.id} cannot be judged: {error}") from None
        remark = experiment.remarks.get(claim.id, {}).get(verdict.verdict, "")
        judged.append(Judged(claim, effects, verdict, remark))
    return tuple(judged)
