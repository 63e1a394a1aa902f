"""The work of ``finetune``: say what it takes, train with checkpoints, and leave the model."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
from tqdm import tqdm

from accum_core.errors import LabError, NonFiniteLossError
from accum_core.records import RunConfig, UpdateRecord, summarise
from experiments.cli.disk import size
from experiments.cli.estimate import peak_bytes
from experiments.cli.finetuning_needs import (
    LESS,
    MemoryNeedError,
    check_disk,
    check_memory,
    micro_batches,
    needs,
    time_told,
    told,
)
from experiments.cli.output import write_json
from experiments.cli.run_folder import RunFolder

if TYPE_CHECKING:
    from accum_core.engine import Training
    from accum_core.engine.workloads.causal_lm import OwnText


def finetune(
    config: RunConfig,
    folder: RunFolder,
    stopping: AbstractContextManager[threading.Event],
    *,
    is_new: bool,
    every: int,
    json_path: Path | None,
) -> bool:
    """Train to the end, or until it is asked to stop.

    Args:
        stopping: entered when the folder is there: an event that, once set, stops the training.
        is_new: begin the folder; else go on with what is in it.
        every: updates between two checkpoints.
        json_path: where to write the result.

    Returns:
        Whether it came to its end.

    Raises:
        LabError: in one sentence, for whatever cannot be.
    """
    if not is_new:
        folder.hold("resume")  # before torch is imported, which takes seconds
    from accum_core.engine.workloads import causal_lm, load_with

    language = config.language
    assert language is not None  # both the command and a folder's settings see to it
    if not is_new:
        causal_lm.check_unchanged(language)
    training = _started(config)
    samples = cast("OwnText", load_with(config.workload, language))
    found = needs(config, training, samples)
    click.echo(told(config, samples, found), err=True)
    check_memory(config, found, training)
    check_disk(config, found, folder)
    records = [] if is_new else folder.restore(training)
    if records:
        click.echo(f"Goes on after update {len(records)} of {config.updates}.", err=True)
    if training.update < config.updates:
        click.echo(time_told(training, samples), err=True)
    if is_new:
        folder.begin(config)
    with stopping as stop:
        _follow(training, samples, records, folder, stop, every)
        finished = training.update == config.updates
        if finished:
            from accum_core.engine.causal import pretrained

            pretrained.save(training.model.network, samples.tokenizer, folder.model)
    result = _result(training, records, folder, finished=finished)
    if json_path is not None:
        write_json(json_path, result)
    numbers = {**result["metrics"], "learnt tokens a second": result["tokens_per_second"]}
    if records:
        click.echo("  ".join(f"{name} {value:.4g}" for name, value in numbers.items() if value is not None))
    click.echo(
        f"peak memory {size(result['peak_bytes'])}; {folder.path} holds {'the model' if finished else 'the run'}"
    )
    if not finished:
        done = f"Stopped after update {training.update} of {config.updates}"
        click.echo(f"{done}; go on by --resume {folder.path}.", err=True)
    return finished


def _started(config: RunConfig) -> Training:
    from accum_core.engine import Training
    from accum_core.engine.tolerant import is_out_of_memory

    try:
        return Training(config)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise MemoryNeedError(f"The model alone does not fit into the memory: {LESS}; nothing was started.") from None


def _follow(
    training: Training,
    samples: OwnText,
    records: list[UpdateRecord],
    folder: RunFolder,
    stop: threading.Event,
    every: int,
) -> None:
    """Train on, each record written as it comes, with a checkpoint every so many updates and at the end."""
    config = training.config
    made = records[-1].micro_batches if records else 0
    total = micro_batches(config, samples.num_samples, config.updates)
    with tqdm(initial=made, total=total, unit="micro-batch", dynamic_ncols=True) as bar:

        def leave() -> bool:
            bar.update()
            return stop.is_set()

        for record in _updates(training, leave):
            seconds = record.seconds - (records[-1].seconds if records else 0.0)
            records.append(record)
            folder.add(record)
            for incident in record.incidents:
                bar.write(f"update {record.update}: {incident.text}", file=sys.stderr)
            speed = record.terms["cross_entropy"].weight / seconds
            said = f"update {record.update}/{config.updates}, loss {record.loss:.3f}, {speed:,.0f} learnt tokens/s"
            bar.set_postfix_str(said, refresh=False)
            bar.update(record.micro_batches - bar.n)
            if record.update % every == 0 or record.update == config.updates:
                folder.save(training)
            if stop.is_set():  # a window of one micro-batch cannot be left inside
                break
    if training.update < config.updates:
        folder.save(training)


def _updates(training: Training, leave: Callable[[], bool]) -> Iterator[UpdateRecord]:
    """The updates that are left; what ends them is told with what to do about it."""
    from accum_core.engine.tolerant import is_out_of_memory

    try:
        yield from training.run(leave=leave)
    except NonFiniteLossError as error:
        raise LabError(
            f"{error.quantity} = {error.value} at update {error.update}: the training stopped before that update was "
            "made; start anew with a smaller --lr."
        ) from None
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        micro = training.config.micro_batch_size
        raise MemoryNeedError(
            f"Update {training.update + 1} did not fit into the memory at micro-batch {micro}: free some and go on by "
            "--resume, or start anew with a smaller --micro."
        ) from None


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
