"""``train``: one run, in this process or in those that torchrun starts."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from tqdm import tqdm

from accum_core.errors import LabError, NonFiniteLossError
from accum_core.records import RunConfig, UpdateRecord, summarise
from experiments.cli import ranks
from experiments.cli.output import json_option, write_json
from experiments.cli.settings import completed, run_settings

if TYPE_CHECKING:
    from accum_core.engine import Training


@click.command("train")
@run_settings
@click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    help="Threads of the computation.  [default: torch's choice; under torchrun each rank's share of the cores]",
)
@json_option("configuration, final metrics, records and environment")
def train_command(threads: int | None, json_path: Path | None, **settings: Any) -> None:
    """Train one run and print its final metrics.

    Ctrl-C stops it; what was recorded by then is still written to FILE. Under torchrun the processes train it
    together: the effective batch is that of all ranks, and rank 0 alone prints and writes.
    """
    config = completed(settings)
    training: Training | None = None
    records: list[UpdateRecord] = []
    end: BaseException | None = None
    try:
        # Here, once the settings are known to be good, torch is loaded: it takes seconds.
        with ranks.together(threads) as device:
            from accum_core.engine import Training

            training = Training(config, device=device)
            _follow(training, records)
    except (KeyboardInterrupt, LabError) as error:
        end = error
    speaks = ranks.rank() == 0
    metrics = summarise(records)
    written = ""
    if speaks and json_path is not None and training is not None and records:
        write_json(json_path, _content(config, training, records))
        written = f"; {json_path} holds what was recorded"
    if speaks and metrics:
        click.echo("  ".join(f"{name} {value:.4g}" for name, value in metrics.items()))
    if isinstance(end, KeyboardInterrupt):
        ranks.end(f"Stopped after update {len(records)} of {config.updates}{written}." if speaks else None)
        click.get_current_context().exit(130)
    if isinstance(end, NonFiniteLossError):
        raise LabError(
            f"{end.quantity} = {end.value} at update {end.update}: the training stopped before that update was made; "
            "train with a smaller --lr, another --norm or --non-finite skip_window."
        )
    if end is not None:
        raise end


def _follow(training: Training, records: list[UpdateRecord]) -> None:
    """Run the training to its end, each record kept as it comes, and shown by rank 0."""
    speaks = ranks.rank() == 0
    with (
        tqdm(total=training.config.updates, unit="update", dynamic_ncols=True, disable=not speaks) as bar,
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "a window before update")  # it is an incident of the record too
        for record in training.run():
            records.append(record)
            for incident in record.incidents if speaks else ():
                bar.write(f"update {record.update}: {incident.text}", file=sys.stderr)
            bar.set_postfix_str(f"loss {record.loss:.3f}, {record.samples_per_second:.0f} samples/s", refresh=False)
            bar.update()


def _content(config: RunConfig, training: Training, records: list[UpdateRecord]) -> dict[str, Any]:
    """A run as FILE holds it."""
    return {
        "config": config.model_dump(),
        "metrics": summarise(records),
        "records": [record.model_dump() for record in records],
        "environment": training.environment().model_dump(),
    }
