"""``accum_core.schedule.Schedule`` as a scheduler of torch.optim, stepped once an update and held when one is skipped.

It is one ``LambdaLR``, not a ``SequentialLR`` of warm-up and decay. Each update's rate is the closed form's to the
last digits, while ``LinearLR``, ``PolynomialLR`` and ``CosineAnnealingLR`` multiply the rate before by a ratio, update
after update, and so carry rounding along. ``SequentialLR`` hands over at a milestone by a step to epoch 0, which warned
of a deprecated argument for years (pytorch 116776), and it can join two schedules but not multiply them, which "poly"
needs. And one scheduler has one set of base rates, so that a live change is made in one place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from accum_core.errors import SettingError
from accum_core.schedule import Schedule, ScheduleKind


def build(
    optimizer: Optimizer,
    kind: ScheduleKind,
    *,
    updates: int,
    warmup_updates: int,
    warmup_from: float = 0.0,
    minimum: float = 0.0,
    milestones: Sequence[int] = (),
    factor: float = 0.1,
) -> LambdaLR:
    """A scheduler that has set the rate of update 1, and sets that of update k + 1 when stepped after update k.

    Every parameter group keeps its own base rate, the one that it has now. ``state_dict`` holds plain values alone and
    round-trips to the same bits (tests/test_schedules.py).

    Args:
        optimizer: whose rates are set.
        kind, updates, warmup_updates, warmup_from, minimum, milestones, factor: as for ``Schedule``.

    Raises:
        SettingError: naming the field, the value and what to do.
    """
    schedule = Schedule(kind, updates, warmup_updates, warmup_from, minimum, tuple(milestones), factor)
    return LambdaLR(optimizer, schedule)


def rescale(scheduler: LambdaLR, new_base: float) -> None:
    """Go on with another base rate: every rate that is left is multiplied by new_base / base.

    Args:
        scheduler: from ``build``; the next update already uses the new rate.
        new_base: base rate of the first parameter group; the others keep their proportion to it.

    Raises:
        SettingError: for a rate that is not above 0 and finite.
    """
    if not 0 < new_base < math.inf:
        raise SettingError("learning_rate", new_base, "must be above 0 and finite")
    first = float(scheduler.base_lrs[0])
    scheduler.base_lrs = [new_base * (float(base) / first) for base in scheduler.base_lrs]
    groups = zip(scheduler.optimizer.param_groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
    for group, base, share in groups:
        group["initial_lr"], group["lr"] = base, base * share(scheduler.last_epoch)
    scheduler._last_lr = [group["lr"] for group in scheduler.optimizer.param_groups]
