"""The supervisor keeps workers: replaces the dead, ends the silent, leaves in good order, and is the only one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import ROOT, kinds, small, wait_until

from accum_core.errors import StoreError
from accum_core.runs import lifecycle, supervisor
from accum_core.runs.database import Database
from accum_core.runs.store import Store
from accum_core.runs.supervisor import Supervisor

LONG = small(updates=400, validate_every=400)


def beyond(store: Store, run_id: str, update: int) -> None:
    wait_until(lambda: update < store.get(run_id).update)
    assert store.get(run_id).state == "running"


def alive(process: int) -> bool:
    """Whether a process that is not a child of this one is there, and not merely waiting to be buried."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False


def test_a_killed_and_a_silent_worker_are_replaced_and_closing_hands_the_run_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Supervisor(store.path, workers=1) as supervisor:
        run_id = store.submit(LONG)
        beyond(store, run_id, 1)
        for number in (signal.SIGKILL, signal.SIGSTOP):
            lost = supervisor.processes()[0]
            assert store.get(run_id).worker == lost
            os.kill(lost, number)
            with monkeypatch.context() as patch:
                patch.setattr(lifecycle, "SILENT_SECONDS", 2.0)
                wait_until(lambda lost=lost: supervisor.processes() not in ([lost], []))
            assert not alive(lost)
            beyond(store, run_id, store.get(run_id).update)
    assert supervisor.processes() == []
    run = store.get(run_id)
    assert (run.state, run.worker) == ("queued", None)
    assert run.checkpoint_update == run.update
    assert [entry.update for entry in store.records(run_id)] == list(range(1, run.update + 1))
    killed, silent = (event.text for event in store.events(run_id) if event.kind == "worker_lost")
    assert "was ended by signal 9; the run goes on from update" in killed
    assert "was silent for" in silent
    assert kinds(store, run_id)[-1] == "handed_back"


def test_the_next_supervisor_takes_over_from_one_that_was_killed(store: Store) -> None:
    code = (
        "import sys, time; from accum_core.runs.supervisor import Supervisor\n"
        "supervisor = Supervisor(sys.argv[1], workers=1).start()\n"
        "while not supervisor.processes(): time.sleep(0.01)\n"
        "print(supervisor.processes()[0], flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(store.path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        worker = int(first.stdout.readline())
        with Supervisor(store.path, workers=1) as second:
            run_id = store.submit(LONG)
            beyond(store, run_id, 1)
            assert second.processes() == []
            assert store.get(run_id).worker == worker
            first.kill()
            wait_until(lambda: not alive(worker))
            # The worker follows its supervisor in good order: it hands the run back before it goes.
            assert kinds(store, run_id) == ["handed_back"]
            wait_until(lambda: store.get(run_id).worker in second.processes())


def test_a_store_that_stays_full_is_told_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "POLL_SECONDS", 0.01)
    looks = 0

    def full(database: Database, grace: float) -> list[int]:
        nonlocal looks
        looks += 1
        if looks == 5:  # some space was free for a moment
            return []
        raise StoreError("The store cannot grow because the disk is full.")

    monkeypatch.setattr(supervisor, "requeue_silent", full)
    with Supervisor(store.path, workers=0):
        wait_until(lambda: looks >= 10)
    assert [record.getMessage() for record in caplog.records] == ["The store cannot grow because the disk is full."] * 2
