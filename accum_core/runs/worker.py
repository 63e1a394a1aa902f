"""A worker process: ``python -m accum_core.runs.worker [--store PATH] [--threads T]`` computes queued runs for ever."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

import click

from accum_core.errors import LabError, StoreError
from accum_core.provenance import code_version
from accum_core.records import RunConfig
from accum_core.runs.database import Database
from accum_core.runs.lifecycle import claim
from accum_core.runs.session import execute

LOG_NAME: Final = "worker.log"
IDLE_SECONDS: Final = 0.1
PARENT_SECONDS: Final = 1.0
NICENESS: Final = 5
PR_SET_PDEATHSIG: Final = 1

log = logging.getLogger(__name__)


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def work(database: Database, leaving: threading.Event) -> None:
    """Claim and compute runs until ``leaving`` is set.

    Raises:
        StoreError: when the store stays unreadable or unwritable while a run is computed.
    """
    version = code_version()
    while not leaving.is_set():
        try:
            lease = claim(database, version)
        except StoreError as error:
            log.warning("no run claimed: %s", error)
            leaving.wait(PARENT_SECONDS)
            continue
        if lease is None:
            leaving.wait(IDLE_SECONDS)
        else:
            execute(lease, leaving)


@click.command()
@click.option("--store", type=click.Path(path_type=Path), help="The store's file; the app's own by default.")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads to compute with; all cores by default.")
@click.option("--parent", type=int, hidden=True, help="Process id of the supervisor; the worker goes when it goes.")
def main(store: Path | None, threads: int | None, parent: int | None) -> None:
    """Compute queued runs until ended; SIGTERM hands the present run back to the queue at its last update."""
    leaving, warm = threading.Event(), threading.Event()
    _await_signals(leaving, warm)
    if parent is not None:
        _follow(parent, leaving)
    os.nice(NICENESS)
    try:
        database = Database(store)
        logging.basicConfig(
            filename=database.path.parent / LOG_NAME,
            level=logging.INFO,
            format="%(asctime)s %(process)d %(levelname)s %(message)s",
        )
        _warm_up(threads or cores())
        warm.set()
        work(database, leaving)
    except StoreError as error:
        log.error("worker ends: %s", error)
        print(error, file=sys.stderr)
        sys.exit(1)


def _await_signals(leaving: threading.Event, warm: threading.Event) -> None:
    """Have a thread wait for the signals to end: a handler would run inside whatever the main thread is doing, and
    setting an event there can wait for ever on that event's own lock. A process that is not warm yet ends at once."""
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)

    def wait() -> None:
        signal.sigwait(ends)
        leaving.set()
        if not warm.is_set():
            os._exit(0)

    threading.Thread(target=wait, name="signals", daemon=True).start()


def _warm_up(threads: int) -> None:
    """Import now what the first run would wait for: torch, the workload's data, and what torch imports late."""
    import torch

    from accum_core.engine import Training

    torch.set_num_threads(threads)
    # A workload that cannot be loaded is told to the run that asks for it.
    with suppress(LabError):
        Training(RunConfig.of())


def _follow(parent: int, leaving: threading.Event) -> None:
    """End this process in good order when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    # Elsewhere there is no such signal, and on Linux the parent may have gone before it was asked for.
    def watch() -> None:
        while os.getppid() == parent and not leaving.wait(PARENT_SECONDS):
            pass
        leaving.set()

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


if __name__ == "__main__":
    main()
