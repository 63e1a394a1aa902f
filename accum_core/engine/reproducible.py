"""Random numbers that depend on the seed and the update alone, and kernels that give the same bits twice."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from accum_core.engine.snapshot import random_states, set_random_states

# 2^32 over the golden ratio: torch on the CPU and NumPy see 32 bits of a seed, over which its multiples lie evenly.
RANK = 2_654_435_769


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
            own = seed * 1_000_003 + update + rank * RANK
            torch.manual_seed(own)
            random.seed(own)
            np.random.seed(own % 2**32)
            yield
        finally:
            set_random_states(before)
