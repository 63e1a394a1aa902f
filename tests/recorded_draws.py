"""Dropout whose masks are written down micro-batch by micro-batch, and given to the full batch in one piece."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextvars import ContextVar

import torch
from step_nets import Found, Loss, of, product
from torch import Tensor, nn
from torch.nn import functional as F

from accum_core.engine import convert_norms
from accum_core.engine.lockstep import in_step

MICRO_BATCH = ContextVar("the micro-batch whose pass this is", default=-1)


class Masking(nn.Module):
    """Dropout, or any random factor on the input: what it draws is written down, or was given before."""

    def __init__(self, draw: Callable[[Tensor], Tensor]):
        super().__init__()
        self.draw = draw
        self.drawn: dict[int, list[Tensor]] = {}
        self.given: list[Tensor] = []

    def forward(self, inputs: Tensor) -> Tensor:
        if self.given:
            return inputs * self.given.pop(0)
        factor = self.draw(inputs)
        self.drawn.setdefault(MICRO_BATCH.get(), []).append(factor)
        return inputs * factor


def dropout(p: float = 0.5) -> Masking:
    return Masking(lambda inputs: F.dropout(torch.ones_like(inputs), p))


def record_dropout(model: nn.Module) -> nn.Module:
    """Put a ``Masking`` in the place of every ``nn.Dropout``."""
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Dropout):
            model.set_submodule(name, dropout(module.p))
    return model


def with_draws(
    model: nn.Module, inputs: Tensor, targets: Tensor, sizes: Sequence[int], place: str, loss: Loss = product
) -> tuple[Found, Found]:
    """A window in step, and one full batch with the draws of its passes."""
    own = convert_norms(copy.deepcopy(model), "sync_batch", offload=place)

    def run(index: int, x: Tensor, y: Tensor) -> Tensor:
        MICRO_BATCH.set(index)
        return loss(own, x, y)

    parts = enumerate(zip(inputs.split(list(sizes)), targets.split(list(sizes)), strict=True))
    losses = in_step(own, [lambda i=i, x=x, y=y: run(i, x, y) for i, (x, y) in parts])
    sum(losses).backward()
    whole = copy.deepcopy(model)
    for module, other in zip(own.modules(), whole.modules(), strict=True):
        if isinstance(module, Masking):
            passes = [module.drawn[index] for index in range(len(sizes))]
            other.given = [torch.cat(masks) for masks in zip(*passes, strict=True)]
    loss(whole, inputs, targets).backward()
    return of(own), of(whole)
