"""A figure of an experiment, or one that a paper published, as a plotly figure with its words. No Streamlit.

Ours: a thin line a seed; where several seeds share their x, their mean in bold with the 95 % t interval. Theirs:
dashed, open markers. Lines are named at their ends instead of in a legend.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Final

import plotly.graph_objects as go

from accum_core import catalogue, palette
from accum_core.experiment import Drawn, Figure, Points, Published
from accum_core.statistics import Interval, seed_interval
from experiments.report.axes import SYMBOLS
from experiments.report.lines import Line, chart

WIDE: Final = 8.0  # largest x over smallest from which a paper's figures stand on a logarithmic axis


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure with its words.

    Attributes:
        key: unique in its experiment.
        title: the finding.
        subtitle: what is drawn.
        alt: the same in words, for those who do not see it.
        data: what is drawn, as comma-separated values.
    """

    key: str
    title: str
    subtitle: str
    figure: go.Figure
    alt: str
    data: str


def ours(figure: Figure, drawn: Drawn, *, dark: bool) -> Chart | None:
    """A figure of an experiment; None where nothing that can be drawn was measured.

    Args:
        figure: what it says of itself.
        drawn: what its ``lines`` gave.
        dark: whether it stands on a dark surface.
    """
    shown = {name: _shown(seeds, figure) for name, seeds in drawn.items()}
    lines = _lines({name: seeds for name, seeds in shown.items() if seeds}, dark)
    if not lines:
        return None
    made = chart(lines, figure.x_label, figure.y_label, log_x=figure.log_x, log_y=figure.log_y, dark=dark)
    title = figure.finding(drawn)
    counts = sorted({len(line.seeds) for line in lines})
    seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    told = [f"thin: one line a seed ({seeds})"]
    if any(line.middle for line in lines):
        told.append("bold: mean over seeds with its 95 % t interval")
    left_out = sum(map(len, _points(drawn))) - sum(map(len, _points(shown)))
    if left_out:
        told.append(f"{left_out} values cannot stand on these axes (not finite, or not above 0 on a logarithmic one)")
    data = _csv(
        ("line", "seed", figure.x_label, figure.y_label),
        ((name, seed, x, y) for name, seeds in drawn.items() for seed, points in seeds.items() for x, y in points),
    )
    alt = f"{title}. {_read_out(lines, figure.x_label, figure.y_label)}"
    return Chart(figure.key, title, "; ".join(told), made, alt, data)


def theirs(published: Published, *, dark: bool) -> Chart | None:
    """A paper's own figures, marked as theirs; None for one that has no series, or all of it at one x."""
    points = {name: {x: Interval(y, y, y, 0.0) for x, y in sorted(series)} for name, series in published.series.items()}
    points = {name: series for name, series in points.items() if series}
    if len({x for series in points.values() for x in series}) < 2:
        return None
    colors, symbols = _colors(list(points), dark), cycle(SYMBOLS)
    lines = [
        Line(line_title(name), {}, series, colors[name], f"{next(symbols)}-open", theirs=True)
        for name, series in points.items()
    ]
    xs = [x for series in points.values() for x in series]
    wide = min(xs) > 0 and max(xs) / min(xs) >= WIDE
    made = chart(lines, published.x_label, published.y_label, log_x=wide, dark=dark)
    title = f"Theirs: {in_short(published)}"
    data = _csv(
        ("series", published.x_label, published.y_label),
        ((name, x, y) for name, series in published.series.items() for x, y in series),
    )
    return Chart(f"theirs_{published.key}", title, published.y_label, made, f"{title}. {published.citation}.", data)


def in_short(published: Published) -> str:
    """What each series of a paper comes to from its first to its last figure, or what the paper states."""
    clauses = []
    for name, series in published.series.items():
        if series:
            (first, before), (last, after) = series[0], series[-1]
            alone = f"{line_title(name)} {before:g} at {first:g}"
            clauses.append(
                alone if len(series) == 1 else f"{line_title(name)} {before:g} → {after:g} from {first:g} to {last:g}"
            )
    if not clauses:
        return published.statement
    return f"{published.y_label} by {published.x_label}: {'; '.join(clauses)}"


def _shown(seeds: Mapping[int, Points], figure: Figure) -> dict[int, list[tuple[float, float]]]:
    """What can stand on the axes, by rising x."""

    def fits(x: float, y: float) -> bool:
        return math.isfinite(x) and math.isfinite(y) and (x > 0 or not figure.log_x) and (y > 0 or not figure.log_y)

    found = {seed: sorted((x, y) for x, y in points if fits(x, y)) for seed, points in seeds.items()}
    return {seed: points for seed, points in found.items() if points}


def _points(drawn: Drawn) -> Iterable[Points]:
    return (points for seeds in drawn.values() for points in seeds.values())


def _lines(drawn: Drawn, dark: bool) -> list[Line]:
    colors, symbols = _colors(list(drawn), dark), cycle(SYMBOLS)
    found = []
    for place, (name, seeds) in enumerate(drawn.items()):
        at: dict[float, list[float]] = {}
        for points in seeds.values():
            for x, y in points:
                at.setdefault(x, []).append(y)
        middle = {x: seed_interval(values) for x, values in sorted(at.items()) if len(values) > 1}
        again = colors[name] in list(colors.values())[:place]
        found.append(Line(line_title(name), seeds, middle, colors[name], next(symbols), again=again))
    return found


def _colors(names: Sequence[str], dark: bool) -> dict[str, str]:
    """A norm's own colour for a line named after it, the others' in turn."""
    own = {key: shade for norm, shade in palette.NORM_COLORS.items() for key in (norm, line_title(norm))}
    taken = {name: own[name] for name in names if name in own}
    free = [shade for shade in dict.fromkeys(own.values()) if shade not in taken.values()]
    others = cycle(free or [palette.REFERENCE])
    return {name: (taken[name] if name in taken else next(others)).on(dark) for name in names}


def line_title(name: str) -> str:
    """A line's name for people: a norm's title for its file name."""
    return str(catalogue.entries("norms").get(name, {}).get("TITLE", name))


def _read_out(lines: Iterable[Line], x_label: str, y_label: str) -> str:
    """Each line's first and last value in words."""
    told = []
    for line in lines:
        if line.middle:
            first, last = min(line.middle), max(line.middle)
            told.append(
                f"{line.name} {line.middle[first].mean:.3g} at {first:g}, {line.middle[last].mean:.3g} at {last:g}"
            )
        else:
            told.append(f"{line.name} {line.end:.3g}")
    return f"{y_label} by {x_label}: {'; '.join(told)}."


def _csv(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()
