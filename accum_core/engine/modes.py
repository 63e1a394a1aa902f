"""A look at a model in evaluation mode that leaves no trace in a training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from accum_core.engine.snapshot import random_states, set_random_states


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards each layer has its own mode again, frozen ones included.

    What is drawn meanwhile, by torch, NumPy or Python, leaves their random states as they were.
    """
    drawn = random_states()
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        set_random_states(drawn)
