"""Lines over micro-batch sizes, the largest on the left, each named at its right end. Pure: no Streamlit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import plotly.graph_objects as go

from accum_core import catalogue, palette
from accum_core.palette import Shade
from experiments.report.axes import HEIGHT, MARGINS, SYMBOLS, blank_figure, log_ticks, name_ends, room


@dataclass(frozen=True, slots=True)
class Line:
    """One line: its value at each size, and single values (by seed, say) drawn as dots.

    Attributes:
        name: that stands beside it.
        values: size -> value.
        dots: size -> what a dot is of -> value.
        symbol: of its markers.
        theirs: dashed and with open markers, as it is a paper's.
    """

    name: str
    values: Mapping[int, float]
    shade: Shade
    symbol: str = "circle"
    dots: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    theirs: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """The vertical axis: its title with the unit, and how a value is written where the pointer rests."""

    title: str
    shown: str = ".3g"
    tick: str | None = None
    log: bool = False
    from_zero: bool = True


def shades(norms: Sequence[str]) -> dict[str, Shade]:
    """A colour for each of up to six norms, its own where that is free; grey for the others, whose names tell them."""
    own = palette.NORM_COLORS
    free = list(dict.fromkeys(own.values()))
    found: dict[str, Shade] = {}
    for norm in sorted(norms, key=lambda norm: list(own).index(norm)):  # those with a shade of their own come first
        shade = own[norm] if own[norm] in free else (free[0] if free else palette.REFERENCE)
        found[norm] = shade
        if shade in free:
            free.remove(shade)
    return found


def symbols(norms: Sequence[str]) -> dict[str, str]:
    """A marker for each norm, the same whichever others stand beside it."""
    places = {norm: place for place, norm in enumerate(catalogue.entries("norms"))}
    return {norm: SYMBOLS[places.get(norm, 0) % len(SYMBOLS)] for norm in norms}


def drawn(
    lines: Sequence[Line], sizes: Sequence[float], x_title: str, axis: Axis, *, dark: bool, height: int = HEIGHT
) -> go.Figure:
    """The lines as a figure.

    Args:
        lines: each with at least one value, all above 0 on a log axis.
        sizes: that the horizontal axis spans, whatever the lines have.
        dark: whether the chart stands on a dark surface.
    """
    height = max(height, room([line.name for line in lines]) + MARGINS["t"] + MARGINS["b"])
    figure = blank_figure(dark)
    figure.update_layout(height=height, margin=MARGINS if len(lines) > 1 else MARGINS | {"r": 16})
    for line in lines:
        _draw(figure, line, axis, dark)
    low, high = _span(lines, axis)
    figure.update_yaxes(
        title_text=axis.title, range=[low, high], type="log" if axis.log else "linear", tickformat=axis.tick
    )
    if axis.log:
        ticks = log_ticks(low, high)
        figure.update_yaxes(tickvals=list(ticks), ticktext=list(ticks.values()))
    left, right = math.log10(max(sizes)), math.log10(min(sizes))
    space = 0.06 * (left - right)
    figure.update_xaxes(
        type="log",
        range=[left + space, right - space],
        tickvals=list(sizes),
        ticktext=[f"{size:g}" for size in sizes],
        title_text=x_title,
    )
    plot = height - MARGINS["t"] - MARGINS["b"]
    if len(lines) > 1:
        last = [line.values[min(line.values)] for line in lines]
        ends = [((math.log10(value) if axis.log else value) - low) / (high - low) * plot for value in last]
        name_ends(figure, [line.name for line in lines], ends, [line.shade.on(dark) for line in lines], plot)
    return figure


def _draw(figure: go.Figure, line: Line, axis: Axis, dark: bool) -> None:
    color = line.shade.on(dark)
    sizes = sorted(line.values, reverse=True)
    for size, dots in line.dots.items():
        if len(dots) > 1:  # a single one is the line's own marker
            figure.add_scatter(
                x=[size] * len(dots),
                y=list(dots.values()),
                text=list(dots),
                mode="markers",
                marker={"size": 5, "color": color, "opacity": 0.55},
                hovertemplate=f"{line.name}, %{{text}}: %{{y:{axis.shown}}} at %{{x}}<extra></extra>",
            )
    figure.add_scatter(
        x=sizes,
        y=[line.values[size] for size in sizes],
        mode="lines+markers",
        name=line.name,
        line={"color": color, "width": 2, "dash": "dash" if line.theirs else "solid"},
        marker={
            "size": 8,
            "symbol": f"{line.symbol}-open" if line.theirs else line.symbol,
            "line": {"width": 2 if line.theirs else 0},
        },
        hovertemplate=f"{line.name}: %{{y:{axis.shown}}} at %{{x}}<extra></extra>",
    )


def _span(lines: Sequence[Line], axis: Axis) -> tuple[float, float]:
    """The axis's ends, in powers of ten on a log axis."""
    values = [value for line in lines for value in line.values.values()]
    values += [value for line in lines for dots in line.dots.values() for value in dots.values()]
    if axis.log:
        low, high = math.log10(min(values)), math.log10(max(values))
        space = 0.08 * max(high - low, 0.5)
        return low - space, high + space
    low, high = 0.0 if axis.from_zero else min(values), max(values)
    space = 0.08 * (high - low or abs(high) or 1.0)
    return (0.0 if axis.from_zero else low - space), high + space
