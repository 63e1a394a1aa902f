"""What one rank of test_sync_batch_ranks.py measures: a window over ranks with layers that normalise over all of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from over_ranks import Found, main
from small_nets import gradients
from step_nets import PLACES, apart
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from accum_core.batching import BatchPlan
from accum_core.engine import accumulate_gradients, convert_norms
from accum_core.engine.objectives import CrossEntropy, mean_loss
from accum_core.engine.precision import Precision
from accum_core.engine.tolerant import accumulate_tolerantly
from accum_core.errors import SettingError
from accum_core.reduction import LossReduction
from benchmarks.sync_batch import moving

SIZES: dict[str, tuple[tuple[int, ...], ...]] = {
    "equal": ((2, 1), (2, 1), (1, 2), (3,)),
    "one micro-batch each": ((2,), (3,), (1,), (2,)),
    "unequal": ((1, 1, 2), (4,), (2, 2), (1,)),
    "a rank without a sample": ((3,), (0, 0), (2, 1), (0,)),
}


class TwoHeads(nn.Module):
    """A trunk and two heads, each with a layer of its own; the second is seen by a loss of its own alone."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Tanh())
        self.first = nn.Sequential(nn.Conv2d(4, 3, 1), nn.BatchNorm2d(3))
        self.second = nn.Sequential(nn.Conv2d(4, 3, 1), nn.BatchNorm2d(3))

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        trunk = self.trunk(inputs)
        return self.first(trunk), self.second(trunk)


class BothHeads:
    """Cross-entropy of each head with its own labels; a plain zero, without a graph, where none is valid."""

    coefficients: Mapping[str, float] = MappingProxyType({"first": 1.0, "second": 0.4})

    def weights(self, targets: Tensor) -> dict[str, float]:
        return {name: float((targets[:, at] >= 0).sum()) for at, name in enumerate(self.coefficients)}

    def sums(self, model: Any, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        found = {}
        for at, (name, head) in enumerate(zip(self.coefficients, model(inputs), strict=True)):
            labels = targets[:, at]
            loss = nn.functional.cross_entropy(head, labels, ignore_index=-100, reduction="sum")
            found[name] = loss if (labels >= 0).any() else torch.zeros((), dtype=torch.float64)
        return found


def window(sizes: Sequence[tuple[int, ...]], rank: int, place: str, hide: Any = None, ddp: bool = False) -> float:
    """The error of gradients, statistics and the loss against one process that sees all samples.

    Args:
        hide: labels that do not count, as a function of the labels and of the first sample of each rank.
    """
    torch.manual_seed(0)
    model, objective = TwoHeads().double(), BothHeads()
    counts = [sum(of_rank) for of_rank in sizes]
    inputs = torch.randn(sum(counts), 2, 4, 4, dtype=torch.float64)
    targets = torch.randint(3, (sum(counts), 2, 2, 2))
    starts = [sum(counts[:index]) for index in range(len(counts))]
    if hide is not None:
        hide(targets, starts)
    whole = copy.deepcopy(model)
    loss = mean_loss(objective, whole, inputs, targets)
    loss.backward()
    own = convert_norms(model, "sync_batch", offload=place)
    part = slice(starts[rank], starts[rank] + counts[rank])
    parts = list(zip(inputs[part].split(list(sizes[rank])), targets[part].split(list(sizes[rank])), strict=True))
    wrapped = DistributedDataParallel(own) if ddp else own
    result = accumulate_gradients(wrapped, parts, objective, world_size=len(sizes))
    assert result.samples == sum(counts)
    return max(
        apart(gradients(own), gradients(whole)),
        apart(dict(own.named_buffers()), dict(whole.named_buffers())),
        abs(result.loss / loss.item() - 1),
    )


def second_head_on_the_last_rank_alone(targets: Tensor, starts: list[int]) -> None:
    targets[: starts[-1], 1] = -100


def nothing_on_the_first_rank(targets: Tensor, starts: list[int]) -> None:
    targets[: starts[1]] = -100


def refused(rank: int, world: int) -> list[str]:
    """A rank without a micro-batch, one value a channel in all, and smaller micro-batches after a failure."""
    found = []
    sample = torch.zeros(1, 3), torch.zeros(1, dtype=torch.long)
    model = convert_norms(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), "sync_batch")
    nothing = torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)
    for batches in ([] if rank == 1 else [sample], [sample] if rank == 0 else [nothing]):
        try:
            accumulate_gradients(model, batches, CrossEntropy(), world_size=world)
        except SettingError as error:
            found.append(str(error))
    try:
        accumulate_tolerantly(
            model, lambda _: [sample], CrossEntropy(), LossReduction(), world_size=world, precision=Precision(),
            skip_non_finite=False, plan=BatchPlan(world, 1, world),
        )  # fmt: skip
    except SettingError as error:
        found.append(str(error))
    return found


def measure(rank: int, world: int) -> Found:
    """Everything that test_sync_batch_ranks.py looks at."""
    cases = {name: [window(sizes[:world], rank, place) for place in PLACES] for name, sizes in SIZES.items()}
    sizes = SIZES["unequal"][:world]
    hidden = [window(sizes, rank, place, hide) for place in PLACES
              for hide in (second_head_on_the_last_rank_alone, nothing_on_the_first_rank)]  # fmt: skip
    return {
        **cases,
        "hidden": hidden,
        "wrapped": [window(sizes, rank, "host", ddp=True), window(SIZES["equal"][:world], rank, "none", ddp=True)],
        "refused": refused(rank, world),
    }


if __name__ == "__main__":
    with moving():
        main(measure)
