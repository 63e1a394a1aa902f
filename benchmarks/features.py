"""What each feature of the training costs: an update with it against an update without, interleaved in one process."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch

from accum_core.engine import Training
from accum_core.records import RunConfig
from benchmarks import Result

CHEAP, WATCHED = 1.05, 1.15
BLOCKS, UPDATES = 9, 3
# A second forward pass buys memory, and its overhead is large for small micro-batches; half precision is fast where the
# processor has it. These are told without a bar.
FEATURES: dict[str, tuple[dict[str, Any], float | None]] = {
    "clipping by norm and by value": ({"clip_norm": 1.0, "clip_value": 0.1}, CHEAP),
    "averaged weights": ({"average_decay": 0.99}, CHEAP),
    "AdamW instead of SGD": ({"optimizer": "adamw", "learning_rate": 1e-3}, CHEAP),
    "skipping windows that are not finite": ({"non_finite": "skip_window"}, CHEAP),
    "shrinking when the memory is too small": ({"shrink_on_out_of_memory": True}, CHEAP),
    "skipping micro-batches that are not finite": ({"non_finite": "skip_micro_batch"}, WATCHED),
    "activation checkpointing": ({"activation_checkpointing": True}, None),
    "bfloat16 autocast": ({"precision": "bfloat16_autocast"}, None),
    "bfloat16 parameters, float32 sums": ({"precision": "bfloat16"}, None),
    "bfloat16 parameters, bfloat16 sums": ({"precision": "bfloat16", "accumulate_in_float32": False}, None),
    "float64": ({"precision": "float64"}, None),
}


def measure() -> list[Result]:
    """Ratios on landcover at effective batch 32 and micro-batch 2, GroupNorm, one thread."""
    torch.set_num_threads(1)
    how = f"an update of landcover, 16 micro-batches of 2, GroupNorm: median of {BLOCKS} interleaved ratios"
    return [
        Result(f"{name}, of the time without", _ratio(settings), bar, "x", how)
        for name, (settings, bar) in FEATURES.items()
    ]


def _ratio(settings: dict[str, Any]) -> float:
    plain, with_feature = _training({}), _training(settings)
    _seconds(plain), _seconds(with_feature)
    ratios = []
    for block in range(BLOCKS):
        if block % 2:
            without = _seconds(plain)
            ratios.append(_seconds(with_feature) / without)
        else:
            own = _seconds(with_feature)
            ratios.append(own / _seconds(plain))
    return median(ratios)


def _training(settings: dict[str, Any]) -> Any:
    length = (BLOCKS + 1) * UPDATES + 1
    common = {
        "norm": "group",
        "updates": length,
        "warmup_updates": 1,
        "measure_every": length,
        "validate_every": length,
    }
    records = Training(RunConfig.of(**(common | settings))).run()
    next(records)  # the update that the instruments watch
    return records


def _seconds(records: Any) -> float:
    started = time.perf_counter()
    for _ in range(UPDATES):
        next(records)
    return time.perf_counter() - started
