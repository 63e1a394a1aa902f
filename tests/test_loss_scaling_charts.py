"""What the page on loss scaling draws and says of a window, and its table of frameworks."""

from __future__ import annotations

import csv
import io
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accum_core import palette
from accum_core.errors import DataError
from accum_core.reduction import REDUCTION_KINDS
from accum_ui import frameworks, loss_scaling, scaling_figures, scaling_numbers, scaling_words
from accum_ui import scaling_window as window
from accum_ui.scaling_window import PRESETS, Choice

SHORT = PRESETS["Short sequences"]


def panels(choice: Choice, *, dark: bool = False) -> tuple[Any, Any]:
    micro_batches, outcomes = loss_scaling.computed(choice)
    shares = scaling_figures.shares_panel(micro_batches, outcomes, "labels", dark=dark)
    return shares, scaling_figures.errors_panel(outcomes, dark=dark)


@pytest.mark.parametrize("dark", [False, True])
def test_charts_of_the_worked_example(dark: bool) -> None:
    """S1: fair weights 1; means 4 / (1 x 2) and 4 / (3 x 2); errors 6 / 4 - 1, 12 / 4 - 1 and 16 / 4 - 1."""
    shares, errors = panels(window.WORKED, dark=dark)
    lines = {trace.hovertemplate.partition(",")[0]: trace for trace in shares.figure.data}
    assert {name: pytest.approx(trace.y) for name, trace in lines.items()} == {
        "exact": (1, 1),
        "mean of means": (2, 2 / 3),
        "sum of means": (4, 4 / 3),
        "sum": (4, 4),
    }
    assert lines["mean of means"].line.color == palette.RUN.on(dark)
    assert (
        shares.title == "Under the mean of means, a label of micro-batch 1 counts for 2, one of micro-batch 2 for 0.667"
    )
    (bars,) = errors.figure.data
    assert bars.x == pytest.approx((scaling_figures.FLOOR, 0.5, 2, 3))
    assert errors.title.replace("\N{NO-BREAK SPACE}", " ") == (
        "Only exact gives the whole batch's gradient; mean of means is off by 50 %"
    )
    assert "mean of means 2, 0.667" in shares.alt and "exact 0, cosine 1.00" in errors.alt
    for panel in (shares, errors):
        assert "log scale" in panel.subtitle
        axes = panel.figure.layout
        assert all(axis.title.text for axis in (axes.xaxis, axes.yaxis) if axis.type == "log")


@pytest.mark.parametrize("choice", [*PRESETS.values(), Choice(counts=((1, 1),)), Choice(counts=((4, 16),) * 16)])
def test_names_beside_the_lines_keep_apart(choice: Choice) -> None:
    shares, _ = panels(choice)
    places = sorted(note.y for note in shares.figure.layout.annotations)
    assert sum(note.text.count("<b ") for note in shares.figure.layout.annotations) == len(REDUCTION_KINDS)
    assert all(high - low >= scaling_figures.APART - 1e-9 for low, high in pairwise(places))
    low, high = shares.figure.layout.yaxis.range
    drawn = [math.log10(y) for trace in shares.figure.data for y in trace.y if y is not None]
    assert low < min(drawn) and max(drawn) < high


@pytest.mark.parametrize(
    ("choice", "part"),
    [
        (Choice(source="numbers", numbers=((1.0,), (1.0, 1.0))), "the micro-batches' mean gradients are equal"),
        (Choice(source="numbers", numbers=((1.0,),)), "one micro-batch is the batch"),
        (Choice(source="numbers", numbers=((1.0,), (-0.5, -0.5))), "gradient is zero"),
        (PRESETS["One without a valid label"], "counts for 0.75 of a fair one"),
        (
            PRESETS["A short window divided by N"],
            "the window holds 2 of 4 micro-batches and is divided by 4 all the same",
        ),
        (Choice(counts=((1, 1),), tail="drop", full=2), "so this epoch learns nothing from its 1 pixel."),
        # Doubles around 1e6 lie 1.2e-10 apart: up to 2e-4 of the 3e-7 that is left.
        (Choice(source="numbers", numbers=((1e6, 3e-7), (-1e6,))), "which is rounding, as its gradients cancel"),
    ],
)
def test_answers_fit_their_windows(choice: Choice, part: str) -> None:
    micro_batches, outcomes = loss_scaling.computed(choice)
    assert part in scaling_words.answer(micro_batches, outcomes, choice.rule("exact"), window.UNITS[choice.source])


@pytest.mark.parametrize(
    ("choice", "title"),
    [
        (Choice(source="numbers", numbers=((1.0, 1.0),)), "Only exact, mean of means and sum of means give"),
        (Choice(source="numbers", numbers=((10.0,), (2.0, 2.0, 2.0))), "Only exact gives"),
        (Choice(counts=((4, 16), (4, 16))), "Only exact and mean of means give"),
    ],
)
def test_names_are_listed_as_in_a_sentence(choice: Choice, title: str) -> None:
    _, outcomes = loss_scaling.computed(choice)
    assert scaling_words.errors_title(outcomes).startswith(title)


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([1.0004, 0.997], ["1.0004", "0.997"]),
        ([0.99996], ["0.99996"]),
        ([1 + 1e-12], ["1"]),
        ([8.75, 140 / 256], ["8.75", "0.547"]),
        ([2.0004, 2.0], ["2.0004", "2"]),
        ([139.2, 139.4], ["139.2", "139.4"]),
        ([12345.0, 1.004], ["12345", "1.004"]),
        ([262144.0], ["2.62 × 10⁵"]),
    ],
)
def test_weights_that_differ_do_not_read_the_same(values: list[float], texts: list[str]) -> None:
    assert scaling_numbers.weights(values) == texts


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.004, "0.4 %"), (0.5, "50 %"), (139, "13900 %"), (1023, "1.02 × 10⁵ %"), (262143, "2.62 × 10⁷ %")],
)
def test_percentages(share: float, text: str) -> None:
    assert scaling_numbers.percent(share).replace("\N{NO-BREAK SPACE}", " ") == text


def test_what_adam_hides_follows_from_the_cosine() -> None:
    """A multiple of the right gradient, and a gradient that points elsewhere; one weight has nowhere else to point."""
    equal, short, one = (
        scaling_words.adam_note(loss_scaling.computed(choice)[1]) for choice in (PRESETS["Equal"], SHORT, window.WORKED)
    )
    assert "Here sum of means and sum are multiples of the right gradient" in equal and "elsewhere" not in equal
    assert "Here sum is a multiple" in short and "Mean of means and sum of means point elsewhere" in short
    assert "Here mean of means, sum of means and sum are multiples" in one and "elsewhere" not in one
    against = Choice(source="numbers", numbers=((-10.0,), (4.0, 4.0, 4.0)))  # mean 0.5, mean of means -3
    assert "Mean of means and sum of means point elsewhere" in scaling_words.adam_note(
        loss_scaling.computed(against)[1]
    )
    alone = Choice(source="numbers", numbers=((1.0,),))
    assert scaling_words.adam_note(loss_scaling.computed(alone)[1]) == ""


def test_the_charts_numbers_can_be_taken_away() -> None:
    micro_batches, outcomes = loss_scaling.computed(SHORT)
    rows = list(csv.DictReader(io.StringIO(scaling_figures.shares_csv(micro_batches, outcomes))))
    assert [int(row["valid_labels"]) for row in rows] == [64, 64, 8, 4]
    assert [float(row["label_weight_mean_of_means"]) for row in rows] == pytest.approx(
        [140 / 256, 140 / 256, 140 / 32, 140 / 16]
    )
    assert all(float(row["label_weight_sum"]) == 140 for row in rows)
    by_kind = {row["reduction"]: row for row in csv.DictReader(io.StringIO(scaling_figures.errors_csv(outcomes)))}
    assert list(by_kind) == list(REDUCTION_KINDS)
    assert float(by_kind["sum"]["gradient_error"]) == pytest.approx(139)
    assert float(by_kind["sum"]["reported_loss"]) == pytest.approx(140 * float(by_kind["exact"]["reported_loss"]))


def test_the_table_tells_a_loss_that_is_no_number() -> None:
    _, outcomes = loss_scaling.computed(PRESETS["One without a valid label"])
    table = scaling_figures.outcomes_table(outcomes)
    assert table.count('<td data-label="Loss it reports">nan</td>') == 2
    assert '<td data-label="Weight of a label">0.75 ×</td>' in table


def contrast(one: str, other: str) -> float:
    """WCAG 2.2's contrast ratio."""
    channels = [np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255 for color in (one, other)]
    linear = [np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) for c in channels]
    low, high = sorted(float(c @ [0.2126, 0.7152, 0.0722]) for c in linear)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("kind", REDUCTION_KINDS)
def test_names_of_reductions_can_be_read(kind: Any, dark: bool) -> None:
    for surface in (palette.SURFACE, palette.CARD):
        assert contrast(palette.REDUCTION_COLORS[kind].on(dark), surface.on(dark)) >= 4.5


# The frameworks.


def test_every_framework_names_the_version_that_was_read() -> None:
    table = frameworks.read()
    for row in table.divisions:
        version = row.version.split()[-1]
        assert version in str(row.source), row
        assert row.thread_title.split()[-1] in str(row.thread), row
        assert row.source.scheme == row.thread.scheme == "https"
    html = frameworks.to_html(table)
    assert html.count("<tr>") == len(table.divisions) + 1
    assert 'href="https://github.com/huggingface/transformers/pull/34191"' in html


def test_a_damaged_table_is_told(tmp_path: Path) -> None:
    damaged = tmp_path / "divisions.json"
    for content in ("{", '{"provenance": "x", "divisions": [{"framework": "x"}]}'):
        damaged.write_text(content)
        frameworks.read.cache_clear()
        with pytest.raises(DataError, match=r"divisions\.json cannot be read .*restore"):
            frameworks.read(damaged)


def test_nothing_in_the_table_is_taken_for_markup() -> None:
    table = frameworks.read()
    row = table.divisions[0].model_copy(update={"framework": "<script>", "tail": "a & b"})
    html = frameworks.to_html(table.model_copy(update={"divisions": (row,)}))
    assert "&lt;script&gt;" in html and "a &amp; b" in html
