"""How long a micro-batch's passes take on this machine, tried out on the first ones of a run."""

from __future__ import annotations

import time
from collections.abc import Iterable

from torch import nn

from accum_core.engine import building
from accum_core.engine.accumulate import MicroBatch, accumulate_gradients
from accum_core.engine.objectives import Objective
from accum_core.engine.snapshot import Snapshot
from accum_core.records import RunConfig

ENOUGH = 5.0
"""Seconds after which no further micro-batch is tried."""


def seconds_a_micro_batch(
    config: RunConfig, model: nn.Module, objective: Objective, micro_batches: Iterable[MicroBatch]
) -> float:
    """The mean of forward and backward passes, in seconds; neither gradients nor random states are changed.

    The first one, in which libraries make themselves ready, counts only if ``ENOUGH`` is over after it.

    Args:
        config: of the run.
        model: in training mode; without gradients.
        micro_batches: at least one: inputs ``[M, 2, T]`` and targets ``[M, T]``.
    """
    before = Snapshot(model)
    seconds: list[float] = []
    for micro_batch in micro_batches:
        started = time.perf_counter()
        accumulate_gradients(model, [micro_batch], objective, precision=building.precision(config, 1.0))
        seconds.append(time.perf_counter() - started)
        if sum(seconds) >= ENOUGH:
            break
    model.zero_grad(set_to_none=True)
    before.restore(model)
    counted = seconds[1:] or seconds
    return sum(counted) / len(counted)
