"""What the ranks of a window tell each other: sums, decisions, and gradients that no pass has exchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from accum_core.errors import SettingError


def bare(model: nn.Module) -> nn.Module:
    """The network inside DistributedDataParallel, or the model itself: its passes exchange nothing."""
    module = model.module if isinstance(model, DistributedDataParallel) else model
    assert isinstance(module, nn.Module)
    return module


def is_sharded(model: nn.Module) -> bool:
    """Whether each rank holds a part of every parameter (torch's ``fully_shard``)."""
    return hasattr(model, "set_requires_gradient_sync")


def silence(model: nn.Module) -> Callable[[], AbstractContextManager[None]] | None:
    """A context in which a model's own passes exchange no gradients; None for a model whose passes never do."""
    if isinstance(model, DistributedDataParallel):
        silent: Callable[[], AbstractContextManager[None]] = model.no_sync
        return silent
    return partial(_silence_of_shards, model) if is_sharded(model) else None


@contextmanager
def _silence_of_shards(model: Any) -> Iterator[None]:
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


def present_ranks() -> tuple[int, int]:
    """This process's rank and the number of ranks; (0, 1) without torch.distributed."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def check_world(world_size: int) -> None:
    """Refuse a number of ranks that torch.distributed does not have.

    Raises:
        SettingError: with both numbers.
    """
    present = present_ranks()[1]
    if world_size not in (1, present):
        raise SettingError(
            "world_size", world_size, f"torch.distributed has {present} rank(s); start the process with torchrun"
        )


def sum_over_ranks(values: dict[str, float], world_size: int) -> dict[str, float]:
    """The sum of each value over the ranks, in float64."""
    if world_size == 1:
        return values
    packed = torch.tensor(list(values.values()), dtype=torch.float64, device=_device())
    dist.all_reduce(packed)
    return dict(zip(values, packed.tolist(), strict=True))


def any_over_ranks(flag: bool, world_size: int) -> bool:
    """Whether any rank says so: a decision that all ranks take together."""
    if world_size == 1:
        return flag
    votes = torch.tensor(float(flag), device=_device())
    dist.all_reduce(votes, op=dist.ReduceOp.MAX)
    return bool(votes.item())


def average_gradients(model: nn.Module, world_size: int) -> None:
    """Replace every trainable parameter's ``.grad`` by its mean over the ranks, in one all-reduce a number type.

    A rank that has no gradient adds zero, so ranks may hold unequal numbers of micro-batches, or none.
    """
    if world_size == 1:
        return
    gradients: dict[torch.dtype, list[Tensor]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter, dtype=parameter.grad_dtype)
            gradients.setdefault(parameter.grad.dtype, []).append(parameter.grad)
    for members in gradients.values():
        flat = torch.cat([gradient.flatten() for gradient in members])
        flat.div_(world_size)  # before the sum, in which float16 could overflow
        dist.all_reduce(flat)
        parts = flat.split([gradient.numel() for gradient in members])
        for gradient, part in zip(members, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


def _device() -> torch.device | None:
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else None
