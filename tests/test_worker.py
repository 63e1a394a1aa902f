"""Workers under fire: whatever is killed, each update is recorded once and is the right one."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from small_runs import CONFIG, Killed, after, claimed, compute, course, die, kinds, wait_until, worker

from accum_core.engine import checkpoints
from accum_core.engine.window import Accumulation
from accum_core.records import Message
from accum_core.runs import lifecycle
from accum_core.runs.controls import StoreControls
from accum_core.runs.lease import Lease, LeaseLostError
from accum_core.runs.session import execute
from accum_core.runs.store import Store


def test_a_worker_computes_what_the_generator_gives(store: Store, uninterrupted: list[str]) -> None:
    run_id = store.submit(CONFIG)
    compute(store)
    run = store.get(run_id)
    assert (run.state, run.update, run.checkpoint_update, run.worker) == ("done", 12, 12, None)
    assert run.environment is not None and run.environment.threads == 1
    assert course(store.records(run_id)) == uninterrupted
    assert kinds(store, run_id) == ["finished"]
    folder = store.path.parent / "checkpoints" / run_id
    assert len(list(folder.iterdir())) == 1


def test_a_worker_that_stalls_and_then_is_killed(
    store: Store, uninterrupted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stalled = store.submit(CONFIG)
    with worker(store, {"CHECKPOINT_SECONDS": 0.5}) as process:
        wait_until(lambda: 2 <= store.get(stalled).update < 12)
        process.send_signal(signal.SIGSTOP)
        with monkeypatch.context() as patch:
            patch.setattr(lifecycle, "SILENT_SECONDS", 0.0)
            assert lifecycle.requeue_silent(store.database) == []
            assert lifecycle.requeue_silent(store.database, grace=0.0) == [process.pid]
        lease = claimed(store)
        process.send_signal(signal.SIGCONT)
        log = store.path.parent / "worker.log"
        wait_until(lambda: f"run {stalled} was given to another worker" in log.read_text())
        execute(lease, threading.Event())
        assert course(store.records(stalled)) == uninterrupted
        assert kinds(store, stalled) == ["worker_lost", "resumed_from_checkpoint", "finished"]

        killed = store.submit(CONFIG, fresh=True)
        wait_until(lambda: store.get(killed).checkpoint_update and store.get(killed).update < 12)
        process.send_signal(signal.SIGKILL)
        process.wait()
    run, before = store.get(killed), course(store.records(killed))
    assert (run.state, run.worker) == ("running", process.pid)
    assert before == uninterrupted[: run.update]
    lifecycle.lose_worker(store.database, process.pid, f"worker {process.pid} was ended by signal 9")
    compute(store)
    assert course(store.records(killed)) == uninterrupted
    lost, resumed, finished = store.events(killed)
    assert (lost.kind, finished.kind) == ("worker_lost", "finished")
    assert resumed.text == f"goes on from the checkpoint of update {run.checkpoint_update}"


def test_a_worker_that_is_shut_down_inside_a_window_loses_nothing(
    store: Store, uninterrupted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R48: asked to leave after 2 of the 4 micro-batches of update 3, another worker goes on with the other 2."""
    run_id = store.submit(CONFIG)
    leaving, advance, passes = threading.Event(), Accumulation.advance, []

    def counted(self: Accumulation) -> None:
        advance(self)
        passes.append(self.index)
        if len(passes) == 2 * 4 + 2:
            leaving.set()

    monkeypatch.setattr(Accumulation, "advance", counted)
    compute(store, leaving)
    run = store.get(run_id)
    assert (run.state, run.update, run.checkpoint_update) == ("queued", 2, 2)
    assert passes[8:] == [1, 2]
    compute(store)
    assert passes[8:14] == [1, 2, 3, 4, 1, 2]
    assert len(passes) == 12 * 4
    assert course(store.records(run_id)) == uninterrupted
    assert kinds(store, run_id) == ["handed_back", "resumed_from_checkpoint", "finished"]


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("moment", ["before the file", "before the commit", "before the clean-up"])
def test_death_while_a_checkpoint_is_made(
    store: Store, uninterrupted: list[str], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    run_id = store.submit(CONFIG)
    lease = claimed(store)
    with monkeypatch.context() as patch:
        target = {
            "before the file": (checkpoints, "save"),
            "before the commit": (Lease, "_write"),
            "before the clean-up": (Path, "unlink"),
        }[moment]
        after(4, lambda: patch.setattr(*target, die), patch)
        with pytest.raises(Killed):
            execute(lease, threading.Event())
    assert store.get(run_id).update == (5 if moment == "before the clean-up" else 4)
    lifecycle.lose_worker(store.database, os.getpid(), "worker lost")
    compute(store)
    assert course(store.records(run_id)) == uninterrupted
    assert len(list((store.path.parent / "checkpoints" / run_id).iterdir())) == 1


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("harm", [lambda file: file.unlink(), lambda file: file.write_bytes(file.read_bytes()[:1000])])
def test_a_lost_checkpoint_costs_time_and_nothing_else(
    store: Store, uninterrupted: list[str], monkeypatch: pytest.MonkeyPatch, harm: Any
) -> None:
    run_id = store.submit(CONFIG)
    leaving = threading.Event()
    after(5, leaving.set, monkeypatch)
    compute(store, leaving)
    found = Lease(store.database, run_id, "", CONFIG).checkpoint()
    assert found is not None and found[0] == 5
    harm(found[1])
    compute(store)
    assert course(store.records(run_id)) == uninterrupted
    note = next(event.text for event in store.events(run_id) if event.kind == "resumed_from_checkpoint")
    assert note == "begun anew, as the checkpoint of update 5 cannot be read"


def test_a_lost_lease_ends_a_waiting_worker(store: Store) -> None:
    run_id = store.submit(CONFIG)
    store.send(run_id, Message(kind="pause"))
    lease = claimed(store)
    controls = StoreControls(lease, threading.Event(), before_waiting=lambda: None)
    assert controls.take(1, wait=False) == [Message(kind="pause")]
    lifecycle.lose_worker(store.database, os.getpid(), "worker lost")
    with pytest.raises(LeaseLostError):
        controls.take(1, wait=True)
