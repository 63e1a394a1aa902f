"""Claims and verdicts: a statement with a threshold, and what the seeds say of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

from accum_core.equivalence import seeds_between
from accum_core.statistics import deviation_behind, seed_interval

VerdictWord = Literal["supported", "refuted", "inconclusive"]


class Verdict(BaseModel):
    """What the seeds say of a claim: the mean effect, its interval and the word that follows from them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    statement: str
    verdict: VerdictWord
    effect: float
    low: float
    high: float
    num_seeds: int


class Claim(BaseModel):
    """A statement about an effect that is measured once a seed.

    The statement holds when the effect's 95 % interval over seeds lies inside [at_least, at_most]; it is refuted
    when the interval lies outside; otherwise the seeds decide nothing.

    Attributes:
        id: short name, unique in its experiment.
        statement: one sentence with its threshold in it.
        effect: name of the effect; the experiment computes it from a seed's runs.
        at_least, at_most: the bounds that the statement sets; at least one of them.
        unit: what the effect is counted in ("mIoU", "" for a ratio).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    statement: str
    effect: str
    at_least: float | None = None
    at_most: float | None = None
    unit: str = ""

    @model_validator(mode="after")
    def _some_effect_refutes_it(self) -> Self:
        """Without bounds every effect would support the claim, and with crossed ones none could."""
        if self.at_least is None and self.at_most is None:
            raise ValueError("a claim needs at_least or at_most")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError(f"at_least = {self.at_least} lies above at_most = {self.at_most}")
        return self

    def judge(self, effects: Sequence[float]) -> Verdict:
        """The verdict over one effect a seed.

        Raises:
            SettingError: with fewer than two seeds, as one seed has no interval.
        """
        interval = seed_interval(effects)
        lower, upper = self._bounds
        word: VerdictWord = "inconclusive"
        if lower <= interval.low and interval.high <= upper:
            word = "supported"
        elif interval.high < lower or interval.low > upper:
            word = "refuted"
        return Verdict(
            id=self.id,
            statement=self.statement,
            verdict=word,
            effect=interval.mean,
            low=interval.low,
            high=interval.high,
            num_seeds=len(effects),
        )

    def seeds_to_decide(self, verdict: Verdict) -> int | None:
        """How many seeds of this spread would probably bring the claim to a verdict, were the true effect this one.

        Probably: with the power ``accum_core.statistics.POWER``. Between two bounds the interval has to clear both;
        beyond one of them, that one.

        Returns:
            None where more would be needed than ``accum_core.statistics.MOST_SEEDS``.
        """
        near, far = sorted(abs(verdict.effect - bound) for bound in self._bounds)
        inside = self._bounds[0] <= verdict.effect <= self._bounds[1]
        deviation = deviation_behind(verdict.high - verdict.effect, verdict.num_seeds)
        return seeds_between(near, far if inside else math.inf, deviation)

    @property
    def _bounds(self) -> tuple[float, float]:
        return (
            -math.inf if self.at_least is None else self.at_least,
            math.inf if self.at_most is None else self.at_most,
        )
