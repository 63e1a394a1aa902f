"""The charts of the page on normalisation. No Streamlit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from accum_core import catalogue, palette
from accum_core.experiment import Published
from accum_core.measures import measure_of
from accum_ui.figures import Panel, published_panel
from accum_ui.normalisation import notes, words
from accum_ui.normalisation.choice import micros, subjects
from accum_ui.normalisation.costs import HOWS, CostRow, Costs
from accum_ui.normalisation.lines import Axis, Line, drawn, shades, symbols
from accum_ui.normalisation.opened import Cut
from accum_ui.normalisation.race import Race
from accum_ui.words import norm_title
from experiments.report.axes import blank_figure

X_TITLE: Final = "micro-batch size (samples)"
MEBIBYTE: Final = 2**20
SQUARE: Final = 400  # pixels, the height of the chart of one layer
COST_SHADES: Final = {
    "naive": palette.REFERENCE,
    "none": palette.NORM_COLORS["batch"],
    "host": palette.RUN,
    "recompute": palette.NORM_COLORS["batch_corrected"],
    "true_batch": palette.TEXT,
}
COST_SYMBOLS: Final = {
    "naive": "circle",
    "none": "square",
    "host": "diamond",
    "recompute": "triangle-up",
    "true_batch": "cross",
}


def race_panels(race: Race, *, dark: bool) -> dict[str, Panel]:
    """A chart for each measured field that some run has: a line a layer, a dot a seed.

    Args:
        dark: whether the charts stand on a dark surface.
    """
    base = subjects()[race.choice.on]
    measure, effective = measure_of(base.workload), base.effective_batch_size
    better = "higher is better" if measure.higher_is_better else "lower is better"
    made = {
        "quality": (
            words.quality_title(race),
            f"validation {measure.title} after {base.updates} updates at an effective batch of {effective}; {better}",
            Axis(f"validation {measure.title}", ".3f" if measure.higher_is_better else ".1%")
            if measure.higher_is_better
            else Axis(f"validation {measure.title} (%)", ".1%", "~%"),
        ),
        "gradient_error": (
            words.gradient_title(race),
            "gradient error: norm(accumulated − reference) / norm(reference), the reference being the batch in one "
            "pass at the same weights; median over updates, log scale; N = 1 is the reference itself and has none",
            Axis("gradient error", ".2g", log=True),
        ),
        "distance": (
            words.distance_title(race),
            "what the first normalising layer is given: root mean square over channels of (micro-batch mean − window's "
            "mean) / window's deviation; median over updates",
            Axis("distance of the means (deviations)", ".3f"),
        ),
        "seconds": (
            words.seconds_title(race),
            "seconds of forward and backward passes and the step; median over updates, on the machine of each run",
            Axis("one update (s)", ".3g"),
        ),
        "kept_bytes": (
            words.memory_title(race),
            "kept for the backward pass by the forward pass of one micro-batch; what sync_batch moves to the host is "
            "counted below; log scale",
            Axis("kept for backward (MiB)", ".3g", log=True),
        ),
    }
    return {
        field: panel
        for field, (title, subtitle, axis) in made.items()
        if (panel := _race_panel(race, field, title, subtitle, axis, dark)) is not None
    }


def _race_panel(race: Race, field: str, title: str, subtitle: str, axis: Axis, dark: bool) -> Panel | None:
    unit = MEBIBYTE if field == "kept_bytes" else 1
    colors, marks, means = shades(race.choice.norms), symbols(race.choice.norms), words.means(race, field)
    found = {
        norm: {micro: {seed: value / unit for seed, value in seeds.items()} for micro, seeds in sizes.items()}
        for norm, sizes in words.by_norm(race, field).items()
    }
    lines = [
        Line(
            name=norm_title(norm),
            values={micro: value / unit for micro, value in means[norm].items() if value > 0 or not axis.log},
            shade=colors[norm],
            symbol=marks[norm],
            dots={micro: seeds for micro, seeds in sizes.items() if not axis.log or min(seeds.values()) > 0},
        )
        for norm, sizes in found.items()
    ]
    lines = [line for line in lines if line.values]
    if not lines:
        return None
    read_out = "; ".join(
        f"{line.name} " + ", ".join(f"{value:.3g} at {micro}" for micro, value in sorted(line.values.items())[::-1])
        for line in lines
    )
    figure = drawn(lines, micros(race.choice.on), X_TITLE, axis, dark=dark)
    return Panel(title, subtitle, figure, alt=f"{axis.title} by micro-batch size, means over seeds: {read_out}.")


def theirs_panel(published: Published, race: Race, *, dark: bool) -> Panel:
    """A paper's own figures over the race's horizontal scale: dashed and with open markers."""
    colors, marks = shades([*published.series]) if _norms(published) else {}, symbols([*published.series])
    lines = [
        Line(
            name=norm_title(name),
            values={int(size): value for size, value in points},
            shade=colors.get(name, palette.REFERENCE),
            symbol=marks[name],
            theirs=True,
        )
        for name, points in published.series.items()
    ]
    axis = Axis(published.y_label, ".1f", from_zero=False)
    figure = drawn(lines, micros(race.choice.on), published.x_label, axis, dark=dark)
    theirs = published_panel(published, dark=dark)
    return Panel(f"Theirs: {theirs.title}", published.y_label, figure, theirs.alt)


def _norms(published: Published) -> bool:
    return set(published.series) <= set(catalogue.entries("norms"))


def cut_panel(cut: Cut, every: Sequence[Cut], *, dark: bool) -> Panel:
    """The micro-batches' means and deviations around the window's.

    Args:
        every: the same window cut in all ways, which says how far the axes have to reach.
        dark: whether the chart stands on a dark surface.
    """
    figure = blank_figure(dark)
    text = palette.TEXT.on(dark)
    figure.add_hline(y=1, line={"color": palette.REFERENCE.on(dark), "width": 1, "dash": "dot"})
    figure.add_vline(x=0, line={"color": palette.REFERENCE.on(dark), "width": 1, "dash": "dot"})
    figure.add_scatter(
        x=cut.means,
        y=cut.deviations,
        text=[f"micro-batch {place} of {cut.steps}" for place in range(1, cut.steps + 1)],
        mode="markers",
        marker={
            "size": 11,
            "color": palette.RUN.on(dark),
            "opacity": 0.75,
            "line": {"width": 1, "color": palette.SURFACE.on(dark)},
        },
        hovertemplate="%{text}: mean %{x:+.3f} deviations off, deviation %{y:.3f} × the window's<extra></extra>",
    )
    figure.add_scatter(
        x=[0],
        y=[1],
        mode="markers",
        marker={"size": 15, "symbol": "diamond-open", "color": text, "line": {"width": 3}},
        hovertemplate="the window: mean 0, deviation 1<extra></extra>",
    )
    figure.add_annotation(
        x=0, y=1, text="<b>the window</b>", showarrow=False, xshift=10, yshift=16, xanchor="left", font={"color": text}
    )
    reach = 1.1 * max(0.1, *(float(abs(one.means).max()) for one in every))
    top = 1.1 * max(1.1, *(float(one.deviations.max()) for one in every))
    figure.update_xaxes(range=[-reach, reach], title_text="mean off the window's (deviations)")
    figure.update_yaxes(range=[0, top], title_text="deviation (× window's)")
    figure.update_layout(height=SQUARE)
    return Panel(
        title=notes.cut_title(cut),
        subtitle=f"one dot a micro-batch: channel {cut.channel} of layer {cut.layer.name}, as update {cut.update} gave "
        "it to the layer",
        figure=figure,
        alt=f"{cut.steps} micro-batches of channel {cut.channel} of layer {cut.layer.name}: means from "
        f"{cut.means.min():.2f} to {cut.means.max():.2f} deviations off the window's, deviations from "
        f"{cut.deviations.min():.2f} to {cut.deviations.max():.2f} times the window's.",
    )


def cost_panels(costs: Costs, model: str, *, dark: bool) -> list[Panel]:
    """Device memory, host memory and time of one window of a model, over micro-batch sizes."""
    rows = costs.of(model)
    sizes = sorted({row.micro_batch_size for row in costs.rows}, reverse=True)
    window = f"one window of {costs.effective_batch_size} samples"
    panels = []
    for field, axis, subtitle in (
        ("device_bytes", Axis("device memory (MiB)", ".3g", log=True), f"peak on the device, {window}; log scale"),
        ("host_bytes", Axis("host memory (MiB)", ".3g"), f"peak of what is kept on the host, {window}"),
        ("seconds", Axis("one window (s)", ".3g"), f"forward and backward passes of {window}"),
    ):
        lines = _cost_lines(rows, field, log=axis.log)
        if lines:
            title = notes.cost_title(model, rows, field)
            read_out = "; ".join(
                f"{line.name} " + ", ".join(f"{value:.3g} at {size}" for size, value in line.values.items())
                for line in lines
            )
            figure = drawn(lines, sizes, X_TITLE, axis, dark=dark)
            panels.append(Panel(title, subtitle, figure, f"{axis.title} by micro-batch size: {read_out}."))
    return panels


def _cost_lines(rows: Mapping[str, Mapping[int, CostRow]], field: str, *, log: bool) -> list[Line]:
    unit = 1 if field == "seconds" else MEBIBYTE
    lines = []
    for how, sizes in rows.items():
        values = {size: getattr(row, field) / unit for size, row in sizes.items()}
        values = {size: value for size, value in values.items() if value > 0 or not log}
        if values and (field != "host_bytes" or any(values.values())):
            shade, symbol = COST_SHADES.get(how, palette.MUTED), COST_SYMBOLS.get(how, "circle")
            lines.append(Line(HOWS.get(how, how), values, shade, symbol))
    return lines
