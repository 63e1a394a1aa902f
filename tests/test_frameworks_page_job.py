"""The command beside the app: one at a time, watched by a lock that outlives nobody, its end told whatever it was."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from pathlib import Path

import pytest
from small_runs import wait_until

from accum_core.errors import LabError
from accum_ui.conformance import job

COUNTS = """
import sys, time
from tqdm import tqdm
for _ in tqdm(range(40), file=sys.stderr, mininterval=0):
    time.sleep(0.05)
"""
RESULT = "import sys; open(sys.argv[1], 'w').write('{}')"
REFUSES = "import sys; sys.exit('--json: the disk is full.')"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ACCUMULATION_LAB_STORE", str(tmp_path / "runs.sqlite"))
    return tmp_path


def stand_in(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A short script instead of the command; its argument is the file of the result."""
    monkeypatch.setattr(
        job, "_command", lambda framework: [sys.executable, "-c", script, str(job.result_path(framework))]
    )


def test_it_is_counted_by_all_and_started_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert job.look().state == "none"
    stand_in(monkeypatch, COUNTS)
    job.start("keras")
    with pytest.raises(LabError, match="run already"):
        job.start("lightning")
    wait_until(lambda: job.look().done > 2)
    look = job.look()
    assert (look.state, look.framework, look.total) == ("running", "keras", 40)
    assert look.left  # as tqdm writes it
    job.stop()
    assert job.look().state == "ended"
    job.start()
    job.stop()


def test_a_result_is_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, RESULT)
    job.start("keras")
    wait_until(lambda: job.look().state == "done")
    assert job.result_path("keras").read_text() == "{}"
    stand_in(monkeypatch, REFUSES)
    job.start("keras")  # what was there before is no result of this run
    wait_until(lambda: job.look().state != "running")
    assert (job.look().state, job.look().told) == ("ended", "--json: the disk is full.")
    assert job.result_path("keras").read_text() == "{}"  # which is not lost for a run that failed


def test_two_that_look_at_once_see_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, RESULT)
    job.start()
    wait_until(lambda: job.look().state == "done")
    with job._lock(fcntl.LOCK_SH) as held:  # another process looks
        assert held is not None and job.look().state == "done"


def test_a_killed_process_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, COUNTS)
    job.start()
    os.kill(int(job._read_job()["pid"]), signal.SIGKILL)
    wait_until(lambda: job.look().state == "ended" and "signal" in job.look().told)
    assert job.look().told == "The process was ended by signal 9."


def test_it_outlives_whoever_started_it_and_is_stopped_by_another(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    stand_in(monkeypatch, COUNTS)
    if not (starter := os.fork()):
        job.start()
        os._exit(0)
    assert os.waitpid(starter, 0)[1] == 0
    assert job.look().state == "running"
    job.stop()
    assert job.look().state == "ended"


def test_a_disk_without_room_is_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "ROOM", 2**60)
    with pytest.raises(LabError, match=r"^The disk has \d+ MiB left, and a run needs \d+: free some space\.$"):
        job.start()
    assert job.look().state == "none"


def test_files_that_cannot_be_written_or_read_are_told(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    job.folder().mkdir()
    job.job_path().write_text("half a fi")
    with pytest.raises(LabError, match=r"job\.json: cannot be read; delete it\.$"):
        job.look()
    job.job_path().unlink()
    monkeypatch.setenv("ACCUMULATION_LAB_STORE", str(folder / "conformance" / "lock" / "runs.sqlite"))
    (folder / "conformance" / "lock").touch()
    with pytest.raises(LabError, match="could not be started"):
        job.start()
