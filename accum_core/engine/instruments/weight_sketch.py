"""A count sketch of the parameters, so that any two runs can be compared long after their weights are gone.

Each parameter value goes with a random sign into one of 256 buckets (Charikar, Chen and Farach-Colton 2002; Thorup
and Zhang 2012). Signs and buckets depend on the parameter's name and place alone, so sketches of two runs subtract,
and the norm of the difference estimates norm(w - w_ref) with a relative standard deviation of about
1 / sqrt(2 * 256) = 4.4 % (``accum_core.statistics.sketch_distance``; tests/test_instruments.py).
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from accum_core.engine.instrument import Instrument, Window
from accum_core.statistics import encode_sketch

TITLE = "Weight sketch"
BUCKETS = 256


@lru_cache(maxsize=512)
def _buckets_and_signs(name: str, size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    buckets = torch.randint(BUCKETS, (size,), generator=generator)
    signs = torch.randint(2, (size,), generator=generator).double() * 2 - 1
    return buckets, signs


class WeightSketch(Instrument):
    """Fields: ``sketch`` (text, see ``statistics.decode_sketch``) and ``norm``, the exact norm of all weights."""

    def measure(self, window: Window) -> dict[str, Any]:
        """The sketch of the parameters before this window's step."""
        sketch = torch.zeros(BUCKETS, dtype=torch.float64)
        square = 0.0
        for name, parameter in window.model.named_parameters():
            values = parameter.detach().flatten().double().cpu()
            buckets, signs = _buckets_and_signs(name, values.numel())
            sketch.index_add_(0, buckets, values * signs)
            square += values.square().sum().item()
        return {"sketch": encode_sketch(sketch.numpy()), "norm": square**0.5}


def create() -> Instrument:
    """A new weight sketch."""
    return WeightSketch()
