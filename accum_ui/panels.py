"""Which charts the Lab draws: Plotly figures as plain JSON, and which columns fill their traces.

A trace's ``fill`` says where its points come from: a table ("run", "reference", "distance", "layers", "memory") and
the columns for its coordinates. ``x`` None stands for the axis that the viewer has chosen (updates, samples or
seconds). A direct label names a trace and the traces that it must stand clear of; its text comes with the data. A
colour is written as the style-sheet variable that holds it, so that one figure serves light and dark.
"""

from __future__ import annotations

import math
from typing import Any, Final

from plotly import colors

from accum_core import catalogue
from accum_core.measures import Measure, measure_of
from accum_core.records import RunConfig

RUN: Final = "var(--lab-run)"
REFERENCE: Final = "var(--lab-reference)"
# Powers of ten where the error's scale begins: one scale for every run of a precision, so that a glance tells
# rounding (the bottom) from another gradient (the top).
ERROR_FROM: Final = {"float32": -8, "float64": -17}
NAMES: Final = {"automargin": True, "ticks": "outside", "tickcolor": "rgba(0,0,0,0)", "showgrid": False}
PAIR: Final = (("reference", REFERENCE), ("run", RUN))  # the run is drawn over its reference
GRID: Final = "var(--lab-grid)"
TEXT: Final = "var(--st-text-color)"


def panels(config: RunConfig) -> list[dict[str, Any]]:
    """The panels of a run, in reading order; their titles come with the data."""
    return [
        _loss(),
        _quality(measure_of(config.workload)),
        _gradient(ERROR_FROM[config.precision]),
        _layers(),
        _distance(),
        _memory(config),
    ]


def _loss() -> dict[str, Any]:
    data, fills, direct = [], [], []
    for table, color in PAIR:
        data += [_line(color, width=1, opacity=0.3, hover=False), _line(color, width=2.4, name=table)]
        fills += [_fill(table, "loss"), _fill(table, "loss_smooth")]
        direct.append({"trace": len(data) - 1, "clear_of": [len(data) - 2, len(data) - 1]})
    return _panel(
        "loss",
        "training loss: every update (thin) and the mean of the last seven",
        data,
        fills,
        {"yaxis": _axis("loss")},
        direct,
        "loss,loss_smooth",
    )


def _quality(measure: Measure) -> dict[str, Any]:
    share = measure.unit == "%"
    data, fills, direct = [], [], []
    for table, color in PAIR:
        data.append(_line(color, width=2.4, name=table, markers=True, form=".1%" if share else ".4g"))
        fills.append(_fill(table, measure.field))
        direct.append({"trace": len(data) - 1, "clear_of": [len(data) - 1]})
    unit = {"tickformat": "~%"} if share else {}
    return _panel(
        "quality",
        f"{measure.meaning}; {'higher' if measure.higher_is_better else 'lower'} is better",
        data,
        fills,
        {"yaxis": _axis(measure.axis, rangemode="tozero", **unit)},
        direct,
        f"{measure.field},pixel_accuracy" if measure.higher_is_better else measure.field,
    )


def _gradient(lowest: int) -> dict[str, Any]:
    log = {"type": "log", "range": [lowest, 1]}
    layout = {
        "yaxis": _axis("relative error", domain=[0.46, 1], dtick=2, exponentformat="power", **log),
        "yaxis2": _axis("cosine", domain=[0, 0.32], range=[-1.1, 1.1], tickvals=[-1, 0, 1]),
    }
    return _panel(
        "gradient",
        "against the full batch's gradient, same parameters, same samples: norm of the difference / norm; cosine below",
        [
            _line(RUN, width=2.4, name="gradient error", markers=True),
            _line(RUN, width=2.4, name="cosine", markers=True) | {"yaxis": "y2"},
        ],
        [_fill("run", "gradient_error"), _fill("run", "cosine")],
        layout,
        [{"trace": 0, "clear_of": [0]}],
        "gradient_error,cosine",
    )


def _layers() -> dict[str, Any]:
    heat = {
        "type": "heatmap",
        "colorscale": colors.get_colorscale("Magma"),
        "hovertemplate": "%{y}, update %{x}<br>error %{customdata:.3g}<extra></extra>",
        "colorbar": {"title": {"text": "error", "side": "top"}, "thickness": 12, "outlinewidth": 0, "len": 0.9},
    }
    return _panel(
        "layers",
        "relative gradient error of each layer, log colours",
        [heat],
        [{"table": "layers", "x": None, "y": "names", "z": "errors"}],
        {"yaxis": NAMES | {"autorange": "reversed"}},
        [],
        "layers",
    )


def _distance() -> dict[str, Any]:
    buckets = catalogue.entries("instruments")["weight_sketch"]["BUCKETS"]
    give_or_take = f"estimated from sketches of the weights, standard error {100 / math.sqrt(2 * buckets):.1f} %"
    return _panel(
        "distance",
        f"norm(w − w_ref) / norm(w_ref) as each update begins; {give_or_take}",
        [_line(RUN, width=2.4, name="weight distance", markers=True)],
        [_fill("distance", "weight_distance")],
        {"yaxis": _axis("weight distance", rangemode="tozero")},
        [],
        "weight_distance",
    )


def _memory(config: RunConfig) -> dict[str, Any]:
    bar = {
        "type": "bar",
        "orientation": "h",
        "marker": {"color": [REFERENCE, RUN]},
        "hoverinfo": "skip",
        "width": 0.55,
    }
    return _panel(
        "memory",
        f"tensors that backward needs, at the peak: one pass of the run and one of all {config.effective_batch_size}",
        [bar],
        [{"table": "memory", "x": "mebibytes", "y": "names"}],
        {"xaxis": {"title": {"text": "MiB"}, "rangemode": "tozero"}, "yaxis": NAMES},
        [],
        None,
    )


def _panel(
    key: str,
    subtitle: str,
    data: list[dict[str, Any]],
    fills: list[dict[str, Any]],
    layout: dict[str, Any],
    direct: list[dict[str, Any]],
    download: str | None,
) -> dict[str, Any]:
    common = {
        "margin": {"l": 56, "r": 16, "t": 10, "b": 44},
        "font": {"color": TEXT, "size": 12},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "showlegend": False,
        "hovermode": "closest",
        "hoverlabel": {"bgcolor": "var(--st-background-color)", "font": {"color": TEXT}},
    }
    return {
        "key": key,
        "subtitle": subtitle,
        "figure": {"data": data, "layout": common | layout},
        "fills": fills,
        "labels": direct,
        "download": download,
    }


def _line(
    color: str,
    *,
    width: float,
    name: str = "",
    opacity: float = 1,
    markers: bool = False,
    hover: bool = True,
    form: str = ".4g",
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers" if markers else "lines",
        "name": name,
        "line": {"color": color, "width": width},
        "marker": {"color": color, "size": 5},
        "opacity": opacity,
        "connectgaps": True,
        "hovertemplate": f"%{{y:{form}}} at %{{x}}<extra>" + name + "</extra>" if hover else None,
        "hoverinfo": "all" if hover else "skip",
    }


def _axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title, "standoff": 6}, "gridcolor": GRID, "zeroline": False, **more}


def _fill(table: str, column: str) -> dict[str, Any]:
    return {"table": table, "x": None, "y": column}
