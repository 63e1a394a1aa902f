"""What a pass changes besides gradients, to put back before a window is begun again."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import nn


def random_states() -> dict[str, Any]:
    """The random state of every library that draws numbers here, as tensors and plain values."""
    version, state, gauss = random.getstate()
    drawn: Any = np.random.get_state(legacy=True)
    name, keys, position, has_gauss, cached = drawn
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
        "python": [version, list(state), gauss],
        "numpy": [name, torch.from_numpy(keys.astype(np.int64)), int(position), int(has_gauss), float(cached)],
    }


def set_random_states(states: dict[str, Any]) -> None:
    """Go back to states that ``random_states`` gave."""
    torch.set_rng_state(states["torch"])
    if states["cuda"]:
        torch.cuda.set_rng_state_all(states["cuda"])
    version, state, gauss = states["python"]
    random.setstate((version, tuple(state), gauss))
    name, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))


class Snapshot:
    """A model's buffers (running statistics and counters) and the random states, at one moment.

    Attributes:
        buffers: by their names.
    """

    def __init__(self, model: nn.Module) -> None:
        self.buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        self._random = random_states()

    def restore(self, model: nn.Module) -> None:
        """Put all of it back."""
        self.restore_buffers(model)
        set_random_states(self._random)

    def restore_buffers(self, model: nn.Module) -> None:
        """Put the buffers back; what was drawn stays drawn."""
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(self.buffers[name])
