"""Tables for the page and for the report, and the report itself: one file that needs nothing else, to mail or print."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from accum_core import palette
from accum_core.errors import DataError
from accum_core.experiment import Published
from experiments.report import drawing, words
from experiments.report.findings import Findings
from experiments.report.settings import compare
from experiments.report.strip import strip

FOLDER: Final = Path(__file__).parent
TABLES: Final = FOLDER / "tables.css"
STATIC: Final = FOLDER.parents[1] / "static"


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals |= {"words": words, "strip": strip, "in_short": drawing.in_short}
    return templates


def part(name: str, *values: object, dark: bool = False) -> str:
    """One macro of ``parts.html`` as HTML.

    Args:
        name: of the macro.
        values: what it takes; each is escaped where it is written.
        dark: whether it stands on a dark surface.
    """
    colors = {word: shade.on(dark) for word, shade in palette.VERDICT_COLORS.items()}
    template = _templates().get_template("parts.html")
    return str(getattr(template.make_module({"colors": colors, "dark": dark}), name)(*values))


def figures_of(published: Published) -> tuple[list[float], dict[str, list[str]]]:
    """A paper's figures as a table: the values of x in its order, and a row of texts a series."""
    xs = list(dict.fromkeys(x for series in published.series.values() for x, _ in series))
    rows = {
        drawing.line_title(name): [f"{dict(series)[x]:g}" if x in dict(series) else "" for x in xs]
        for name, series in published.series.items()
    }
    return xs, rows


def report(findings: Findings) -> str:
    """The report of a result as the text of an HTML file.

    Raises:
        DataError: when the script that draws the charts is missing.
    """
    experiment = findings.experiment
    made = [drawing.ours(figure, findings.drawn[figure.key], dark=False) for figure in experiment.figures]
    charts = [chart for chart in made if chart is not None]
    theirs = [(paper, drawing.theirs(paper, dark=False)) for paper in experiment.published]
    content = json.dumps(
        {
            chart.key: json.loads(chart.figure.to_json())
            for chart in (*charts, *(chart for _, chart in theirs if chart is not None))
        }
    )
    return (
        _templates()
        .get_template("report.html")
        .render(
            findings=findings,
            experiment=experiment,
            result=findings.result,
            charts=charts,
            theirs=theirs,
            figures_of=figures_of,
            settings=compare(findings.runs),
            colors={word: shade.light for word, shade in palette.VERDICT_COLORS.items()},
            dark=False,
            styles=(FOLDER / "report.css").read_text("utf-8") + TABLES.read_text("utf-8"),
            plotly=_plotly(),
            # Inside a script nothing is escaped; without this sign no text can end it.
            content=content.replace("<", "\\u003c"),
        )
    )


@cache
def _plotly() -> str:
    found = sorted(STATIC.glob("plotly-cartesian-*.min.js"))
    if not found:
        raise DataError("plotly-cartesian-*.min.js: is missing in the folder static; restore it from the project.")
    return found[-1].read_text("utf-8")
