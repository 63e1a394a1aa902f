"""The one loop: N forward and backward passes whose gradients add up to the large batch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from torch import nn

from accum_core.engine.cached import accumulate_cached
from accum_core.engine.objectives import Objective, needs_whole_window
from accum_core.engine.precision import Precision
from accum_core.engine.tolerant import accumulate_tolerantly
from accum_core.engine.window import Accumulation, Exchange, MicroBatch, WindowResult
from accum_core.errors import SettingError
from accum_core.reduction import LossReduction, ReductionKind

__all__ = ["MicroBatch", "WindowResult", "accumulate_gradients"]


def accumulate_gradients(
    model: nn.Module,
    micro_batches: Sequence[MicroBatch],
    objective: Objective,
    *,
    reduction: ReductionKind | LossReduction = "exact",
    world_size: int = 1,
    precision: Precision | None = None,
    non_finite: Literal["keep", "skip_micro_batch"] = "keep",
    exchange: Exchange = "window",
    after_micro_batch: Callable[[int], None] | None = None,
) -> WindowResult:
    """Leave the window's gradient in ``.grad`` of every trainable parameter; step nothing, keep no graph.

    With ``reduction="exact"`` and layers that do not look across samples, the gradient is that of one batch of all
    samples, to rounding, for ragged micro-batches and unequal weights too (tests/test_accumulate.py: 1e-12 in
    float64). It is not exact where a layer looks across samples, as BatchNorm does.

    Gradients that a trainable parameter held before are replaced, so nothing leaks from one window into the next;
    parameters that do not require gradients are left alone.

    Args:
        model: called as ``model(inputs)`` by the objective, in the mode that it is in.
        micro_batches: ``(inputs [M, ...], targets [M, ...])`` each; moved to the model's device one at a time. Of
            ranks that share the window each may have another number, or none.
        objective: sums and weights of the loss.
        reduction: what divides what; a ``LossReduction`` also carries the tail's rule.
        world_size: ranks that share the window, each passing its own micro-batches; needs torch.distributed. The
            gradients are averaged by DistributedDataParallel or ``fully_shard`` around the model, or else at the end.
        precision: number types; as the model has them by default, and sums of low precision in float32.
        non_finite: what to do with a micro-batch whose loss or gradient is infinite or not a number:
            ``keep`` lets it through to the result, ``skip_micro_batch`` leaves it out of the sum and of the weight.
        exchange: when ranks exchange gradients: once a ``window``, or after every ``micro_batch``, which gives the
            same gradient and suits sharded models, which would otherwise hold full gradients meanwhile.
        after_micro_batch: called with the index of each micro-batch after its backward pass.

    Raises:
        SettingError: for an empty window, an unknown reduction, or a world size that torch.distributed has not.
    """
    rule = reduction if isinstance(reduction, LossReduction) else LossReduction(reduction)
    precision = precision or Precision()
    if non_finite not in ("keep", "skip_micro_batch"):
        raise SettingError("non_finite", non_finite, "use keep or skip_micro_batch; an Updater skips whole windows")
    if not isinstance(micro_batches, Sequence):
        remedy = "has no length; cut it into windows first, or make a list of one window's micro-batches"
        raise SettingError("micro_batches", type(micro_batches).__name__, remedy)
    if not hasattr(objective, "sums"):
        remedy = "is no objective: it gives neither sums nor weights; use CrossEntropy, or write an Objective"
        raise SettingError("objective", getattr(objective, "__name__", type(objective).__name__), remedy)
    if not micro_batches and world_size == 1:
        raise SettingError("micro_batches", [], "a window holds at least one micro-batch")
    if needs_whole_window(objective) and rule.kind == "exact":
        # Its samples meet one another, so the parts of a window do not add up to it.
        return accumulate_cached(
            model,
            micro_batches,
            objective,
            rule=rule,
            world_size=world_size,
            precision=precision,
            after_micro_batch=after_micro_batch,
        )
    if non_finite == "skip_micro_batch":
        result, _ = accumulate_tolerantly(
            model,
            lambda _: micro_batches,
            objective,
            rule,
            world_size=world_size,
            precision=precision,
            skip_non_finite=True,
            after_micro_batch=after_micro_batch,
        )
        return result
    window = Accumulation(
        model, micro_batches, objective, rule, world_size=world_size, precision=precision, exchange=exchange
    )
    return window.complete(after_micro_batch)
