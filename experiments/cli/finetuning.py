"""The work of ``finetune``: say what it takes, train with checkpoints, and leave the model."""

from __future__ import annotations

import shutil
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
from tqdm import tqdm

from accum_core.errors import LabError, NonFiniteLossError
from accum_core.records import RunConfig, UpdateRecord, summarise
from experiments.cli.disk import DiskError, size
from experiments.cli.estimate import peak_bytes
from experiments.cli.output import write_json
from experiments.cli.run_folder import RunFolder

if TYPE_CHECKING:
    from accum_core.engine import Training
    from accum_core.engine.causal.memory import Needs
    from accum_core.engine.workloads.causal_lm import OwnText

LESS = "use --lora, --checkpoint-activations, --precision bfloat16, a shorter --context or a smaller model"


class MemoryNeedError(LabError):
    """A training that does not fit into the memory."""


def finetune(
    config: RunConfig, folder: RunFolder, stop: threading.Event, *, is_new: bool, every: int, json_path: Path | None
) -> bool:
    """Train to the end, or until ``stop`` is set.

    Args:
        is_new: begin the folder; else go on with what is in it.
        every: updates between two checkpoints.
        json_path: where to write the result.

    Returns:
        Whether it came to its end.

    Raises:
        LabError: in one sentence, for whatever cannot be.
    """
    training = _started(config)
    samples = _samples(config)
    found = _needs(config, training, samples)
    click.echo(_told(config, samples, found), err=True)
    _check_memory(config, found, training)
    _check_disk(config, found, folder)
    if is_new:
        folder.begin(config)
    records = folder.restore(training)
    if records:
        click.echo(f"Goes on after update {len(records)} of {config.updates}.", err=True)
    try:
        _follow(training, records, folder, stop, every)
    except NonFiniteLossError as error:
        raise LabError(
            f"{error.quantity} = {error.value} at update {error.update}: the training stopped before that update was "
            "made; start anew with a smaller --lr."
        ) from None
    finished = training.update == config.updates
    if finished:
        from accum_core.engine.causal import pretrained

        try:
            pretrained.save(training.model.network, samples.tokenizer, folder.model)
        except OSError as error:
            raise LabError(
                f"{folder.model}: the model could not be written ({error.strerror}); free some space and write it by "
                f"--resume {folder.path}."
            ) from None
    result = _result(training, records, folder, finished=finished)
    if json_path is not None:
        write_json(json_path, result)
    numbers = {**result["metrics"], "tokens_per_second": result["tokens_per_second"]}
    click.echo("  ".join(f"{name} {value:.4g}" for name, value in numbers.items() if value is not None))
    click.echo(
        f"peak memory {size(result['peak_bytes'])}; {folder.path} holds {'the model' if finished else 'the run'}"
    )
    if not finished:
        done = f"Stopped after update {training.update} of {config.updates}"
        click.echo(f"{done}; go on by --resume {folder.path}.", err=True)
    return finished


def _samples(config: RunConfig) -> OwnText:
    from accum_core.engine.workloads import load_with

    assert config.language is not None
    return cast("OwnText", load_with(config.workload, config.language))


def _started(config: RunConfig) -> Training:
    from accum_core.engine import Training
    from accum_core.engine.tolerant import is_out_of_memory

    try:
        return Training(config)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise MemoryNeedError(f"The model alone does not fit into the memory: {LESS}; nothing was started.") from None


def _needs(config: RunConfig, training: Training, samples: OwnText) -> Needs:
    from accum_core.engine.causal.memory import needs
    from accum_core.engine.tolerant import is_out_of_memory

    try:
        return needs(config, training.model, samples.objective, samples.longest_samples(1))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise MemoryNeedError(f"Not even one sample fits into the memory: {LESS}; nothing was started.") from None


def _told(config: RunConfig, samples: OwnText, found: Needs) -> str:
    """What is to be done and what it takes, for people."""
    epochs = config.updates / -(-samples.num_samples // config.effective_batch_size)
    lost = f" {samples.cut} were cut to the context, {samples.left_out} left out." if samples.cut else ""
    return (
        f"Data: {samples.num_samples:,} samples of {samples.texts:,} texts with {samples.tokens:,} tokens to learn; "
        f"{samples.held_out:,} texts validate.{lost} To do: {config.updates:,} updates of N = "
        f"{config.accumulation_steps}, {epochs:.2g} epochs.\n"
        f"Memory, by count and by one pass of the longest sample: {size(found.parameters)} parameters "
        f"({size(found.trained)} trained), {size(found.gradients)} gradients, {size(found.optimizer)} optimizer, "
        f"{size(config.micro_batch_size * found.a_sample)} at micro-batch {config.micro_batch_size}."
    )


def _check_memory(config: RunConfig, found: Needs, training: Training) -> None:
    """Refuse what has no room, naming what has."""
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


def _check_disk(config: RunConfig, found: Needs, folder: RunFolder) -> None:
    """Refuse a disk that cannot take two checkpoints, as one is written before the other goes, and the model."""
    needed = 2 * (found.trained + found.optimizer + found.gradients) - folder.held_bytes()
    needed += found.parameters if config.language and config.language.lora_rank is None else found.trained
    place = folder.path.absolute()
    free = shutil.disk_usage(next(p for p in (place, *place.parents) if p.exists())).free
    if needed > free:
        raise DiskError(
            f"Checkpoints and model take {size(needed)}, and {size(free)} are free for {folder.path}: free some space, "
            "or name a folder on another disk in --out; nothing was started."
        )


def _follow(
    training: Training, records: list[UpdateRecord], folder: RunFolder, stop: threading.Event, every: int
) -> None:
    """Train on, each record written as it comes, with a checkpoint every so many updates and at the end."""
    total = training.config.updates
    with tqdm(initial=len(records), total=total, unit="update", dynamic_ncols=True) as bar:
        for record in training.run(leave=stop.is_set):
            seconds = record.seconds - (records[-1].seconds if records else 0.0)
            records.append(record)
            folder.add(record)
            for incident in record.incidents:
                bar.write(f"update {record.update}: {incident.text}", file=sys.stderr)
            speed = record.terms["cross_entropy"].weight / seconds
            bar.set_postfix_str(f"loss {record.loss:.3f}, {speed:,.0f} tokens/s", refresh=False)
            bar.update()
            if record.update % every == 0 or record.update == total:
                folder.save(training)
            if stop.is_set():  # a window of one micro-batch cannot be left inside
                break
    if training.update < total:
        folder.save(training)


def _result(training: Training, records: list[UpdateRecord], folder: RunFolder, *, finished: bool) -> dict[str, Any]:
    """A run as FILE holds it."""
    tokens = sum(record.terms["cross_entropy"].weight for record in records)
    return {
        "config": training.config.model_dump(),
        "metrics": summarise(records),
        "tokens": tokens,
        "tokens_per_second": tokens / records[-1].seconds if records else None,
        "peak_bytes": peak_bytes(training),
        "model": str(folder.model) if finished else None,
        "records": [record.model_dump() for record in records],
        "environment": training.environment().model_dump(),
    }
