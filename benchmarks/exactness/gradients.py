"""The gradients that the engine leaves, for the table of exactness; a case takes as many processes as it has ranks."""

from __future__ import annotations

import tempfile
from dataclasses import astuple
from pathlib import Path

import torch
from torch import Tensor, multiprocessing, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from accum_core.engine import CrossEntropy, Precision, accumulate_gradients, checkpoint_activations
from accum_core.engine.window import MicroBatch
from accum_core.engine.windows import windows
from accum_core.reduction import LossReduction
from benchmarks.exactness.cases import FULL, Case
from benchmarks.exactness.network import NUMBERS, flat, network, window

LARGEST_SCALE = 2.0**16  # where torch's GradScaler begins


def gradients(cases: list[Case]) -> dict[Case, Tensor | None]:
    """Each case's gradient as one vector in float64; None where no update is made of the window."""
    found: dict[Case, Tensor | None] = {}
    for world_size in sorted({case.world_size for case in cases}):
        mine = [case for case in cases if case.world_size == world_size]
        made = [gradient(case) for case in mine] if world_size == 1 else _over_ranks(mine, world_size)
        found |= dict(zip(mine, made, strict=True))
    return found


def gradient(case: Case, rank: int = 0) -> Tensor | None:
    """The gradient of a case, in a process that is one of its ranks."""
    rule = "rescale" if case.tail == FULL else case.tail
    steps = case.plan.accumulation_steps
    own = window(case.samples, case.plan)[rank]
    for held in windows(own, steps, tail=rule):  # type: ignore[arg-type]
        return _of_window(case, held, LossReduction(case.reduction, rule, steps))  # type: ignore[arg-type]
    return None


def _of_window(case: Case, held: list[MicroBatch], reduction: LossReduction) -> Tensor:
    parameters, autocast = NUMBERS[case.precision]
    micro_batches = [(images.to(parameters), labels) for images, labels in held]
    scale = LARGEST_SCALE if autocast == torch.float16 else 1.0
    while True:
        model = network(case.norm, case.plan).to(parameters)
        if case.checkpointing:
            model = checkpoint_activations(model)
        if case.world_size > 1:
            model = DistributedDataParallel(model, forward_sync_buffers=False)
        accumulate_gradients(
            model,
            micro_batches,
            CrossEntropy(),
            reduction=reduction,
            world_size=case.world_size,
            precision=Precision(autocast=autocast, loss_scale=scale),
        )
        made = _left(model) / scale
        # Of all ranks alike, so they go on together. A GradScaler halves its scale too, from window to window.
        if scale == 1 or torch.isfinite(made).all():
            return made
        scale /= 2


def _left(model: nn.Module) -> Tensor:
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return flat([parameter.grad for parameter in trainable], trainable)


def _over_ranks(mine: list[Case], world_size: int) -> list[Tensor | None]:
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(_rank, (world_size, folder, [astuple(case) for case in mine]), nprocs=world_size)
        found: list[Tensor | None] = torch.load(Path(folder, "found.pt"), weights_only=True)
    return found


def _rank(rank: int, world_size: int, folder: str, mine: list[tuple[str, str, str, str, int, bool]]) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder, "ranks")), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    found = [gradient(Case(*case), rank) for case in mine]
    if rank == 0:
        torch.save(found, Path(folder, "found.pt"))
    dist.destroy_process_group()
