"""What to change when the effective batch changes: the rules of the literature. Plain arithmetic, no torch.

Each rule follows from what it keeps, and is right only as far as keeping that is what matters:

===================  ==================================  ====================================================
rule                 what changes                        what it keeps
===================  ==================================  ====================================================
linear               rate x new / base                   the way that samples move the weights, while the
                                                         gradient changes little over new / base updates
square root          rate x sqrt(new / base)             the variance of a step's noise, rate^2 / batch
equal half-life      beta2 ^ (new / base)                the samples over which Adam's average forgets half
growing batch        batch x factor, not rate / factor   the noise scale rate x data set size / batch
===================  ==================================  ====================================================
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from accum_core.errors import SettingError


def linear_rate(rate: float, base: int, new: int) -> float:
    """The learning rate of an effective batch ``new`` when ``rate`` was right for ``base``: rate x new / base.

    Goyal et al. 2017, arXiv 1706.02677, section 2.1, who start it with a gradual warm-up (section 2.2): linearly from
    ``rate`` to the new one, which is ``warmup_from = base / new`` of ``accum_core.schedule.Schedule``.

    Exact where the gradient is constant over new / base small updates of plain SGD (tests/test_scaling.py).

    Args:
        rate: learning rate, above 0.
        base, new: effective batch sizes in samples.

    Raises:
        SettingError: for a rate that is not above 0 and finite, or a batch that is no count.
    """
    _check_rate(rate)
    return rate * _ratio(base, new)


def square_root_rate(rate: float, base: int, new: int) -> float:
    """The learning rate of an effective batch ``new`` when ``rate`` was right for ``base``: rate x sqrt(new / base).

    Krizhevsky 2014, arXiv 1404.5997, and Hoffer et al. 2017, arXiv 1705.08741. A mean over a batch B has 1 / B of one
    sample's variance, so the variance of rate x gradient stays. Arguments and errors are those of ``linear_rate``.
    """
    _check_rate(rate)
    return rate * math.sqrt(_ratio(base, new))


def half_life(beta: float, batch_size: int) -> float:
    """Samples after which an average that is kept by ``beta`` an update has forgotten half: B ln(1/2) / ln(beta).

    Args:
        beta: share that one update keeps, above 0 and below 1.
        batch_size: effective batch size in samples.

    Raises:
        SettingError: for a beta outside (0, 1), or a batch that is no count.
    """
    _check_beta(beta)
    _check_count("batch_size", batch_size)
    return batch_size * math.log(0.5) / math.log(beta)


def beta_at_equal_half_life(beta: float, base: int, new: int) -> float:
    """Adam's beta2 for an effective batch ``new`` when ``beta`` was right for ``base``: beta ^ (new / base).

    Marek et al. 2025, arXiv 2507.07101, who keep the half-life fixed in tokens (here: samples) when the batch changes.
    ``half_life`` of both is equal (tests/test_scaling.py).

    Args:
        beta: share that one update keeps, above 0 and below 1.
        base, new: effective batch sizes in samples.

    Raises:
        SettingError: for a beta outside (0, 1), or a batch that is no count.
    """
    _check_beta(beta)
    return float(beta ** _ratio(base, new))


@dataclass(frozen=True, slots=True)
class Stage:
    """A stretch of updates with one learning rate and one effective batch.

    Attributes:
        updates: how many there are.
        rate_factor: on the base learning rate.
        batch_factor: on the base effective batch, and so on N while the micro-batch stays.
    """

    updates: int
    rate_factor: float
    batch_factor: int


def growing_batch(
    milestones: Sequence[int], factor: int, *, updates: int, largest_batch_factor: int | None = None
) -> tuple[Stage, ...]:
    """A step schedule that multiplies the batch by ``factor`` where it would have divided the rate by it.

    Smith et al. 2018, arXiv 1711.00489: the noise scale g = rate x data set size / batch (section 1, for a batch that
    is small beside the data set) falls alike both ways, and section 5.1 finds the learning curves alike over samples,
    with fewer updates. Where the batch may not grow further the rate is divided instead, which keeps g as well.

    Milestones and ``updates`` are those of the schedule that divides, at the base batch. The stages see the same
    samples in fewer updates; where a stage's samples do not fill its last window, that window is filled.

    Args:
        milestones: updates made when the rate would have been divided, rising.
        factor: a whole number of at least 2, so that N stays whole.
        updates: all updates of the schedule that divides.
        largest_batch_factor: bound on ``batch_factor``; none by default. With 1 it is the schedule that divides.

    Returns:
        One stage more than there are milestones.

    Raises:
        SettingError: for milestones that do not rise between 0 and ``updates``, or a number that is no count.

    >>> [(s.rate_factor, s.batch_factor) for s in growing_batch([60, 120], 5, updates=160, largest_batch_factor=5)]
    [(1.0, 1), (1.0, 5), (0.2, 5)]
    """
    _check_count("factor", factor, at_least=2)
    _check_count("updates", updates)
    if largest_batch_factor is not None:
        _check_count("largest_batch_factor", largest_batch_factor)
    edges = [0, *milestones, updates]
    if any(start >= end for start, end in pairwise(edges)):
        raise SettingError("milestones", list(milestones), f"must rise, all above 0 and below updates = {updates}")
    stages: list[Stage] = []
    batch_factor, divisor = 1, 1
    for start, end in pairwise(edges):
        stages.append(Stage(-(-(end - start) // batch_factor), 1 / divisor, batch_factor))
        if largest_batch_factor is None or batch_factor * factor <= largest_batch_factor:
            batch_factor *= factor
        else:
            divisor *= factor
    return tuple(stages)


def stage_of(stages: Sequence[Stage], update: int) -> Stage:
    """The stage of an update (counted from 1).

    Raises:
        SettingError: for an update that no stage holds.
    """
    left = update
    for stage in stages:
        if 0 < left <= stage.updates:
            return stage
        left -= stage.updates
    raise SettingError("update", update, f"the stages hold updates 1 to {sum(stage.updates for stage in stages)}")


def _ratio(base: int, new: int) -> float:
    _check_count("base", base)
    _check_count("new", new)
    return new / base


def _check_rate(rate: float) -> None:
    if not 0 < rate < math.inf:
        raise SettingError("learning_rate", rate, "must be above 0 and finite")


def _check_beta(beta: float) -> None:
    if not 0 < beta < 1:
        raise SettingError("beta", beta, "only a share above 0 and below 1 has a half-life")


def _check_count(field: str, value: int, *, at_least: int = 1) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise SettingError(field, value, f"must be a whole number of at least {at_least}")
