"""Lines with their seeds, means and intervals as one plotly figure; each is named at its end. No Streamlit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Final

import plotly.graph_objects as go

from accum_core.experiment import Points
from accum_core.statistics import Interval
from experiments.report.axes import HEIGHT, MARGINS, blank_figure, log_ticks, name_ends, room, side

MOST_BARS: Final = 6  # points of a line whose intervals are bars; those of more are a band
TITLE: Final = 36  # letters on one line of the vertical axis's title
FEW: Final = 4  # lines whose bands may be dark enough to be seen one by one
MOST_TICKS: Final = 8  # values of x that are each named on a logarithmic axis
LONGEST_TICK: Final = 6  # letters of such a value
CUT: Final = 0.6  # of the seeds' range: further out, an interval of few seeds is cut off by the chart's edge


@dataclass(frozen=True, slots=True)
class Line:
    """One line as it is drawn.

    Attributes:
        name: that stands beside it.
        seeds: seed -> its points, by rising x; none of a paper's line.
        middle: x -> mean and interval over the seeds that share it; of a paper's line its figures, of no width.
        theirs: a paper's: dashed, open markers.
        again: dotted, as its colour stands on the chart already.
    """

    name: str
    seeds: Mapping[int, Points]
    middle: Mapping[float, Interval]
    color: str
    symbol: str
    theirs: bool = False
    again: bool = False

    @property
    def end(self) -> float:
        """The value at the greatest x."""
        if self.middle:
            return self.middle[max(self.middle)].mean
        return max(point for points in self.seeds.values() for point in points)[1]

    @property
    def xs(self) -> set[float]:
        """Every x that it has."""
        return {x for points in self.seeds.values() for x, _ in points} | set(self.middle)


def chart(
    lines: Sequence[Line], x_label: str, y_label: str, *, log_x: bool = False, log_y: bool = False, dark: bool
) -> go.Figure:
    """The lines as a figure.

    Args:
        lines: each with at least one point; all above 0 where an axis is logarithmic.
        x_label, y_label: with units.
        log_x, log_y: logarithmic axes.
        dark: whether the chart stands on a dark surface.
    """
    names = [line.name for line in lines]
    title = wrap(y_label, TITLE)
    margins = MARGINS | {"r": side(names) if len(lines) > 1 else 16, "l": MARGINS["l"] + 18 * (len(title) - 1)}
    height = max(HEIGHT, room(names) + margins["t"] + margins["b"])
    figure = blank_figure(dark)
    figure.update_layout(height=height, margin=margins)
    low, high = _span(lines, log_y)
    for line in lines:
        _draw_seeds(figure, line)
        _draw_middle(figure, line, 10**low if log_y else -math.inf, 0.18 if len(lines) <= FEW else 0.08)
    figure.update_yaxes(title_text="<br>".join(title), range=[low, high], type="log" if log_y else "linear")
    if log_y:
        ticks = log_ticks(low, high)
        figure.update_yaxes(tickvals=list(ticks), ticktext=list(ticks.values()))
    figure.update_xaxes(title_text=x_label)
    if log_x:
        _log_x(figure, sorted(set[float]().union(*(line.xs for line in lines))))
    if len(lines) > 1:
        plot = height - margins["t"] - margins["b"]
        ends = [((math.log10(line.end) if log_y else line.end) - low) / (high - low) * plot for line in lines]
        name_ends(figure, names, ends, [line.color for line in lines], plot)
    return figure


def _draw_seeds(figure: go.Figure, line: Line) -> None:
    alone = not line.middle
    for seed, points in line.seeds.items():
        figure.add_scatter(
            x=[x for x, _ in points],
            y=[y for _, y in points],
            mode="lines+markers" if len(points) <= MOST_BARS else "lines",
            line={"color": line.color, "width": 1},
            marker={"size": 7 if alone else 4, "symbol": line.symbol if alone else "circle"},
            opacity=0.8 if alone else 0.4,
            hovertemplate=f"{line.name}, seed {seed}: %{{y:.4g}} at %{{x:.4g}}<extra></extra>",
        )


def _draw_middle(figure: go.Figure, line: Line, floor: float, shade: float) -> None:
    """The mean and its interval, cut off at ``floor``, as a logarithmic axis has no zero."""
    xs, intervals = list(line.middle), list(line.middle.values())
    if not xs:
        return
    means = [interval.mean for interval in intervals]
    halves = [interval.high - interval.mean for interval in intervals]
    lows = [max(interval.low, floor) for interval in intervals]
    bars = len(xs) <= MOST_BARS
    if not bars and not line.theirs:
        outline = {"x": xs, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
        figure.add_scatter(y=[interval.high for interval in intervals], **outline)
        figure.add_scatter(y=lows, fill="tonexty", fillcolor=_faint(line.color, shade), **outline)
    error = {"array": halves, "arrayminus": [mean - low for mean, low in zip(means, lows, strict=True)]}
    told = "%{y} at %{x}" if line.theirs else "mean %{y:.4g} ± %{customdata:.2g} at %{x:.4g}"
    figure.add_scatter(
        x=xs,
        y=means,
        customdata=halves,
        error_y=error | {"type": "data", "thickness": 2, "width": 6} if bars and not line.theirs else None,
        mode="lines+markers" if bars or line.theirs else "lines",
        line={
            "color": line.color,
            "width": 2 if line.theirs else 3,
            "dash": "dash" if line.theirs else "dot" if line.again else "solid",
        },
        marker={"size": 8, "symbol": line.symbol, "line": {"width": 2 if line.theirs else 0}},
        hovertemplate=f"{line.name}: {told}<extra></extra>",
    )


def _faint(color: str, opacity: float) -> str:
    red, green, blue = bytes.fromhex(color[1:])
    return f"rgba({red},{green},{blue},{opacity})"


def _span(lines: Iterable[Line], log: bool) -> tuple[float, float]:
    """The vertical axis's ends, in powers of ten on a logarithmic one."""
    values: list[float] = []
    ends: list[float] = []
    for line in lines:
        values += [y for points in line.seeds.values() for _, y in points]
        values += [interval.mean for interval in line.middle.values()]
        ends += [end for interval in line.middle.values() for end in (interval.low, interval.high)]
    if log:
        low, high = math.log10(min(values)), math.log10(max(values))
        space = 0.08 * max(high - low, 0.5)
        return low - space, high + space
    low, high = min(values), max(values)
    reach = CUT * (high - low)
    low, high = max(min([low, *ends]), low - reach), min(max([high, *ends]), high + reach)
    space = 0.08 * (high - low or abs(high) or 1.0)
    return low - space, high + space


def _log_x(figure: go.Figure, xs: Sequence[float]) -> None:
    low, high = math.log10(xs[0]), math.log10(xs[-1])
    space = 0.06 * (high - low or 1.0)
    own = {x: f"{x:g}" for x in xs}
    # Sizes of batches are named one by one; numbers with many digits, such as counts of parameters, would overlap.
    stand_apart = len(xs) <= MOST_TICKS and max(map(len, own.values())) <= LONGEST_TICK
    ticks = own if stand_apart else log_ticks(low - space, high + space)
    figure.update_xaxes(
        type="log", range=[low - space, high + space], tickvals=list(ticks), ticktext=list(ticks.values())
    )
