"""Finished charts: rows of results and published series as plotly figures, with the words that belong to them.

Pure: no Streamlit. Labels stand beside their lines instead of in a legend, and each panel's title is a finding that
was computed from what it draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import plotly.graph_objects as go

from accum_core import palette
from accum_core.experiment import Published
from accum_core.quantities import POINT, number
from accum_core.statistics import seed_interval
from accum_ui.results import Row, Split, by_norm
from accum_ui.words import SAME, norm_title, percent
from experiments.report.axes import HEIGHT, SYMBOLS, blank_figure

PLOT: Final = HEIGHT - 76  # pixels that the vertical axis spans, without the margins
LABEL: Final = 22  # pixels from a line to the middle of its name
LABEL_ROOM: Final = 19  # pixels from one name to the next


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart with its words.

    Attributes:
        title: the finding.
        subtitle: what is drawn, in which unit.
        figure: the chart; it has no title of its own, as that would not wrap on a narrow screen.
        alt: the same in words, for those who do not see it.
    """

    title: str
    subtitle: str
    figure: go.Figure
    alt: str


def finding(splits: Sequence[Split], network: str = "") -> str:
    """What splitting did to each norm, in points of the measure, as one title.

    Args:
        splits: at least one, of one measure.
        network: named where an experiment has several.
    """
    clauses = [_clause(split) for split in splits]
    opening = f"Split into {splits[0].accumulation_steps} × {splits[0].micro_batch_size}"
    if network:
        opening = f"{network[:1].upper()}{network[1:]}, s{opening[1:]}"
    return f"{opening}, {'; '.join(clauses)}"


def _clause(split: Split) -> str:
    name, loss = norm_title(split.norm), split.loss
    size, title = f"{abs(loss.mean) / POINT:.3g} points", split.measure.title
    if loss.low > 0 or loss.high < 0:
        if split.measure.higher_is_better:
            return f"{name} {'loses' if loss.low > 0 else 'gains'} {size} of {title}"
        return f"{name}'s {title} {'rises' if loss.low > 0 else 'falls'} by {size}"
    if loss.low == loss.high:
        return f"{name}'s {split.measure.title} is the same"
    return f"{name}'s mean stays within {max(-loss.low, loss.high) / POINT:.2g} points"


def reason(splits: Sequence[Split]) -> str:
    """Why: how far each norm's gradient is from the whole batch's at equal weights."""
    clauses = [
        f"{norm_title(split.norm)}'s{'' if index else ' gradient is off'} by "
        + (percent(split.gradient_error) if split.gradient_error > SAME else number(split.gradient_error, 1))
        + f" (cosine {split.cosine:.2f})"
        for index, split in enumerate(splits)
    ]
    return f"At the same parameters, against the gradient of the whole batch in one pass: {', '.join(clauses)}."


def split_panel(table: Sequence[Row], splits: Sequence[Split], *, dark: bool, network: str = "") -> Panel:
    """The measure against micro-batch size, a line a norm: every seed thin, their mean and 95 % interval bold.

    Args:
        table: the runs of one network in an experiment, of one effective batch size.
        splits: from ``results.splits`` of the same runs.
        dark: whether the chart stands on a dark surface.
        network: named in the title where an experiment has several.
    """
    measure = table[0].measure
    form = ".3f" if measure.higher_is_better else ".1%"
    figure = blank_figure(dark)
    groups = by_norm(list(table))
    means: dict[str, Mapping[float, float]] = {}
    for symbol, (norm, sizes) in zip(SYMBOLS * len(groups), groups.items(), strict=False):
        color = palette.NORM_COLORS[norm].on(dark)
        _draw_seeds(figure, norm, sizes, color, form)
        intervals = {
            micro: seed_interval([row.quality for row in seeds.values()])
            for micro, seeds in sizes.items()
            if len(seeds) > 1  # one seed has no interval
        }
        means[norm] = {micro: interval.mean for micro, interval in intervals.items()}
        halves = [interval.high - interval.mean for interval in intervals.values()]
        figure.add_scatter(
            x=list(intervals),
            y=list(means[norm].values()),
            customdata=halves,
            error_y={"type": "data", "array": halves, "thickness": 2, "width": 6},
            mode="lines+markers",
            line={"color": color, "width": 3},
            marker={"size": 9, "symbol": symbol},
            hovertemplate=f"{norm_title(norm)}, mean: %{{y:{form}}} ± %{{customdata:{form}}}<extra></extra>",
        )
    _label_lines(figure, means, dark, from_zero=True)
    effective = table[0].effective_batch_size
    micros = sorted({row.micro_batch_size for row in table})
    _log_axis(
        figure, micros, [f"{micro}<br>N = {effective // micro}" for micro in micros], "micro-batch size (samples)"
    )
    figure.update_yaxes(
        title_text=f"validation {measure.title}{'' if measure.higher_is_better else ' (%)'}",
        rangemode="tozero",
        tickformat=".1f" if measure.higher_is_better else "~%",
    )
    seeds = "; ".join(f"{norm_title(norm)} {_seed_counts(sizes)}" for norm, sizes in groups.items())
    read_out = "; ".join(
        f"{norm_title(norm)} " + ", ".join(f"{measure.shown(mean)} at {micro:g}" for micro, mean in line.items())
        for norm, line in means.items()
    )
    return Panel(
        title=finding(splits, network),
        subtitle=f"effective batch {effective}, {table[0].updates} updates; thin: one line a seed ({seeds}); "
        "bold: their mean with its 95 % interval; "
        + (f"a point of {measure.title} is 0.01" if measure.higher_is_better else "lower is better"),
        figure=figure,
        alt=f"Validation {measure.title} by micro-batch size, means over seeds ({seeds}): {read_out}.",
    )


def _seed_counts(sizes: Mapping[int, Mapping[int, Row]]) -> str:
    """How many seeds a norm ran, and the sizes that fewer of them ran ("5, of which 3 at micro-batch 8")."""
    most = len({seed for seeds in sizes.values() for seed in seeds})
    fewer = {micro: len(seeds) for micro, seeds in sizes.items() if len(seeds) < most}
    aside = " and ".join(f"{count} at micro-batch {micro}" for micro, count in fewer.items())
    return f"{most}, of which {aside}" if aside else str(most)


def _draw_seeds(figure: go.Figure, norm: str, sizes: Mapping[int, Mapping[int, Row]], color: str, form: str) -> None:
    for seed in sorted({seed for seeds in sizes.values() for seed in seeds}):
        line = {micro: seeds[seed].quality for micro, seeds in sizes.items() if seed in seeds}
        figure.add_scatter(
            x=list(line),
            y=list(line.values()),
            mode="lines+markers",
            line={"color": color, "width": 1},
            marker={"size": 4},
            opacity=0.4,
            hovertemplate=f"{norm_title(norm)}, seed {seed}: %{{y:{form}}}<extra></extra>",
        )


def published_panel(published: Published, *, dark: bool) -> Panel:
    """A paper's own figures, dashed and with open markers, as they are theirs and on other data.

    Args:
        published: with at least one series of at least two points.
        dark: whether the chart stands on a dark surface.
    """
    figure = blank_figure(dark)
    lines = {name: dict(sorted(points)) for name, points in published.series.items()}
    for symbol, (name, line) in zip(SYMBOLS * len(lines), lines.items(), strict=False):
        figure.add_scatter(
            x=list(line),
            y=list(line.values()),
            mode="lines+markers",
            line={"color": _color(name).on(dark), "width": 2, "dash": "dash"},
            marker={"size": 8, "symbol": f"{symbol}-open", "line": {"width": 2}},
            hovertemplate=f"{norm_title(name)}: %{{y}}<extra></extra>",
        )
    _label_lines(figure, lines, dark, from_zero=False)
    sizes = sorted({size for line in lines.values() for size in line})
    _log_axis(figure, sizes, [f"{size:g}" for size in sizes], published.x_label)
    figure.update_yaxes(title_text=published.y_label)
    largest, smallest = sizes[-1], sizes[0]
    ends = ", ".join(
        f"{norm_title(name)} " + " → ".join(f"{line[size]:g}" for size in (largest, smallest) if size in line)
        for name, line in lines.items()
    )
    title = f"{published.x_label[:1].upper()}{published.x_label[1:]} {largest:g} → {smallest:g}: {ends}"
    return Panel(title, published.y_label, figure, alt=f"{title}. {published.citation}.")


def _color(name: str) -> palette.Shade:
    return palette.NORM_COLORS.get(name, palette.REFERENCE)


def _log_axis(figure: go.Figure, values: Sequence[float], labels: Sequence[str], title: str) -> None:
    low, high = math.log10(values[0]), math.log10(values[-1])
    room = 0.06 * (high - low)
    figure.update_xaxes(
        type="log", tickvals=list(values), ticktext=list(labels), title_text=title, range=[low - room, high + room]
    )


def _label_lines(figure: go.Figure, lines: Mapping[str, Mapping[float, float]], dark: bool, *, from_zero: bool) -> None:
    """Name each line beside it, where the lines are furthest apart; a single line is named by its panel's title.

    Args:
        from_zero: whether the vertical axis begins at zero, or at the lowest value.
    """
    if len(lines) < 2:
        return
    shared = set.intersection(*(set(line) for line in lines.values()))
    place = max(sorted(shared), key=lambda x: _spread([line[x] for line in lines.values()]))
    values = [value for line in lines.values() for value in line.values()]
    pixels = PLOT / (max(values) - (0 if from_zero else min(values)) or 1)
    above = 0.0
    for rank, name in enumerate(sorted(lines, key=lambda name: lines[name][place])):
        value = lines[name][place]
        # The lowest name stands below its line, the others above theirs and clear of one another.
        wanted = value * pixels + (LABEL if rank else -LABEL)
        above = max(wanted, above + LABEL_ROOM) if rank else wanted
        figure.add_annotation(
            x=math.log10(place),
            y=value,
            text=f"<b>{norm_title(name)}</b>",
            showarrow=False,
            font={"color": _color(name).on(dark), "size": 15},
            xanchor="left" if place == min(shared) else "right",
            yanchor="middle",
            xshift=8 if place == min(shared) else -8,  # beside the bar of its interval
            yshift=above - value * pixels,
        )


def _spread(values: Sequence[float]) -> float:
    return max(values) - min(values)
