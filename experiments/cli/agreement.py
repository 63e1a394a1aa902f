"""Whether a run that is computed again is the recorded one.

Compared are each update's loss, its terms and its gradient norm, and each validation's numbers: all bit by bit where
processor, torch, device and thread count are those of the record, as such runs are bit-equal (``engine.train``).

Elsewhere the same float32 sums are taken in another order, and the difference grows along a run, so the two ends are
held differently. The first update starts from the same weights: what rounding does to one window is known, a gradient
error of at most 1e-4 (the bar of batch-independent norms in float32; the norm of the gradient cannot differ by more),
so its loss and gradient norm must agree within ``FIRST``. The last validation may have gone as far as two seeds go: its
measure must agree within what 99 of 100 differences between two of the committed seeds of that run stay within,
t(0.995, n - 1) sqrt(2) s over its n seeds, or within ``FIRST`` where that is more. What lies between is not compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from accum_core.measures import measure_of
from accum_core.records import Environment, RunResult, UpdateRecord, Validation
from accum_core.statistics import seed_interval

FIRST = 1e-4
LEVEL = 0.99


@dataclass(frozen=True, slots=True)
class Agreement:
    """What a comparison found.

    Attributes:
        holds: the runs are the same, as far as they can be.
        how: "bit by bit" or "within tolerance".
        text: what was compared, or the first difference.
    """

    holds: bool
    how: str
    text: str


def compare(recorded: RunResult, again: RunResult, others: Sequence[RunResult]) -> Agreement:
    """Hold a run against its record.

    Args:
        recorded, again: of the same configuration.
        others: the same run of every committed seed, the recorded one among them.
    """
    if _machine(recorded.environment) == _machine(again.environment):
        return _bit_by_bit(recorded, again)
    return _within_tolerance(recorded, again, others)


def _machine(environment: Environment) -> tuple[object, ...]:
    return environment.processor, environment.platform, environment.device, environment.torch, environment.threads


def _bit_by_bit(recorded: RunResult, again: RunResult) -> Agreement:
    computed = {record.update: record for record in again.records}
    for theirs in recorded.records:  # of a long run a result file keeps some (``accum_core.result_file``)
        ours = computed[theirs.update]
        for (name, new), (_, old) in zip(_numbers(ours), _numbers(theirs), strict=True):
            if repr(new) != repr(old):  # which takes NaN for NaN, and tells 0.0 from -0.0
                text = f"{name} of update {ours.update} is {new!r} and was {old!r}"
                return Agreement(False, "bit by bit", text)
    validations = sum(record.validation is not None for record in recorded.records)
    compared = f"updates: {len(recorded.records)}, validations: {validations}, all equal"
    return Agreement(True, "bit by bit", compared)


def _numbers(record: UpdateRecord) -> Iterator[tuple[str, float | None]]:
    yield "loss", record.loss
    yield "gradient norm", record.gradient_norm
    for name, term in record.terms.items():
        yield f"loss of {name}", term.loss
    checked = record.validation or Validation(loss=math.nan)
    for name in sorted(Validation.model_fields.keys() - {"pictures", "class_iou"}):
        yield f"validation {name}", getattr(checked, name)
    for place, value in enumerate(checked.class_iou):
        yield f"validation IoU of class {place}", value


def _within_tolerance(recorded: RunResult, again: RunResult, others: Sequence[RunResult]) -> Agreement:
    measure = measure_of(recorded.config.workload).field
    new, old = again.records[0], recorded.records[0]
    first = max(_apart(new.loss, old.loss), _apart(new.gradient_norm, old.gradient_norm))
    last = abs(again.metrics[measure] - recorded.metrics[measure])
    allowed = max(FIRST * abs(recorded.metrics[measure]), _between_seeds([run.metrics[measure] for run in others]))
    text = (
        f"first update apart by {first:.1e} (at most {FIRST:.0e}), last {measure} by {last:.2g} (at most {allowed:.2g})"
    )
    return Agreement(first <= FIRST and last <= allowed, "within tolerance", text)


def _apart(new: float, old: float) -> float:
    return 0.0 if new == old else abs(new - old) / abs(old) if old else math.inf


def _between_seeds(values: Sequence[float]) -> float:
    """What the difference of two seeds stays within, by ``LEVEL``; 0 where a single seed cannot tell."""
    if len(values) < 2:
        return 0.0
    interval = seed_interval(values, LEVEL)  # t s / sqrt(n) to either side
    return (interval.high - interval.mean) * math.sqrt(2 * len(values))
