"""Made records of runs whose noise scale is watched by both instruments, with numbers of one's choice."""

from __future__ import annotations

import math
from typing import Any

from small_runs import record

from accum_core.records import UpdateRecord


def watched_record(
    update: int, estimate: tuple[float, float], exact: tuple[float, float], **fields: Any
) -> UpdateRecord:
    """A window of 2 equal micro-batches of 4 samples in all from which |G|^2 and S follow as given.

    From the paper's expectations: |y|^2 = |G|^2 + S / 4, and each of two halves has half of |G|^2 / 2 + S / 4.
    """
    square, noise = estimate
    half = math.sqrt((square / 2 + noise / 4) / 2)
    instruments = {
        "micro_gradient_norms": {
            "norms": [half, half],
            "window_norm": math.sqrt(square + noise / 4),
            "samples": 4,
            "weights": [0.5, 0.5],
            "effective_samples": 4.0,
            "across": None,
        },
        "sample_noise": {
            "samples": 99,
            "gradient_square": exact[0],
            "noise": exact[1],
            "set_gradient_square": exact[0] + exact[1] / 99,
            "reason": None,
        },
    }
    return record(update, instruments=instruments, **fields)
