"""``run``: an experiment over its seeds, through the store and its workers, to a table of verdicts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from accum_core.errors import LabError, SettingError
from accum_core.experiment import Experiment
from accum_core.provenance import code_version
from accum_core.records import RunConfig
from accum_core.result_file import ResultFile, StoredRun
from accum_core.runs.store import Store
from accum_core.runs.sweep import run_experiment
from experiments import discover, find, result_path
from experiments.cli import disk, estimate, table
from experiments.cli.output import json_option, write_json
from experiments.cli.progress import Bar

COMMITTED = "bench"
"""The preset whose results may be committed: what the pages show has to decide something."""
ALL = "all"


@click.command("run")
@click.argument("name")
@click.option("--preset", default="bench", show_default=True, help="Size of the experiment, see the command list.")
@click.option("--seeds", help="Seeds separated by commas, such as 11,12,13.  [default: the preset's]")
@click.option("--fresh", is_flag=True, help="Compute every run anew, whatever the store already holds.")
@click.option(
    "--commit-results",
    is_flag=True,
    help="Also replace results/NAME.jsonl, the committed results that the app shows (preset bench only).",
)
@json_option("verdicts, runs and environment")
def run_command(
    name: str,
    preset: str,
    seeds: str | None,
    fresh: bool,
    commit_results: bool,
    json_path: Path | None,
) -> None:
    """Compute all runs of the experiment NAME and print a table of verdicts; NAME all stands for every experiment.

    Runs that the store already holds are not computed again, so an interrupted command goes on where it was. The
    exit code is 0 whatever the verdicts are. Of all experiments one that fails is told, the others go on, and the exit
    code is 1; FILE then holds each outcome under its experiment's name, also where the command is interrupted.
    """
    chosen = None if seeds is None else _parse(seeds)
    if commit_results and preset != COMMITTED:
        raise SettingError("preset", preset, f"cannot be committed; use --preset {COMMITTED} with --commit-results")
    if name != ALL:
        outcome = _one(find(name), preset, chosen, fresh, commit_results)
        if json_path is not None:
            write_json(json_path, _report(outcome))
        return
    having = [experiment for experiment in discover().values() if preset in experiment.presets]
    if not having:
        known = dict.fromkeys(name for experiment in discover().values() for name in experiment.presets)
        raise SettingError("preset", preset, f"is a preset of no experiment; use one of {', '.join(known)}")
    outcomes: dict[str, ResultFile] = {}
    try:
        failed = _each(having, outcomes, preset, chosen, fresh, commit_results)
    finally:  # Ctrl-C too leaves what was found so far
        if json_path is not None:
            write_json(json_path, {name: _report(outcome) for name, outcome in outcomes.items()})
    if failed:
        click.echo(f"{len(failed)} of {len(having)} experiments failed: {', '.join(failed)}.", err=True)
        click.get_current_context().exit(1)


def _each(
    experiments: Sequence[Experiment],
    outcomes: dict[str, ResultFile],
    preset: str,
    seeds: tuple[int, ...] | None,
    fresh: bool,
    commit_results: bool,
) -> list[str]:
    """Carry out one experiment after another, put each outcome into ``outcomes``, and return the names that failed."""
    failed = []
    for experiment in experiments:
        click.echo(f"{experiment.name}: {experiment.title}")
        try:
            outcomes[experiment.name] = _one(experiment, preset, seeds, fresh, commit_results)
        except LabError as error:
            failed.append(experiment.name)
            click.echo(str(error), err=True)
    return failed


def _one(
    experiment: Experiment, preset: str, seeds: tuple[int, ...] | None, fresh: bool, commit_results: bool
) -> ResultFile:
    """Carry out one experiment, print its verdicts, and write the result where it is asked for."""
    outcome = _carry_out(experiment, preset, seeds or experiment.preset(preset).seeds, fresh)
    click.echo(table.verdicts(outcome.claims, experiment.claims_of(preset)))
    if commit_results:
        path = result_path(experiment.name)
        try:
            outcome.write(path)
        except OSError as error:
            raise LabError(
                f"{path}: could not be written ({error.strerror}); the store keeps the runs, so once the cause is gone "
                "the same command writes it without computing them again."
            ) from None
        click.echo(f"{path.relative_to(path.parent.parent)} written.")
    return outcome


def _parse(seeds: str) -> tuple[int, ...]:
    """The seeds, refused here where no experiment could take them: once for all, and before anything is estimated."""
    if not re.fullmatch(r"\s*[0-9]{1,18}\s*(,\s*[0-9]{1,18}\s*)*", seeds):
        raise SettingError("seeds", seeds, "must be whole numbers separated by commas, such as 11,12,13")
    found = tuple(int(seed) for seed in seeds.split(","))
    if len(set(found)) < len(found):
        raise SettingError("seeds", seeds, "names a seed twice; give each one once")
    if len(found) < 2:
        remedy = "a verdict needs at least 2 seeds, as one has no interval; give more, separated by commas"
        raise SettingError("seeds", seeds, remedy)
    for seed in found:
        RunConfig.of(seed=seed)  # refuses one that is too large
    return found


def _carry_out(experiment: Experiment, preset: str, seeds: tuple[int, ...], fresh: bool) -> ResultFile:
    """Run the experiment under a progress bar; Ctrl-C ends the command with a sentence."""
    bar, store = Bar(), Store()
    try:
        if experiment.preset(preset).long:
            _announce(experiment, preset, seeds, store, fresh)
        return run_experiment(experiment, preset, seeds, store, bar.show, fresh=fresh)
    except KeyboardInterrupt:
        bar.close()
        queued = "the others stay queued, and the same command, or the open app, goes on with them"
        click.echo(
            f"Stopped with {bar.done or 'no run'} done; {queued if bar.done else 'the same command starts anew'}.",
            err=True,
        )
        click.get_current_context().exit(130)
    finally:
        bar.close()


def _announce(experiment: Experiment, preset: str, seeds: tuple[int, ...], store: Store, fresh: bool) -> None:
    """Say what a long preset still has to compute, and estimate what that takes, before it starts."""
    configs = [config for seed in seeds for config in experiment.preset(preset).configs(seed).values()]
    if not fresh:
        found = {config: store.find(config) for config in configs}
        configs = [
            config
            for config, run in found.items()
            if run is None or run.state != "done" or run.code_version != code_version()
        ]
    click.echo(estimate.work(configs), err=True)
    if configs:
        needed = estimate.estimate(configs)
        click.echo(estimate.sentence(needed), err=True)
        disk.check_room(needed.disk, store.path)


def _report(outcome: ResultFile) -> dict[str, Any]:
    """The outcome as FILE holds it; prediction pictures are left to the store and the committed results."""
    content = outcome.model_dump(exclude={"runs"})
    content["runs"] = [_run(run) for run in outcome.runs]
    return content


def _run(run: StoredRun) -> dict[str, Any]:
    fields = run.result.model_dump(exclude={"records": {"__all__": {"validation": {"pictures"}}}})
    return {"label": run.label, "seed": run.seed, "metrics": run.result.metrics, **fields}
