"""Where in a network the gradient error of one window arises: by layer, over depth. No Streamlit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import plotly.graph_objects as go

from accum_core import palette
from accum_core.norm_statistics import growth
from accum_core.quantities import number
from accum_ui.figures import Panel
from accum_ui.words import SAME, percent
from experiments.report.axes import blank_figure, log_ticks

HEIGHT: Final = 440
MARGINS: Final = {"l": 60, "r": 16, "t": 12, "b": 92}
ERRORS, SHARES = (0.4, 1.0), (0.0, 0.3)  # what the two charts take of the height, from below
NAMES: Final = -24  # pixels from the axis to the first and the last layer's names
LINE_HEIGHT: Final = 17
NARROW: Final = 26  # letters of both names that stand in one line of a phone's chart
TICKS: Final = 8


@dataclass(frozen=True, slots=True)
class Depth:
    """The gradient error of one window, layer by layer in the order in which the network runs them.

    Attributes:
        whole: relative error of all layers together.
        errors: of each layer, norm(accumulated - reference) / norm(reference); infinite over a reference of zero.
        shares: of each layer in the squared error, 1 together; all 0 without an error.
    """

    whole: float
    names: tuple[str, ...]
    errors: tuple[float, ...]
    shares: tuple[float, ...]

    @property
    def largest(self) -> int:
        """Place of the layer with the largest share, the first of several."""
        return max(range(len(self.shares)), key=self.shares.__getitem__)

    @property
    def drawn(self) -> list[int]:
        """Places of the layers whose errors stand on a log axis."""
        return [place for place, error in enumerate(self.errors) if 0 < error < math.inf]


def of_record(instruments: Mapping[str, Mapping[str, Any]]) -> Depth | None:
    """From what a record measured; None for a record without layers over depth, as older ones are."""
    measured = instruments.get("gradient_error", {})
    if not (found := measured.get("by_depth")):
        return None
    fields = (tuple(found[name]) for name in ("names", "relative_error", "share"))
    return Depth(measured["relative_error"], *fields)


def reason(depth: Depth | None, update: int, steps: int, example: str) -> str:
    """Why there is nothing to draw; "" if there is.

    Args:
        steps: N of the run.
        example: a run that has an error; "" if none is known.
    """
    if depth is None:
        return f"Update {update} of this run kept no gradient error layer by layer, as runs made here now do."
    if not all(map(math.isfinite, depth.shares)):
        return f"At update {update} this run's gradient is not finite: it has no error in numbers."
    if any(depth.shares):
        return ""
    advice = f" Choose above a run that is split, such as {example}." if example else ""
    if steps == 1:
        return f"In none: at update {update} the window is one batch, which is the reference itself.{advice}"
    return f"In none: at update {update} the gradient of every layer is that of one batch, to the last digit.{advice}"


def title(depth: Depth) -> str:
    """The layer with the largest share, and by what factor the relative error changes a layer."""
    share = percent(depth.shares[depth.largest])
    text = f"{depth.names[depth.largest]} holds {share} of the squared error"
    if depth.whole <= SAME:
        text = f"Rounding alone: {text}"
    if (factor := growth(depth.errors)) is None:
        return text
    times = number(max(factor, 1 / factor), 3)
    change = f"{'grows' if factor > 1 else 'falls'} by a factor of {times}" if times != "1" else "stays as large"
    return f"{text}; from one layer to the next, the relative error {change} on average"


def panel(depth: Depth, of: str, *, dark: bool) -> Panel:
    """Each layer's relative error above, its share of the squared error below.

    Args:
        depth: with an error in some layer.
        of: the run and the update.
        dark: whether the chart stands on a dark surface.
    """
    figure = blank_figure(dark)
    figure.update_layout(height=HEIGHT, margin=MARGINS, yaxis2=figure.layout.yaxis, bargap=0.25)
    colors = [palette.REFERENCE.on(dark)] * len(depth.names)
    colors[depth.largest] = palette.RUN.on(dark)
    _errors(figure, depth, colors, palette.REFERENCE.on(dark))
    _shares(figure, depth, colors)
    _layers(figure, depth, dark)
    missing = len(depth.names) - len(depth.drawn)
    gaps = f"; no dot: no error, or a reference of zero ({missing} of {len(depth.names)} layers)" if missing else ""
    lead = depth.names[depth.largest]
    return Panel(
        title=title(depth),
        subtitle=f"{of}, all layers together off by {_error(depth.whole)}; above: norm(accumulated − reference) / "
        f"norm(reference) of each layer, log scale{gaps}; below: its share of the squared error; {lead} in colour",
        figure=figure,
        alt=f"Relative gradient error of {len(depth.names)} layers in the network's order, with their shares of the "
        f"squared error: {'; '.join(', '.join(_told(depth, place)) for place in _outstanding(depth))}.",
    )


def _errors(figure: go.Figure, depth: Depth, colors: list[str], thread: str) -> None:
    places = depth.drawn
    figure.add_scatter(
        x=list(range(1, len(depth.names) + 1)),
        y=[error if place in places else None for place, error in enumerate(depth.errors)],
        text=_hovers(depth),
        mode="lines+markers",
        line={"color": thread, "width": 1},
        marker={"size": 8, "color": colors},
        hovertemplate="%{text}<extra></extra>",
    )
    figure.update_layout(yaxis={"title": {"text": "relative error"}, "domain": ERRORS})
    if places:
        exponents = [math.log10(depth.errors[place]) for place in places]
        space = 0.08 * max(max(exponents) - min(exponents), 0.5)
        span = [min(exponents) - space, max(exponents) + space]
        ticks = log_ticks(*span)
        figure.update_layout(
            yaxis={"type": "log", "range": span, "tickvals": list(ticks), "ticktext": list(ticks.values())}
        )


def _shares(figure: go.Figure, depth: Depth, colors: list[str]) -> None:
    figure.add_bar(
        x=list(range(1, len(depth.names) + 1)),
        y=depth.shares,
        text=_hovers(depth),
        textposition="none",
        marker={"color": colors, "line": {"width": 0}},
        yaxis="y2",
        hovertemplate="%{text}<extra></extra>",
    )
    figure.update_layout(
        yaxis2={"domain": SHARES, "title": {"text": "share"}, "tickformat": "~%", "rangemode": "tozero", "nticks": 4}
    )


def _layers(figure: go.Figure, depth: Depth, dark: bool) -> None:
    """The horizontal axis: layers by number, the first and the last one by name."""
    count = len(depth.names)
    every = math.ceil(count / TICKS)
    figure.update_xaxes(
        anchor="y2",
        range=[0.4, count + 0.6],
        tickvals=list(range(1, count + 1, every)),
        showgrid=False,
        title={"text": "layer, in the network's order", "standoff": 40},
    )
    ends = [(0.0, "left", depth.names[0], NAMES)]
    if count > 1:
        wide = len(depth.names[0]) + len(depth.names[-1]) > NARROW
        ends.append((1.0, "right", depth.names[-1], NAMES - LINE_HEIGHT * wide))
    for x, anchor, name, shift in ends:
        figure.add_annotation(
            x=x,
            y=0,
            xref="paper",
            yref="paper",
            xanchor=anchor,
            yanchor="top",
            yshift=shift,
            text=f"<b>{name}</b>",
            showarrow=False,
            font={"color": palette.TEXT.on(dark), "size": 13},
        )


def _outstanding(depth: Depth) -> list[int]:
    """The first layer, the last one and those with the largest share and error, each once."""
    far = max(range(len(depth.errors)), key=depth.errors.__getitem__)
    return sorted({0, len(depth.names) - 1, depth.largest, far})


def _hovers(depth: Depth) -> list[str]:
    return ["<br>".join(_told(depth, place)) for place in range(len(depth.names))]  # a phone has no room for one line


def _told(depth: Depth, place: int) -> list[str]:
    share = percent(depth.shares[place]) if depth.shares[place] else "none"
    off, where = f"off by {_error(depth.errors[place])}", f"layer {place + 1} of {len(depth.names)}"
    return [depth.names[place], where, off, f"{share} of the squared error"]


def _error(value: float) -> str:
    if not 0 < value < math.inf:
        return "nothing" if value == 0 else "all of it, over a reference of zero"
    return percent(value) if value > SAME else number(value, 2)
