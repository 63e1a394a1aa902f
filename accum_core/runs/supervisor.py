"""Keeps warm worker processes for one store, as long as it is the store's only supervisor."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from filelock import FileLock, Timeout

from accum_core.errors import StoreError
from accum_core.runs.database import Database
from accum_core.runs.lifecycle import GRACE_SECONDS, lose_worker, requeue_silent
from accum_core.runs.worker import LOG_NAME, cores

POLL_SECONDS: Final = 0.25
CLOSE_SECONDS: Final = 10.0
MOST_DELAY_SECONDS: Final = 30.0
PROJECT: Final = Path(__file__).parents[2]

log = logging.getLogger(__name__)


class Supervisor:
    """Starts the worker processes of a store, replaces those that end, and requeues their runs.

    Only the supervisor that holds the lock file beside the store has workers; another one waits until it is free.

    Args:
        store_path: the store's file; ``default_store_path()`` by default.
        workers: number of processes; min(2, cores) by default. Each computes with cores / workers threads.

    Raises:
        StoreError: when the store cannot be opened.
    """

    def __init__(self, store_path: Path | str | None = None, workers: int | None = None) -> None:
        self._database = Database(store_path)
        workers = min(2, cores()) if workers is None else workers
        path = self._database.path
        self._children = [_Child(_command(path, workers), path.parent / LOG_NAME) for _ in range(workers)]
        self._refused = ""
        self._closing = threading.Event()
        # Workers are told when the *thread* that started them ends, so one thread does it for the supervisor's life.
        self._thread = threading.Thread(target=self._serve, name="supervisor", daemon=True)

    def start(self) -> Self:
        """Begin to keep workers, in a thread of its own."""
        self._thread.start()
        return self

    def close(self) -> None:
        """End the workers, which hand their runs back to the queue, and wait until they have gone."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def processes(self) -> list[int]:
        """Process ids of the workers that are alive now."""
        return [child.process.pid for child in self._children if child.process and child.process.poll() is None]

    def _serve(self) -> None:
        lock = FileLock(f"{self._database.path}.supervisor")
        while not self._closing.is_set():
            if not _acquired(lock):
                self._closing.wait(POLL_SECONDS)
                continue
            try:
                self._keep()
            finally:
                self._end()
                lock.release()

    def _keep(self) -> None:
        while not self._closing.is_set():
            for child in self._children:
                ended = child.check()
                if ended is not None:
                    self._lose(*ended)
                child.start_if_due()
            self._end_silent()
            self._closing.wait(POLL_SECONDS)

    def _lose(self, worker: int, reason: str) -> None:
        log.warning(reason)
        try:
            lose_worker(self._database, worker, reason)
        except StoreError as error:
            # Its silence will be noticed when the store can be written to again.
            log.warning("the run of worker %d stays with it for now: %s", worker, error)

    def _end_silent(self) -> None:
        try:
            # A little sooner than workers do, so that the process that hangs is known here and can be replaced.
            silent = requeue_silent(self._database, GRACE_SECONDS - 2 * POLL_SECONDS)
        except StoreError as error:
            if str(error) != self._refused:  # a full disk stays full for many looks
                log.warning("%s", error)
            self._refused = str(error)
            return
        self._refused = ""
        for child in self._children:
            if child.process is not None and child.process.pid in silent:
                child.process.kill()

    def _end(self) -> None:
        deadline = time.monotonic() + CLOSE_SECONDS
        alive = [child.process for child in self._children if child.process is not None]
        for process in alive:
            process.terminate()
        for process in alive:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                self._lose(process.pid, f"worker {process.pid} did not end in {CLOSE_SECONDS:g} s and was killed")


class _Child:
    """One place for a worker process; a process that ends soon after its start is replaced ever later."""

    def __init__(self, command: list[str], log_path: Path) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._command = command
        self._log_path = log_path
        self._started = self._due = time.monotonic()
        self._delay = POLL_SECONDS

    def check(self) -> tuple[int, str] | None:
        """Process id and fate of the process, once, if it has ended."""
        if self.process is None or self.process.poll() is None:
            return None
        worker, code = self.process.pid, self.process.returncode
        self.process = None
        soon = time.monotonic() - self._started < MOST_DELAY_SECONDS
        self._delay = min(2 * self._delay, MOST_DELAY_SECONDS) if soon else POLL_SECONDS
        self._due = time.monotonic() + self._delay
        return worker, f"worker {worker} " + (f"was ended by signal {-code}" if code < 0 else f"ended with code {code}")

    def start_if_due(self) -> None:
        """Start a process where there is none."""
        if self.process is None and time.monotonic() >= self._due:
            self._started = time.monotonic()
            with open(self._log_path, "ab") as output:
                # A session of its own, so that Ctrl-C in a terminal reaches the supervisor alone.
                self.process = subprocess.Popen(
                    self._command,
                    cwd=PROJECT,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )


def _command(store: Path, workers: int) -> list[str]:
    threads = max(1, cores() // workers)
    options = ["--store", str(store.resolve()), "--threads", str(threads), "--parent", str(os.getpid())]
    return [sys.executable, "-m", "accum_core.runs.worker", *options]


def _acquired(lock: FileLock) -> bool:
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return False
    return True
