"""``run``: an experiment over its seeds, through the store and its workers, to a table of verdicts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NoReturn

import click
from tqdm import tqdm

from accum_core.claims import Claim, Verdict
from accum_core.errors import LabError, SettingError
from accum_core.experiment import Experiment
from accum_core.provenance import code_version
from accum_core.result_file import ResultFile, StoredRun
from accum_core.runs.store import Store
from accum_core.runs.sweep import Progress, run_experiment
from experiments import find, result_path
from experiments.cli import estimate
from experiments.cli.output import json_option, write_json

COMMITTED = "bench"
"""The preset whose results may be committed: what the pages show has to decide something."""


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
    name: str, preset: str, seeds: str | None, fresh: bool, commit_results: bool, json_path: Path | None
) -> None:
    """Compute all runs of the experiment NAME and print a table of verdicts.

    Runs that the store already holds are not computed again, so an interrupted command goes on where it was. The
    exit code is 0 whatever the verdicts are.
    """
    experiment = find(name)
    chosen = experiment.preset(preset).seeds if seeds is None else _parse(seeds)
    if commit_results and preset != COMMITTED:
        raise SettingError("preset", preset, f"cannot be committed; use --preset {COMMITTED} with --commit-results")
    outcome = _carry_out(experiment, preset, chosen, fresh)
    click.echo(_table(outcome.claims, experiment.claims_of(preset)))
    if json_path is not None:
        write_json(json_path, _report(outcome))
    if commit_results:
        path = result_path(name)
        try:
            outcome.write(path)
        except OSError as error:
            raise LabError(f"{path.name}: could not be written ({error.strerror}); the store keeps the runs.") from None
        click.echo(f"{path.relative_to(path.parent.parent)} written.")


def _parse(seeds: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\s*[0-9]+\s*(,\s*[0-9]+\s*)*", seeds):
        raise SettingError("seeds", seeds, "must be whole numbers separated by commas, such as 11,12,13")
    return tuple(int(seed) for seed in seeds.split(","))


def _carry_out(experiment: Experiment, preset: str, seeds: tuple[int, ...], fresh: bool) -> ResultFile:
    """Run the experiment under a progress bar; Ctrl-C ends the command with a sentence."""
    bar, store = _Bar(), Store()
    try:
        if experiment.preset(preset).long:
            _announce(experiment, preset, seeds, store, fresh)
        return run_experiment(experiment, preset, seeds, store, bar.show, fresh=fresh)
    except KeyboardInterrupt:
        bar.close()
        rest = "the others stay queued, and the same command, or the open app, goes on with them"
        click.echo(f"Stopped with {bar.done} done; {rest}.", err=True)
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
        click.echo(estimate.sentence(estimate.estimate(configs)), err=True)


class _Bar:
    """Progress over the updates of all runs, on standard error."""

    def __init__(self) -> None:
        self.done = "no run"
        self._shown: Progress | None = None
        self._bar: tqdm[NoReturn] | None = None

    def show(self, progress: Progress) -> None:
        """Draw where the sweep stands, if that has changed."""
        if progress == self._shown:
            return
        self._shown = progress
        self.done = f"{progress.runs_done} of {progress.runs} runs"
        if self._bar is None:
            click.echo(f"{self.done} are in the store already.", err=True)
            start, total = progress.updates, progress.total_updates
            self._bar = tqdm(initial=start, total=total, unit="update", smoothing=0, dynamic_ncols=True)
        self._bar.set_description(self.done, refresh=False)
        self._bar.set_postfix_str(f"paused: {', '.join(progress.paused)}" if progress.paused else "", refresh=False)
        self._bar.n = progress.updates
        self._bar.refresh()

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()


def _table(claims: tuple[Verdict, ...], stated: tuple[Claim, ...]) -> str:
    """The verdicts, one claim a line, with its statement below it."""
    units = {claim.id: claim.unit for claim in stated}
    rows = [("claim", "verdict", "effect", "95 % interval", "seeds")]
    for claim in claims:
        effect = f"{claim.effect:.3g} {units[claim.id]}".rstrip()
        rows.append((claim.id, claim.verdict, effect, f"{claim.low:.3g} to {claim.high:.3g}", str(claim.num_seeds)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    below = [f"  {claim.statement}" for claim in claims]
    return "\n".join([lines[0], *(text for pair in zip(lines[1:], below, strict=True) for text in pair)])


def _report(outcome: ResultFile) -> dict[str, Any]:
    """The outcome as FILE holds it; prediction pictures are left to the store and the committed results."""
    content = outcome.model_dump(exclude={"runs"})
    content["runs"] = [_run(run) for run in outcome.runs]
    return content


def _run(run: StoredRun) -> dict[str, Any]:
    fields = run.result.model_dump(exclude={"records": {"__all__": {"validation": {"pictures"}}}})
    return {"label": run.label, "seed": run.seed, "metrics": run.result.metrics, **fields}
