"""The queue: first come first served, no run twice, none lost with its worker."""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from small_runs import claimed, kinds, record, small

from accum_core.provenance import code_version
from accum_core.runs import lifecycle
from accum_core.runs.database import Database
from accum_core.runs.lease import Lease, LeaseLostError
from accum_core.runs.lifecycle import claim, lose_worker, requeue_silent
from accum_core.runs.store import Store


def test_first_come_first_served(store: Store) -> None:
    ids = [store.submit(small(seed=seed)) for seed in range(3)]
    assert [store.queue_position(run_id) for run_id in ids] == [1, 2, 3]
    assert [claimed(store).run_id for _ in ids] == ids
    assert [store.queue_position(run_id) for run_id in ids] == [0, 0, 0]
    assert claim(store.database, code_version()) is None
    assert {run.state for run in store.runs()} == {"running"}


def _claim_all(path: Path) -> list[str]:
    database, mine = Database(path), []
    while (lease := claim(database, code_version())) is not None:
        mine.append(lease.run_id)
    return mine


def test_no_run_is_claimed_twice(store: Store) -> None:
    ids = [store.submit(small(seed=seed)) for seed in range(60)]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn) as processes, ThreadPoolExecutor(4) as threads:
        parts = [pool.submit(_claim_all, store.path) for pool in (processes, threads) for _ in range(4)]
        taken = [run_id for part in parts for run_id in part.result()]
    assert sorted(taken) == sorted(ids)


def test_a_store_is_made_once_by_many(tmp_path: Path) -> None:
    def make(number: int) -> None:
        Store(tmp_path / "runs.sqlite").submit(small(seed=number % 3))

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(make, range(24)))
    assert len(Store(tmp_path / "runs.sqlite").runs()) == 3


def test_a_silent_worker_loses_its_run_after_a_grace(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = store.submit(small())
    lost = claimed(store)
    lost.write([record(1)])
    now = time.time()
    monkeypatch.setattr(lifecycle.time, "time", lambda: now + lifecycle.SILENT_SECONDS - 1)
    assert requeue_silent(store.database) == []
    monkeypatch.setattr(lifecycle.time, "time", lambda: now + 100)
    assert requeue_silent(store.database) == [], "a worker that comes back from a full disk may beat again"
    lost.beat()
    monkeypatch.setattr(lifecycle.time, "time", lambda: now + 200)
    assert requeue_silent(store.database) == []
    monkeypatch.setattr(lifecycle.time, "time", lambda: now + 200 + lifecycle.GRACE_SECONDS + 0.1)
    again = claimed(store)
    assert again.run_id == run_id
    assert kinds(store, run_id) == ["worker_lost"]
    for write in (lost.beat, lambda: lost.write([record(2)]), lambda: lost.fail("No."), lost.hand_back):
        with pytest.raises(LeaseLostError):
            write()
    assert [entry.update for entry in store.records(run_id)] == [1]
    assert store.get(run_id).state == "running"


def test_silence_is_noticed_within_ten_seconds() -> None:
    assert lifecycle.SILENT_SECONDS + lifecycle.GRACE_SECONDS < 10


def test_a_run_that_takes_three_workers_down_at_one_checkpoint_fails(store: Store) -> None:
    run_id = store.submit(small())
    for losses in (1, 2, 3):
        lease = claimed(store)
        worker = store.get(run_id).worker
        assert worker is not None
        if losses == 1:
            lease.save([record(1)], 1, lambda path: path.write_bytes(b""))
        lose_worker(store.database, worker, f"worker {worker} was ended by signal 9")
    run = store.get(run_id)
    assert run.state == "failed"
    assert run.error is not None and "3 workers were lost one after the other beyond update 1" in run.error
    store.resume(run_id)
    assert claimed(store).run_id == run_id


def test_workers_lost_at_different_checkpoints_do_not_add_up(store: Store) -> None:
    run_id = store.submit(small())
    for update in range(1, 6):
        claimed(store).save([record(update)], update, lambda path: path.write_bytes(b""))
        lose_worker(store.database, store.get(run_id).worker or 0, "worker lost")
    assert store.get(run_id).state == "queued"


def test_a_paused_run_survives_any_number_of_lost_workers(store: Store) -> None:
    run_id = store.submit(small())
    for _ in range(5):
        claimed(store).stay_paused()
        lose_worker(store.database, store.get(run_id).worker or 0, "worker lost")
    assert store.get(run_id).state == "queued"


def test_a_begun_run_is_not_finished_by_another_code_version(store: Store) -> None:
    begun, untouched = store.submit(small()), store.submit(small(seed=1))
    lease = claimed(store)
    lease.write([record(1)])
    lease.hand_back()
    following = claim(store.database, "another")
    assert following is not None and following.run_id == untouched
    assert store.get(untouched).code_version == "another"
    assert store.get(begun).state == "failed"
    assert f"begun by code version {code_version()}, and this is another" in (store.get(begun).error or "")


class Queue(RuleBasedStateMachine):
    """The queue against a list: whatever happens to runs, the oldest one that waits is the next."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.store = Store(Path(self.folder.name) / "runs.sqlite")
        self.submitted: list[str] = []
        self.waiting: set[str] = set()
        self.held: dict[str, Lease] = {}

    def teardown(self) -> None:
        self.folder.cleanup()

    @rule()
    def submit(self) -> None:
        run_id = self.store.submit(small(seed=len(self.submitted)))
        self.submitted.append(run_id)
        self.waiting.add(run_id)

    @rule()
    def claim(self) -> None:
        lease = claim(self.store.database, code_version())
        assert (lease.run_id if lease else None) == next(iter(self.in_order()), None)
        if lease:
            self.waiting.remove(lease.run_id)
            self.held[lease.run_id] = lease

    @precondition(lambda self: self.held)
    @rule(data=st.data(), end=st.sampled_from(["done", "failed", "handed back"]))
    def leave(self, data: st.DataObject, end: str) -> None:
        run_id = data.draw(st.sampled_from(sorted(self.held)))
        lease = self.held.pop(run_id)
        if end == "done":
            lease.finish("done")
        elif end == "failed":
            lease.fail("No.")
        else:
            lease.hand_back()
            self.waiting.add(run_id)
        with pytest.raises(LeaseLostError):
            lease.beat()

    @precondition(lambda self: self.held)
    @rule()
    def restart_the_machine(self) -> None:
        for lease in self.held.values():
            lease.stay_paused()
        worker = self.store.get(next(iter(self.held))).worker
        assert worker is not None
        lose_worker(self.store.database, worker, "worker lost")
        self.waiting.update(self.held)
        self.held.clear()

    @invariant()
    def every_waiting_run_has_its_place(self) -> None:
        places = [self.store.queue_position(run_id) for run_id in self.in_order()]
        assert places == list(range(1, len(self.waiting) + 1))

    def in_order(self) -> list[str]:
        return [run_id for run_id in self.submitted if run_id in self.waiting]


TestQueue = Queue.TestCase
TestQueue.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)
