"""The watchers' side of the store: submit, find, read, send, resume. Fit for many threads and processes at once."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from accum_core.errors import SettingError
from accum_core.provenance import code_version
from accum_core.records import Message, RunConfig, RunResult, UpdateRecord
from accum_core.runs.changes import add_message, changed_config, present_config, rewind
from accum_core.runs.database import Database, default_store_path
from accum_core.runs.rows import LAB, SELECT, Event, Run, add_event, event_of, row_of_run, run_of

__all__ = ["Event", "Run", "Store", "default_store_path"]

LIVE = ("queued", "running", "paused")


class Store:
    """All runs of one file.

    Args:
        path: the SQLite file; ``default_store_path()`` by default.

    Raises:
        StoreError: from here and from every method, when the file is locked, read-only, on a full disk or no store.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self.database = Database(path)

    @property
    def path(self) -> Path:
        """The store's file."""
        return self.database.path

    def submit(self, config: RunConfig, *, fresh: bool = False) -> str:
        """Ask for a run and return its id.

        A run of the same configuration and code version that waits, runs or is done, and that no live change has
        altered, is returned instead of a second one, unless ``fresh``.

        Raises:
            SettingError: for a configuration that cannot be run.
        """
        config.check()
        digest, version = config.digest(), code_version()
        with self.database.writing() as connection:
            if not fresh:
                shared = connection.execute(
                    "SELECT id FROM runs WHERE config_digest = ? AND code_version = ? AND NOT altered"
                    " AND state IN ('queued', 'running', 'paused', 'done') ORDER BY number DESC",
                    (digest, version),
                ).fetchone()
                if shared is not None:
                    return str(shared["id"])
            now = time.time()
            run_id = _next_id(connection, digest)
            connection.execute(
                "INSERT INTO runs (id, config, config_digest, code_version, source, state, created, queued)"
                " VALUES (?, ?, ?, ?, ?, 'queued', ?, ?)",
                (run_id, config.model_dump_json(), digest, version, LAB, now, now),
            )
            return run_id

    def find(self, config: RunConfig) -> Run | None:
        """The run that stands for a configuration, or None: the newest unaltered one of the present code version,
        failed and stopped ones last; else a finished one of another version, committed results first."""
        with self.database.reading() as connection:
            row = connection.execute(
                f"{SELECT} WHERE config_digest = :digest AND NOT altered"
                " AND (code_version = :version OR state = 'done')"
                " ORDER BY code_version = :version DESC, state IN ('failed', 'stopped'),"
                " code_version <> :version AND source = :lab, number DESC LIMIT 1",
                {"digest": config.digest(), "version": code_version(), "lab": LAB},
            ).fetchone()
        return None if row is None else run_of(row)

    def get(self, run_id: str) -> Run:
        """One run.

        Raises:
            SettingError: for an unknown id.
        """
        with self.database.reading() as connection:
            return run_of(row_of_run(connection, run_id))

    def runs(self, limit: int = 100) -> list[Run]:
        """The newest runs, newest first."""
        with self.database.reading() as connection:
            rows = connection.execute(f"{SELECT} ORDER BY number DESC LIMIT ?", (limit,)).fetchall()
        return [run_of(row) for row in rows]

    def records(self, run_id: str, since: int = 0) -> list[UpdateRecord]:
        """The records of updates after ``since``, in order, each update once.

        Raises:
            SettingError: for an unknown id.
        """
        with self.database.reading() as connection:
            row_of_run(connection, run_id)
            rows = connection.execute(
                "SELECT body FROM records WHERE run = ? AND at_update > ? ORDER BY at_update", (run_id, since)
            ).fetchall()
        return [UpdateRecord.model_validate_json(row["body"]) for row in rows]

    def events(self, run_id: str) -> list[Event]:
        """What happened to a run, oldest first."""
        with self.database.reading() as connection:
            row_of_run(connection, run_id)
            rows = connection.execute("SELECT * FROM events WHERE run = ? ORDER BY number", (run_id,)).fetchall()
        return [event_of(row) for row in rows]

    def send(self, run_id: str, message: Message) -> None:
        """Ask something of a run; a "set" marks it altered, a "stop" ends a queued run at once.

        Raises:
            SettingError: for an unknown run, one that has ended, or a value that its present settings refuse.
        """
        with self.database.writing() as connection:
            row = row_of_run(connection, run_id)
            if row["state"] not in LIVE:
                raise SettingError(
                    "run", run_id, f"is {row['state']} and takes no {message.kind}; start it again or resume it"
                )
            if message.kind == "set":
                changed_config(present_config(connection, row), message)
                connection.execute("UPDATE runs SET altered = 1 WHERE id = ?", (run_id,))
            elif message.kind == "stop" and row["state"] == "queued":
                connection.execute(
                    "UPDATE runs SET state = 'stopped', finished = ? WHERE id = ?", (time.time(), run_id)
                )
                add_event(connection, run_id, row["updates"], "stopped", "stopped while it waited in the queue")
                return
            add_message(connection, run_id, message)

    def present_config(self, run_id: str) -> RunConfig:
        """The run's configuration after the live changes sent so far, without those that the training refused.

        Raises:
            SettingError: for an unknown id.
        """
        with self.database.reading() as connection:
            return present_config(connection, row_of_run(connection, run_id))

    def resume(self, run_id: str, changes: Sequence[Message] = ()) -> None:
        """Put a failed or stopped run back in the queue, to go on from its last checkpoint.

        Without changes the records beyond the checkpoint stay, as the same updates are made again. With changes the
        updates after the checkpoint become others: their old records are deleted, which leaves an event, and the
        changes sent before (in their order) and the new ones take effect at the first update after the checkpoint.

        Raises:
            SettingError: for an unknown run, one that has not failed or stopped or was begun by another version of
                the code, or changes that its present settings refuse.
        """
        with self.database.writing() as connection:
            row = row_of_run(connection, run_id)
            if row["state"] not in ("failed", "stopped"):
                raise SettingError("run", run_id, f"is {row['state']}; only a failed or stopped run is resumed")
            if row["code_version"] != code_version() and row["updates"]:
                raise SettingError(
                    "run", run_id, f"was begun by code version {row['code_version']}; start it again with this one"
                )
            checkpoint = row["checkpoint_update"] or 0
            # What was asked of the ended attempt and not taken must not pause or stop the new one.
            connection.execute("DELETE FROM messages WHERE run = ? AND applied IS NULL AND kind <> 'set'", (run_id,))
            if changes:
                rewind(connection, row, checkpoint, changes)
            add_message(connection, run_id, Message(kind="resume"), applied=checkpoint)
            connection.execute(
                "UPDATE runs SET state = 'queued', queued = ?, finished = NULL, error = NULL, losses = 0,"
                " lost_at = NULL WHERE id = ?",
                (time.time(), run_id),
            )
            add_event(connection, run_id, checkpoint, "resumed", f"goes on from update {checkpoint}")

    def queue_position(self, run_id: str) -> int:
        """The run's place in the queue: 1 is next, 0 is not queued.

        Raises:
            SettingError: for an unknown id.
        """
        with self.database.reading() as connection:
            row = row_of_run(connection, run_id)
            if row["state"] != "queued":
                return 0
            ahead = connection.execute(
                "SELECT count(*) FROM runs WHERE state = 'queued' AND (queued, number) <= (?, ?)",
                (row["queued"], row["number"]),
            ).fetchone()
        return int(ahead[0])

    def add_result(self, result: RunResult, source: str) -> str:
        """Take in a committed result as a done run and return its id; a result taken in before is not repeated.

        Args:
            result: a finished run.
            source: the committed result's name.

        Raises:
            SettingError: for the source "lab", which is kept for runs made here.
        """
        if source == LAB:
            raise SettingError("source", source, "is kept for runs that are made here; use the result's name")
        digest, environment = result.config.digest(), result.environment.model_dump_json()
        with self.database.writing() as connection:
            known = connection.execute(
                "SELECT id FROM runs WHERE config_digest = ? AND source = ? AND environment = ?",
                (digest, source, environment),
            ).fetchone()
            if known is not None:
                return str(known["id"])
            run_id, now = _next_id(connection, digest), time.time()
            version, updates = result.environment.code_version, max((r.update for r in result.records), default=0)
            connection.execute(
                "INSERT INTO runs (id, config, config_digest, code_version, source, environment, updates,"
                " state, created, queued, finished) VALUES (?, ?, ?, ?, ?, ?, ?, 'done', ?, ?, ?)",
                (run_id, result.config.model_dump_json(), digest, version, source, environment, updates, now, now, now),
            )
            connection.executemany(
                "INSERT INTO records (run, at_update, body) VALUES (?, ?, ?)",
                [(run_id, record.update, record.model_dump_json()) for record in result.records],
            )
            return run_id

    def result(self, run_id: str) -> RunResult:
        """The run's configuration, environment and records so far, as a file holds them.

        Raises:
            SettingError: for an unknown run, or one that has not begun.
        """
        run = self.get(run_id)
        if run.environment is None:
            raise SettingError("run", run_id, f"is {run.state} and has not begun; wait for its first update")
        return RunResult(config=run.config, environment=run.environment, records=tuple(self.records(run_id)))


def _next_id(connection: sqlite3.Connection, digest: str) -> str:
    earlier = connection.execute("SELECT count(*) FROM runs WHERE substr(config_digest, 1, 12) = ?", (digest[:12],))
    attempt = earlier.fetchone()[0] + 1
    return digest[:12] if attempt == 1 else f"{digest[:12]}-{attempt}"
