"""``conformance``: does a framework, in the version that is installed, compute the large batch's gradient?"""

from __future__ import annotations

from pathlib import Path

import click
from tqdm import tqdm

from accum_core.conformance.cases import CASES
from accum_core.conformance.frameworks import file_of, frameworks
from accum_core.conformance.results import COMMITTED, Results, Row
from accum_core.conformance.running import Trials, in_order
from accum_core.errors import LabError, SettingError
from experiments.cli import table
from experiments.cli.output import json_option


@click.command("conformance")
@click.option("--framework", multiple=True, help=f"One of {', '.join(f['NAME'] for f in frameworks().values())}.")
@click.option("--case", multiple=True, help=f"One of {', '.join(CASES)}.")
@json_option("all rows and the environment")
@click.option(
    "--commit-results",
    is_flag=True,
    help="Also replace results/conformance.json, which the app shows, and docs/frameworks.md, which is made of it.",
)
def conformance_command(
    framework: tuple[str, ...], case: tuple[str, ...], json_path: Path | None, commit_results: bool
) -> None:
    """Run each framework through the cases, and say what it computed.

    Each trains the same small networks with its own loop, as its documentation tells users to; its weights are held
    against those of the large batch, in float64. --framework and --case may be repeated; by default all are run, which
    takes some minutes. What is not installed is named.
    """
    files = [file_of(name) for name in dict.fromkeys(framework)] or list(frameworks())
    for name in case:
        if name not in CASES:
            raise SettingError("case", name, f"is not known; use one of {', '.join(CASES)}")
    if commit_results and (framework or case):
        raise SettingError("commit_results", True, "takes all frameworks and cases; leave --framework and --case away")
    results = _run(Trials(files, tuple(dict.fromkeys(case)) or tuple(CASES)))
    if not results.results:
        raise LabError(" ".join(results.missing.values()))
    click.echo("\n".join(_table(results.results)))
    for why in results.missing.values():
        click.echo(why, err=True)
    if json_path is not None:
        _write(results, json_path, "--json")
    if commit_results:
        from accum_core.conformance import document

        _write(results, COMMITTED, "--commit-results")
        document.write(results)


def _run(trials: Trials) -> Results:
    rows: list[Row] = []
    with tqdm(unit="trial", smoothing=0, dynamic_ncols=True) as bar:

        def progress(done: int, total: int) -> None:
            bar.n, bar.total = done, total
            bar.refresh()

        for row in trials.rows(progress):
            rows.append(row)
            bar.set_description(f"{row.framework}, {row.case}", refresh=False)
    import torch

    from accum_core.engine.environment import describe

    return Results(results=in_order(rows), missing=trials.lacking, environment=describe(torch.device("cpu")))


def _table(rows: tuple[Row, ...]) -> list[str]:
    lines = [("framework", "kind", "case", "verdict", "gradient error", "updates", "computed")]
    for row in rows:
        error = "" if row.gradient_error is None else f"{row.gradient_error:.2g}"
        updates = "" if row.updates is None else str(row.updates)
        if row.right is not None and row.updates not in (None, row.right.updates):
            updates += f" of {row.right.updates}"
        name = f"{row.framework} {row.version}"
        lines.append((name, row.kind, row.case, row.verdict, error, updates, row.formula or ""))
    return table.aligned(lines)


def _write(results: Results, path: Path, option: str) -> None:
    try:
        results.write(path)
    except OSError as error:
        raise LabError(
            f"{option} = {str(path)!r}: could not be written ({error.strerror}); name another file."
        ) from None
