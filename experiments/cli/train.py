"""``train``: one run, in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from tqdm import tqdm

from accum_core import catalogue
from accum_core.errors import LabError, NonFiniteLossError
from accum_core.records import RunConfig, UpdateRecord, summarise
from accum_core.reduction import REDUCTION_KINDS, TAIL_RULES
from experiments.cli.output import Command, json_option, write_json

if TYPE_CHECKING:
    from accum_core.engine import Training

FIELDS = RunConfig.model_fields
WARMUP = FIELDS["warmup_updates"].default


def setting(flag: str, field: str, kind: type, text: str) -> Callable[[Command], Command]:
    """An option that sets one field of ``RunConfig``, with that field's default."""
    return click.option(flag, field, type=kind, default=FIELDS[field].default, show_default=True, help=text)


def _names(kind: catalogue.Kind) -> str:
    return ", ".join(catalogue.entries(kind))


@click.command("train")
@setting("--workload", "workload", str, f"Data and task: {_names('workloads')}.")
@setting("--model", "model", str, f"Network: {_names('models')}.")
@setting("--norm", "norm", str, f"Normalisation layer: {_names('norms')}.")
@setting("--groups", "norm_groups", int, "Groups of the group norm.")
@setting("--effective", "effective_batch_size", int, "Samples an update.")
@setting("--micro", "micro_batch_size", int, "Samples a forward and backward pass; divides the effective batch.")
@setting("--reduction", "reduction", str, f"What divides the loss: {', '.join(REDUCTION_KINDS)}.")
@setting("--tail", "tail", str, f"What to do with a last window that is not full: {', '.join(TAIL_RULES)}.")
@setting("--updates", "updates", int, "Optimizer steps.")
@setting("--lr", "learning_rate", float, "Peak learning rate.")
@click.option(
    "--warmup",
    "warmup_updates",
    type=int,
    help=f"Updates of linear warm-up.  [default: {WARMUP}, or a fifth of the updates if that is fewer]",
)
@setting("--seed", "seed", int, "Seed of the weights and of the order of the samples.")
@setting("--precision", "precision", str, "float32 or float64.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Threads of the computation.  [default: torch's choice]")
@json_option("configuration, final metrics, records and environment")
def train_command(threads: int | None, json_path: Path | None, **settings: Any) -> None:
    """Train one run and print its final metrics.

    Ctrl-C stops it; what was recorded by then is still written to FILE.
    """
    if settings["warmup_updates"] is None:
        settings["warmup_updates"] = min(WARMUP, settings["updates"] // 5)
    config = RunConfig.of(**settings)
    # Loaded here, once the settings are known to be good: torch takes seconds.
    import torch

    from accum_core.engine import Training

    if threads is not None:
        torch.set_num_threads(threads)
    training = Training(config)
    records: list[UpdateRecord] = []
    end: BaseException | None = None
    try:
        _follow(training, records)
    except (KeyboardInterrupt, NonFiniteLossError) as error:
        end = error
    metrics = summarise(records)
    if json_path is not None and records:
        write_json(
            json_path,
            {
                "config": config.model_dump(),
                "metrics": metrics,
                "records": [record.model_dump() for record in records],
                "environment": training.environment().model_dump(),
            },
        )
    if metrics:
        click.echo("  ".join(f"{name} {value:.4g}" for name, value in metrics.items()))
    if isinstance(end, KeyboardInterrupt):
        kept = f"; {json_path} holds what was recorded" if json_path is not None and records else ""
        click.echo(f"Stopped after update {len(records)} of {config.updates}{kept}.", err=True)
        click.get_current_context().exit(130)
    if isinstance(end, NonFiniteLossError):
        raise LabError(
            f"{end.quantity} = {end.value} at update {end.update}: the training stopped before that update was made; "
            "train with a smaller --lr or another --norm."
        )


def _follow(training: Training, records: list[UpdateRecord]) -> None:
    """Run the training to its end, each record shown and kept as it comes."""
    with tqdm(total=training.config.updates, unit="update", dynamic_ncols=True) as bar:
        for record in training.run():
            records.append(record)
            bar.set_postfix_str(f"loss {record.loss:.3f}, {record.samples_per_second:.0f} samples/s", refresh=False)
            bar.update()
