"""Sentences from numbers: what is said is true of them, for every kind of run and for any numbers."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accum_core.records import Environment, RunConfig
from accum_ui import about_run, readings, words
from accum_ui.words import Numbers

BATCH = RunConfig.of()
GROUP = RunConfig.of(norm="group")
DIGITS = RunConfig.of(workload="digits", model="mlp")
TEXT = RunConfig.of(workload="pydoc_blocks", model="gpt", norm="layer")


def numbers(config: RunConfig = BATCH, **fields: Any) -> Numbers:
    return Numbers(config=config, norm=config.norm, accumulation_steps=config.accumulation_steps, **fields)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.3642, "0.36"), (1.183, "1.18"), (12.34, "12.3"), (2.3e-6, "2.3 × 10⁻⁶"), (9.99e-4, "1 × 10⁻³")],
)
def test_a_number_reads_well_at_any_size(value: float, text: str) -> None:
    assert words.number(value) == text


@pytest.mark.parametrize(
    ("share", "text"), [(1.18, "118 %"), (0.0149, "1 %"), (0.004, "0.4 %"), (1e-8, "1 × 10⁻⁶ %"), (0, "0 %")]
)
def test_a_share_is_a_percentage(share: float, text: str) -> None:
    assert words.percent(share) == text


def test_the_question_is_about_the_split() -> None:
    assert words.question(BATCH) == "Is 16 × 2 the same as 1 × 32?"
    assert words.question(BATCH.reference()) == "How does one batch of 32 train?"


def test_batchnorm_is_named_with_what_it_sees() -> None:
    found = numbers(update=150, gradient_error=1.18, cosine=0.36, quality=(0.259, 0.541, 150))
    assert words.answer(found) == (
        "Not with BatchNorm. It sees 2 images at a time: its gradient has a cosine of 0.36 to the batch's and is "
        "off by 118 %. The run stands at 0.259 mIoU after 150 updates, one batch of 32 at 0.541."
    )


def test_rounding_is_called_rounding() -> None:
    found = numbers(GROUP, update=150, gradient_error=1.2e-6, cosine=1.0, quality=(0.481, 0.493, 150))
    assert words.answer(found) == (
        "Yes, with GroupNorm: at the same parameters the gradient is the batch's to within 1 × 10⁻⁶, which is "
        "rounding. The run stands at 0.481 mIoU after 150 updates, one batch of 32 at 0.493."
    )


@pytest.mark.parametrize("norm", ["group", "sync_batch"])
def test_a_wrong_division_is_blamed_where_the_norm_is_innocent(norm: str) -> None:
    config = RunConfig.of(norm=norm, reduction="sum_of_means")
    answer = words.answer(numbers(config, update=1, gradient_error=15.0, cosine=1.0))
    assert answer.startswith("Not with the reduction sum_of_means. The gradient")
    assert "off by 1500 %" in answer


def test_the_batch_itself_is_not_called_a_split() -> None:
    answer = words.answer(numbers(BATCH.reference(), update=1, gradient_error=0.0, cosine=1.0))
    assert answer.startswith("This is the batch itself")


def test_the_reference_of_a_run_with_another_norm_keeps_its_own_name() -> None:
    found = Numbers(BATCH, "group", 16, update=60, gradient_error=1e-6, cosine=1.0, quality=(0.3, 0.4, 60))
    assert "one batch of 32 with BatchNorm at 0.400" in words.answer(found)


def test_nothing_is_claimed_before_it_is_measured() -> None:
    assert "still to come" in words.answer(numbers())
    assert words.answer(numbers(update=31, measured_from=28)) == (
        "The first measurement since the change is still to come."
    )
    assert "failed before its first update" in words.answer(numbers(state="failed"))
    titles = words.titles(numbers())
    assert titles["quality"] == "First validation at update 15"
    assert not any(character.isdigit() for key, title in titles.items() if key != "quality" for character in title)
    assert {tile.value for tile in readings.tiles(numbers())} == {"–"}


@pytest.mark.parametrize(
    ("run", "reference", "title"),
    [
        (0.259, 0.541, "28 points of mIoU are lost"),
        (0.541, 0.259, "mIoU stands 28 points higher"),
        (0.479, 0.50, "2 points of mIoU are lost"),
        (0.4851, 0.5049, "mIoU agrees within 2 points"),
        (0.3, None, "Validation mIoU stands at 0.300"),
    ],
)
def test_the_validation_title_counts_points(run: float, reference: float | None, title: str) -> None:
    assert words.titles(numbers(quality=(run, reference, 15)))["quality"] == title


@pytest.mark.parametrize(
    ("run", "reference", "title"),
    [
        (0.599, 0.106, "The error stands 49 points higher"),
        (0.106, 0.599, "The error stands 49 points lower"),
        (0.12, 0.106, "The error agrees within 2 points"),
        (0.106, None, "Validation error stands at 10.6 %"),
    ],
)
def test_an_error_is_worse_where_it_is_higher(run: float, reference: float | None, title: str) -> None:
    found = numbers(DIGITS, update=100, gradient_error=1.18, cosine=0.36, quality=(run, reference, 100))
    assert words.titles(found)["quality"] == title
    assert f"The run stands at {100 * run:.1f} % error after 100 updates" in words.answer(found)
    tile = readings.tiles(found)[0]
    assert (tile.label, tile.value) == ("validation error", f"{100 * run:.1f} %")
    assert tile.note == ("reference –" if reference is None else f"reference {100 * reference:.1f} %")


@pytest.mark.parametrize(
    ("run", "reference", "title"),
    [
        (1.80, None, "Validation loss per token stands at 1.800 nats"),
        (1.80, 1.795, "The loss per token agrees within 0.01 nats"),
        (1.80, 1.96, "The loss per token stands 0.16 nats lower"),
        (3.96, 1.80, "The loss per token stands 2.16 nats higher"),
    ],
)
def test_a_loss_is_told_in_nats(run: float, reference: float | None, title: str) -> None:
    found = numbers(TEXT, update=100, gradient_error=1e-7, cosine=1.0, quality=(run, reference, 100))
    assert words.titles(found)["quality"] == title
    assert f"stands at {run:.3f} nats loss per token after 100 updates" in words.answer(found)


def test_titles_say_what_the_charts_show() -> None:
    off = numbers(
        update=150,
        loss=(1.8, 1.1),
        losses=(1.1, 0.77),
        parted_at=7,
        gradient_error=1.12,
        layers={"stem": 0.9, "image_pool": 7.0},
        saved_bytes=(2 * 2**20, 32 * 2**20),
        weight_distance=0.16,
    )
    assert words.titles(off) == {
        "loss": "The losses part at update 7: now 1.10 and 0.77",
        "quality": "First validation at update 15",
        "gradient": "BatchNorm: the gradient is off by 112 %",
        "layers": "Every layer is off, image pool most",
        "distance": "The weights are 16 % away from the reference's",
        "memory": "One micro-batch keeps 16 times less than the batch",
        "maps": "What it does to the maps",
    }
    same = numbers(GROUP, loss=(1.8, 1.0), losses=(1.0, 1.0), gradient_error=1e-6, layers={"stem": 1e-6, "head": 2e-6})
    titles = words.titles(same)
    assert titles["loss"] == "The losses stay together"
    assert titles["layers"] == "No layer is off by more than 2 × 10⁻⁶"


def test_losses_that_were_apart_for_a_while_are_not_said_to_stay_together() -> None:
    noisy = numbers(GROUP, loss=(1.8, 1.0), losses=(1.02, 1.0), widest=(0.38, 52))
    assert words.titles(noisy)["loss"] == "The losses are 2 % apart, at most 38 % (update 52)"
    close = numbers(GROUP, loss=(1.8, 1.0), losses=(1.02, 1.0), widest=(0.05, 52))
    assert words.titles(close)["loss"] == "The losses stay together"


@pytest.mark.parametrize(("most", "text"), [(2e-6, "2 × 10⁻⁶"), (2.1e-6, "3 × 10⁻⁶"), (9.2e-7, "1 × 10⁻⁶"), (0.0, "0")])
def test_what_no_layer_exceeds_is_not_rounded_down(most: float, text: str) -> None:
    titles = words.titles(numbers(GROUP, layers={"stem": most, "head": most / 2}))
    assert titles["layers"] == f"No layer is off by more than {text}"


def test_one_wrong_layer_is_not_called_every_layer() -> None:
    assert words.titles(numbers(layers={"stem": 1e-6, "head": 2.0}))["layers"] == "Not every layer is off, head most"


def test_the_reference_of_a_run_is_named_and_a_run_that_is_its_own_says_so() -> None:
    assert about_run.reference_line(BATCH) == (
        "Its reference, in grey: one batch of 32 in one pass, everything else equal."
    )
    assert "its own reference" in about_run.reference_line(BATCH.reference())


def test_tiles_hold_each_number_beside_its_reference() -> None:
    found = numbers(
        update=150,
        quality=(0.259, 0.541, 150),
        gradient_error=1.12,
        reference_error=0.0,
        cosine=0.22,
        reference_cosine=1.0,
        saved_bytes=(int(2.3 * 2**20), 37 * 2**20),
        speed=164.2,
        reference_speed=296.0,
    )
    assert [(tile.value, tile.note) for tile in readings.tiles(found)] == [
        ("0.259", "reference 0.541"),
        ("1.12", "median; reference 0"),
        ("0.22", "median; reference 1.00"),
        ("2.3 MiB", "one batch of 32: 37.0 MiB"),
        ("164", "last 20 updates; reference 296"),
    ]


def test_a_median_says_since_when_it_counts() -> None:
    found = numbers(update=60, measured_from=31, gradient_error=0.5)
    assert "median since update 31" in readings.tiles(found)[1].note
    assert words.labels(found)["run"] == "this run, changed live"


@pytest.mark.parametrize(
    ("state", "queue", "left", "text"),
    [
        ("queued", 1, None, "next in the queue"),
        ("queued", 3, None, "number 3 in the queue"),
        ("running", 0, 31.4, "update 12 of 150 · 164 samples a second · 31 s left"),
        ("running", 0, None, "update 12 of 150 · 164 samples a second"),
        ("running", 0, 600.0, "update 12 of 150 · 164 samples a second · 10 min left"),
        ("done", 0, None, "update 12 of 150"),
    ],
)
def test_progress_is_one_line(state: str, queue: int, left: float | None, text: str) -> None:
    update = 0 if state == "queued" else 12
    assert readings.progress(state, update, 150, queue, 164.0, left) == text


def test_settings_that_differ_are_named() -> None:
    other = RunConfig.of(norm="group", seed=3)
    assert "(norm GroupNorm, seed 3): press Run" in about_run.difference_line(other, BATCH)
    assert about_run.settings_line(BATCH, other).endswith("seed 0 · changed live to norm GroupNorm, seed 3")
    assert "changed live" not in about_run.settings_line(BATCH, BATCH)


def test_a_stored_result_says_where_it_comes_from() -> None:
    made = Environment(
        code_version="abcdef012345", python="3.11", torch="2.14", platform="Linux", processor="a processor",
        device="cpu", threads=1, date="2026-11-29T12:00:00+00:00",
    )  # fmt: skip
    assert about_run.provenance_line("segmentation_batch_size", made) == (
        "Stored result of the experiment segmentation_batch_size, computed on 2026-11-29 with code version "
        "abcdef012345, a processor, 1 thread, torch 2.14."
    )
    assert about_run.provenance_line("lab", made).startswith("Computed here on 2026-11-29")


positive = st.floats(1e-12, 1e6)
share = st.floats(0, 1)
maybe = st.none


@given(
    config=st.sampled_from([BATCH, GROUP, BATCH.reference(), RunConfig.of(norm="layer", reduction="sum")]),
    fields=st.fixed_dictionaries(
        {
            "update": st.integers(0, 10**6),
            "measured_from": st.integers(1, 50),
            "loss": st.one_of(maybe(), st.tuples(positive, positive)),
            "losses": st.one_of(maybe(), st.tuples(positive, positive)),
            "parted_at": st.one_of(maybe(), st.integers(1, 100)),
            "quality": st.one_of(maybe(), st.tuples(share, st.one_of(maybe(), share), st.integers(1, 100))),
            "gradient_error": st.one_of(maybe(), st.just(0.0), positive),
            "cosine": st.one_of(maybe(), st.floats(-1, 1)),
            "layers": st.dictionaries(st.sampled_from(["stem", "head"]), positive),
            "saved_bytes": st.one_of(maybe(), st.tuples(st.integers(1, 2**40), st.integers(1, 2**40))),
            "speed": st.one_of(maybe(), positive),
            "weight_distance": st.one_of(maybe(), share),
        }
    ),
)
def test_no_numbers_make_nonsense(config: RunConfig, fields: dict[str, Any]) -> None:
    found = numbers(config, **fields)
    tiles = [f"{tile.label} {tile.value} {tile.note}" for tile in readings.tiles(found)]
    for text in [words.answer(found), *words.titles(found).values(), *words.labels(found).values(), *tiles]:
        assert text and not re.search(r"\b(None|nan|inf)\b|e[-+]\d|  ", text), text
