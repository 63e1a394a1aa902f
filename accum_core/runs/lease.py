"""What the worker that holds a run may write. Every write checks that the run is still this worker's."""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, NamedTuple

from accum_core.errors import StoreError
from accum_core.records import Environment, Message, RunConfig, UpdateRecord
from accum_core.runs.database import Database
from accum_core.runs.rows import add_event

CHECKPOINTS: Final = "checkpoints"
PAUSED, RUNNING = ("paused", "paused"), ("running", "resumed")


class LeaseLostError(Exception):
    """The run was given to another worker; this one must abandon it at once."""


class Pending(NamedTuple):
    """A message that no update has taken yet, with its number in the store."""

    number: int
    message: Message


class Lease:
    """One claim of one run.

    Raises:
        LeaseLostError: from every method that writes, when the run is no longer this worker's; nothing is written.
        StoreError: when the store cannot be read or written; nothing is written and the call can be repeated.
    """

    def __init__(self, database: Database, run_id: str, token: str, config: RunConfig) -> None:
        self.database = database
        self.run_id = run_id
        self.config = config
        self._token = token

    def beat(self) -> None:
        """Say that the worker is alive."""
        with self._holding():
            pass

    def checkpoint(self) -> tuple[int, Path] | None:
        """The update and the file of the run's last checkpoint."""
        newest = "SELECT * FROM checkpoints WHERE run = ? ORDER BY at_update DESC LIMIT 1"
        with self.database.reading() as connection:
            row = connection.execute(newest, (self.run_id,)).fetchone()
        return None if row is None else (row["at_update"], self._folder() / row["file"])

    def checkpoints(self) -> list[int]:
        """The updates after which the store holds a checkpoint, rising."""
        held = "SELECT at_update FROM checkpoints WHERE run = ? ORDER BY at_update"
        with self.database.reading() as connection:
            return [row["at_update"] for row in connection.execute(held, (self.run_id,)).fetchall()]

    def first_loss(self) -> float | None:
        """The loss of the run's first update, None before it is recorded."""
        first = "SELECT body FROM records WHERE run = ? AND at_update = 1"
        with self.database.reading() as connection:
            row = connection.execute(first, (self.run_id,)).fetchone()
        return None if row is None else UpdateRecord.model_validate_json(row["body"]).loss

    def begin(self, environment: Environment, update: int, note: str | None) -> None:
        """Say where the run is computed and after which update it begins; ``note`` tells of a resumption."""
        with self._holding() as connection:
            connection.execute(
                "UPDATE runs SET environment = ? WHERE id = ?", (environment.model_dump_json(), self.run_id)
            )
            if note is not None:
                add_event(connection, self.run_id, update, "resumed_from_checkpoint", note)

    def write(self, records: Sequence[UpdateRecord]) -> None:
        """Add records; an update that is there already stays as it is."""
        with self._holding() as connection:
            self._write(connection, records)

    def save(
        self,
        records: Sequence[UpdateRecord],
        update: int,
        write_file: Callable[[Path], None],
        keep: int | None = None,
    ) -> None:
        """Make a checkpoint after ``update``, with all records up to it.

        The file is written first; then one transaction adds the records and points to the file; then older files
        of the run are removed. Whenever the process dies, the store points to a whole file.

        Args:
            records: those not written yet.
            update: updates made.
            write_file: writes the training's state to a path.
            keep: the update of an older checkpoint that stays beside the new one.

        Raises:
            StoreError: when the file or the store cannot be written to; what was saved before is untouched.
        """
        folder = self._folder()
        file = folder / f"{update}-{secrets.token_hex(4)}.pt"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Listed before the commit: a worker that stalls after it must not remove its successor's files.
            older = set(folder.iterdir())
            write_file(file)
        except OSError as error:
            reason = error.strerror or error
            raise StoreError(f"The checkpoint {file} cannot be written: {reason}; free some space.") from error
        try:
            # The older file goes after this commit, so the commit must survive a power cut.
            with self._holding(durable=True) as connection:
                self._write(connection, records)
                connection.execute("DELETE FROM checkpoints WHERE run = ? AND at_update IS NOT ?", (self.run_id, keep))
                connection.execute(
                    "INSERT OR REPLACE INTO checkpoints (run, at_update, file, time) VALUES (?, ?, ?, ?)",
                    (self.run_id, update, file.name, time.time()),
                )
                held = "SELECT file FROM checkpoints WHERE run = ?"
                older -= {folder / row["file"] for row in connection.execute(held, (self.run_id,)).fetchall()}
        except Exception:
            file.unlink(missing_ok=True)
            raise
        for path in older:
            path.unlink(missing_ok=True)

    def finish(self, state: Literal["done", "stopped"]) -> None:
        """End the run: its updates are made, or a watcher stopped it."""
        with self._holding() as connection:
            self._leave(connection, state, finished=time.time())
            update = self._updates(connection)
            kind, text = ("finished", "all updates are made") if state == "done" else ("stopped", "stopped on request")
            add_event(connection, self.run_id, update, kind, f"{text} ({update} recorded)")

    def fail(self, error: str, last_good: int | None = None) -> None:
        """End the run with one sentence that says why.

        Args:
            error: the sentence.
            last_good: checkpoints after this update are forgotten, None keeps all.
        """
        with self._holding() as connection:
            if last_good is not None:
                beyond = "DELETE FROM checkpoints WHERE run = ? AND at_update > ?"
                connection.execute(beyond, (self.run_id, last_good))
            self._leave(connection, "failed", finished=time.time())
            connection.execute("UPDATE runs SET error = ? WHERE id = ?", (error, self.run_id))
            add_event(connection, self.run_id, self._updates(connection), "failed", error)

    def hand_back(self) -> None:
        """Give the run back to the queue, at its old place, because this worker is leaving."""
        with self._holding() as connection:
            self._leave(connection, "queued", finished=None)
            add_event(connection, self.run_id, self._updates(connection), "handed_back", "its worker was shut down")

    def taken(self) -> list[tuple[int, Message]]:
        """Messages taken by this run's workers so far, in the order sent, each with the update it was applied at."""
        with self.database.reading() as connection:
            taken = "SELECT applied, body FROM messages WHERE run = ? AND applied IS NOT NULL ORDER BY number"
            rows = connection.execute(taken, (self.run_id,)).fetchall()
        return [(row["applied"], Message.model_validate_json(row["body"])) for row in rows]

    def pending(self) -> list[Pending]:
        """Messages that no update has taken yet, in the order sent."""
        with self.database.reading() as connection:
            self._check(connection)
            pending = "SELECT number, body FROM messages WHERE run = ? AND applied IS NULL ORDER BY number"
            rows = connection.execute(pending, (self.run_id,)).fetchall()
        return [Pending(row["number"], Message.model_validate_json(row["body"])) for row in rows]

    def take(self, chosen: Sequence[Pending], next_update: int) -> None:
        """Mark messages as applied at ``next_update``; pauses and resumptions change the run's state."""
        with self._holding() as connection:
            for number, message in chosen:
                connection.execute("UPDATE messages SET applied = ? WHERE number = ?", (next_update, number))
                if message.kind in ("pause", "resume"):
                    state, event = PAUSED if message.kind == "pause" else RUNNING
                    connection.execute("UPDATE runs SET state = ? WHERE id = ?", (state, self.run_id))
                    made = next_update - 1
                    add_event(connection, self.run_id, made, event, f"{event} after update {made}")

    def stay_paused(self) -> None:
        """Show the run as paused, as it was when its last worker left."""
        with self._holding() as connection:
            connection.execute("UPDATE runs SET state = 'paused' WHERE id = ?", (self.run_id,))

    def updates(self) -> int:
        """Updates recorded so far, by any worker."""
        with self.database.reading() as connection:
            return self._updates(connection)

    @contextmanager
    def _holding(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        with self.database.writing(durable=durable) as connection:
            beat = "UPDATE runs SET heartbeat = ?, suspected = NULL WHERE id = ? AND lease = ?"
            if connection.execute(beat, (time.time(), self.run_id, self._token)).rowcount != 1:
                raise LeaseLostError(self.run_id)
            yield connection

    def _check(self, connection: sqlite3.Connection) -> None:
        row = connection.execute("SELECT lease FROM runs WHERE id = ?", (self.run_id,)).fetchone()
        if row is None or row["lease"] != self._token:
            raise LeaseLostError(self.run_id)

    def _write(self, connection: sqlite3.Connection, records: Sequence[UpdateRecord]) -> None:
        for record in records:
            added = connection.execute(
                "INSERT OR IGNORE INTO records (run, at_update, body) VALUES (?, ?, ?)",
                (self.run_id, record.update, record.model_dump_json()),
            )
            if added.rowcount == 1:
                self._note_changes(connection, record)
                for incident in record.incidents:
                    add_event(connection, self.run_id, record.update, incident.kind, incident.text)
        if records:
            connection.execute(
                "UPDATE runs SET updates = max(updates, ?) WHERE id = ?", (records[-1].update, self.run_id)
            )

    def _note_changes(self, connection: sqlite3.Connection, record: UpdateRecord) -> None:
        """Tell of the changes before an update, and mark the messages refused; both are in the order sent."""
        asked = "SELECT number FROM messages WHERE run = ? AND kind = 'set' AND applied = ? ORDER BY number"
        numbers = [row["number"] for row in connection.execute(asked, (self.run_id, record.update)).fetchall()]
        refused = [number for number, change in zip(numbers, record.changes, strict=False) if change.refused]
        connection.executemany("UPDATE messages SET refused = 1 WHERE number = ?", [(number,) for number in refused])
        for change in record.changes:
            text = f"{change.field.replace('_', ' ')} {change.old} → {change.new}"
            if change.refused is None:
                add_event(connection, self.run_id, record.update, "change", text)
            else:
                add_event(connection, self.run_id, record.update, "refused", f"{text} refused: {change.refused}")

    def _leave(self, connection: sqlite3.Connection, state: str, finished: float | None) -> None:
        connection.execute(
            "UPDATE runs SET state = ?, finished = ?, lease = NULL, worker = NULL WHERE id = ?",
            (state, finished, self.run_id),
        )

    def _updates(self, connection: sqlite3.Connection) -> int:
        return int(connection.execute("SELECT updates FROM runs WHERE id = ?", (self.run_id,)).fetchone()[0])

    def _folder(self) -> Path:
        return self.database.path.parent / CHECKPOINTS / self.run_id
