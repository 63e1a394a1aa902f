"""What a watcher gets back from the store: runs and events, frozen and typed."""

from __future__ import annotations

import sqlite3
import time
from typing import Final, Literal

from accum_core.errors import SettingError
from accum_core.records import Environment, Record, RunConfig

RunState = Literal["queued", "running", "paused", "done", "failed", "stopped"]
LAB: Final = "lab"
SELECT: Final = (
    "SELECT runs.*, (SELECT max(at_update) FROM checkpoints WHERE run = runs.id) AS checkpoint_update FROM runs "
)


class Run(Record):
    """A run as the store knows it at one moment.

    Attributes:
        id: the configuration digest's first 12 digits, with "-2", "-3", ... for later attempts.
        config: as it was submitted; ``Store.present_config`` adds the live changes.
        config_digest, code_version: what makes two runs the same.
        altered: a live change was sent, so the run no longer stands for its configuration.
        created, started, finished, heartbeat: seconds since the epoch, or None.
        update: updates recorded so far, of ``total``.
        error: why it failed, in one sentence.
        checkpoint_update: the update that it would go on from.
        worker: process id of the worker that holds it.
        source: "lab", or the name of the committed result that it came from.
    """

    id: str
    config: RunConfig
    config_digest: str
    code_version: str
    state: RunState
    altered: bool
    created: float
    started: float | None
    finished: float | None
    heartbeat: float | None
    update: int
    total: int
    error: str | None
    environment: Environment | None
    checkpoint_update: int | None
    worker: int | None
    source: str


class Event(Record):
    """Something that happened to a run at ``update``, told in ``text``.

    ``update`` counts those that were made; a change carries the first update that it had an effect on. ``kind`` is
    one of change, refused, paused, resumed, stopped, failed, finished, worker_lost, handed_back,
    resumed_from_checkpoint, rewound, or that of an ``Incident``.
    """

    run: str
    update: int
    time: float
    kind: str
    text: str


def run_of(row: sqlite3.Row) -> Run:
    """A run from a row of ``SELECT``."""
    config = RunConfig.model_validate_json(row["config"])
    environment = row["environment"]
    return Run(
        id=row["id"],
        config=config,
        config_digest=row["config_digest"],
        code_version=row["code_version"],
        state=row["state"],
        altered=bool(row["altered"]),
        created=row["created"],
        started=row["started"],
        finished=row["finished"],
        heartbeat=row["heartbeat"],
        update=row["updates"],
        total=config.updates,
        error=row["error"],
        environment=None if environment is None else Environment.model_validate_json(environment),
        checkpoint_update=row["checkpoint_update"],
        worker=row["worker"],
        source=row["source"],
    )


def event_of(row: sqlite3.Row) -> Event:
    """An event from a row of its table."""
    return Event(run=row["run"], update=row["at_update"], time=row["time"], kind=row["kind"], text=row["text"])


def row_of_run(connection: sqlite3.Connection, run_id: str) -> sqlite3.Row:
    """The run's row.

    Raises:
        SettingError: for an id that the store does not hold.
    """
    row = connection.execute(f"{SELECT} WHERE id = ?", (run_id,)).fetchone()
    if row is None:
        raise SettingError("run", run_id, "is not in this store; check the address, or start the run again")
    assert isinstance(row, sqlite3.Row)
    return row


def add_event(connection: sqlite3.Connection, run_id: str, update: int, kind: str, text: str) -> None:
    """Append an event to a run's history."""
    connection.execute(
        "INSERT INTO events (run, at_update, time, kind, text) VALUES (?, ?, ?, ?, ?)",
        (run_id, update, time.time(), kind, text),
    )
