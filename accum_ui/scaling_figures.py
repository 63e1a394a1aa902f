"""The charts of the page on loss scaling, and their data as comma-separated values. Pure: no Streamlit."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import plotly.graph_objects as go

from accum_core import palette
from accum_core.loss_scaling import MicroBatch
from accum_core.quantities import SUPERSCRIPT, number
from accum_core.reduction import ReductionKind
from accum_ui.figures import Panel
from accum_ui.scaling_numbers import EQUAL, percent, span, weights
from accum_ui.scaling_words import Outcomes, errors_title, shares_title, title
from experiments.report.axes import SYMBOLS, blank_figure

FLOOR: Final = 1e-17  # where the axis of errors begins; what is smaller, or 0, is drawn as no bar
APART: Final = 0.075  # of the axis, between two names beside it
MANY: Final = 8  # micro-batches above which every other one is named


def shares_panel(micro_batches: Sequence[MicroBatch], outcomes: Outcomes, unit: str, *, dark: bool) -> Panel:
    """The weight of one label in each micro-batch under each reduction, as a multiple of the fair one.

    Args:
        micro_batches: of the window.
        outcomes: by reduction, of which an update follows.
        unit: what a label is ("tokens").
        dark: whether the chart stands on a dark surface.
    """
    figure = blank_figure(dark)
    places = list(range(1, len(micro_batches) + 1))
    figure.add_hline(y=1, line={"color": palette.REFERENCE.on(dark), "width": 2, "dash": "dash"})
    for symbol, (kind, outcome) in zip(SYMBOLS, outcomes.items(), strict=False):
        color = palette.REDUCTION_COLORS[kind].on(dark)
        figure.add_scatter(
            x=places,
            y=[None if math.isnan(weight) else weight for weight in outcome.label_weights],
            mode="lines+markers",
            line={"color": color, "width": 2},
            marker={"size": 9, "symbol": symbol},
            hovertemplate=f"{title(kind)}, micro-batch %{{x}}: %{{y:.4g}} × the fair weight<extra></extra>",
        )
    drawn = [w for outcome in outcomes.values() for w in outcome.label_weights if not math.isnan(w)]
    low, high = math.log10(min([*drawn, 1])), math.log10(max([*drawn, 1]))
    room = 0.08 * max(high - low, 0.3)
    _weight_axis(figure, low - room, high + room)
    _name_lines(figure, outcomes, low - room, high + room, dark)
    named = places[:: 2 if len(places) > MANY else 1]
    figure.update_xaxes(
        tickvals=named,
        ticktext=[f"{place}<br>{micro_batches[place - 1].valid}" for place in named],
        range=[0.6, len(places) + 0.4],
        title_text=f"micro-batch, and its valid {unit}",
    )
    figure.update_layout(margin={"r": 112})
    return Panel(
        title=shares_title(outcomes),
        subtitle="weight of one label as a multiple of what the whole batch gives it, which is fair (dashed: 1 ×); "
        "log scale",
        figure=figure,
        alt="Weight of one label by micro-batch: "
        + "; ".join(
            f"{title(kind)} " + ", ".join(weights([w for w in outcome.label_weights if not math.isnan(w)]))
            for kind, outcome in outcomes.items()
        )
        + " times the fair weight.",
    )


def _weight_axis(figure: go.Figure, low: float, high: float) -> None:
    base = 2 if high - low < 2 else 10  # a few doublings, or powers of ten
    first, last = math.ceil(low / math.log10(base)), math.floor(high / math.log10(base))
    ticks = [float(base) ** power for power in range(first, last + 1)]
    figure.update_yaxes(
        type="log",
        range=[low, high],
        tickvals=ticks,
        ticktext=[f"{tick:g}" if tick >= 1 or base == 10 else f"1/{1 / tick:g}" for tick in ticks],
        title_text="weight of one label (×)",
        automargin=True,  # from 1000 on the ticks take the room of the title
    )


def _name_lines(figure: go.Figure, outcomes: Outcomes, low: float, high: float, dark: bool) -> None:
    """Name the lines beside their last point; lines that end at one place share a name, and names keep apart."""
    ends: dict[float, list[ReductionKind]] = {}
    for kind, outcome in outcomes.items():
        last = [weight for weight in outcome.label_weights if not math.isnan(weight)][-1]
        shared = next((end for end in ends if abs(end - last) <= EQUAL * last), last)
        ends.setdefault(shared, []).append(kind)
    place = -math.inf
    for end, kinds in sorted(ends.items()):
        place = max((math.log10(end) - low) / (high - low), place + APART * len(kinds))
        figure.add_annotation(
            x=1,
            y=place,
            xref="paper",
            yref="paper",
            text="<br>".join(
                f'<b style="color:{palette.REDUCTION_COLORS[kind].on(dark)}">{title(kind)}</b>' for kind in kinds
            ),
            showarrow=False,
            align="left",
            xanchor="left",
            yanchor="middle",
            xshift=4,
        )


def errors_panel(outcomes: Outcomes, *, dark: bool) -> Panel:
    """The gradient error of each reduction on a log scale, with its cosine.

    Args:
        outcomes: by reduction, each with an error.
        dark: whether the chart stands on a dark surface.
    """
    figure = blank_figure(dark)
    texts = {kind: _error_text(outcome.error or 0.0, outcome.cosine) for kind, outcome in outcomes.items()}
    errors = {kind: outcome.error or 0.0 for kind, outcome in outcomes.items()}
    figure.add_bar(
        y=[title(kind) for kind in outcomes],
        x=[max(error, FLOOR) for error in errors.values()],
        orientation="h",
        marker={"color": [palette.REDUCTION_COLORS[kind].on(dark) for kind in outcomes]},
        text=[texts[kind] for kind in outcomes],
        textposition=["inside" if error > 1e-9 else "outside" for error in errors.values()],
        insidetextanchor="end",
        insidetextfont={"color": palette.SURFACE.on(dark)},
        customdata=[_error_text(error, None) for error in errors.values()],
        hovertemplate="%{y}: gradient error %{customdata}<extra></extra>",
        cliponaxis=False,
    )
    top = max(1.0, *errors.values())
    powers = range(-16, math.ceil(math.log10(top)) + 1, 4)
    figure.update_xaxes(
        type="log",
        range=[math.log10(FLOOR), math.log10(top) + 0.5],
        tickvals=[10.0**power for power in powers],
        ticktext=[f"10{str(power).translate(SUPERSCRIPT)}" if power else "1" for power in powers],
        tickangle=0,
        title_text="gradient error",
    )
    figure.update_yaxes(autorange="reversed", ticksuffix=" ")
    figure.update_layout(margin={"l": 116}, bargap=0.35)
    return Panel(
        title=errors_title(outcomes),
        subtitle="norm(gradient − reference) / norm(reference); the reference is the whole batch at the same weights; "
        "log scale, where 10⁻¹⁶ is rounding",
        figure=figure,
        alt="Gradient error: " + "; ".join(f"{title(kind)} {text}" for kind, text in texts.items()) + ".",
    )


def _error_text(error: float, cosine: float | None) -> str:
    size = percent(error) if error > EQUAL else number(error, 1)
    return size if cosine is None else f"{size}, cosine {cosine:.2f}"


def shares_csv(micro_batches: Sequence[MicroBatch], outcomes: Outcomes) -> str:
    """A row a micro-batch: what it holds, and the weight of one of its labels under each reduction."""
    head = ["micro_batch", "samples", "labels", "valid_labels", "weight", "mean_loss"]
    rows = [
        [index, micro.samples, micro.labels, micro.valid, micro.weight, micro.mean_loss]
        + [outcome.label_weights[index - 1] for outcome in outcomes.values()]
        for index, micro in enumerate(micro_batches, 1)
    ]
    return _csv([*head, *(f"label_weight_{kind}" for kind in outcomes)], rows)


def errors_csv(outcomes: Outcomes) -> str:
    """A row a reduction: reported loss, norm of its gradient, gradient error and cosine."""
    rows = [
        [kind, outcome.loss, float(np.linalg.norm(outcome.gradient)), outcome.error, outcome.cosine]
        for kind, outcome in outcomes.items()
    ]
    return _csv(["reduction", "reported_loss", "gradient_norm", "gradient_error", "cosine"], rows)


def _csv(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()


def outcomes_table(outcomes: Outcomes) -> str:
    """The reductions as a table of HTML."""
    names = ("Reduction", "Loss it reports", "Gradient norm", "Gradient error", "Cosine", "Weight of a label")
    rows: list[Mapping[str, str]] = []
    for kind, outcome in outcomes.items():
        rows.append(
            {
                "Reduction": f"<b>{title(kind)}</b>",
                "Loss it reports": _loss_text(outcome.loss),
                "Gradient norm": number(float(np.linalg.norm(outcome.gradient)), 3),
                "Gradient error": "–" if outcome.error is None else _error_text(outcome.error, None),
                "Cosine": "–" if outcome.cosine is None else f"{outcome.cosine:.4f}",
                "Weight of a label": span(outcome.label_weights),
            }
        )
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    body = "".join(
        f'<tr><th scope="row">{row[names[0]]}</th>'
        + "".join(f'<td data-label="{name}">{row[name]}</td>' for name in names[1:])
        + "</tr>"
        for row in rows
    )
    return f'<table class="scaling numbers"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _loss_text(loss: float | None) -> str:
    if loss is None:
        return "–"
    return f"{loss:.4f}" if math.isnan(loss) or abs(loss) < 1000 else f"{loss:.0f}"
