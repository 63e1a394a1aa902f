"""``report``: a committed result as one HTML file, to mail, to read offline or to print."""

from __future__ import annotations

from pathlib import Path

import click

from accum_core.errors import DataError, LabError
from accum_core.result_file import ResultFile
from experiments import find, result_path
from experiments.cli.output import remove_part, writable
from experiments.report import findings


@click.command("report")
@click.argument("name")
@click.option(
    "--html",
    "html_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    required=True,
    callback=writable,
    help="The file to write; it needs nothing else, neither a server nor the network.",
)
def report_command(name: str, html_path: Path) -> None:
    """Write the report of the experiment NAME: claims, figures, tables, settings, environment, how to repeat it.

    It is made from the committed result, results/NAME.jsonl.
    """
    experiment = find(name)
    path = result_path(name)
    if not path.exists():
        raise DataError(
            f"{path.name}: there is no committed result; "
            f"python -m experiments run {name} --commit-results computes one."
        )
    # Here, as the templates' library and plotly are needed by no other command.
    from experiments.report import html

    text = html.report(findings.find(experiment, ResultFile.read(path)))
    try:
        html_path.write_text(text, encoding="utf-8")
    except OSError as error:
        remove_part(html_path)
        raise LabError(
            f"--html = {str(html_path)!r}: could not be written ({error.strerror}); name another file."
        ) from None
    click.echo(f"{html_path} written.")
