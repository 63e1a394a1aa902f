"""The command ``conformance`` as a process beside the app: started, watched and stopped from any browser. No Streamlit.

The process holds a lock from before its first instruction to its end, whatever ends it, so that any process of any
browser sees whether it is alive: no two of them run at once, and one that was killed is not waited for. It does not
hang on the app: it goes on over a restart, and its result is found by its file.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from accum_core.errors import LabError
from accum_core.runs.store import default_store_path

PROJECT: Final = Path(__file__).parents[2]
EVERY: Final = "all"  # the file's name when every framework is run
ROOM: Final = 64 * 2**20  # bytes that must be free for results, logs and the trials' checkpoints
PATIENCE: Final = 5.0  # seconds in which a process may end by itself
BAR: Final = re.compile(r"(\d+)/(\d+) \[[^<\]]*<([\d:?]+)")
"""How the command's progress bar counts, and the time that it says is left."""

State = Literal["none", "running", "done", "ended"]


@dataclass(frozen=True, slots=True)
class Look:
    """Where the newest run of the command stands.

    Attributes:
        state: "ended" without a result.
        framework: the one that is run; "" for all.
        started: seconds since the epoch.
        done, total: trials; 0 of 0 until the first has begun.
        left: time to the end as the command says it ("02:10"); "" where it does not know.
        told: the last line that the command wrote.
    """

    state: State
    framework: str = ""
    started: float = 0.0
    done: int = 0
    total: int = 0
    left: str = ""
    told: str = ""


def folder() -> Path:
    """Where runs of the command leave their files: beside the store."""
    return default_store_path().parent / "conformance"


def result_path(framework: str) -> Path:
    """The result of a run of one framework, or ("") of all."""
    return folder() / f"{framework or EVERY}.json"


def start(framework: str = "") -> None:
    """Run the command for all frameworks, or for one.

    Raises:
        LabError: when it runs already, or its files cannot be written.
    """
    try:
        folder().mkdir(parents=True, exist_ok=True)
        if (free := shutil.disk_usage(folder()).free) < ROOM:
            raise LabError(f"The disk has {free // 2**20} MiB left, and a run needs {ROOM // 2**20}: free some space.")
        with _lock() as held:
            if held is None:
                raise LabError("The frameworks are being run already: wait for its end, or stop it.")
            before = _changed(result_path(framework))  # an earlier result stays until this run has its own
            with _log().open("wb") as output:
                process = subprocess.Popen(
                    ["nice", "-n", "5", *_command(framework)],  # browsers come first
                    cwd=PROJECT,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=output,
                    start_new_session=True,
                    pass_fds=(held,),
                )
            threading.Thread(target=_see_off, args=(process,), daemon=True).start()
            job = {"pid": process.pid, "framework": framework, "started": time.time(), "before": before}
            try:
                job_path().write_text(json.dumps(job), encoding="utf-8")
            except OSError:
                process.kill()  # nobody could watch it
                raise
    except OSError as error:
        raise LabError(f"The run could not be started ({error.strerror}): free some space in {folder()}.") from None


def look() -> Look:
    """Where the newest run stands.

    Raises:
        LabError: when its files cannot be read.
    """
    job = _read_job()
    if not job:
        return Look("none")
    framework, started = str(job["framework"]), float(job["started"])
    try:
        with _lock(fcntl.LOCK_SH) as held:  # two that look do not take each other for a run
            alive = held is None
        lines = re.split(r"[\r\n]+", _log().read_text(encoding="utf-8", errors="replace").strip())
    except OSError as error:
        raise LabError(f"The run's files cannot be read ({error.strerror}): look into {folder()}.") from None
    if not alive:
        result = _changed(result_path(framework))
        state: State = "done" if result not in (0, job["before"]) else "ended"
        return Look(state, framework, started, told=lines[-1])
    bars = [bar for line in lines if (bar := BAR.search(line))]
    done, total, left = bars[-1].groups() if bars else ("0", "0", "")
    return Look("running", framework, started, int(done), int(total), "" if "?" in left else left)


def stop() -> None:
    """End the run and all that it started; one that has ended is left as it is.

    Raises:
        LabError: when its files cannot be read.
    """
    if look().state != "running":
        return
    process = int(_read_job()["pid"])
    for kind in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(process, kind)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if look().state != "running":
                return
            time.sleep(0.1)


def _command(framework: str) -> list[str]:
    options = ["--json", str(result_path(framework).resolve()), *(["--framework", framework] if framework else [])]
    return [sys.executable, "-m", "experiments", "conformance", *options]


@contextmanager
def _lock(kind: int = fcntl.LOCK_EX) -> Iterator[int | None]:
    """A file descriptor that holds the lock, for a child to keep; None where a living process holds it."""
    descriptor = os.open(folder() / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield descriptor
    finally:
        os.close(descriptor)  # the lock itself is held as long as a child has the descriptor


def _see_off(process: subprocess.Popen[bytes]) -> None:
    """Wait for the process; one that was killed had no last word, so it gets one."""
    if (code := process.wait()) < 0:
        try:
            with _log().open("a", encoding="utf-8") as log:
                log.write(f"\nThe process was ended by signal {-code}.\n")
        except OSError:
            return


def _read_job() -> dict[str, str | int | float]:
    try:
        job = json.loads(job_path().read_text(encoding="utf-8"))
        return {
            "pid": int(job["pid"]),
            "framework": str(job["framework"]),
            "started": float(job["started"]),
            "before": int(job.get("before", 0)),
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError):
        raise LabError(f"{job_path()}: cannot be read; delete it.") from None


def _changed(path: Path) -> int:
    """When a file was written, in nanoseconds since the epoch; 0 where there is none."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def job_path() -> Path:
    """What is known of the newest run: its process, framework and start."""
    return folder() / "job.json"


def _log() -> Path:
    return folder() / "log.txt"
