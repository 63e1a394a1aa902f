"""Charts say what their data say: the same numbers, a title computed from them, colours that can be told apart."""

from __future__ import annotations

from itertools import combinations, pairwise

import made_results
import numpy as np
import pytest

from accum_core import palette
from accum_core.claims import Claim
from accum_core.experiment import Published
from accum_core.measures import MEASURES
from accum_core.statistics import Interval
from accum_ui import figures, results
from accum_ui.results import Split


def split(norm: str, mean: float, low: float, high: float) -> Split:
    return Split(norm, 2, 16, Interval(mean, low, high, 0.95), 0.5, 0.5, MEASURES["miou"])


@pytest.mark.parametrize(
    ("splits", "title"),
    [
        (
            [split("batch", 0.281, 0.25, 0.312), split("group", 0.002, -0.011, 0.009)],
            "Split into 16 × 2, BatchNorm loses 28.1 points of mIoU; GroupNorm's mean stays within 1.1 points",
        ),
        ([split("layer", -0.05, -0.07, -0.03)], "Split into 16 × 2, LayerNorm gains 5 points of mIoU"),
        ([split("group", 0.0, -0.004, 0.02)], "Split into 16 × 2, GroupNorm's mean stays within 2 points"),
    ],
)
def test_finding_follows_from_the_interval(splits: list[Split], title: str) -> None:
    assert figures.finding(splits) == title


def test_an_error_that_rises_is_told_as_such_and_of_which_network() -> None:
    found = [
        Split("batch", 2, 16, Interval(0.372, 0.3, 0.44, 0.95), 0.5, 0.5, MEASURES["error"]),
        Split("layer", 2, 16, Interval(-0.02, -0.03, -0.01, 0.95), 0.5, 0.5, MEASURES["error"]),
        Split("group", 2, 16, Interval(0.0, -0.001, 0.003, 0.95), 0.5, 0.5, MEASURES["error"]),
    ]
    assert figures.finding(found, "Net") == (
        "Net, split into 16 × 2, BatchNorm's error rises by 37.2 points; LayerNorm's error falls by 2 points; "
        "GroupNorm's mean stays within 0.3 points"
    )


def test_names_of_lines_that_lie_close_stand_clear_of_one_another() -> None:
    heights = {"batch": 9.0, "group": 9.2, "layer": 9.3, "none": 49.9}
    lines = {name: ((32, height), (2, height + 0.1)) for name, height in heights.items()}
    theirs = Published("key", "Somebody", "Text.", "batch size", "error (%)", lines)
    figure = figures.published_panel(theirs, dark=False).figure
    pixels = figures.PLOT / (50.0 - 9.0)
    places = sorted(note.y * pixels + note.yshift for note in figure.layout.annotations)
    assert all(above - below >= 15 for below, above in pairwise(places))  # their type is 15 pixels high


def test_reason_names_error_and_cosine() -> None:
    text = figures.reason(results.splits(results.rows(made_results.usual())))
    assert "BatchNorm's gradient is off by 125 % (cosine 0.50)" in text
    assert "GroupNorm's by 2 × 10⁻⁷" in text


@pytest.mark.parametrize("dark", [False, True])
def test_split_chart_holds_every_seed_mean_and_interval(dark: bool) -> None:
    table = results.rows(made_results.usual())
    panel = figures.split_panel(table, results.splits(table), dark=dark)
    traces = {trace.hovertemplate.partition(":")[0]: trace for trace in panel.figure.data}
    assert set(traces) == {
        *(f"{norm}, seed {seed}" for norm in ("BatchNorm", "GroupNorm") for seed in (1, 2, 3)),
        "BatchNorm, mean",
        "GroupNorm, mean",
    }
    assert (traces["BatchNorm, seed 3"].x, traces["BatchNorm, seed 3"].y) == ((2, 4, 8), (0.3, 0.5, 0.7))
    mean = traces["BatchNorm, mean"]
    assert mean.y == pytest.approx((0.3, 0.5, 0.6))
    # s = 0, 0, 0.1 over three seeds; t(0.975; 2) = 4.303 in the tables of Student's distribution.
    assert mean.error_y.array == pytest.approx((0, 0, 4.303 * 0.1 / 3**0.5), abs=1e-4)
    assert {note.text: note.font.color for note in panel.figure.layout.annotations} == {
        "<b>BatchNorm</b>": palette.NORM_COLORS["batch"].on(dark),
        "<b>GroupNorm</b>": palette.NORM_COLORS["group"].on(dark),
    }
    assert panel.figure.layout.xaxis.ticktext == ("2<br>N = 4", "4<br>N = 2", "8<br>N = 1")
    assert panel.title.startswith("Split into 4 × 2, BatchNorm loses 30 points")
    assert "BatchNorm 0.300 at 2, 0.500 at 4, 0.600 at 8; GroupNorm 0.500 at 2, 0.500 at 8" in panel.alt


def test_sizes_that_fewer_seeds_ran_are_named_and_one_seed_has_no_interval() -> None:
    table = [
        row
        for row in results.rows(made_results.usual())
        if (row.norm, row.micro_batch_size) != ("batch", 4) or row.seed == 1
    ]
    panel = figures.split_panel(table, results.splits(table), dark=False)
    traces = {trace.hovertemplate.partition(":")[0]: trace for trace in panel.figure.data}
    assert traces["BatchNorm, mean"].x == (2, 8)
    assert traces["BatchNorm, seed 1"].x == (2, 4, 8)
    assert traces["BatchNorm, seed 2"].x == (2, 8)
    counts = "(BatchNorm 3, of which 1 at micro-batch 4; GroupNorm 3)"
    assert f"one line a seed {counts};" in panel.subtitle
    assert f"means over seeds {counts}:" in panel.alt


def test_published_chart_holds_their_numbers_and_is_marked_as_theirs() -> None:
    theirs = Published(
        "key",
        "Somebody (2018), Something",
        "On other data.",
        "images per GPU",
        "validation error (%)",
        {"batch": ((32, 23.6), (2, 34.7)), "group": ((32, 24.1), (2, 24.1))},
    )
    panel = figures.published_panel(theirs, dark=False)
    assert [(trace.x, trace.y) for trace in panel.figure.data] == [((2, 32), (34.7, 23.6)), ((2, 32), (24.1, 24.1))]
    assert {trace.line.dash for trace in panel.figure.data} == {"dash"}
    assert all(trace.marker.symbol.endswith("-open") for trace in panel.figure.data)
    assert panel.title == "Images per GPU 32 → 2: BatchNorm 23.6 → 34.7, GroupNorm 24.1 → 24.1"
    assert "Somebody (2018)" in panel.alt


def test_single_published_line_is_named_by_its_title() -> None:
    theirs = Published("key", "Somebody", "Text.", "batch size", "mIoU (%)", {"DeepLabv3": ((4, 64.43), (16, 77.21))})
    panel = figures.published_panel(theirs, dark=True)
    assert panel.figure.layout.annotations == ()
    assert panel.title == "Batch size 16 → 4: DeepLabv3 77.21 → 64.43"


def linear(color: str) -> np.ndarray:
    channels = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """WCAG 2.2's contrast ratio."""
    light, dark = sorted((float(linear(color) @ [0.2126, 0.7152, 0.0722]) for color in (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


LABELS = {
    "run": palette.RUN,
    "reference": palette.REFERENCE,
    "text": palette.TEXT,
    "muted": palette.MUTED,
    **palette.NORM_COLORS,
    **palette.VERDICT_COLORS,
}


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", LABELS)
def test_labels_can_be_read(name: str, dark: bool) -> None:
    # WCAG 2.2, criterion 1.4.3: 4.5 for text of usual size.
    for surface in (palette.SURFACE, palette.CARD):
        assert contrast(LABELS[name].on(dark), surface.on(dark)) >= 4.5


# Machado, Oliveira and Fernandes 2009, full severity: protanopia, deuteranopia, tritanopia, on linear RGB.
SEEN = {
    "all cones": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def oklab(rgb: np.ndarray) -> np.ndarray:
    """Ottosson's OKLab from linear RGB, with the matrices of CSS Color 4."""
    cones = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
    axes = np.array(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    )
    return axes @ np.cbrt(cones @ np.clip(rgb, 0, 1))


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("eyes", SEEN)
def test_main_lines_stay_apart_without_colour_vision(eyes: str, dark: bool) -> None:
    # CSS Color 4 takes 0.02 in OKLab for a difference just noticed; the lines keep three of those apart.
    shades = (palette.RUN, palette.REFERENCE, palette.NORM_COLORS["batch"], palette.NORM_COLORS["group"])
    for one, other in combinations(shades, 2):
        seen = [oklab(SEEN[eyes] @ linear(shade.on(dark))) for shade in (one, other)]
        assert np.linalg.norm(seen[0] - seen[1]) >= 0.06


def test_every_verdict_has_a_colour() -> None:
    words = {
        Claim(id="a", statement="A.", effect="x", at_least=0.0).judge(effects).verdict
        for effects in ([1.0, 1.1], [-1.0, -1.1], [-1.0, 1.0])
    }
    assert words == set(palette.VERDICT_COLORS)
