"""Figures drawn from a specification: every seed, the mean with its interval, names kept apart, theirs as theirs."""

from __future__ import annotations

import base64
import csv
import io
import math
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from made_findings import found
from scipy import stats

from accum_core import palette
from accum_core.experiment import Drawn, Figure, Published
from experiments.report import drawing
from experiments.report.axes import LINE_HEIGHT
from experiments.report.strip import EDGE, WIDTH, strip

LINES: Drawn = {
    "batch": {1: [(2, 1.0), (8, 3.0)], 2: [(2, 2.0), (8, 5.0)], 3: [(8, 7.0)]},
    "its own": {1: [(2, 1.0), (8, 2.0)], 2: [(2, 1.0), (8, 2.5)]},
}


def figure(**changes: object) -> Figure:
    settings = {"key": "k", "x_label": "samples", "y_label": "error (%)", "lines": lambda runs: LINES}
    return Figure(**(settings | {"finding": lambda drawn: f"{len(drawn)} lines"} | changes))  # type: ignore[arg-type]


def chart(drawn: Drawn = LINES, **changes: object) -> drawing.Chart:
    made = drawing.ours(figure(**changes), drawn, dark=False)
    assert made is not None
    return made


def test_each_seed_is_a_thin_line_and_their_mean_a_bold_one_with_its_interval() -> None:
    traces = chart().figure.data
    thin = [trace for trace in traces if trace.line.width == 1]
    assert [list(trace.y) for trace in thin] == [[1, 3], [2, 5], [7], [1, 2], [1, 2.5]]
    batch, _ = (trace for trace in traces if trace.line.width == 3)
    assert (list(batch.x), list(batch.y)) == ([2, 8], [1.5, 5])
    halves = [stats.sem(values) * stats.t.ppf(0.975, len(values) - 1) for values in ([1, 2], [3, 5, 7])]
    assert list(batch.error_y.array) == pytest.approx(halves)
    assert batch.line.color == palette.NORM_COLORS["batch"].light


def test_the_words_say_what_is_drawn() -> None:
    made = chart()
    assert made.title == "2 lines"
    assert made.subtitle == "thin: one line a seed (2 to 3); bold: mean over seeds with its 95 % t interval"
    assert made.alt.startswith("2 lines. error (%) by samples: BatchNorm 1.5 at 2, 5 at 8; its own 1 at 2")
    rows = list(csv.DictReader(io.StringIO(made.data)))
    assert len(rows) == 9
    assert rows[4] == {"line": "batch", "seed": "3", "samples": "8", "error (%)": "7.0"}


def test_one_seed_has_no_interval() -> None:
    made = chart({"alone": {1: [(1, 1.0), (2, 2.0)]}})
    assert len(made.figure.data) == 1
    assert "interval" not in made.subtitle


def test_many_points_have_a_band() -> None:
    points = [(float(x), float(x)) for x in range(1, 20)]
    made = chart({"line": {1: points, 2: [(x, y + 2) for x, y in points]}})
    band = [trace for trace in made.figure.data if trace.fill == "tonexty"]
    assert len(band) == 1
    assert band[0].y[0] == pytest.approx(2 - 12.7062 * math.sqrt(2) / math.sqrt(2), abs=1e-3)  # t(0.975, 1) = 12.7062


def test_what_cannot_stand_on_the_axes_is_counted_and_left_out() -> None:
    lines = {"line": {1: [(0.0, 1.0), (1.0, 0.1), (10.0, math.nan)], 2: [(1.0, 0.2), (10.0, -1.0)]}}
    made = chart(lines, log_x=True, log_y=True)
    assert "3 values cannot stand on these axes" in made.subtitle
    assert [list(trace.y) for trace in made.figure.data if trace.line.width == 1] == [[0.1], [0.2]]
    low, high = made.figure.layout.yaxis.range
    assert low < -1 and high > math.log10(0.2)
    assert drawing.ours(figure(log_y=True), {"line": {1: [(1, 0.0)]}}, dark=False) is None


def test_names_keep_apart_however_near_the_lines_end() -> None:
    lines = {f"line {place}": {1: [(1, 1.0), (2, 1.0)]} for place in range(9)}
    made = chart(lines).figure
    names = made.layout.annotations
    plot = made.layout.height - made.layout.margin.t - made.layout.margin.b
    heights = sorted(name.y * plot for name in names)
    assert len(names) == 9
    assert all(after - before >= LINE_HEIGHT for before, after in pairwise(heights))
    assert heights[0] >= 0 and heights[-1] <= plot


PAPER = Published(
    key="paper",
    citation="Somebody (2018), A paper",
    statement="On other data.",
    x_label="images",
    y_label="error (%)",
    series={"batch": ((32, 23.6), (2, 34.7)), "group": ((32, 24.1), (2, 24.1))},
)


def test_a_papers_figures_are_dashed_and_marked_as_theirs() -> None:
    made = drawing.theirs(PAPER, dark=True)
    assert made is not None
    assert made.title == (
        "Theirs: error (%) by images: BatchNorm 23.6 → 34.7 from 32 to 2; GroupNorm 24.1 → 24.1 from 32 to 2"
    )
    assert {trace.line.dash for trace in made.figure.data} == {"dash"}
    assert all(trace.marker.symbol.endswith("-open") for trace in made.figure.data)
    assert [list(trace.y) for trace in made.figure.data] == [[34.7, 23.6], [24.1, 24.1]]
    assert made.figure.data[0].line.color == palette.NORM_COLORS["batch"].dark
    assert made.figure.layout.xaxis.type == "log"


@pytest.mark.parametrize(
    ("sizes", "texts"), [((2, 32), ("2", "32")), ((3.221538, 11.029328, 60.996202), ("5", "10", "20", "50"))]
)
def test_sizes_are_named_one_by_one_and_long_numbers_by_round_ones(
    sizes: tuple[float, ...], texts: tuple[str, ...]
) -> None:
    made = drawing.theirs(replace(PAPER, series={"batch": tuple((size, 1.0) for size in sizes)}), dark=False)
    assert made is not None
    assert made.figure.layout.xaxis.ticktext == texts


@pytest.mark.parametrize("series", [{}, {"batch": ((4, 27.3),), "group": ((4, 24.2),)}])
def test_a_paper_without_a_course_has_no_chart(series: dict[str, tuple[tuple[float, float], ...]]) -> None:
    paper = Published("key", "A paper", "They say so.", "images", "error", series)
    assert drawing.theirs(paper, dark=False) is None
    short = "error by images: BatchNorm 27.3 at 4; GroupNorm 24.2 at 4" if series else "They say so."
    assert drawing.in_short(paper) == short


def test_a_strip_has_a_dot_a_seed_and_its_bound() -> None:
    one = found().judged[0]  # effects 0.2, 0.3, 0.4, interval 0.0516 to 0.5484, at least 0.15
    picture = base64.b64decode(strip(one, dark=False).removeprefix("data:image/svg+xml;base64,")).decode()
    dots = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', picture)]
    assert dots[1] - dots[0] == pytest.approx(dots[2] - dots[1], abs=0.2)
    span = one.verdict.high - one.verdict.low
    assert dots[0] == pytest.approx(EDGE + (0.2 - one.verdict.low) / span * (WIDTH - 2 * EDGE), abs=0.1)
    (bound,) = re.findall(r'<path d="M([\d.]+) 0V', picture)
    assert float(bound) == pytest.approx(EDGE + (0.15 - one.verdict.low) / span * (WIDTH - 2 * EDGE), abs=0.1)
    assert palette.VERDICT_COLORS["inconclusive"].light in picture
