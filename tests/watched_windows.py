"""A window that is accumulated under the eyes of an instrument, as training does it; tests of instruments share it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from tiny_workload import CLASSES, TinyNet
from torch import Tensor, nn
from torch.nn import functional as F

from accum_core.engine import accumulate_gradients, convert_norms
from accum_core.engine.instrument import Instrument, Window, load_instruments
from accum_core.engine.objectives import CrossEntropy

H = W = 4


def window(norm: str = "batch", dropout: float = 0.0, update: int = 1, every: int = 5, new: bool = True) -> Window:
    """A ragged window of 3, 2 and 2 samples with some labels ignored, before any pass."""
    torch.manual_seed(0)
    model = convert_norms(TinyNet(dropout), norm, **({"num_groups": 4} if norm == "group" else {})).double()
    inputs, targets = torch.randn(7, 2, H, W).double(), torch.randint(CLASSES, (7, H, W))
    targets[1] = -100
    targets[3, :2] = -100
    micro_batches = list(zip(inputs.split([3, 2, 2]), targets.split([3, 2, 2]), strict=True))
    return Window(model, inputs, targets, micro_batches, CrossEntropy(), update, every, new)


def measured(name: str, seen: Window) -> dict[str, Any]:
    """What an instrument records of a window that is accumulated under its eyes."""
    instrument = load_instruments([name])[name]
    watch(instrument, seen)
    return instrument.measure(seen)


def watch(instrument: Instrument, seen: Window) -> None:
    """Accumulate a window under an instrument's eyes, as training does."""
    with instrument.watching(seen):
        accumulate_gradients(
            seen.model,
            seen.micro_batches,
            seen.objective,
            after_micro_batch=lambda index: instrument.after_micro_batch(seen, index),
        )


def by_autograd(model: nn.Module, inputs: Tensor, targets: Tensor, divide_by: int) -> dict[str, Tensor]:
    """Gradient of the summed cross-entropy over a weight, on a copy of the model."""
    twin = copy.deepcopy(model)
    (F.cross_entropy(twin(inputs), targets, reduction="sum") / divide_by).backward()
    return {name: p.grad for name, p in twin.named_parameters()}


def flat(parts: dict[str, Tensor], prefix: str = "") -> Tensor:
    return torch.cat([part.flatten() for name, part in parts.items() if name.startswith(prefix)])
