"""What a long preset will take: counted from its runs, and measured by a few updates of each kind on this machine."""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from accum_core.errors import LabError
from accum_core.records import RunConfig

if TYPE_CHECKING:
    from accum_core.engine import Training

TIMED = 2
"""Updates of each kind that are timed, after a first one that warms up."""


class EstimateError(LabError):
    """A run that cannot work on this machine."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the runs take one after another.

    Attributes:
        seconds: updates and validations; the instruments' measurements come on top.
        memory: bytes at the peak, of the device where it has a memory of its own, else of the process.
        device: where it was measured.
    """

    seconds: float
    memory: int
    device: str


def work(configs: Sequence[RunConfig]) -> str:
    """How much is to be computed, for people."""
    updates = sum(config.updates for config in configs)
    samples = sum(config.updates * config.effective_batch_size for config in configs)
    return f"To compute: {len(configs)} runs, {updates:,} updates, {samples:,} samples."


def estimate(configs: Sequence[RunConfig]) -> Estimate:
    """Measure in a process of its own, whose memory is free again before the runs begin.

    Raises:
        EstimateError: if a run cannot work here, say for want of data or of memory.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        found = process.submit(attempt, configs).result()
    if isinstance(found, str):
        raise EstimateError(found)
    return found


def sentence(found: Estimate) -> str:
    """An estimate for people."""
    hours = found.seconds / 3600
    time_needed = f"{hours:.0f} hours" if hours < 48 else f"{hours / 24:.0f} days"
    if hours < 2:
        time_needed = f"{max(1, round(60 * hours))} min"
    return (
        f"Estimated from {TIMED} updates of each kind on {found.device}: {time_needed} for one run after another, "
        f"{found.memory / 2**30:.1f} GiB at the peak of one. What is done is kept: stop it when you like, and the same "
        "command goes on."
    )


def attempt(configs: Sequence[RunConfig]) -> Estimate | str:
    """The estimate, or in one sentence why a run cannot work; in this process."""
    try:
        return measured(configs)
    except LabError as error:
        return str(error)


def measured(configs: Sequence[RunConfig]) -> Estimate:
    """Time ``TIMED`` updates of each kind of run, small micro-batches first, and a validation of each network.

    Raises:
        EstimateError: naming what does not fit into the memory, and what does.
    """
    from accum_core.engine import Training
    from accum_core.engine.tolerant import is_out_of_memory

    kinds: dict[RunConfig, list[RunConfig]] = {}
    for config in sorted(configs, key=lambda config: config.micro_batch_size):
        kinds.setdefault(config.model_copy(update={"seed": 0}), []).append(config)
    validations: dict[tuple[str, str], float] = {}
    seconds, memory, device, fits = 0.0, 0, "", 0
    for kind, alike in kinds.items():
        training = Training(kind)
        device = str(training.device)
        try:
            update = _seconds_an_update(training)
            network = kind.workload, kind.model
            if network not in validations:
                started = time.perf_counter()
                training.validate()
                validations[network] = time.perf_counter() - started
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise EstimateError(_too_large(kind, device, fits)) from None
        fits = kind.micro_batch_size
        memory = max(memory, _peak(training))
        times = -(-kind.updates // kind.validate_every)
        seconds += len(alike) * (kind.updates * update + times * validations[network])
    return Estimate(seconds, memory, device)


def _seconds_an_update(training: Training) -> float:
    updates = training.run()
    next(updates)
    started = time.perf_counter()
    for _ in range(TIMED):
        next(updates)
    return (time.perf_counter() - started) / TIMED


def _too_large(config: RunConfig, device: str, fits: int) -> str:
    remedy = f"micro-batch {fits} does, which takes N = {config.effective_batch_size // fits}" if fits else "none does"
    return (
        f"{config.model} with norm {config.norm} at micro-batch {config.micro_batch_size} does not fit into the memory "
        f"of {device} ({remedy}): nothing was started."
    )


def _peak(training: Training) -> int:
    """Bytes at the peak so far, of a CUDA device or of this process."""
    if training.device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(training.device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
