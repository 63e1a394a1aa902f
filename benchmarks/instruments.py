"""What the instruments cost of a run in its default settings."""

from __future__ import annotations

import time

import torch

from accum_core.engine import Training
from accum_core.records import RunConfig
from benchmarks import Result

BAR = 10.0


def measure() -> list[Result]:
    """Share of the wall time of a run in its default length that is neither training nor validation."""
    torch.set_num_threads(1)
    results = []
    for norm, micro in (("batch", 2), ("group", 2), ("batch", 32)):
        config = RunConfig.of(norm=norm, micro_batch_size=micro, updates=150, validate_every=150)
        training = Training(config)
        validating, validate = 0.0, training.validate

        def timed_validate(validate=validate):  # type: ignore[no-untyped-def]
            nonlocal validating
            started = time.perf_counter()
            validation = validate()
            validating += time.perf_counter() - started
            return validation

        training.validate = timed_validate  # type: ignore[method-assign]
        started = time.perf_counter()
        records = list(training.run())
        wall = time.perf_counter() - started - validating
        share = 100 * (wall - records[-1].seconds) / wall
        results.append(
            Result(
                f"instruments, {norm} at micro-batch {micro}",
                share,
                BAR,
                "%",
                "of a run of 150 updates without its validation; every 15th update is measured, from the first on",
            )
        )
    return results
