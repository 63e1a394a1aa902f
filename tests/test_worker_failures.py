"""Runs that fail and disks that are full: what is recorded stays, and the run can go on."""

from __future__ import annotations

import errno
import logging
import os
import resource
import threading
from typing import Any

import pytest
from small_runs import CONFIG, Killed, after, claimed, compute, course, die, kinds, set_message, small

from accum_core.engine import Training, checkpoints, train
from accum_core.errors import StoreError
from accum_core.records import UpdateRecord
from accum_core.runs import lifecycle, patience
from accum_core.runs.session import execute
from accum_core.runs.store import Store

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("killed", [False, True])
def test_a_run_that_diverged_goes_on_from_the_last_checkpoint_that_had_not(
    store: Store, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    config = small(norm="none", learning_rate=0.01)
    expected = list(train(config))
    run_id = store.submit(config)
    after(3, lambda: store.send(run_id, set_message("learning_rate", 100.0)), monkeypatch)
    if killed:  # while the newest checkpoint holds the weights of the first wild step, and nothing has judged them yet
        with monkeypatch.context() as patch, pytest.raises(Killed):
            after(4, die, patch)
            compute(store)
        assert store.get(run_id).checkpoint_update == 4
        lifecycle.lose_worker(store.database, os.getpid(), "worker 1 was ended by signal 9")
    compute(store)
    run = store.get(run_id)
    assert (run.state, run.update, run.checkpoint_update) == ("failed", 5, 3)
    assert run.error == (
        "loss = nan at update 6: the run stopped before that update was made; "
        "resume it from its last checkpoint with a smaller learning rate or another norm."
    )
    wild = store.records(run_id)[4].loss
    assert wild > 100 * expected[4].loss  # finite, and yet nothing to go on from
    store.resume(run_id, [set_message("learning_rate", 0.01)])
    assert [entry.update for entry in store.records(run_id)] == [1, 2, 3]
    compute(store)
    assert store.get(run_id).state == "done"
    assert len(list((store.path.parent / "checkpoints" / run_id).iterdir())) == 1
    records = store.records(run_id)
    # Back at its old rate, the run takes the course that it would have taken without the change.
    assert [(entry.update, entry.loss, entry.gradient_norm) for entry in records] == [
        (entry.update, entry.loss, entry.gradient_norm) for entry in expected
    ]
    assert [change.new for change in records[3].changes] == [100.0, 0.01]


@pytest.mark.usefixtures("eager")
def test_a_run_that_diverged_from_its_first_step_goes_on_from_its_beginning(store: Store) -> None:
    run_id = store.submit(small(norm="none", learning_rate=100.0, warmup_updates=0))
    compute(store)
    run = store.get(run_id)
    assert (run.state, run.checkpoint_update) == ("failed", None) and run.update >= 2
    store.resume(run_id, [set_message("learning_rate", 0.01)])
    assert store.records(run_id) == []
    compute(store)
    assert store.get(run_id).state == "done"


def test_a_setting_that_fails_the_first_update_is_told_in_one_sentence(store: Store) -> None:
    run_id = store.submit(small(norm="batch", micro_batch_size=1))
    compute(store)
    run = store.get(run_id)
    assert run.state == "failed" and run.update == 0
    assert run.error is not None and "BatchNorm" in run.error and "\n" not in run.error
    assert kinds(store, run_id) == ["failed"]


def test_an_unexpected_failure_is_kept_with_its_traceback(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, uninterrupted: list[str]
) -> None:
    run_id = store.submit(CONFIG)

    def break_down(self: Training, *_: Any) -> UpdateRecord:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied\nsecond line")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        after(4, lambda: patch.setattr(Training, "_make_update", break_down), patch)
        compute(store)
    run = store.get(run_id)
    assert run.state == "failed" and run.update == 4
    assert run.error == "The training failed with RuntimeError: mat1 and mat2 shapes cannot be multiplied"
    assert "break_down" in caplog.text
    store.resume(run_id)
    compute(store)
    assert course(store.records(run_id)) == uninterrupted


# A disk that is full for a while


@pytest.mark.usefixtures("eager")
def test_a_full_store_is_waited_for(store: Store, uninterrupted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = store.submit(CONFIG)
    refusals: list[str] = []

    def fill() -> None:
        with store.database.reading() as connection:
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {pages}")

    def free_after_three(message: str, error: Exception) -> None:
        refusals.append(str(error))
        if len(refusals) == 3:
            with store.database.reading() as connection:
                connection.execute("PRAGMA max_page_count = 1073741823")

    monkeypatch.setattr(patience.log, "warning", free_after_three)
    after(3, fill, monkeypatch)
    compute(store)
    assert len(refusals) == 3
    assert all("the disk is full" in refusal for refusal in refusals)
    assert store.get(run_id).state == "done"
    assert course(store.records(run_id)) == uninterrupted


@pytest.mark.usefixtures("eager")
def test_a_checkpoint_that_does_not_fit_is_waited_for(
    store: Store, uninterrupted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = store.submit(CONFIG)
    refusals: list[str] = []
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def free_after_two(message: str, error: Exception) -> None:
        refusals.append(str(error))
        if len(refusals) == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    monkeypatch.setattr(patience.log, "warning", free_after_two)
    after(3, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard)), monkeypatch)
    try:
        compute(store)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(refusals) == 2
    assert store.get(run_id).state == "done"
    assert course(store.records(run_id)) == uninterrupted
    assert len(list((store.path.parent / "checkpoints" / run_id).iterdir())) == 1


@pytest.mark.usefixtures("eager")
def test_a_worker_that_gives_up_leaves_a_run_that_goes_on(
    store: Store, uninterrupted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = store.submit(CONFIG)
    lease = claimed(store)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(patience, "PATIENCE_SECONDS", 0)
        after(3, lambda: patch.setattr(checkpoints, "save", full), patch)
        with pytest.raises(StoreError, match=r"checkpoint .*: No space left on device; free some space"):
            execute(lease, threading.Event())
    assert (store.get(run_id).state, store.get(run_id).checkpoint_update) == ("running", 3)
    lifecycle.lose_worker(store.database, os.getpid(), "worker 1 ended with code 1")
    compute(store)
    assert course(store.records(run_id)) == uninterrupted
