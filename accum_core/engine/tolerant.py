"""A window that is begun again when it goes wrong: too large for the memory, or with a micro-batch that is not finite.

No pass exchanges anything with other ranks, so a rank that fails leaves nobody waiting. After the passes the ranks
decide together: all halve the micro-batch, all begin again, or all go on to the one all-reduce.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from accum_core.batching import BatchPlan
from accum_core.engine.lockstep import window_layers
from accum_core.engine.objectives import Objective
from accum_core.engine.precision import Precision
from accum_core.engine.ranks import any_over_ranks, bare, sum_over_ranks
from accum_core.engine.snapshot import Snapshot
from accum_core.engine.window import Accumulation, MicroBatch, WindowResult
from accum_core.errors import OutOfMemoryError, SettingError
from accum_core.reduction import LossReduction

# What the CPU's allocator says on POSIX systems and on Windows, and CUDA's libraries about their own work space.
TOO_SMALL = (
    "can't allocate memory: you tried to allocate",
    "not enough memory: you tried to allocate",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


def accumulate_tolerantly(
    model: nn.Module,
    cut: Callable[[BatchPlan | None], Sequence[MicroBatch]],
    objective: Objective,
    rule: LossReduction,
    *,
    world_size: int,
    precision: Precision,
    skip_non_finite: bool,
    plan: BatchPlan | None = None,
    after_micro_batch: Callable[[int], None] | None = None,
) -> tuple[WindowResult, BatchPlan | None]:
    """``accumulate_gradients`` for a window that may have to be begun again.

    Before each try the buffers and the random states are put back and every sample is cut anew, so the try that
    succeeds is as if it had been the first.

    Args:
        cut: this rank's micro-batches of the window, by a plan.
        skip_non_finite: leave micro-batches out whose loss or gradient is not finite. A full window stays full then;
            in a tail that is divided by N, one that is left out counts as one that never came.
        plan: what to cut by at first; when the memory is too small, its micro-batch is halved. Without a plan nothing
            is halved, and an out-of-memory error is raised as it is.

    Returns:
        The window and the plan that it was cut by.

    Raises:
        OutOfMemoryError: when one sample does not fit.
        SettingError: for a plan where ranks wait for one another inside a pass.
    """
    if plan is not None and world_size > 1 and window_layers(model):
        remedy = "cannot be where ranks wait for one another at sync_batch layers; choose a smaller micro-batch"
        raise SettingError("shrink_on_out_of_memory", True, remedy)
    start = Snapshot(bare(model))
    bad = frozenset[int]()
    while True:
        present = rule if plan is None else replace(rule, accumulation_steps=plan.accumulation_steps)
        whole = cut(plan)
        if bad and len(whole) == present.accumulation_steps:
            present = replace(present, tail="rescale")  # the window is full, whatever is left out of it
        kept = [index for index in range(len(whole)) if index not in bad]
        micro_batches = [whole[index] for index in kept]
        window = Accumulation(
            model, micro_batches, objective, present, world_size=world_size, precision=precision, exchange="end"
        )
        clean = partial(start.restore_buffers, bare(model)) if skip_non_finite else None
        failed, found = _passes(window, clean, precision, plan is not None, after_micro_batch)
        if plan is not None and any_over_ranks(failed, world_size):
            window.abandon()
            del window, micro_batches, whole
            _free()
            if (smaller := plan.smaller()) is None:
                raise OutOfMemoryError(plan.micro_batch_size)
            plan, bad = smaller, frozenset()
        elif any_over_ranks(bool(found), world_size):
            window.abandon()
            bad |= {kept[index] for index in found}
        else:
            skipped = sum_over_ranks({"skipped": float(len(bad))}, world_size)["skipped"]
            return replace(window.finish(), skipped=round(skipped)), plan
        start.restore(bare(model))


def _passes(
    window: Accumulation,
    clean: Callable[[], None] | None,
    precision: Precision,
    may_fail: bool,
    after_micro_batch: Callable[[int], None] | None,
) -> tuple[bool, frozenset[int]]:
    """All passes of one try: whether the memory was too small, and which micro-batches were not finite.

    Args:
        clean: puts the buffers back; None when micro-batches that are not finite are not looked for.
    """
    bad: set[int] = set()
    # Under a loss scale an infinite gradient says that the scale is too large, which is the GradScaler's to mend.
    gradient = precision.loss_scale == 1
    try:
        while window.left:
            index = window.index
            if clean is None:
                window.advance()
            elif not window.advance_if_finite(gradient=gradient):
                bad.add(index)
                clean()  # or what it left in the buffers would make those after it look bad too
            # After a bad one the window is begun again, and with it what is watched.
            if after_micro_batch is not None and not bad:
                for each in range(index, window.index):  # all of them, when they were passed in step
                    after_micro_batch(each)
    except BaseException as error:
        if not may_fail or not is_out_of_memory(error):
            window.abandon()
            raise
        return True, frozenset()
    return False, frozenset(bad)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device's memory was too small: CUDA has a class for it, the CPU's allocator says it in words."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in TOO_SMALL)
    )


def _free() -> None:
    """Give back what the failed try held: its frames are gone with the error, its cached blocks go here."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
