"""How a run changes hands: claimed by a worker, lost with it, given up when it takes every worker down."""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from typing import Final

from accum_core.records import RunConfig
from accum_core.runs.database import Database
from accum_core.runs.lease import Lease
from accum_core.runs.rows import SELECT, add_event

SILENT_SECONDS: Final = 6.0
"""A worker that has not beaten for so long is suspected."""
GRACE_SECONDS: Final = 2.5
"""A suspected worker has so long to beat again before its run is taken away. A beat needs a store that can be written
to, and so does a suspicion: a full disk or a sleeping machine costs no worker its run."""
MOST_LOSSES: Final = 3
"""Workers that a run may lose at one checkpoint before it counts as failed."""
HELD: Final = "state IN ('running', 'paused')"


def claim(database: Database, code_version: str) -> Lease | None:
    """Take the next run of the queue, first come first served; None when there is none.

    Runs whose worker has gone silent are put back in the queue first, at their old place.

    Args:
        database: the store.
        code_version: of the code that this process has loaded. A queued run of another version is taken over
            when it has not begun; one that has begun would mix two versions in one curve and fails.
    """
    requeue_silent(database)
    with database.reading() as connection:
        # A look that takes no write lock, as idle workers ask several times a second.
        if connection.execute("SELECT 1 FROM runs WHERE state = 'queued'").fetchone() is None:
            return None
    with database.writing() as connection:
        now = time.time()
        for row in connection.execute(f"{SELECT} WHERE state = 'queued' ORDER BY queued, number").fetchall():
            if row["code_version"] != code_version and row["updates"]:
                text = f"begun by code version {row['code_version']}, and this is {code_version}; start the run again"
                _fail(connection, row, text)
                continue
            token = secrets.token_hex(8)
            connection.execute(
                "UPDATE runs SET state = 'running', lease = ?, worker = ?, heartbeat = ?, suspected = NULL,"
                " code_version = ?, started = COALESCE(started, ?) WHERE id = ?",
                (token, os.getpid(), now, code_version, now, row["id"]),
            )
            return Lease(database, row["id"], token, RunConfig.model_validate_json(row["config"]))
    return None


def requeue_silent(database: Database, grace: float = GRACE_SECONDS) -> list[int]:
    """Suspect the workers that have gone silent, and requeue the runs of those suspected for ``grace`` seconds.

    Returns:
        The process ids of the workers whose runs were taken away.
    """
    silent = f"{SELECT} WHERE {HELD} AND heartbeat < ? AND (suspected IS NULL OR suspected < ?)"
    now = time.time()
    since = (now - SILENT_SECONDS, now - grace)
    with database.reading() as connection:
        if connection.execute(silent, since).fetchone() is None:
            return []
    lost = []
    with database.writing() as connection:
        for row in connection.execute(silent, since).fetchall():
            if row["suspected"] is None:
                connection.execute("UPDATE runs SET suspected = ? WHERE id = ?", (now, row["id"]))
            else:
                _lose(connection, row, f"worker {row['worker']} was silent for {now - row['heartbeat']:.0f} s")
                lost.append(int(row["worker"]))
    return lost


def lose_worker(database: Database, worker: int, reason: str) -> None:
    """Put the run of a worker that has ended back in the queue.

    Args:
        database: the store.
        worker: its process id on this machine.
        reason: how it ended, for the run's history ("worker 17 was ended by signal 9").
    """
    with database.writing() as connection:
        for row in connection.execute(f"{SELECT} WHERE {HELD} AND worker = ?", (worker,)).fetchall():
            _lose(connection, row, reason)


def _lose(connection: sqlite3.Connection, row: sqlite3.Row, reason: str) -> None:
    checkpoint = row["checkpoint_update"] or 0
    losses = row["losses"] + 1 if row["lost_at"] == checkpoint else 1
    if row["state"] == "paused":
        # A run that computes nothing brings no worker down.
        losses = 0
    connection.execute(
        "UPDATE runs SET state = 'queued', lease = NULL, worker = NULL, losses = ?, lost_at = ? WHERE id = ?",
        (losses, checkpoint, row["id"]),
    )
    if losses < MOST_LOSSES:
        text = f"{reason}; the run goes on from update {checkpoint}"
        add_event(connection, row["id"], row["updates"], "worker_lost", text)
    else:
        add_event(connection, row["id"], row["updates"], "worker_lost", reason)
        error = f"{losses} workers were lost one after the other beyond update {checkpoint}, the last one so: {reason}"
        _fail(connection, row, f"{error}; see worker.log, then resume the run or start it with a smaller micro-batch")


def _fail(connection: sqlite3.Connection, row: sqlite3.Row, error: str) -> None:
    connection.execute(
        "UPDATE runs SET state = 'failed', lease = NULL, worker = NULL, finished = ?, error = ? WHERE id = ?",
        (time.time(), f"{error}.", row["id"]),
    )
    add_event(connection, row["id"], row["updates"], "failed", f"{error}.")
