"""What the tests of ``sync_batch`` share: networks of a few lines, and a window in step beside one full batch.

The expected values are those of torch's own BatchNorm over all samples at once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from small_nets import gradients
from torch import Tensor, nn

from accum_core.engine import convert_norms
from accum_core.engine.lockstep import in_step

PLACES = ("none", "host", "recompute")
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


class Net(nn.Module):
    """A network of the given layers, computed by a function of the network and its input."""

    def __init__(self, compute: Callable[[Any, Tensor], Tensor], **layers: nn.Module):
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.compute = compute

    def forward(self, inputs: Tensor) -> Tensor:
        return self.compute(self, inputs)


def conv(inputs: int, outputs: int, size: int = 3) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, padding=size // 2)


def net(compute: Callable[[Any, Tensor], Tensor], **layers: nn.Module) -> Net:
    """In float64: ``c`` from images [M, 3, H, W] to 8 channels, ``d`` from 8 to 8, and BatchNorms ``b`` and ``b2``."""
    named: dict[str, nn.Module] = {
        "c": conv(3, 8), "d": conv(8, 8), "b": nn.BatchNorm2d(8), "b2": nn.BatchNorm2d(8)
    }  # fmt: skip
    return Net(compute, **named | layers).double()


def skip(own: Any, x: Tensor) -> Tensor:
    """A network for ``net``, with skip connections, layers called twice and work in place."""
    x = own.b(own.c(x))
    x = torch.relu_(own.b2(own.d(x.relu())) + x)
    return own.b(own.d(x)) + x


def images(count: int = 6, size: int = 6, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Inputs ``[count, 3, size, size]``, and what to multiply outputs ``[count, 8, size, size]`` by in ``product``."""
    return torch.randn(count, 3, size, size, dtype=dtype), torch.randn(count, 8, size, size, dtype=dtype)


def product(model: nn.Module, inputs: Tensor, factors: Tensor) -> Tensor:
    """A loss that depends on each value in its own way."""
    return (model(inputs) * factors).sum()


@dataclass(frozen=True)
class Found:
    """After one window: the model, and copies of its gradients and buffers."""

    model: nn.Module
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]

    def error(self, other: Found) -> float:
        """The largest distance of a gradient or buffer, in units of the largest number of its kind."""
        assert self.gradients.keys() == other.gradients.keys()
        assert self.buffers.keys() == other.buffers.keys()
        return max(apart(self.gradients, other.gradients), apart(self.buffers, other.buffers))

    def equals(self, other: Found) -> bool:
        """To the bit."""
        return equal(self.gradients, other.gradients) and equal(self.buffers, other.buffers)


def equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


def apart(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    def largest(tensors: Iterable[Tensor]) -> float:
        return max((float(tensor.double().abs().max()) for tensor in tensors), default=0.0)

    size = largest(expected.values())
    distance = largest(found[name].double() - expected[name].double() for name in expected)
    return distance / size if size else distance


def of(model: nn.Module) -> Found:
    return Found(model, gradients(model), {name: buffer.clone() for name, buffer in model.named_buffers()})


def at_once(model: nn.Module, inputs: Tensor, targets: Tensor, loss: Loss = product) -> Found:
    """One full batch through a copy of the model as it is."""
    model = copy.deepcopy(model)
    loss(model, inputs, targets).backward()
    return of(model)


def in_parts(
    model: nn.Module, inputs: Tensor, targets: Tensor, sizes: Sequence[int], place: str, loss: Loss = product
) -> Found:
    """A window in step through a converted copy of the model, in micro-batches of the given sizes."""
    model = convert_norms(copy.deepcopy(model), "sync_batch", offload=place)
    parts = zip(inputs.split(list(sizes)), targets.split(list(sizes)), strict=True)
    losses = in_step(model, [lambda x=x, y=y: loss(model, x, y) for x, y in parts])
    sum(losses).backward()
    return of(model)


def check(
    model: nn.Module, inputs: Tensor, targets: Tensor, sizes: Sequence[int] = (1, 3, 2), bound: float = 1e-12
) -> None:
    """The full batch's gradients and running statistics, wherever the window keeps its work."""
    expected = at_once(model, inputs, targets)
    for place in PLACES:
        assert in_parts(model, inputs, targets, sizes, place).error(expected) <= bound, place
