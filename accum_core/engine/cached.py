"""The exact gradient of a loss in which all samples of a window meet, one micro-batch's graph at a time.

GradCache (Gao et al. 2021, arXiv 2101.06983): the loss sees a sample through its representation alone, so the chain
rule can be cut there. A first pass without graph keeps the representations, the loss of all of them gives their
gradients, and a second pass takes these through the network.

Passes in step, of a model with ``sync_batch`` layers, are all alive at once and have one graph, which the loss is part
of without a second pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import Tensor, nn

from accum_core.engine.lockstep import has_to_step, in_step
from accum_core.engine.objectives import WholeWindow, window_loss
from accum_core.engine.objectives.penalty import add_penalties, penalty_loss
from accum_core.engine.precision import Precision, narrow, widen
from accum_core.engine.ranks import bare
from accum_core.engine.snapshot import Snapshot, random_states, set_random_states
from accum_core.engine.window import MicroBatch, WindowResult
from accum_core.errors import SettingError
from accum_core.records import Term
from accum_core.reduction import LossReduction

# Rounding that differs between two passes is far below this; another mask of a dropout of 1 % on the representations
# themselves is above it.
REPEATED = 0.05


def accumulate_cached(
    model: nn.Module,
    micro_batches: Sequence[MicroBatch],
    objective: WholeWindow,
    *,
    rule: LossReduction | None = None,
    world_size: int = 1,
    precision: Precision | None = None,
    after_micro_batch: Callable[[int], None] | None = None,
) -> WindowResult:
    """Leave the window's gradient in ``.grad`` of every trainable parameter, as ``accumulate_gradients`` does.

    Equal to one batch to 1e-12 in float64 where no layer looks across samples and nothing is drawn; with dropout, two
    runs of the same seed and split are bit-equal (tests/test_contrastive.py). The second pass starts each micro-batch
    from the random state that the first one did, and buffers move once. Kept between the passes are the
    representations ``[B, ...]`` and the random states; at most one micro-batch's graph is alive.

    Args:
        rule: exact, with any rule for the tail.
        others: as in ``accumulate_gradients``; ``after_micro_batch`` is called in the second pass.

    Raises:
        SettingError: for an empty window, another reduction, more than one rank, or a model whose second pass does not
            repeat its first.
    """
    rule, precision = rule or LossReduction(), precision or Precision()
    if not micro_batches:
        raise SettingError("micro_batches", [], "a window holds at least one micro-batch")
    if rule.kind != "exact":
        raise SettingError(
            "reduction", rule.kind, "a loss of the whole window at once has no parts to divide; use exact"
        )
    if world_size != 1:
        raise SettingError(
            "world_size",
            world_size,
            f"{' and '.join(objective.coefficients)} would miss the negatives on the other ranks; use one process",
        )
    model = bare(model)
    first = next(model.parameters(), None)
    device = first.device if first is not None else micro_batches[0][0].device
    weights = [objective.weights(targets) for _, targets in micro_batches]
    totals = {name: sum(float(weight[name]) for weight in weights) for name in objective.coefficients}
    factors = {
        name: coefficient * precision.loss_scale * max(rule.factors([weight[name] for weight in weights]))
        for name, coefficient in objective.coefficients.items()
    }

    def represent(inputs: Tensor) -> Tensor:
        with precision.forward(device):
            return objective.represent(model, inputs.to(device, non_blocking=True))

    together = has_to_step(model, len(micro_batches), world_size)
    start, starts, kept = Snapshot(model), [], []
    _clear(model)
    try:
        with torch.set_grad_enabled(together):
            if together:
                kept = in_step(model, [partial(represent, inputs) for inputs, _ in micro_batches])
            else:
                for inputs, _ in micro_batches:
                    starts.append(random_states())
                    kept.append(represent(inputs))
        summed, gradients = _loss(objective, kept, micro_batches, factors, precision.forward(device))
        end = random_states()
    finally:
        if not together:
            start.restore(model)

    wide = precision.widened(model.parameters())
    widen(wide, precision.accumulators)
    off = torch.zeros((), device=device)
    try:
        if together:
            torch.autograd.backward(kept, gradients)
        for index, (inputs, _) in enumerate(micro_batches):
            if not together:
                set_random_states(starts[index])
                with torch.enable_grad():
                    again = represent(inputs)
                again.backward(gradients[index])
                apart, size = (again.detach() - kept[index]).norm(), kept[index].norm()
                # What is zero or not a number cannot be judged so; it is left to the loss.
                off = torch.maximum(off, torch.where(size.isfinite() & (size > 0), apart / size, 0.0))
            if after_micro_batch is not None:
                after_micro_batch(index)
        if off > REPEATED:
            raise SettingError(
                "model",
                type(model).__name__,
                "gave other representations in the second pass than in the first: it draws numbers that are not from "
                "the random state of torch, numpy or random; draw them there",
            )
        penalties = add_penalties(model, objective, precision.loss_scale)
    except BaseException:
        _clear(model)
        raise
    finally:
        narrow(wide)
        set_random_states(end)
    terms = {
        name: Term(loss=summed[name] / weight if weight else 0.0, weight=weight) for name, weight in totals.items()
    }
    return WindowResult(
        loss=window_loss(summed, totals, objective.coefficients) + penalty_loss(objective, penalties),
        terms=terms | {name: Term(loss=value, weight=0.0) for name, value in penalties.items()},
        samples=sum(len(inputs) for inputs, _ in micro_batches),
        micro_batches=len(micro_batches),
    )


def _loss(
    objective: WholeWindow,
    kept: Sequence[Tensor],
    micro_batches: Sequence[MicroBatch],
    factors: Mapping[str, float],
    forward: AbstractContextManager[object],
) -> tuple[dict[str, float], tuple[Tensor, ...]]:
    """Each term's sum over the window, and the gradient of the scaled loss in each micro-batch's representations."""
    window = torch.cat([part.detach() for part in kept]).requires_grad_()
    targets = torch.cat([targets.to(window.device, non_blocking=True) for _, targets in micro_batches])
    with torch.enable_grad(), forward:
        sums = objective.window_sums(window, targets)
    starts = [torch.full_like(sums[name], factor) for name, factor in factors.items()]
    (gradient,) = torch.autograd.grad([sums[name] for name in factors], window, starts)
    return {name: sums[name].item() for name in factors}, gradient.split([len(part) for part in kept])


def _clear(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = None
