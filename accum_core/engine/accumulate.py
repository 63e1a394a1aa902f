"""The one loop: N forward and backward passes whose gradients add up to the large batch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from accum_core.engine.objectives import Objective, window_loss
from accum_core.errors import SettingError
from accum_core.records import Term
from accum_core.reduction import LossReduction, ReductionKind

MicroBatch = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class WindowResult:
    """What a window was, over all ranks.

    Attributes:
        loss: weighted mean over the window's samples, whatever the reduction of the gradient.
        terms: the same for each term, with its weight in the window.
        samples, micro_batches: what this rank passed through the model.
    """

    loss: float
    terms: dict[str, Term]
    samples: int
    micro_batches: int


def accumulate_gradients(
    model: nn.Module,
    micro_batches: Sequence[MicroBatch],
    objective: Objective,
    *,
    reduction: ReductionKind | LossReduction = "exact",
    world_size: int = 1,
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
        micro_batches: ``(inputs [M, ...], targets [M, ...])`` each; moved to the model's device one at a time.
        objective: sums and weights of the loss.
        reduction: what divides what; a ``LossReduction`` also carries the tail's rule.
        world_size: ranks that share the window, each passing its own micro-batches; needs torch.distributed and
            a model whose gradients are averaged over the ranks (DistributedDataParallel), once a window.
        after_micro_batch: called with the index of each micro-batch after its backward pass.

    Raises:
        SettingError: for an empty window, an unknown reduction, or a world size that torch.distributed has not.
    """
    if not micro_batches:
        raise SettingError("micro_batches", [], "a window holds at least one micro-batch")
    rule = reduction if isinstance(reduction, LossReduction) else LossReduction(reduction)
    names = tuple(objective.coefficients)
    weights = [objective.weights(targets) for _, targets in micro_batches]
    totals = _over_ranks({name: sum(weight[name] for weight in weights) for name in names}, world_size)
    # Averaging over ranks divides by their number, which a window's total weight has counted in already.
    ranks = world_size if rule.kind == "exact" else 1
    factors = {
        name: [
            objective.coefficients[name] * ranks * factor
            for factor in rule.factors([weight[name] for weight in weights], total_weight=totals[name])
        ]
        for name in names
    }

    parameters = list(model.parameters())
    device = parameters[0].device if parameters else micro_batches[0][0].device
    for parameter in parameters:
        if parameter.requires_grad:
            parameter.grad = None
    summed = {name: torch.zeros((), dtype=torch.float64, device=device) for name in names}
    last = len(micro_batches) - 1
    for index, (inputs, targets) in enumerate(micro_batches):
        # Only the last backward pass needs the other ranks: one all-reduce a window.
        with model.no_sync() if isinstance(model, DistributedDataParallel) and index < last else nullcontext():
            sums = objective.sums(model, inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True))
            # The backward pass starts from each term's factor: nothing is scaled afterwards, when it could already
            # have overflowed.
            terms = [sums[name] for name in names]
            torch.autograd.backward(terms, [torch.full_like(sums[n], factors[n][index]) for n in names])
        for name in names:
            summed[name] += sums[name].detach()
        del sums, terms
        if after_micro_batch is not None:
            after_micro_batch(index)

    over_ranks = _over_ranks({name: total.item() for name, total in summed.items()}, world_size)
    return WindowResult(
        loss=window_loss(over_ranks, totals, objective.coefficients),
        terms={
            name: Term(loss=over_ranks[name] / totals[name] if totals[name] else 0.0, weight=totals[name])
            for name in names
        },
        samples=sum(len(inputs) for inputs, _ in micro_batches),
        micro_batches=len(micro_batches),
    )


def _over_ranks(values: dict[str, float], world_size: int) -> dict[str, float]:
    """The sum of each value over the ranks, in float64."""
    if world_size == 1:
        return values
    present = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if present != world_size:
        raise SettingError(
            "world_size", world_size, f"torch.distributed has {present} rank(s); start the process with torchrun"
        )
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else None
    packed = torch.tensor(list(values.values()), dtype=torch.float64, device=device)
    dist.all_reduce(packed)
    return dict(zip(values, packed.tolist(), strict=True))
