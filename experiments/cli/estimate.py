"""What a long preset will take: counted from its runs, and measured by a few updates of each kind on this machine."""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from accum_core.batching import divisors
from accum_core.errors import LabError, SettingError
from accum_core.records import RunConfig
from experiments.cli.disk import checkpoint_bytes, size

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
        disk: bytes that the store grows by: records, and the weights that each run leaves, with the two more
            checkpoints of one under way.
        device: where it was measured.
    """

    seconds: float
    memory: int
    disk: int
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
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            found = process.submit(attempt, configs).result()
    except BrokenProcessPool:  # the kernel ends a process whose memory runs out, without an error in it
        raise EstimateError(
            "The process that tried out the runs was ended from outside, as the system does where memory runs out: "
            "free some, or take a machine with more; nothing was started."
        ) from None
    if isinstance(found, str):
        raise EstimateError(found)
    return found


def sentence(found: Estimate) -> str:
    """An estimate for people."""
    return (
        f"Estimated from {TIMED} updates of each kind on {found.device}: {duration(found.seconds)} for one run after "
        f"another, {size(found.memory)} at the peak of one, {size(found.disk)} on the disk. What is done is kept: stop "
        "it when you like, and the same command goes on."
    )


def duration(seconds: float) -> str:
    """Seconds for people: "40 s", "12 min", "3 hours" or "4 days"."""
    hours = seconds / 3600
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    if hours < 2:
        return f"{60 * hours:.0f} min"
    return f"{hours:.0f} hours" if hours < 48 else f"{hours / 24:.0f} days"


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
    kinds: dict[RunConfig, list[RunConfig]] = {}
    for config in sorted(configs, key=lambda config: config.micro_batch_size):
        kinds.setdefault(config.model_copy(update={"seed": 0}), []).append(config)
    validations: dict[tuple[str, str], float] = {}
    seconds, memory, disk, largest, device = 0.0, 0, 0, 0, ""
    for kind, alike in kinds.items():
        network = kind.workload, kind.model
        if (found := _measured(kind, validate=network not in validations)) is None:
            raise EstimateError(_too_large(kind))
        validations.setdefault(network, found.validation)
        memory, device = max(memory, found.memory), found.device
        times = -(-kind.updates // kind.validate_every)
        seconds += len(alike) * (kind.updates * found.update + times * validations[network])
        measurements = -(-kind.updates // kind.measure_every)
        largest = max(largest, found.checkpoint)
        disk += len(alike) * (found.checkpoint + kind.updates * found.record + measurements * found.measurement)
    return Estimate(seconds, memory, disk + 2 * largest, device)


@dataclass(frozen=True, slots=True)
class _Kind:
    """Seconds that an update and a validation take; bytes at the peak, of a checkpoint, of a record without what the
    instruments add and of what they add."""

    update: float
    validation: float
    memory: int
    checkpoint: int
    record: int
    measurement: int
    device: str


def _measured(config: RunConfig, *, validate: bool) -> _Kind | None:
    """What this kind of run takes; None if the memory is too small."""
    from accum_core.engine import Training
    from accum_core.engine.tolerant import is_out_of_memory

    try:
        training = Training(config)
        update, records = _timed(training)
        started = time.perf_counter()
        if validate:
            training.validate()
        validation, memory = time.perf_counter() - started, peak_bytes(training)
        added = max(0, records[0] - records[-1])
        checkpoint = checkpoint_bytes(training)
        return _Kind(update, validation, memory, checkpoint, records[-1], added, str(training.device))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return None


def _timed(training: Training) -> tuple[float, list[int]]:
    """Seconds an update takes, and the bytes of the records that were made to find out; the first one is measured."""
    updates = training.run()
    records = [next(updates)]
    started = time.perf_counter()
    records += [next(updates) for _ in range(TIMED)]
    seconds = (time.perf_counter() - started) / TIMED
    return seconds, [len(record.model_dump_json()) for record in records]


def _too_large(config: RunConfig) -> str:
    """What does not fit, and the largest smaller micro-batch that does, which is tried out."""
    import torch

    remedy = "none does"
    for micro in reversed(divisors(config.effective_batch_size)):
        with suppress(SettingError):  # a norm that cannot work on so few samples
            smaller = config.model_copy(update={"micro_batch_size": micro})
            if micro < config.micro_batch_size and _measured(smaller, validate=False) is not None:
                remedy = f"micro-batch {micro} does, which takes N = {smaller.accumulation_steps}"
                break
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return (
        f"{config.model} with norm {config.norm} at micro-batch {config.micro_batch_size} does not fit into the memory "
        f"of {device} ({remedy}): nothing was started."
    )


def peak_bytes(training: Training) -> int:
    """Bytes at the peak so far, of a CUDA device or of this process."""
    if training.device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(training.device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
