"""The window and the network of the table of exactness, alike for every number type."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from functools import cache

import torch
from torch import Tensor, nn

from accum_core.batching import BatchPlan
from accum_core.engine.building import normalised
from accum_core.engine.window import MicroBatch
from accum_core.engine.workloads import load
from accum_core.records import RunConfig

SIDE = 8  # pixels
# Name of a number type: the parameters' type, and that of the passes under autocast.
NUMBERS: dict[str, tuple[torch.dtype, torch.dtype | None]] = {
    "float64": (torch.float64, None),
    "float32": (torch.float32, None),
    "bfloat16 autocast": (torch.float32, torch.bfloat16),
    "float16 autocast": (torch.float32, torch.float16),
    "bfloat16, sums in float32": (torch.bfloat16, None),
}


def network(norm: str, plan: BatchPlan) -> nn.Module:
    """A network of its own: logits ``[M, 6, 8, 8]`` from images ``[M, 3, 8, 8]``.

    In float64, with initial weights that bfloat16 holds. Smooth, unlike the project's networks: at the kink of a ReLU
    rounding decides the side. Small, because the CPU takes minutes for large convolutions in float16.
    """
    return copy.deepcopy(_built(norm, plan))


@cache
def _built(norm: str, plan: BatchPlan) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(_block(3, 8, stride=2), _block(8, 8), nn.ConvTranspose2d(8, 6, 2, stride=2))
    model = normalised(model, RunConfig.of(norm=norm, norm_groups=2), plan)
    return model.to(torch.bfloat16).double()


def _block(in_channels: int, out_channels: int, stride: int = 1) -> nn.Module:
    convolution = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out_channels), nn.SiLU())


@cache
def window(samples: int, plan: BatchPlan) -> list[list[MicroBatch]]:
    """The micro-batches of each rank, in float64: images ``[M, 3, 8, 8]``, which bfloat16 holds, and their labels.

    Tiles weigh differently: the share of ignored labels rises from none in the first to 90 % in the last.
    """
    images, labels = load("landcover").samples(range(samples))
    images = images[:, :, :SIDE, :SIDE].to(torch.bfloat16).double()
    labels = labels[:, :SIDE, :SIDE].clone()
    drawn = torch.rand(labels.shape, generator=torch.Generator().manual_seed(0))
    labels[drawn < torch.linspace(0, 0.9, samples)[:, None, None]] = -100
    found = []
    for rank in range(plan.world_size):
        own = plan.share(rank, samples)
        parts = plan.slices(own.stop - own.start)
        found.append([(images[own][part], labels[own][part]) for part in parts])
    return found


def flat(gradients: Iterable[Tensor | None], parameters: Iterable[nn.Parameter]) -> Tensor:
    """All gradients as one vector in float64; a parameter without one has zeros."""
    pairs = zip(gradients, parameters, strict=True)
    return torch.cat([torch.zeros(p.numel()).double() if g is None else g.double().flatten() for g, p in pairs])
