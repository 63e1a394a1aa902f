"""The measures that runs are compared by: what they are called, how they are shown, and which direction is better.

A workload's literal constant ``MEASURE`` names one of ``MEASURES``, a field of ``records.Validation``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from accum_core import catalogue


@dataclass(frozen=True, slots=True)
class Measure:
    """How good a model is on the held-out samples; of a share in [0, 1], a hundredth is a point.

    Attributes:
        field: name in ``Validation`` and in a run's metrics.
        title: for people ("mIoU").
        meaning: what it is, in one clause.
        higher_is_better: mIoU rises as a model gets better, an error or a loss falls.
        unit: of what is shown: an error is a share and shown in "%", a loss is counted in "nats".
    """

    field: str
    title: str
    meaning: str
    higher_is_better: bool
    unit: str = ""

    @property
    def axis(self) -> str:
        """What an axis of it is called."""
        return f"validation {self.title}{self.unit and f' ({self.unit})'}"

    def worsening(self, before: float, after: float) -> float:
        """How much worse ``after`` is than ``before``, negative where it is better."""
        return before - after if self.higher_is_better else after - before

    def shown(self, value: float) -> str:
        """A value for people: mIoU as a number between 0 and 1, an error in percent, a loss in nats."""
        return f"{100 * value:.1f} %" if self.unit == "%" else f"{value:.3f} {self.unit}".rstrip()


MEASURES: Final[Mapping[str, Measure]] = MappingProxyType(
    {
        measure.field: measure
        for measure in (
            Measure("miou", "mIoU", "mean intersection over union on the held-out samples, 0 to 1", True),
            Measure("error", "error", "share of the held-out samples whose class is wrong", False, "%"),
            Measure("token_loss", "loss per token", "mean cross-entropy of the held-out tokens", False, "nats"),
        )
    }
)


def measure_of(workload: str) -> Measure:
    """The measure of a workload; mIoU for one that is not known (any more)."""
    return MEASURES[catalogue.entries("workloads").get(workload, {}).get("MEASURE", "miou")]
