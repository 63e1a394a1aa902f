"""What charts share: a blank figure, ticks of a logarithmic axis, and names of lines, clear of one another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import wrap
from typing import Final

import plotly.graph_objects as go

from accum_core import palette
from accum_core.quantities import SUPERSCRIPT

HEIGHT: Final = 380
FONT: Final = '"Source Sans", "Source Sans Pro", sans-serif'
SYMBOLS: Final = ("circle", "diamond", "square", "triangle-up", "triangle-down", "cross")
NAME: Final = 15  # letters on one line of a name
TYPE: Final = 13  # pixels of a name's letters
LINE_HEIGHT: Final = 17  # pixels of a line of a name
MARGINS: Final = {"l": 60, "r": 116, "t": 12, "b": 56}
"""Of a chart whose lines are named beside it, in pixels."""


def blank_figure(dark: bool) -> go.Figure:
    """A figure of the house: transparent, without a legend, axes that do not zoom."""
    text, grid = palette.TEXT.on(dark), palette.GRID.on(dark)
    figure = go.Figure()
    axis = {"gridcolor": grid, "zeroline": False, "linecolor": grid, "title": {"standoff": 8}, "fixedrange": True}
    figure.update_layout(
        height=HEIGHT,
        margin={"l": 56, "r": 16, "t": 12, "b": 64},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": FONT, "size": 14, "color": text},
        showlegend=False,
        hovermode="closest",
        xaxis=axis,
        yaxis=axis,
    )
    return figure


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


def room(names: Sequence[str]) -> int:
    """Pixels that the names of lines take, one above the other."""
    return LINE_HEIGHT * sum(len(wrap(name, NAME)) for name in names) + 4 * len(names)


def side(names: Sequence[str]) -> int:
    """Pixels of the right margin that the names of lines take, in any usual font."""
    return 14 + round(0.74 * TYPE * max(len(part) for name in names for part in wrap(name, NAME) or [""]))


def name_ends(figure: go.Figure, names: Sequence[str], ends: Sequence[float], colors: Sequence[str], plot: int) -> None:
    """Write each line's name in the right margin, as near to its end as the other names let it be.

    Args:
        ends: height of each line's end above the horizontal axis, in pixels.
        plot: pixels that the vertical axis spans.
    """
    order = sorted(range(len(names)), key=lambda place: ends[place])
    wrapped = [wrap(names[place], NAME) for place in order]
    middles = spread([ends[place] for place in order], [LINE_HEIGHT * len(parts) + 4.0 for parts in wrapped], plot)
    for place, parts, middle in zip(order, wrapped, middles, strict=True):
        figure.add_annotation(
            x=1,
            y=middle / plot,
            xref="paper",
            yref="paper",
            xanchor="left",
            yanchor="middle",
            xshift=6,
            align="left",
            text="<br>".join(f"<b>{part}</b>" for part in parts),
            showarrow=False,
            font={"color": colors[place], "size": TYPE},
        )
