"""Live messages through the store: each takes effect at one update and stays there, whatever happens to workers."""

from __future__ import annotations

import os
import threading

import pytest
from small_runs import CONFIG, Killed, Script, after, claimed, compute, course, die, kinds, set_message, wait_until

from accum_core.engine import train
from accum_core.records import Message
from accum_core.runs import lifecycle, session
from accum_core.runs.controls import StoreControls
from accum_core.runs.lease import Lease
from accum_core.runs.session import execute
from accum_core.runs.store import Store

pytestmark = pytest.mark.usefixtures("one_thread")


def test_changes_are_made_again_at_their_updates_after_a_kill(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fewer, late = set_message("accumulation_steps", 2), set_message("accumulation_steps", 1)
    norm, rate = set_message("norm", "layer"), set_message("learning_rate", 0.1)
    expected = course(list(train(CONFIG, Script((3, fewer), (6, norm), (6, rate), (9, late)))))
    run_id = store.submit(CONFIG)
    lease = claimed(store)
    with monkeypatch.context() as patch:
        # The last checkpoint is that of update 4, the first change before it and the others behind it.
        save = Lease.save
        patch.setattr(session, "CHECKPOINT_SECONDS", 0)
        patch.setattr(session, "FLUSH_SECONDS", 0)
        patch.setattr(Lease, "save", lambda self, *a: save(self, *a) if a[1] <= 4 else self.write(a[0]))
        after(2, lambda: store.send(run_id, fewer), patch)
        after(5, lambda: (store.send(run_id, norm), store.send(run_id, rate)), patch)
        after(8, die, patch)
        with pytest.raises(Killed):
            execute(lease, threading.Event())
    assert (store.get(run_id).update, store.get(run_id).checkpoint_update) == (8, 4)
    lifecycle.lose_worker(store.database, os.getpid(), "worker lost")
    # Sent before the run goes on, and due only when it is past all that it had done.
    store.send(run_id, late)
    compute(store)
    assert course(store.records(run_id)) == expected
    assert [(e.update, e.text) for e in store.events(run_id) if e.kind == "change"] == [
        (3, "accumulation steps 4 → 2"),
        (6, "norm group → layer"),
        (6, "learning rate 0.03 → 0.1"),
        (9, "accumulation steps 2 → 1"),
    ]


def test_orders_sent_while_no_worker_had_the_run_lose_no_change(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    norm = set_message("norm", "layer")
    expected = course(list(train(CONFIG, Script((5, norm)))))
    run_id = store.submit(CONFIG)
    lease = claimed(store)
    with monkeypatch.context() as patch:
        patch.setattr(session, "CHECKPOINT_SECONDS", 0)
        patch.setattr(session, "FLUSH_SECONDS", 0)
        save = Lease.save
        patch.setattr(Lease, "save", lambda self, *a: save(self, *a) if a[1] <= 4 else self.write(a[0]))
        after(4, lambda: store.send(run_id, norm), patch)
        after(8, die, patch)
        with pytest.raises(Killed):
            execute(lease, threading.Event())
    assert [(applied, message) for applied, message in lease.taken()] == [(5, norm)]
    lifecycle.lose_worker(store.database, os.getpid(), "worker lost")
    store.send(run_id, Message(kind="pause"))
    store.send(run_id, Message(kind="resume"))
    compute(store)
    assert course(store.records(run_id)) == expected


def test_a_change_taken_in_a_pause_outlives_the_worker_and_the_pause(store: Store) -> None:
    pause, resume, norm = Message(kind="pause"), Message(kind="resume"), set_message("norm", "layer")
    run_id = store.submit(CONFIG)
    controls = StoreControls(claimed(store), threading.Event(), lambda: None)
    store.send(run_id, pause)
    assert controls.take(5, False) == [pause]
    store.send(run_id, norm)
    assert controls.take(5, True) == [norm]
    lifecycle.lose_worker(store.database, os.getpid(), "worker lost")
    store.send(run_id, resume)
    controls = StoreControls(claimed(store), threading.Event(), lambda: None)
    assert controls.take(5, False) == [pause]
    assert controls.take(5, True) == [resume, norm]
    assert controls.take(6, False) == []


def test_a_change_that_is_refused_and_then_made_before_one_update_counts_as_made(store: Store) -> None:
    run_id = store.submit(CONFIG)
    # At micro-batch 1 BatchNorm has one value a channel in the image pooling; at micro-batch 2 it has two.
    for message in (set_message("norm", "batch"), set_message("accumulation_steps", 2), set_message("norm", "batch")):
        store.send(run_id, message)
    compute(store)
    assert kinds(store, run_id)[:3] == ["refused", "change", "change"]
    assert store.records(run_id)[-1].norm == store.present_config(run_id).norm == "batch"


def test_a_change_that_the_training_refuses_is_told_and_dropped(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = store.submit(CONFIG)
    after(2, lambda: store.send(run_id, set_message("norm", "batch")), monkeypatch)
    after(4, lambda: store.send(run_id, set_message("accumulation_steps", 2)), monkeypatch)
    compute(store)
    # DeepLab's image pooling leaves one value a channel, of which BatchNorm has no variance at micro-batch 1.
    refused = [event for event in store.events(run_id) if event.kind == "refused"]
    assert [event.update for event in refused] == [3]
    assert refused[0].text.startswith("norm group → batch refused: ")
    assert store.present_config(run_id) == CONFIG.changed("accumulation_steps", 2)
    assert {entry.norm for entry in store.records(run_id)} == {"group"}


def test_pause_and_resume(store: Store, uninterrupted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = store.submit(CONFIG)
    after(3, lambda: store.send(run_id, Message(kind="pause")), monkeypatch)
    thread = threading.Thread(target=compute, args=(store,))
    thread.start()
    wait_until(lambda: store.get(run_id).checkpoint_update == 3)
    paused = store.get(run_id)
    assert (paused.state, paused.update) == ("paused", 3)
    wait_until(lambda: (store.get(run_id).heartbeat or 0) > (paused.heartbeat or 0))
    store.send(run_id, Message(kind="resume"))
    thread.join(60)
    assert store.get(run_id).state == "done"
    assert course(store.records(run_id)) == uninterrupted
    assert kinds(store, run_id) == ["paused", "resumed", "finished"]


def test_a_paused_run_stays_paused_when_its_worker_leaves(
    store: Store, uninterrupted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = store.submit(CONFIG)
    after(3, lambda: store.send(run_id, Message(kind="pause")), monkeypatch)
    for _ in range(2):
        leaving = threading.Event()
        thread = threading.Thread(target=compute, args=(store, leaving))
        thread.start()
        wait_until(lambda: store.get(run_id).state == "paused" and store.get(run_id).checkpoint_update == 3)
        leaving.set()
        thread.join(60)
        assert (store.get(run_id).state, store.get(run_id).update) == ("queued", 3)
    store.send(run_id, Message(kind="resume"))
    compute(store)
    assert course(store.records(run_id)) == uninterrupted


def test_stop_and_go_on(store: Store, uninterrupted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = store.submit(CONFIG)
    after(5, lambda: store.send(run_id, Message(kind="stop")), monkeypatch)
    compute(store)
    run = store.get(run_id)
    assert (run.state, run.update, run.checkpoint_update, run.altered) == ("stopped", 5, 5, False)
    store.resume(run_id)
    compute(store)
    assert store.get(run_id).state == "done"
    assert course(store.records(run_id)) == uninterrupted
    assert kinds(store, run_id) == ["stopped", "resumed", "resumed_from_checkpoint", "finished"]


def test_a_change_beside_a_stop_waits_for_the_resumption(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = course(list(train(CONFIG, Script((6, set_message("accumulation_steps", 2))))))
    run_id = store.submit(CONFIG)

    def both() -> None:
        store.send(run_id, set_message("accumulation_steps", 2))
        store.send(run_id, Message(kind="stop"))

    after(5, both, monkeypatch)
    compute(store)
    assert store.get(run_id).state == "stopped"
    store.resume(run_id)
    compute(store)
    assert course(store.records(run_id)) == expected
