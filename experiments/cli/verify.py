"""``verify``: one run of each committed result, computed again and held against its record."""

from __future__ import annotations

import click
from tqdm import tqdm

from accum_core.errors import LabError
from accum_core.provenance import code_version
from accum_core.records import RunResult
from accum_core.result_file import ResultFile, StoredRun
from experiments import discover, find, result_path
from experiments.cli import agreement, table


@click.command("verify")
@click.argument("names", nargs=-1, metavar="[NAME]...")
def verify_command(names: tuple[str, ...]) -> None:
    """Compute one run of each committed result again and compare it with its record.

    NAMES are experiments; by default all that have a committed result. Of the first seed it is the run that was
    recorded with the fewest seconds. On the record's own processor, torch, device and thread count every loss, gradient
    norm and validation must be equal bit by bit; elsewhere the first update's loss and gradient norm within 1e-4, and
    the last validation's measure within the difference of two seeds. The exit code is 1 if one differs or cannot be
    compared.
    """
    chosen = [find(name).name for name in names] or [name for name in discover() if result_path(name).exists()]
    rows, sound = [("experiment", "run", "seed", "code", "held", "outcome", "found")], True
    for name in chosen:
        try:
            result = ResultFile.read(result_path(name))
            run = smallest(result)
            found = agreement.compare(run.result, _again(name, run), _of_label(result, run.label))
        except LabError as error:
            sound = False
            click.echo(str(error), err=True)
            continue
        sound = sound and found.holds
        outcome = "agrees" if found.holds else "DIFFERS"
        version = run.result.environment.code_version
        rows.append((name, run.label, str(run.seed), version, found.how, outcome, found.text))
    if len(rows) > 1:
        click.echo("\n".join(table.aligned(rows)))
        click.echo(f"Computed again by code version {code_version()}.")
    if not sound:
        click.get_current_context().exit(1)


def smallest(result: ResultFile) -> StoredRun:
    """The run of the first seed that was recorded with the fewest seconds."""
    of_seed = [run for run in result.runs if run.seed == result.seeds[0]]
    return min(of_seed, key=lambda run: run.result.records[-1].seconds)


def _of_label(result: ResultFile, label: str) -> list[RunResult]:
    return [run.result for run in result.runs if run.label == label]


def _again(name: str, run: StoredRun) -> RunResult:
    """Train it in this process, with as many threads as its record had."""
    import torch

    from accum_core.engine import Training

    config, environment = run.result.config, run.result.environment
    torch.set_num_threads(environment.threads)
    training = Training(config, device="cpu" if environment.device == "cpu" else None)
    bar = tqdm(training.run(), f"{name} {run.label}", config.updates, unit="update", dynamic_ncols=True)
    return RunResult(config=config, environment=training.environment(), records=tuple(bar))
