"""Finished runs made up for tests of the page on normalisation: the numbers are chosen, nothing was trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from small_runs import ENVIRONMENT, record

from accum_core.records import RunResult, Validation
from accum_core.runs.store import Store
from accum_core.statistics import encode_sketch
from accum_ui.normalisation import choice, race
from accum_ui.normalisation.choice import Choice

ON = "digits-mlp"
# Means 0, 0, 2, 2 of samples that each vary by 1: as a window a mean of 1 and a variance of 1 + 1 = 2.
MEANS, VARIANCES = (0.0, 0.0, 2.0, 2.0), (1.0, 1.0, 1.0, 1.0)


def layer(
    name: str, distance: float, means: Sequence[float] = MEANS, variances: Sequence[float] = VARIANCES
) -> Mapping[str, Any]:
    """One layer of a record, with two channels kept: the second is the first with its samples the other way round."""
    kept = {
        "channels": [0, 5],
        "means": encode_sketch(np.array([means, means[::-1]])),
        "variances": encode_sketch(np.array([variances, variances[::-1]])),
    }
    return {
        "name": name, "kind": "batch", "across": True, "channels": 8, "pixels": 4, "eps": 0.0,
        "mean_distance": distance, "variance_distance": 0.5, "opened": kept,
    }  # fmt: skip


def add(
    store: Store,
    norm: str,
    micro: int,
    *,
    seed: int = 11,
    quality: float = 0.1,
    error: float = 0.0,
    seconds: float = 1.0,
    distance: float = 0.25,
    kept: int = 2**20,
    on: str = ON,
    opened: bool = True,
    depth: Mapping[str, tuple[float, float]] | None = None,
) -> str:
    """A finished run of the race; gives its id.

    Args:
        depth: layer -> its relative gradient error and its share of the squared one; without, none is recorded.
    """
    config = choice.config(on, norm, micro, seed)
    measured: dict[str, Any] = {
        "gradient_error": {"relative_error": error, "cosine": 1.0},
        "saved_bytes": {"micro_batch": kept, "full_batch": 32 * kept},
    }
    if depth is not None:
        errors, shares = zip(*depth.values(), strict=True)
        by_depth = {"names": [*depth], "relative_error": [*errors], "share": [*shares]}
        measured["gradient_error"]["by_depth"] = by_depth
    if opened:
        measured["norm_statistics"] = {
            "sizes": [2, 2],
            "layers": [layer("first", distance), layer("second", distance / 2, (0.0, 4.0, 0.0, 4.0))],
        }
    validation = Validation(error=quality, miou=quality, pixel_accuracy=0.5, loss=1.0)
    speed = {"samples_per_second": config.effective_batch_size / seconds}
    records = (
        record(1, instruments=measured, **speed),
        record(2, instruments=measured, validation=validation, **speed),
    )
    return store.add_result(RunResult(config=config, environment=ENVIRONMENT, records=records), "a_result")


def add_race(store: Store) -> race.Race:
    """BatchNorm's error rises from 10 to 50 % where its gradient is off by 125 %; the others' stay."""
    for seed, shift in ((11, 0.0), (12, 0.02)):
        add(store, "batch", 32, seed=seed, quality=0.1 + shift, distance=0.0, kept=32 * 2**20)
        add(store, "batch", 2, seed=seed, quality=0.5 + shift, error=1.25, distance=0.7, kept=2 * 2**20)
        add(store, "sync_batch", 2, seed=seed, quality=0.11 + shift, error=2e-7, distance=0.7, seconds=2.5)
        add(store, "group", 2, seed=seed, quality=0.13, error=4e-7, distance=0.7, seconds=1.0)
    return race.look(store, Choice(on=ON, norms=("batch", "sync_batch", "group")))
