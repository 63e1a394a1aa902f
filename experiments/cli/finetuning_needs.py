"""What a fine-tuning takes, told before it starts: samples, memory, disk and time; what has no room is refused."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

from accum_core.errors import LabError
from accum_core.records import RunConfig
from experiments.cli.disk import DiskError, size
from experiments.cli.estimate import duration
from experiments.cli.run_folder import RunFolder

if TYPE_CHECKING:
    from accum_core.engine import Training
    from accum_core.engine.causal.memory import Needs
    from accum_core.engine.workloads.causal_lm import OwnText

LESS = "use --lora, --checkpoint-activations, --precision bfloat16, a shorter --context or a smaller model"
TRIED = 9
"""Micro-batches that are timed at most."""


class MemoryNeedError(LabError):
    """A training that does not fit into the memory."""


def needs(config: RunConfig, training: Training, samples: OwnText) -> Needs:
    """Count and measure the memory.

    Raises:
        MemoryNeedError: if not even one sample fits.
    """
    from accum_core.engine.causal import memory
    from accum_core.engine.tolerant import is_out_of_memory

    try:
        return memory.needs(config, training.model, samples.objective, samples.longest_samples(1))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise MemoryNeedError(f"Not even one sample fits into the memory: {LESS}; nothing was started.") from None


def told(config: RunConfig, samples: OwnText, found: Needs) -> str:
    """What is to be done and what it takes, for people."""
    epochs = config.updates / len(config.plan.windows(samples.num_samples))
    lost = f" {samples.cut} were cut to the context." if samples.cut else ""
    lost += f" {samples.left_out} with nothing to learn were left out." if samples.left_out else ""
    few = ""
    if samples.num_samples < config.effective_batch_size:
        few = (
            f" An update takes all {samples.num_samples} samples, fewer than --effective {config.effective_batch_size}."
        )
    steps = -(-min(samples.num_samples, config.effective_batch_size) // config.micro_batch_size)
    return (
        f"Data: {samples.num_samples:,} samples of {samples.texts:,} texts with {samples.tokens:,} tokens to learn; "
        f"{samples.held_out:,} texts validate.{lost} To do: {config.updates:,} updates of N = {steps}, "
        f"{epochs:.2g} epochs.{few}\n"
        f"Memory, by count and by one pass of the longest sample: {size(found.parameters)} parameters "
        f"({size(found.trained)} trained), {size(found.gradients)} gradients, {size(found.optimizer)} optimizer, "
        f"{size(config.micro_batch_size * found.a_sample)} at micro-batch {config.micro_batch_size}."
    )


def check_memory(config: RunConfig, found: Needs, training: Training) -> None:
    """Refuse what has no room, naming what has.

    Raises:
        MemoryNeedError: with a micro-batch that fits, if one does.
    """
    from accum_core.engine.causal.memory import free_bytes

    free, needed = free_bytes(training.device), found.at(config.micro_batch_size)
    if needed <= free:
        return
    micro = found.largest(config.effective_batch_size, free)
    remedy = LESS
    if micro is not None:
        remedy = f"micro-batch {micro} fits, which takes N = {config.effective_batch_size // micro}"
    raise MemoryNeedError(
        f"Micro-batch {config.micro_batch_size} takes {size(needed)} beside the model, and {size(free)} are free on "
        f"{training.device.type}: {remedy}; nothing was started."
    )


def check_disk(config: RunConfig, found: Needs, folder: RunFolder) -> None:
    """Refuse a disk that cannot take two checkpoints, as one is written before the other goes, and the model.

    Raises:
        DiskError: naming what is needed and what is free.
    """
    needed = 2 * (found.trained + found.optimizer + found.gradients) - folder.held_bytes()
    needed += found.parameters if config.language and config.language.lora_rank is None else found.trained
    place = folder.path.absolute()
    free = shutil.disk_usage(next(p for p in (place, *place.parents) if p.exists())).free
    if needed > free:
        raise DiskError(
            f"Checkpoints and model take {size(needed)}, and {size(free)} are free for {folder.path}: free some space, "
            "or name a folder on another disk in --out; nothing was started."
        )


def micro_batches(config: RunConfig, num_samples: int, updates: int) -> int:
    """What a run over so many samples an epoch passes through the model in its first updates."""
    plan = config.plan
    an_epoch = [len(plan.slices(len(window))) for window in plan.windows(num_samples)]
    epochs, windows = divmod(updates, len(an_epoch))
    return epochs * sum(an_epoch) + sum(an_epoch[:windows])


def time_told(training: Training, samples: OwnText) -> str:
    """How long the updates that are left take, measured on a few micro-batches and one validation; for people."""
    from accum_core.engine.causal.duration import seconds_a_micro_batch
    from accum_core.engine.sampling import WindowSampler

    config, made = training.config, training.update
    sampler = WindowSampler(samples.num_samples, drop_tail=False, seed=config.seed)
    tried = (samples.samples(sampler.next(config.micro_batch_size)) for _ in range(TRIED))
    passes = micro_batches(config, samples.num_samples, config.updates)
    passes -= micro_batches(config, samples.num_samples, made)
    training_takes = passes * seconds_a_micro_batch(config, training.model, samples.objective, tried)
    started = time.perf_counter()
    validation = training.validate()
    every = config.validate_every
    validations = config.updates // every - made // every + (config.updates % every > 0)
    seconds = training_takes + validations * (time.perf_counter() - started)
    return (
        f"Time, by its first micro-batches and a validation: {duration(seconds)} for {config.updates - made:,} updates "
        f"on {training.device.type}. Held-out loss now: {validation.loss:.4g} nats a token."
    )
