"""The loss that a loop would log for a window: the mean over its weight, and the mean of its micro-batches' means.

Both at the parameters that the window was passed at, from the outputs of its own passes: it costs no pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from accum_core.engine.instrument import Instrument, Window
from accum_core.engine.norm_layers import runs_in_step
from accum_core.engine.objectives import needs_whole_window, window_loss

TITLE = "Logged loss"
DEFAULT = False


class LoggedLoss(Instrument):
    """Fields ``exact`` and ``mean_of_means``, over the micro-batches that this rank passes, without penalties.

    A micro-batch without a valid label counts as a mean of 0, as in the reduction of that name. Both fields are None
    where a micro-batch has no loss of its own: in a loss whose samples meet, or a model whose passes run in step.
    """

    def __init__(self) -> None:
        self._output: Tensor | None = None
        self._sums: list[Mapping[str, float]] = []

    @contextmanager
    def watching(self, window: Window) -> Iterator[None]:
        """Keep what the model gives for the present micro-batch."""

        def keep(_: nn.Module, __: tuple[Any, ...], output: Tensor) -> None:
            self._output = output.detach()

        handle = window.model.register_forward_hook(keep)
        try:
            yield
        finally:
            handle.remove()
            self._output = None

    def after_micro_batch(self, window: Window, index: int) -> None:
        """Take the micro-batch's summed loss."""
        output = self._output
        if index == 0:
            self._sums = []
        if output is None or needs_whole_window(window.objective) or runs_in_step(window.model):
            return
        inputs, targets = (part.to(output.device) for part in window.micro_batches[index])
        with torch.no_grad():
            sums = window.objective.sums(lambda _: output, inputs, targets)
        self._sums.append({name: total.item() for name, total in sums.items()})

    def measure(self, window: Window) -> dict[str, Any]:
        """Divide the sums both ways."""
        if not self._sums:
            return {"exact": None, "mean_of_means": None}
        coefficients = window.objective.coefficients
        weights = [window.objective.weights(targets) for _, targets in window.micro_batches]
        pairs = list(zip(self._sums, weights, strict=True))
        whole, total = (
            {name: sum(part[name] for part in parts) for name in coefficients} for parts in zip(*pairs, strict=True)
        )
        return {
            "exact": window_loss(whole, total, coefficients),
            "mean_of_means": fmean(window_loss(sums, weight, coefficients) for sums, weight in pairs),
        }


def create() -> Instrument:
    """A new instrument of a window's losses."""
    return LoggedLoss()
