"""The page on normalisation before anything is drawn: its address, the race, its words and its charts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_norm_runs import ON, add, add_race
from small_runs import ENVIRONMENT, claimed

from accum_core import catalogue
from accum_core.errors import SettingError
from accum_core.runs.store import Store
from accum_ui.normalisation import choice, figures, race, tables, words
from accum_ui.normalisation.choice import Choice
from accum_ui.normalisation.race import Estimate

NORMS = tuple(catalogue.entries("norms"))
THREE = ("batch", "sync_batch", "group")

choices = st.builds(
    Choice,
    on=st.sampled_from(sorted(choice.subjects())),
    norms=st.sets(st.sampled_from(NORMS)).map(choice.in_order),
    seeds=st.sets(st.integers(0, choice.MOST_SEED), max_size=4).map(lambda seeds: tuple(sorted(seeds))),
    run=st.sampled_from(["", "0123456789ab", "0123456789ab-2"]),
    layer=st.sampled_from(["", "stem.1", "layers.0.norm@2"]),
    channel=st.integers(-1, 100),
    update=st.integers(0, 1000),
    steps=st.integers(0, 64),
)


@settings(max_examples=100, deadline=None)
@given(choices)
def test_any_choice_comes_back_from_its_address(wanted: Choice) -> None:
    assert choice.read(choice.address(wanted)) == wanted


@pytest.mark.parametrize(
    ("name", "value", "way_out"),
    [
        ("on", "moon-unet", "use one of landcover-deeplab, digits-mlp, digits-conv"),
        ("norms", "batch,bach", "bach is no norm; use some of batch, "),
        *[("seeds", value, "use a whole number from 0 to 2147483647") for value in ("", "1,", "x", "1,-2", "9" * 99)],
        ("run", "../secret", "use the id of a run"),
        ("layer", "", "use the name of a layer"),
        ("n", "0", "use a whole number from 1 to 65536"),
        ("update", "1.5", "use a whole number"),
    ],
)
def test_what_cannot_be_in_an_address_is_refused(name: str, value: str, way_out: str) -> None:
    with pytest.raises(SettingError) as refusal:
        choice.read({name: value})
    assert refusal.value.field == name and way_out in str(refusal.value)


def test_the_race_has_the_settings_and_seeds_of_the_committed_experiments() -> None:
    base = choice.subjects()["landcover-deeplab"]
    assert (base.effective_batch_size, choice.micros("landcover-deeplab")) == (32, [32, 16, 8, 4, 2, 1])
    for on in choice.subjects():
        assert {11, 12, 13} <= set(choice.usual_seeds(on))


def test_nothing_stored_is_all_missing_and_has_no_estimate(store: Store) -> None:
    found = race.look(store, Choice(on=ON, norms=THREE))
    assert len(found.missing) == 3 * 6 and not found.done
    assert {run.seed for run in found.missing} == {11}
    assert race.estimate(found.missing, found.done) is None
    assert words.missing_line(found.missing, None) == "Run the 18 missing runs"
    assert words.answer(found).startswith("No split run")
    assert figures.race_panels(found, dark=False) == {}


def test_seeds_that_are_chosen_are_wanted_of_each_run(store: Store) -> None:
    add(store, "batch", 32, seed=11)
    add(store, "batch", 2, seed=12)
    any_seed = race.look(store, Choice(on=ON, norms=("batch",)))
    assert [run.micro_batch_size for run in any_seed.missing] == [16, 8, 4, 1]
    both = race.look(store, Choice(on=ON, norms=("batch",), seeds=(11, 12)))
    assert len(both.missing) == 6 * 2 - 2
    assert {(run.micro, run.seed) for run in both.done} == {(32, 11), (2, 12)}


def test_a_run_that_waits_or_was_refused_is_not_missing(store: Store) -> None:
    waiting = choice.config(ON, "batch", 2, 11)
    refused = choice.config(ON, "batch", 1, 11)
    store.submit(refused)
    lease = claimed(store)
    lease.begin(ENVIRONMENT, 0, None)
    lease.fail("micro_batch_size = 1: one value a channel; use 2.")
    store.submit(waiting)
    found = race.look(store, Choice(on=ON, norms=("batch",)))
    assert [run.config for run in found.live] == [waiting]
    assert [(run.config, run.error) for run in found.failed] == [
        (refused, "micro_batch_size = 1: one value a channel; use 2.")
    ]
    assert [run.micro_batch_size for run in found.missing] == [32, 16, 8, 4]
    table = tables.runs_table(found)
    assert "<em>refused</em>" in table and "<em>queued, 0 of 100</em>" in table and table.count("missing") == 4


def test_where_a_window_keeps_its_work_makes_no_other_run(store: Store) -> None:
    elsewhere = choice.config(ON, "sync_batch", 2, 11).model_copy(update={"offload": "none"})
    store.submit(elsewhere)
    add(store, "batch", 32, quality=0.125)
    found = race.look(store, Choice(on=ON, norms=("sync_batch",)))
    assert [run.config for run in found.live] == [elsewhere]
    # One micro-batch is the window: BatchNorm over it is BatchNorm.
    assert [(run.norm, run.micro, run.quality) for run in found.done] == [("sync_batch", 32, 0.125)]


def test_the_estimate_takes_the_nearest_sizes_and_all_workers(store: Store) -> None:
    add(store, "batch", 8, seconds=2.0)
    add(store, "batch", 2, seconds=3.0)
    done = race.look(store, Choice(on=ON, norms=("batch",))).done
    missing = [choice.config(ON, "batch", 4, 11), choice.config(ON, "group", 1, 11)]
    # 100 updates of (2 + 3) / 2 s, as 8 and 2 are a doubling away from 4; 100 of 3 s, as no GroupNorm is stored.
    assert race.estimate(missing, done, workers=2) == Estimate((250 + 300) / 2, 2, ("group",))
    assert race.estimate(missing[:1], done, workers=2) == Estimate(250, 1, ())
    line = words.missing_line(missing, Estimate(275, 2, ("group",)))
    assert line == "Run the 2 missing runs: about 5 min on this machine"
    assert "No run of GroupNorm is stored" in words.estimate_line(Estimate(275, 2, ("group",)))


@pytest.fixture
def raced(store: Store) -> race.Race:
    return add_race(store)


def test_the_answer_names_who_is_exact_who_is_not_and_what_it_costs(raced: race.Race) -> None:
    assert words.answer(raced) == (
        "BatchNorm over the window and GroupNorm: at the same weights their gradients are the batch's to within "
        "4 × 10⁻⁷, which is rounding. Not BatchNorm: at micro-batch 2 its gradient is off by 125 %. "
        "At micro-batch 2, the error of BatchNorm rises by 40.0 points."
    )


def test_a_layer_that_is_not_exact_may_still_train_as_well(store: Store) -> None:
    for norm, error in (("batch", 0.4), ("batch_corrected", 0.5)):
        add(store, norm, 32, quality=0.1)
        add(store, norm, 2, quality=0.115, error=error)
    found = race.look(store, Choice(on=ON, norms=("batch", "batch_corrected")))
    assert words.answer(found) == (
        "Not BatchNorm or BatchNorm with corrected momentum: at micro-batch 2 the gradient of BatchNorm, corrected "
        "momentum is off by 50 %. Yet that does not cost any of them 2 points of error."
    )
    assert words.quality_title(found) == "Down to micro-batch 2, every layer keeps its error within 2 points"


def test_every_chart_is_titled_by_its_finding(raced: race.Race) -> None:
    panels = figures.race_panels(raced, dark=False)
    assert {field: panel.title for field, panel in panels.items()} == {
        "quality": "At micro-batch 2, the error of BatchNorm rises by 40.0 points; "
        "BatchNorm over the window keeps its error within 2 points",
        "gradient_error": "The gradient of BatchNorm is off by 125 % at micro-batch 2, "
        "that of BatchNorm over the window is off by 2 × 10⁻⁷",
        "distance": "A mean over 2 samples lies 0.70 deviations from the window's",
        "seconds": "At micro-batch 2, BatchNorm over the window takes 2.5 × the time of BatchNorm",
        "kept_bytes": "A pass of 2 keeps 16 × less than one of 32",
    }


def test_lines_are_means_and_every_seed_is_a_dot(raced: race.Race) -> None:
    figure = figures.race_panels(raced, dark=False)["quality"].figure
    line = next(trace for trace in figure.data if trace.name == "BatchNorm")
    assert (line.x, line.y) == ((32, 2), pytest.approx((0.11, 0.51)))
    dots = [trace for trace in figure.data if trace.mode == "markers" and trace.x == (2, 2)]
    assert dots[0].y == pytest.approx((0.5, 0.52)) and dots[0].text == ("seed 11", "seed 12")
    assert figure.layout.xaxis.ticktext == ("32", "16", "8", "4", "2", "1")
    assert figure.layout.xaxis.range[0] > figure.layout.xaxis.range[1]  # the largest on the left
    assert {note.text for note in figure.layout.annotations} == {
        "<b>BatchNorm</b>",
        "<b>BatchNorm over</b><br><b>the window</b>",
        "<b>GroupNorm</b>",
    }


def test_a_gradient_without_any_error_is_left_out_of_the_log_axis(raced: race.Race) -> None:
    figure = figures.race_panels(raced, dark=False)["gradient_error"].figure
    assert {trace.x for trace in figure.data if trace.mode == "lines+markers"} == {(2,)}


def test_the_data_of_the_race_are_its_runs(raced: race.Race) -> None:
    head, *rows = tables.race_csv(raced.done).splitlines()
    assert head.split(",")[:6] == ["run", "norm", "micro", "seed", "quality", "gradient_error"]
    # BatchNorm's two sizes, the window's two (the undivided one is BatchNorm's) and GroupNorm's one, of two seeds.
    assert len(rows) == 2 * (2 + 2 + 1)
    assert ",batch,2,11,0.5,1.25,0.7,1.0,2097152,a_result," in rows[2]
