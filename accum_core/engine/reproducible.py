"""Random numbers that depend on the seed and the update alone, and kernels that give the same bits twice."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from accum_core.engine.snapshot import random_states, set_random_states


@contextmanager
def reproducible(seed: int, update: int, device: torch.device, rank: int = 0) -> Iterator[None]:
    """Seed torch, NumPy and Python for one update; afterwards their random states are as they were.

    Every rank draws its own numbers. An update's are the same whatever came before it, so a resumed run draws what an
    uninterrupted one would have drawn.
    """
    before = random_states()
    exact = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
    with exact:
        try:
            own = (seed * 1_000_003 + update) + rank * 2**40
            torch.manual_seed(own)
            random.seed(own)
            np.random.seed([own % 2**32, own // 2**32])  # 32 bits a number; the rank stands in the second
            yield
        finally:
            set_random_states(before)
