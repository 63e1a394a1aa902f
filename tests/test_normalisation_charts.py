"""What the page on normalisation draws besides the race's own words: papers, labels, one layer, costs, the family."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_norm_runs import add, add_race
from small_runs import ENVIRONMENT

from accum_core import catalogue, palette
from accum_core.errors import DataError, SettingError
from accum_core.noise_scale import NoiseScale, Steps
from accum_core.runs.store import Store
from accum_ui.normalisation import choice, costs, figures, lines, notes, opened, race, tables
from accum_ui.normalisation.choice import Choice
from accum_ui.normalisation.costs import CostRow, Costs
from experiments.report import axes

NORMS = tuple(catalogue.entries("norms"))


@pytest.fixture
def raced(store: Store) -> race.Race:
    return add_race(store)


@pytest.mark.parametrize("dark", [False, True])
def test_papers_stand_on_the_same_scale_and_are_marked_as_theirs(raced: race.Race, dark: bool) -> None:
    ours = figures.race_panels(raced, dark=dark)["quality"].figure
    for name in choice.EXPERIMENTS:
        for paper in choice.find(name).published:
            if paper.key in ("wu_he_2018_images_per_gpu", "chen_2017_deeplabv3"):
                panel = figures.theirs_panel(paper, raced, dark=dark)
                assert panel.title.startswith("Theirs: ")
                assert panel.figure.layout.xaxis.range == ours.layout.xaxis.range
                assert panel.figure.layout.yaxis.title.text == paper.y_label
                assert {trace.line.dash for trace in panel.figure.data} == {"dash"}
                drawn = {(x, y) for trace in panel.figure.data for x, y in zip(trace.x, trace.y, strict=True)}
                assert drawn == {point for points in paper.series.values() for point in points}


def test_up_to_six_layers_have_a_colour_each_and_the_rest_is_grey() -> None:
    few = lines.shades(("batch", "ghost_batch", "sync_batch", "group", "group_ws", "none"))
    assert len(set(few.values())) == 6 and palette.REFERENCE not in few.values()
    assert few["batch"] == palette.NORM_COLORS["batch"] and few["group"] == palette.NORM_COLORS["group"]
    every = lines.shades(NORMS)
    assert set(every) == set(NORMS)
    assert list(every.values()).count(palette.REFERENCE) == len(NORMS) - 6


@pytest.mark.parametrize(
    ("wanted", "sizes", "middles"),
    [
        ([10, 10, 10], [20, 20, 20], [10, 30, 50]),  # pushed up, one height apart
        ([95, 96], [20, 20], [70, 90]),  # and down again where there is no more room
        ([10, 50, 90], [20, 20, 20], [10, 50, 90]),
    ],
)
def test_names_stand_as_near_to_their_lines_as_they_can(
    wanted: list[float], sizes: list[float], middles: list[float]
) -> None:
    assert axes.spread(wanted, sizes, 100) == middles


@given(st.lists(st.tuples(st.floats(-50, 400), st.floats(5, 40)), min_size=1, max_size=8))
def test_names_never_overlap(labels: list[tuple[float, float]]) -> None:
    labels = sorted(labels)
    sizes = [size for _, size in labels]
    middles = axes.spread([middle for middle, _ in labels], sizes, 400)
    for (low, size), (high, other) in pairwise(zip(middles, sizes, strict=True)):
        assert high - low >= (size + other) / 2 - 1e-9
    assert middles[0] >= sizes[0] / 2 - 1e-9 and middles[-1] + sizes[-1] / 2 <= 400 + 1e-9


def test_log_axes_have_powers_or_ones_twos_and_fives() -> None:
    assert axes.log_ticks(-6.5, 0.3) == {1e-6: "10⁻⁶", 1e-4: "10⁻⁴", 1e-2: "10⁻²", 1.0: "1"}
    assert list(axes.log_ticks(0.2, 1.3).values()) == ["2", "5", "10"]  # 1.58 to 20


@pytest.fixture
def held(store: Store) -> opened.RunLayers:
    return opened.layers_of(store, add(store, "batch", 16))


def test_an_opened_layer_is_cut_by_the_law_of_total_variance(held: opened.RunLayers) -> None:
    # Samples 0, 0, 2, 2 around 1, each of variance 1, so the window has 2: halves lie 1 / sqrt(2) deviations away and
    # have half of its variance; single samples the same, as two and two are alike; the whole lies nowhere else.
    for steps in (2, 4):
        cut = opened.cut(held, "first", 0, 1, steps)
        assert cut.sizes == (4 // steps,) * steps
        assert abs(cut.means) == pytest.approx([0.5**0.5] * steps)
        assert cut.deviations == pytest.approx([0.5**0.5] * steps)
        assert (cut.distances.mean, cut.distances.variance) == pytest.approx((0.5**0.5, 0.5))
    whole = opened.cut(held, "first", 0, 1, 1)
    assert (whole.means.tolist(), whole.deviations.tolist()) == ([0.0], [1.0])
    # 0, 4, 0, 4 has the same mean of 2 in either half.
    assert opened.cut(held, "second", 0, 2, 2).means == pytest.approx([0.0, 0.0])
    with pytest.raises(SettingError, match="does not divide the window's 4 samples"):
        opened.cut(held, "first", 0, 1, 3)


def test_what_a_run_has_not_falls_back_on_what_it_has(held: opened.RunLayers) -> None:
    assert opened.settled(Choice(), held) == ("first", 0, 1, 2)
    assert opened.settled(Choice(layer="second", channel=5, update=2, steps=4), held) == ("second", 5, 2, 4)
    assert opened.settled(Choice(layer="gone", channel=3, update=9, steps=3), held) == ("first", 0, 1, 2)


def test_the_layers_chart_says_what_it_shows(held: opened.RunLayers) -> None:
    every = [opened.cut(held, "first", 0, 1, steps) for steps in (1, 2, 4)]
    cut = every[1]
    panel = figures.cut_panel(cut, every, dark=False)
    assert panel.title == "2 × 2: the means lie 0.71 deviations from the window's, the variances 0.50 of its variance"
    # The window's own deviation of 1 is the largest of all, so the axes stay as they are while N is moved.
    assert panel.figure.layout.yaxis.range[1] > 1.0
    assert {tuple(figures.cut_panel(one, every, dark=False).figure.layout.yaxis.range) for one in every} == {
        tuple(panel.figure.layout.yaxis.range)
    }
    assert list(panel.figure.data[0].x) == pytest.approx([-(0.5**0.5), 0.5**0.5])
    assert notes.cut_note(cut, held).startswith("50 % of this channel's variance lies between the micro-batches")
    assert "over all channels of this layer: means 0.25 deviations" in notes.cut_note(cut, held)
    assert tables.cut_csv(cut).splitlines()[1].startswith("1,2,-0.7071")


def test_the_noise_scale_is_told_with_its_interval_and_steps() -> None:
    bounded = NoiseScale(200.0, 100.0, 400.0, 0.95, 10)
    assert notes.noise_line(bounded, Steps(100, 50, 200), 2) == (
        "Gradient noise scale of this run: about 200 samples (95 % interval from 100, to 400; 10 windows). "
        "A batch of that size is N = 100 micro-batches of 2."
    )
    unbounded = NoiseScale(200.0, 100.0, float("inf"), 0.95, 10)
    assert "from 100, no upper end;" in notes.noise_line(unbounded, None, 2)
    assert notes.noise_line(NoiseScale(None, None, None, 0.95, 0, reason="Why."), None, 2).endswith("this run. Why.")


def cost_rows() -> Costs:
    """On the host at most 1.5 x naive memory (at micro-batch 1) and 2 x its time (at 2)."""
    measured = {  # MiB on the device, MiB on the host, seconds
        ("naive", 2): (10, 0, 1.0),
        ("naive", 1): (4, 0, 1.5),
        ("host", 2): (11, 64, 2.0),
        ("host", 1): (6, 64, 2.5),
        ("true_batch", 2): (80, 0, 0.5),
        ("true_batch", 1): (80, 0, 0.5),
    }
    rows = [
        CostRow(
            model="net",
            micro_batch_size=micro,
            how=how,
            device_bytes=device * 2**20,
            host_bytes=host * 2**20,
            seconds=seconds,
        )
        for (how, micro), (device, host, seconds) in measured.items()
    ]
    return Costs(environment=ENVIRONMENT, effective_batch_size=32, rows=tuple(rows))


def test_costs_are_told_against_naive_accumulation() -> None:
    table = cost_rows()
    panels = figures.cost_panels(table, "net", dark=False)
    assert [panel.title for panel in panels] == [
        "net: on the host, sync_batch takes at most 1.50 × naive accumulation's device memory",
        "net: sync_batch keeps at most 64.0 MiB on the host",
        "net: on the host, sync_batch takes at most 2.00 × naive accumulation's time",
    ]
    naive = next(trace for trace in panels[0].figure.data if trace.name == "naive accumulation")
    assert (naive.x, naive.y) == ((2, 1), (10, 4))
    assert tables.cost_table(table, "net").count("<tr>") == 1 + 3 * 2
    assert costs.to_csv(table).splitlines()[0] == "model,micro_batch_size,how,device_bytes,host_bytes,seconds"


def test_costs_that_are_not_there_or_damaged(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    assert costs.read(path) is None
    path.write_text(cost_rows().model_dump_json(), encoding="utf-8")
    assert costs.read(path) == cost_rows()
    path.write_text('{"rows": []}', encoding="utf-8")
    with pytest.raises(DataError, match="run python -m benchmarks sync_batch"):
        costs.read(path)


def test_the_family_is_told_from_its_files() -> None:
    table = tables.family_table(("group",))
    assert table.count("<tr>") == 1 + len(NORMS)
    assert "<b>GroupNorm</b>" in table
    assert notes.exactness("group").startswith("yes") and notes.exactness("sync_batch").startswith("yes")
    assert notes.exactness("batch").startswith("no")
    assert "running statistics" in notes.lost_from_batch_norm("group")
    assert notes.lost_from_batch_norm("sync_batch") == "nothing"
