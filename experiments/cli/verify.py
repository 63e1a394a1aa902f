"""``verify``: one run of each committed result, computed again and held against its record, and the verdicts anew."""

from __future__ import annotations

import math

import click
from tqdm import tqdm

from accum_core.claims import Verdict
from accum_core.errors import DataError, LabError
from accum_core.provenance import code_version
from accum_core.records import RunResult
from accum_core.result_file import ResultFile, StoredRun
from experiments import discover, find, result_path
from experiments.cli import agreement, table
from experiments.report import findings

ROUNDING = 1e-9
"""Relative, of the numbers of one verdict that two versions of SciPy compute."""
HEAD = ("experiment", "run", "seed", "code", "held", "outcome", "found")


@click.command("verify")
@click.argument("name", nargs=-1, metavar="[NAME]...")
def verify_command(name: tuple[str, ...]) -> None:
    """Compute one run of each committed result again and compare it with its record.

    Each NAME is an experiment; by default all that have a committed result. Of the first seed it is the run that was
    recorded with the fewest seconds. On the record's own processor, torch, device and thread count every loss, gradient
    norm and validation must be equal bit by bit; elsewhere the first update's loss and gradient norm within 1e-4, and
    the last validation's measure within the difference of two seeds. The verdicts are made anew from all records. The
    exit code is 1 if one differs or cannot be compared.
    """
    chosen = [find(one).name for one in name] or [one for one in discover() if result_path(one).exists()]
    rows: list[tuple[str, ...]] = []
    sound = True
    try:
        for one in chosen:
            sound = _verified(one, rows) and sound
    finally:  # Ctrl-C too leaves what was found so far
        if rows:
            click.echo("\n".join(table.aligned([HEAD, *rows])))
            click.echo(f"Computed again by code version {code_version()}.")
    if not sound:
        click.get_current_context().exit(1)


def _verified(name: str, rows: list[tuple[str, ...]]) -> bool:
    """Whether the experiment's run agrees with its record, told in a row, and its verdicts with all records."""
    try:
        result = ResultFile.read(result_path(name))
        _refuse_other_verdicts(name, result)
        run = smallest(result)
        found = agreement.compare(run.result, _again(name, run), _of_label(result, run.label))
    except LabError as error:
        click.echo(str(error), err=True)
        return False
    outcome = "agrees" if found.holds else "DIFFERS"
    version = run.result.environment.code_version
    rows.append((name, run.label, str(run.seed), version, found.how, outcome, found.text))
    return found.holds


def _refuse_other_verdicts(name: str, result: ResultFile) -> None:
    """Hold the file's verdicts against those that follow from its records.

    Raises:
        DataError: naming the first claim whose verdict or numbers are others, or records that cannot be judged.
    """
    judged = {one.claim.id: one.verdict for one in findings.find(find(name), result).judged}
    for written in result.claims:
        ours = judged.get(written.id)
        if ours is None or not _alike(written, ours):
            by_records = f"{_told(ours)} by its records" if ours is not None else "no claim of the experiment now"
            raise DataError(
                f"{name}.jsonl: the claim {written.id} is {_told(written)} there and {by_records}; restore the "
                "committed file, or run the experiment again."
            )


def _alike(one: Verdict, other: Verdict) -> bool:
    """The same word over as many seeds, and numbers that differ by rounding at most."""
    pairs = ((one.effect, other.effect), (one.low, other.low), (one.high, other.high))
    alike = all(math.isclose(a, b, rel_tol=ROUNDING, abs_tol=1e-15) for a, b in pairs)
    return alike and (one.verdict, one.num_seeds) == (other.verdict, other.num_seeds)


def _told(verdict: Verdict) -> str:
    interval = f"({verdict.low:.4g} to {verdict.high:.4g})"
    return f"{verdict.verdict} with {verdict.effect:.4g} {interval} over {verdict.num_seeds} seeds"


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
