"""What every instrument is, and the window that it looks at."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from accum_core import catalogue
from accum_core.engine.accumulate import MicroBatch
from accum_core.engine.objectives import Objective


@dataclass(frozen=True, slots=True)
class Window:
    """One window as training sees it, between its last backward pass and the optimizer step.

    Attributes:
        model: with the accumulated gradient in ``.grad``.
        inputs, targets: all samples ``[B, ...]``, on the CPU.
        micro_batches: the same samples as they are accumulated.
        update: the update that this window makes, counted from 1.
        every: updates between two measurements.
        split_is_new: whether the window is the first one with its N and norm.
        loss_scale: factor on the gradient in ``.grad`` until the last backward pass is done.
    """

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    micro_batches: Sequence[MicroBatch]
    objective: Objective
    update: int
    every: int
    split_is_new: bool
    loss_scale: float = 1.0


class Instrument:
    """A measure taken while a model trains; it changes nothing that training sees.

    Subclasses live in one file each under ``instruments`` and are named by it. Times and defaults: due on the first
    update and every ``Window.every`` updates after it.
    """

    def due(self, window: Window) -> bool:
        """Whether to measure this window."""
        return (window.update - 1) % window.every == 0

    def after_micro_batch(self, window: Window, index: int) -> None:
        """Called after each backward pass of a window that is due."""

    def measure(self, window: Window) -> dict[str, Any]:
        """The fields to record, ready for JSON."""
        raise NotImplementedError


def load_instruments() -> dict[str, Instrument]:
    """A new instance of every instrument there is, by its file's name."""
    found: dict[str, Instrument] = {}
    for name in catalogue.entries("instruments"):
        found[name] = importlib.import_module(f"accum_core.engine.instruments.{name}").create()
    return found
