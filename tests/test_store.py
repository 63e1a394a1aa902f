"""The store of runs: identity, queue, messages, records and refusals. No training here, and no torch."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from small_runs import ENVIRONMENT, claimed, record, small

from accum_core.errors import SettingError
from accum_core.provenance import code_version
from accum_core.records import Change, Incident, Message, RunResult, Validation
from accum_core.runs import store as store_module
from accum_core.runs.lease import Lease
from accum_core.runs.lifecycle import claim
from accum_core.runs.store import Store

SET_N = Message(kind="set", field="accumulation_steps", value=2)


# Identity: the same run is computed once


def test_thirty_submissions_of_one_configuration_are_one_run(store: Store) -> None:
    with ThreadPoolExecutor(30) as pool:
        ids = set(pool.map(lambda _: store.submit(small()), range(30)))
    assert ids == {small().digest()[:12]}
    assert len(store.runs()) == 1


def test_another_seed_or_another_code_is_another_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    first, other_seed = store.submit(small()), store.submit(small(seed=1))
    monkeypatch.setattr(store_module, "code_version", lambda: "another")
    other_code = store.submit(small())
    assert len({first, other_seed, other_code}) == 3
    assert other_code == f"{first}-2"


def test_fresh_is_a_new_attempt_and_the_newest_attempt_stands_for_the_configuration(store: Store) -> None:
    first, second = store.submit(small()), store.submit(small(), fresh=True)
    assert (second, store.submit(small(), fresh=True)) == (f"{first}-2", f"{first}-3")
    found = store.find(small())
    assert found is not None and found.id == store.submit(small()) == f"{first}-3"
    assert store.find(small(seed=9)) is None


def test_an_altered_run_no_longer_stands_for_its_configuration(store: Store) -> None:
    first = store.submit(small())
    store.send(first, SET_N)
    assert store.get(first).altered
    assert store.find(small()) is None
    assert store.submit(small()) == f"{first}-2"


@pytest.mark.parametrize("end", [lambda lease: lease.fail("No."), lambda lease: lease.finish("stopped")])
def test_a_failed_or_stopped_run_is_not_shared(store: Store, end: Callable[[Lease], None]) -> None:
    first = store.submit(small())
    end(claimed(store))
    second = store.submit(small())
    assert second == f"{first}-2"
    found = store.find(small())
    assert found is not None and found.id == second


def test_a_configuration_that_cannot_run_is_refused(store: Store) -> None:
    with pytest.raises(SettingError, match=r"norm = 'no such': .*use one of"):
        store.submit(small().model_copy(update={"norm": "no such"}))
    assert store.runs() == []


def test_an_unknown_run_is_refused_by_every_reader(store: Store) -> None:
    readers: list[Callable[[str], object]] = [
        *(store.get, store.records, store.events, store.result),
        *(store.present_config, store.queue_position, store.resume),
        lambda run_id: store.send(run_id, Message(kind="pause")),
    ]
    for reader in readers:
        with pytest.raises(SettingError, match="run = 'nowhere': is not in this store"):
            reader("nowhere")


# Records


def test_records_come_back_equal_in_order_and_once(store: Store) -> None:
    run_id = store.submit(small())
    lease = claimed(store)
    odd = record(
        2,
        loss=math.inf,
        gradient_norm=math.nan,
        instruments={"gradient_error": {"cosine": math.nan, "by_layer": {"head": -math.inf}}},
        validation=Validation(miou=0.5, pixel_accuracy=0.1 + 0.2, class_iou=(math.nan, 1 / 3), loss=5e-324),
    )
    lease.write([record(1), odd])
    lease.write([record(1, loss=9.0), odd, record(3)])
    got = store.records(run_id)
    assert [entry.update for entry in got] == [1, 2, 3]
    assert got[0] == record(1)
    # repr, because not a number is not equal to itself.
    assert repr(got[1]) == repr(odd)
    assert [entry.update for entry in store.records(run_id, since=1)] == [2, 3]
    assert store.records(run_id, since=3) == []
    assert store.get(run_id).update == 3


def test_reading_the_newest_records_does_not_walk_the_others(store: Store) -> None:
    run_id = store.submit(small())
    claimed(store).write([record(update) for update in range(1, 500)])
    statements: list[str] = []
    with store.database.reading() as connection:
        connection.set_trace_callback(statements.append)
        store.records(run_id, since=480)
        connection.set_trace_callback(None)
        plans = [connection.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall() for statement in statements]
    steps = [row["detail"] for plan in plans for row in plan]
    assert "SEARCH records USING INDEX sqlite_autoindex_records_1 (run=? AND at_update>?)" in steps
    assert not [step for step in steps if step.startswith(("SCAN", "USE TEMP"))]


def test_changes_in_a_record_become_events_once(store: Store) -> None:
    run_id = store.submit(small())
    store.send(run_id, SET_N)
    store.send(run_id, Message(kind="set", field="norm", value="batch"))
    lease = claimed(store)
    lease.take(lease.pending(), 1)
    made = Change(field="accumulation_steps", old=4, new=2)
    refused = Change(field="norm", old="group", new="batch", refused="norm = 'batch': not here.")
    lease.write([record(1, changes=(made, refused))])
    lease.write([record(1, changes=(made, refused))])
    assert [(event.kind, event.update, event.text) for event in store.events(run_id)] == [
        ("change", 1, "accumulation steps 4 → 2"),
        ("refused", 1, "norm group → batch refused: norm = 'batch': not here."),
    ]
    assert store.present_config(run_id) == small().changed("accumulation_steps", 2)


# Messages


def test_incidents_in_a_record_become_events_once(store: Store) -> None:
    run_id = store.submit(small())
    lease = claimed(store)
    incident = Incident(kind="overflow", text="a float16 gradient overflowed")
    for _ in range(2):  # a resumed worker writes the same record again
        lease.write([record(1, incidents=(incident,))])
    assert [(event.update, event.kind, event.text) for event in store.events(run_id)] == [
        (1, "overflow", "a float16 gradient overflowed")
    ]


def test_a_bad_live_value_is_refused_to_its_sender(store: Store) -> None:
    run_id = store.submit(small())
    with pytest.raises(SettingError, match="accumulation_steps = 3: does not divide the effective batch of 4"):
        store.send(run_id, Message(kind="set", field="accumulation_steps", value=3))
    with pytest.raises(SettingError, match="learning_rate = -1"):
        store.send(run_id, Message(kind="set", field="learning_rate", value=-1.0))
    with pytest.raises(SettingError, match="a change needs kind 'set', a field and a value"):
        store.send(run_id, Message(kind="set"))
    assert not store.get(run_id).altered


def test_changes_are_checked_against_those_sent_before(store: Store) -> None:
    run_id = store.submit(small())
    store.send(run_id, Message(kind="set", field="learning_rate", value=0.5))
    store.send(run_id, SET_N)
    assert store.present_config(run_id) == small(learning_rate=0.5, micro_batch_size=2)
    assert store.get(run_id).config == small()


@pytest.mark.parametrize("kind", ["set", "pause", "resume", "stop"])
def test_an_ended_run_takes_no_message(store: Store, kind: str) -> None:
    run_id = store.submit(small())
    claimed(store).finish("done")
    message = SET_N if kind == "set" else Message.model_validate({"kind": kind})
    with pytest.raises(SettingError, match=f"is done and takes no {kind}"):
        store.send(run_id, message)
    assert not store.get(run_id).altered


def test_stopping_a_queued_run_needs_no_worker(store: Store) -> None:
    run_id = store.submit(small())
    store.send(run_id, Message(kind="stop"))
    run = store.get(run_id)
    assert run.state == "stopped" and run.finished is not None
    assert [event.kind for event in store.events(run_id)] == ["stopped"]
    assert claim(store.database, code_version()) is None


def test_resuming_with_changes_clears_the_way_after_the_checkpoint(store: Store) -> None:
    run_id = store.submit(small())
    lease = claimed(store)
    lease.save([record(1), record(2)], 2, lambda path: path.write_bytes(b""))
    store.send(run_id, SET_N)
    lease.take(lease.pending(), 4)
    lease.write([record(3), record(4)])
    lease.fail("loss = nan.")
    with pytest.raises(SettingError, match="accumulation_steps = 5"):
        store.resume(run_id, [Message(kind="set", field="accumulation_steps", value=5)])
    assert store.get(run_id).state == "failed" and store.get(run_id).update == 4

    store.resume(run_id, [Message(kind="set", field="learning_rate", value=0.001)])
    run = store.get(run_id)
    assert (run.state, run.update, run.checkpoint_update, run.altered, run.error) == ("queued", 2, 2, True, None)
    assert [entry.update for entry in store.records(run_id)] == [1, 2]
    assert store.present_config(run_id) == small(learning_rate=0.001, micro_batch_size=2)
    assert [(u, m.field) for u, m in claimed(store).taken() if m.kind == "set"] == [
        (3, "accumulation_steps"),
        (3, "learning_rate"),
    ]
    assert "updates 3 to 4 are made anew" in next(e.text for e in store.events(run_id) if e.kind == "rewound")


def test_resuming_without_changes_keeps_every_record(store: Store) -> None:
    run_id = store.submit(small())
    lease = claimed(store)
    lease.write([record(1), record(2)])
    lease.finish("stopped")
    store.resume(run_id)
    run = store.get(run_id)
    assert (run.state, run.update, run.altered) == ("queued", 2, False)
    with pytest.raises(SettingError, match="is queued; only a failed or stopped run is resumed"):
        store.resume(run_id)


def test_a_resumed_run_of_older_code_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = store.submit(small())
    lease = claimed(store)
    lease.write([record(1)])
    lease.finish("stopped")
    monkeypatch.setattr(store_module, "code_version", lambda: "another")
    with pytest.raises(SettingError, match="was begun by code version .*; start it again"):
        store.resume(run_id)


# Committed results


def test_a_committed_result_is_taken_in_once(store: Store) -> None:
    result = RunResult(config=small(), environment=ENVIRONMENT, records=(record(1), record(2)))
    run_id = store.add_result(result, "segmentation_batch_size")
    assert store.add_result(result, "segmentation_batch_size") == run_id
    assert store.result(run_id) == result
    run = store.get(run_id)
    assert (run.state, run.source, run.update, run.code_version) == ("done", "segmentation_batch_size", 2, "0" * 12)
    with pytest.raises(SettingError, match="source = 'lab'"):
        store.add_result(result, "lab")


def test_a_committed_result_stands_in_until_the_present_code_has_its_own(store: Store) -> None:
    result = RunResult(config=small(), environment=ENVIRONMENT, records=(record(1),))
    committed = store.add_result(result, "paper")
    found = store.find(small())
    assert found is not None and found.id == committed
    own = store.submit(small())
    found = store.find(small())
    assert own != committed and found is not None and found.id == own


def test_a_committed_result_of_the_present_code_is_shared(store: Store) -> None:
    environment = ENVIRONMENT.model_copy(update={"code_version": code_version()})
    committed = store.add_result(RunResult(config=small(), environment=environment, records=(record(1),)), "paper")
    assert store.submit(small()) == committed


def test_a_run_that_has_not_begun_has_no_result(store: Store) -> None:
    with pytest.raises(SettingError, match="is queued and has not begun"):
        store.result(store.submit(small()))


def test_threads_of_a_server_share_a_store(store: Store) -> None:
    run_id = store.submit(small())
    lease = claimed(store)
    seen: list[int] = []

    def watch() -> None:
        while len(seen) < 20:
            seen.extend(entry.update for entry in store.records(run_id, since=len(seen)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for update in range(1, 21):
        lease.write([record(update)])
    watcher.join(30)
    assert seen == list(range(1, 21))
