"""Lines over micro-batch sizes, the largest on the left, each named at its right end. Pure: no Streamlit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from typing import Final

import plotly.graph_objects as go

from accum_core import catalogue
from accum_ui import palette
from accum_ui.figures import HEIGHT, SYMBOLS, blank_figure
from accum_ui.palette import Shade
from accum_ui.words import SUPERSCRIPT

MARGINS: Final = {"l": 60, "r": 116, "t": 12, "b": 56}
NAME: Final = 15  # letters on one line of a name
TYPE: Final = 13  # pixels of a name's letters
LINE_HEIGHT: Final = 17  # pixels of a line of a name


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
    names = [wrap(line.name, NAME) for line in lines]
    room = LINE_HEIGHT * sum(map(len, names)) + 4 * len(names)
    height = max(height, room + MARGINS["t"] + MARGINS["b"])
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
    ends = [math.log10(max(sizes)), math.log10(min(sizes))]
    space = 0.06 * (ends[0] - ends[1])
    figure.update_xaxes(
        type="log",
        range=[ends[0] + space, ends[1] - space],
        tickvals=list(sizes),
        ticktext=[f"{size:g}" for size in sizes],
        title_text=x_title,
    )
    _name(figure, lines, names, (low, high), axis, dark, height - MARGINS["t"] - MARGINS["b"])
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


def log_ticks(low: float, high: float) -> dict[float, str]:
    """Values on a log axis between two powers of ten, with their texts: 1, 2, 5, 10, ... or powers alone."""
    powers = range(math.floor(low), math.ceil(high) + 1)
    if high - low < 2:
        steps = (1, 2, 5) if high - low > 0.5 else (1, 1.5, 2, 3, 4, 5, 6, 8)
        values = [step * 10.0**power for power in powers for step in steps]
        return {value: f"{value:.3g}" for value in values if low <= math.log10(value) <= high}
    every = math.ceil((high - low) / 6)
    return {
        10.0**power: f"10{str(power).translate(SUPERSCRIPT)}" if power else "1"
        for power in powers
        if power % every == 0 and low <= power <= high
    }


def _name(
    figure: go.Figure,
    lines: Sequence[Line],
    names: Sequence[Sequence[str]],
    span: tuple[float, float],
    axis: Axis,
    dark: bool,
    plot: int,
) -> None:
    """Write each line's name in the right margin, as near to its end as the other names let it be."""
    if len(lines) < 2:
        return
    low, high = span

    def end(line: Line) -> float:
        value = line.values[min(line.values)]
        return ((math.log10(value) if axis.log else value) - low) / (high - low) * plot

    order = sorted(range(len(lines)), key=lambda place: end(lines[place]))
    sizes = [LINE_HEIGHT * len(names[place]) + 4.0 for place in order]
    for place, middle in zip(order, spread([end(lines[place]) for place in order], sizes, plot), strict=True):
        figure.add_annotation(
            x=1,
            y=middle / plot,
            xref="paper",
            yref="paper",
            xanchor="left",
            yanchor="middle",
            xshift=6,
            align="left",
            text="<br>".join(f"<b>{part}</b>" for part in names[place]),
            showarrow=False,
            font={"color": lines[place].shade.on(dark), "size": TYPE},
        )


def spread(wanted: Sequence[float], sizes: Sequence[float], room: float) -> list[float]:
    """Middles of labels as near to where they are wanted as they can stand without touching, within ``[0, room]``.

    Args:
        wanted: rising.
        sizes: of the labels; together at most ``room``, or else the topmost stand out of it.
    """
    middles: list[float] = []
    floor = 0.0
    for middle, size in zip(wanted, sizes, strict=True):
        middles.append(max(middle, floor + size / 2))
        floor = middles[-1] + size / 2
    ceiling = max(room, sum(sizes))
    for place in reversed(range(len(middles))):
        middles[place] = min(middles[place], ceiling - sizes[place] / 2)
        ceiling = middles[place] - sizes[place] / 2
    return middles
