"""The growing columns: every record once, what is derived from them, and what happens when a run is made anew."""

from __future__ import annotations

import math
from statistics import fmean

import numpy as np
import pytest
from small_runs import CONFIG, claimed, record, set_message

from accum_core.records import Validation
from accum_core.runs.lease import Lease
from accum_core.runs.store import Store
from accum_core.statistics import encode_sketch
from accum_ui import run_view
from accum_ui.findings import numbers
from accum_ui.run_view import MOST_POINTS, RunView, Track, Views, columns_at, thinned

LOSSES = [1.5, 1.25, 1.0, 2.0, 0.75, 0.5, 3.0, 0.25, 1.75]


@pytest.fixture(autouse=True)
def look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_view, "LEAST_AGE", 0)


def begun(store: Store) -> tuple[RunView, Lease, Lease]:
    """A run of ``CONFIG``, its reference, and the workers' ends of both."""
    run_id = store.submit(CONFIG)
    store.submit(CONFIG.reference())
    return RunView(store, run_id), claimed(store), claimed(store)


def refreshed(view: RunView) -> RunView:
    with view.lock:
        view.refresh()
    return view


def test_columns_grow_by_what_is_new_and_hold_every_record_once(store: Store) -> None:
    view, lease, _ = begun(store)
    for count in (2, 2, 5, 9):
        lease.write([record(update, loss=LOSSES[update - 1]) for update in range(1, count + 1)])
        assert refreshed(view).run.columns["update"] == list(range(1, count + 1))
    assert view.run.columns["loss"] == LOSSES
    assert view.run.columns["samples"] == [record(update).samples for update in range(1, 10)]


def test_the_smooth_loss_is_the_mean_of_the_last_seven(store: Store) -> None:
    view, lease, _ = begun(store)
    lease.write([record(update, loss=loss) for update, loss in enumerate(LOSSES, 1)])
    expected = [fmean(LOSSES[max(0, end - 7) : end]) for end in range(1, 10)]
    assert refreshed(view).run.columns["loss_smooth"] == pytest.approx(expected, rel=1e-4)


def test_losses_have_parted_once_they_stay_apart_for_seven_updates(store: Store) -> None:
    view, lease, reference = begun(store)
    reference.write([record(update, loss=1.0) for update in range(1, 11)])
    losses = [record(update, loss=1.0 if update <= 3 else 2.0) for update in range(1, 11)]
    lease.write(losses[:9])
    assert numbers(refreshed(view)).parted_at is None  # six updates apart
    lease.write(losses[9:])
    found = numbers(refreshed(view))
    assert found.parted_at == 4
    assert found.losses == (2.0, 1.0)
    assert found.widest == (1.0, 10)  # the mean of the last seven is 2 here, twice the reference's


def test_what_was_not_due_or_is_not_finite_is_none(store: Store) -> None:
    view, lease, _ = begun(store)
    error = {"relative_error": math.inf, "cosine": 0.5, "norm_ratio": 1.0, "by_layer": {"a": math.nan, "b": 2.0}}
    validation = Validation(miou=0.25, pixel_accuracy=0.5, class_iou=(0.25, math.nan), loss=1.0)
    lease.write([record(1, instruments={"gradient_error": error}), record(2, validation=validation), record(3)])
    columns = refreshed(view).run.columns
    assert columns["gradient_error"] == [None, None, None]
    assert columns["cosine"] == [0.5, None, None]
    assert columns["miou"] == [None, 0.25, None]
    assert (view.run.layers, view.run.layer_errors) == (("a", "b"), [(0, (None, 2.0))])


def test_weight_distance_is_known_where_both_runs_have_the_update(store: Store) -> None:
    view, lease, reference = begun(store)
    ours, theirs = np.array([3.0, 4.0, 0.0]), np.array([0.0, 0.0, 2.0])

    def sketched(update: int, sketch: np.ndarray) -> dict[str, object]:
        return {"weight_sketch": {"sketch": encode_sketch(sketch), "norm": float(np.linalg.norm(sketch))}}

    lease.write([record(update, instruments=sketched(update, ours)) for update in (1, 2, 3)])
    reference.write([record(1, instruments=sketched(1, theirs))])
    expected = math.sqrt(3**2 + 4**2 + 2**2) / 2
    assert refreshed(view).run.columns["weight_distance"] == [pytest.approx(expected, rel=1e-4), None, None]
    reference.write([record(2), record(3, instruments=sketched(3, ours))])
    assert refreshed(view).run.columns["weight_distance"] == [pytest.approx(expected, rel=1e-4), None, 0.0]


def test_records_made_anew_replace_the_old_ones_under_a_new_revision(store: Store) -> None:
    view, lease, _ = begun(store)
    lease.write([record(update, loss=5.0) for update in range(1, 7)])
    before = refreshed(view).revision
    lease.fail("loss = nan at update 7.")
    store.resume(lease.run_id, [set_message("learning_rate", 0.001)])
    again = claimed(store)
    again.write([record(update, loss=2.0) for update in range(1, 9)])
    assert refreshed(view).revision != before
    assert view.run.columns["loss"] == [2.0] * 8


def test_a_run_that_is_its_own_reference_stands_alone(store: Store) -> None:
    run_id = store.submit(CONFIG.reference())
    claimed(store).write([record(1)])
    view = refreshed(RunView(store, run_id))
    assert view.reference is None
    assert view.both() == 0


def test_a_failed_reference_gives_way_to_the_next_one(store: Store) -> None:
    view, _, reference = begun(store)
    refreshed(view)
    reference.fail("its worker was lost.")
    second = store.submit(CONFIG.reference())
    assert second != reference.run_id
    assert refreshed(view).reference is not None and view.reference is not None
    assert view.reference.run.id == second


def test_live_changes_become_marks(store: Store) -> None:
    view, lease, _ = begun(store)
    change = {"field": "accumulation_steps", "old": 4, "new": 2}
    refusal = {"field": "norm", "old": "group", "new": "batch", "refused": "norm = 'batch': no."}
    changed = record(2, accumulation_steps=2, changes=(change, refusal))
    lease.write([record(1, accumulation_steps=4), changed, record(3, accumulation_steps=2)])
    marks = refreshed(view).run.marks
    assert [(mark.update, mark.samples, mark.text, mark.refused) for mark in marks] == [
        (2, record(2).samples, "N 4 → 2", False),
        (2, record(2).samples, "norm = 'batch': no.", True),
    ]
    assert view.run.settings == [(0, "group", 4), (1, "group", 2)]


def test_a_look_a_moment_ago_is_not_repeated(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_view, "LEAST_AGE", 3600)
    view, lease, _ = begun(store)
    refreshed(view)
    lease.write([record(1)])
    assert refreshed(view).run.length == 0


def test_all_browsers_share_one_view_a_run(store: Store) -> None:
    views = Views(store, most=2)
    first, second, third = (store.submit(CONFIG.model_copy(update={"seed": seed})) for seed in (1, 2, 3))
    assert views.get(first) is views.get(first)
    kept = views.get(second)
    dropped = views.get(first)
    views.get(third), views.get(first)
    assert views.get(first) is dropped
    assert views.get(second) is not kept


@pytest.mark.parametrize("length", [MOST_POINTS, MOST_POINTS + 1, 7 * MOST_POINTS])
def test_a_long_run_is_thinned_to_a_bounded_reply_that_keeps_measurements_and_ends(length: int, store: Store) -> None:
    track = Track(store.get(store.submit(CONFIG)))
    due = set(range(0, length, 40))
    track.columns = {name: [1.0] * length for name in track.columns}
    for name in ("gradient_error", "miou", "error", "token_loss", "weight_distance"):
        track.columns[name] = [1.0 if index in due else None for index in range(length)]
    kept = thinned(track, 0)
    assert len(kept) <= MOST_POINTS and kept == sorted(set(kept))
    assert due <= set(kept)
    assert {0, length - 1} <= set(kept)
    assert len(columns_at(track, kept)["loss"]) == len(kept)
    assert thinned(track, length - 3) == [length - 3, length - 2, length - 1]


def test_the_speed_is_that_of_the_present_split(store: Store) -> None:
    """Twenty slow updates before the change, three fast ones after it; the median is that of the three."""
    view, lease, _ = begun(store)
    slow = [record(update, samples_per_second=10.0) for update in range(1, 21)]
    fast = [record(update, samples_per_second=90.0 + update, accumulation_steps=1) for update in range(21, 24)]
    lease.write([*slow, *fast])
    assert numbers(refreshed(view)).speed == 112.0
