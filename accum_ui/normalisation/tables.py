"""The tables of the page on normalisation, as HTML and as comma-separated values. No Streamlit."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from html import escape
from statistics import fmean
from typing import Final

from accum_core import catalogue
from accum_core.experiment import Published
from accum_core.measures import measure_of
from accum_ui.normalisation import notes
from accum_ui.normalisation.choice import micros, subjects
from accum_ui.normalisation.costs import HOWS, Costs
from accum_ui.normalisation.depth import Depth
from accum_ui.normalisation.opened import Cut
from accum_ui.normalisation.race import Measured, Race
from accum_ui.words import norm_title

RUN_FIELDS: Final = ("norm", "micro", "seed", "quality", "gradient_error", "distance", "seconds", "kept_bytes")


def runs_table(race: Race) -> str:
    """Layers against micro-batch sizes: the measure over the stored seeds, or what stands in the way of it."""
    measure, sizes = measure_of(subjects()[race.choice.on].workload), micros(race.choice.on)
    live = {(run.config.norm, run.config.micro_batch_size): run for run in race.live}
    failed = {(run.config.norm, run.config.micro_batch_size) for run in race.failed}
    names = ("Layer", *map(str, sizes))
    body = ""
    for norm in race.choice.norms:
        cells = []
        for micro in sizes:
            values = [run.quality for run in race.of(norm, micro) if run.quality is not None]
            if values:
                cells.append(f"{measure.shown(fmean(values))} <small>({len(values)})</small>")
            elif (norm, micro) in live:
                run = live[norm, micro]
                cells.append(f"<em>{run.state}, {run.update} of {run.total}</em>")
            elif (norm, micro) in failed:
                cells.append("<em>refused</em>")
            else:
                cells.append("<em>missing</em>")
        body += _row(escape(norm_title(norm)), names[1:], cells)
    return _table("grid", names, body)


def family_table(chosen: Sequence[str]) -> str:
    """What each norm looks at, whether it is exact under accumulation, and what a trained BatchNorm loses to it."""
    names = ("Layer", "Normalises", "Exact under accumulation", "A trained BatchNorm loses")
    body = ""
    for norm, constants in catalogue.entries("norms").items():
        cells = (str(constants.get("SUMMARY", "")), notes.exactness(norm), notes.lost_from_batch_norm(norm))
        title = f"<b>{escape(norm_title(norm))}</b>" if norm in chosen else escape(norm_title(norm))
        body += _row(f"{title}<br><code>{norm}</code>", names[1:], [escape(cell) for cell in cells])
    return _table("family", names, body)


def cost_table(costs: Costs, model: str) -> str:
    """The costs of a model in numbers, with their ratios to naive accumulation."""
    names = ("Micro-batch", "Way", "Device", "× naive", "Host", "Time", "× naive time")
    rows = costs.of(model)
    memory, time = ({how: notes.ratio(rows, how, field) for how in rows} for field in ("device_bytes", "seconds"))
    body = ""
    for micro in sorted({size for sizes in rows.values() for size in sizes}, reverse=True):
        for how, sizes in rows.items():
            if (row := sizes.get(micro)) is None:
                continue
            cells = (
                HOWS.get(how, how),
                notes.bytes_shown(row.device_bytes),
                _times(memory[how].get(micro)),
                notes.bytes_shown(row.host_bytes) if row.host_bytes else "0",
                f"{row.seconds:.3g} s",
                _times(time[how].get(micro)),
            )
            body += _row(str(micro), names[1:], [escape(cell) for cell in cells])
    return _table("numbers", names, body)


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _table(kind: str, names: Sequence[str], body: str) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    return f'<table class="norms {kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _row(title: str, names: Sequence[str], cells: Sequence[str]) -> str:
    """A row; each cell bears its column's name for screens too narrow for columns. All is HTML."""
    body = "".join(f'<td data-label="{name}">{cell}</td>' for name, cell in zip(names, cells, strict=True))
    return f'<tr><th scope="row">{title}</th>{body}</tr>'


def race_csv(done: Sequence[Measured]) -> str:
    """A line a run."""
    rows = ((run.run, *(getattr(run, name) for name in RUN_FIELDS), run.source, run.code_version) for run in done)
    return _csv(("run", *RUN_FIELDS, "source", "code_version"), rows)


def cut_csv(cut: Cut) -> str:
    """A line a micro-batch."""
    rows = zip(range(1, cut.steps + 1), cut.sizes, cut.means, cut.deviations, strict=True)
    return _csv(("micro_batch", "samples", "mean_in_deviations", "deviation_ratio"), rows)


def depth_csv(depth: Depth) -> str:
    """A line a layer, in the order in which the network runs them."""
    rows = zip(range(1, len(depth.names) + 1), depth.names, depth.errors, depth.shares, strict=True)
    return _csv(("place", "layer", "relative_error", "share_of_squared_error"), rows)


def published_csv(published: Published) -> str:
    """A line a published figure."""
    rows = ((name, x, y) for name, points in published.series.items() for x, y in points)
    return _csv(("series", published.x_label, published.y_label), rows)


def _csv(head: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()
