"""The gradient error over depth on the page on normalisation: its words, its chart, its data, and runs without it."""

from __future__ import annotations

import math

import pytest
from made_norm_runs import ON, add
from test_normalisation_page import charts, page, store, text

from accum_core import palette
from accum_core.runs.store import Store
from accum_ui.normalisation import depth, opened, tables
from accum_ui.normalisation.depth import Depth

__all__ = ["store"]  # the fixture works by its name
# Errors that double from layer to layer; squared errors of 1, 6 and 1 are shares of 1/8, 6/8 and 1/8.
DOUBLING = {"stem.0": (0.1, 0.125), "stem.1": (0.2, 0.75), "head": (0.4, 0.125)}
SHARE = "b holds 75 % of the squared error"
TREND = "from one layer to the next, the relative error"


def made(layers: dict[str, tuple[float, float]], whole: float = 0.3) -> Depth:
    errors, shares = zip(*layers.values(), strict=True)
    return Depth(whole, tuple(layers), errors, shares)


@pytest.mark.parametrize(
    ("errors", "whole", "told"),
    [
        ((0.1, 0.2, 0.4), 0.3, f"{SHARE}; {TREND} grows by a factor of 2 on average"),
        ((0.4, 0.2, 0.1), 0.3, f"{SHARE}; {TREND} falls by a factor of 2 on average"),
        ((0.2, 0.2, 0.2), 0.3, f"{SHARE}; {TREND} stays as large on average"),
        # 0.1 and 0.9 two layers apart: three times as much a layer, whatever stands between them.
        ((0.1, 0.0, 0.9), 0.3, f"{SHARE}; {TREND} grows by a factor of 3 on average"),
        ((0.0, 0.4, math.inf), 0.3, SHARE),  # one point has no slope
        ((1e-7, 2e-7, 4e-7), 3e-7, f"Rounding alone: {SHARE}; {TREND} grows by a factor of 2 on average"),
    ],
)
def test_the_title_names_the_largest_share_and_the_factor_a_layer(
    errors: tuple[float, ...], whole: float, told: str
) -> None:
    assert depth.title(Depth(whole, ("a", "b", "c"), errors, (0.125, 0.75, 0.125))) == told


@pytest.mark.parametrize("dark", [False, True])
def test_errors_stand_on_a_log_axis_over_their_shares(dark: bool) -> None:
    panel = depth.panel(made(DOUBLING), "a run, update 1", dark=dark)
    errors, shares = panel.figure.data
    assert (errors.x, errors.y) == ((1, 2, 3), (0.1, 0.2, 0.4))
    assert (shares.x, shares.y) == ((1, 2, 3), (0.125, 0.75, 0.125))
    layout = panel.figure.layout
    assert (layout.yaxis.type, layout.yaxis2.type) == ("log", None)
    low, high = layout.yaxis.range
    assert low < math.log10(0.1) and math.log10(0.4) < high
    assert layout.yaxis2.domain[1] < layout.yaxis.domain[0]  # one above the other
    assert [note.text for note in layout.annotations] == ["<b>stem.0</b>", "<b>head</b>"]
    lead, others = palette.RUN.on(dark), palette.REFERENCE.on(dark)
    assert errors.marker.color == shares.marker.color == (others, lead, others)
    assert shares.text[1] == "stem.1<br>layer 2 of 3<br>off by 20 %<br>75 % of the squared error"
    assert panel.subtitle.startswith("a run, update 1, all layers together off by 30 %; ")
    assert "no dot" not in panel.subtitle
    assert all(f"{name}, layer {place} of 3" in panel.alt for place, name in enumerate(DOUBLING, start=1))


def test_what_has_no_logarithm_has_no_dot_but_keeps_its_place_and_its_bar() -> None:
    panel = depth.panel(
        made({"a": (0.0, 0.0), "b": (0.5, 0.25), "idle": (math.inf, 0.75)}), "a run, update 1", dark=False
    )
    errors, shares = panel.figure.data
    assert (errors.x, errors.y, shares.y) == ((1, 2, 3), (None, 0.5, None), (0.0, 0.25, 0.75))
    assert "no dot: no error, or a reference of zero (2 of 3 layers)" in panel.subtitle
    assert shares.text[2].endswith("off by all of it, over a reference of zero<br>75 % of the squared error")
    only = depth.panel(made({"idle": (math.inf, 1.0)}), "a run, update 1", dark=False)
    assert only.figure.data[0].y == (None,) and only.title == "idle holds 100 % of the squared error"


def test_long_names_at_the_ends_stand_on_two_lines() -> None:
    def heights(*names: str) -> set[float]:
        drawn = depth.panel(made(dict.fromkeys(names, (0.1, 0.5))), "a run, update 1", dark=False)
        return {note.yshift for note in drawn.figure.layout.annotations}

    assert len(heights("stem.0", "head")) == 1
    assert len(heights("backbone.layer1.0.conv1", "decoder.classifier.1")) == 2


def test_the_data_are_a_line_a_layer() -> None:
    assert tables.depth_csv(made(DOUBLING)).splitlines() == [
        "place,layer,relative_error,share_of_squared_error",
        "1,stem.0,0.1,0.125",
        "2,stem.1,0.2,0.75",
        "3,head,0.4,0.125",
    ]


def test_a_run_is_read_with_its_depth(store: Store) -> None:
    held = opened.layers_of(store, add(store, "batch", 2, error=0.3, depth=DOUBLING))
    assert held.depths == {1: made(DOUBLING), 2: made(DOUBLING)}
    assert opened.layers_of(store, add(store, "batch", 4)).depths == {}


def test_the_page_shows_it_for_the_chosen_run_and_says_why_not_for_others(store: Store) -> None:
    none = dict.fromkeys(DOUBLING, (0.0, 0.0))
    add(store, "batch", 32, depth=none)
    split = add(store, "batch", 2, error=0.3, depth=DOUBLING)
    old = add(store, "batch", 4, error=0.2)
    same = add(store, "batch", 8, depth=none)
    odd = add(store, "batch", 16, depth={"stem.0": (math.nan, math.nan)})
    shown = page(on=ON, norms="batch", run=split, update="2")
    assert depth.title(made(DOUBLING)) in text(shown)
    assert "BatchNorm, micro-batch 2, seed 11, update 2, all layers together off by 30 %" in text(shown)
    assert len(shown.get("download_button")) == charts(shown)
    for run, told in {
        "": "In none: at update 1 the window is one batch, which is the reference itself. Choose above a run that "
        "is split, such as BatchNorm, micro-batch 2, seed 11.",
        old: "Update 1 of this run kept no gradient error layer by layer, as runs made here now do.",
        same: "In none: at update 1 the gradient of every layer is that of one batch, to the last digit.",
        odd: "At update 1 this run's gradient is not finite: it has no error in numbers.",
    }.items():
        test = page(on=ON, norms="batch", **({"run": run} if run else {}))
        assert told in text(test)
        assert charts(test) == charts(shown) - 1


def test_without_a_split_run_none_is_advised() -> None:
    exact = made({"a": (0.0, 0.0)}, whole=0.0)
    assert depth.reason(exact, 1, 1, "") == (
        "In none: at update 1 the window is one batch, which is the reference itself."
    )
