"""The file that holds the runs: SQLite in WAL mode, one connection a thread, failures as one sentence."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from filelock import FileLock

from accum_core.errors import StoreError

BUSY_SECONDS: Final = 5.0
VERSION: Final = 1
TABLES: Final = """
CREATE TABLE runs (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    config TEXT NOT NULL,
    config_digest TEXT NOT NULL,
    code_version TEXT NOT NULL,
    source TEXT NOT NULL,
    state TEXT NOT NULL,
    altered INTEGER NOT NULL DEFAULT 0,
    created REAL NOT NULL,
    queued REAL NOT NULL,
    started REAL,
    finished REAL,
    heartbeat REAL,
    suspected REAL,
    updates INTEGER NOT NULL DEFAULT 0,
    error TEXT,
    environment TEXT,
    worker INTEGER,
    lease TEXT,
    losses INTEGER NOT NULL DEFAULT 0,
    lost_at INTEGER
);
CREATE INDEX runs_of_config ON runs (config_digest);
CREATE INDEX runs_in_state ON runs (state, queued, number);
CREATE TABLE records (
    run TEXT NOT NULL, at_update INTEGER NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (run, at_update)
);
CREATE TABLE events (
    number INTEGER PRIMARY KEY, run TEXT NOT NULL, at_update INTEGER NOT NULL, time REAL NOT NULL,
    kind TEXT NOT NULL, text TEXT NOT NULL
);
CREATE INDEX events_of_run ON events (run, number);
CREATE TABLE messages (
    number INTEGER PRIMARY KEY, run TEXT NOT NULL, sent REAL NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL,
    applied INTEGER, refused INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX messages_of_run ON messages (run, applied);
CREATE TABLE checkpoints (
    run TEXT NOT NULL, at_update INTEGER NOT NULL, file TEXT NOT NULL, time REAL NOT NULL,
    PRIMARY KEY (run, at_update)
);
"""
REMEDIES: Final = {
    sqlite3.SQLITE_BUSY: f"was locked by another program for {BUSY_SECONDS:g} s; close what holds it and try again",
    sqlite3.SQLITE_LOCKED: "is locked by another program; close what holds it and try again",
    sqlite3.SQLITE_READONLY: "is read-only; allow writing to the file and its folder, or name another file "
    "in ACCUMULATION_LAB_STORE",
    sqlite3.SQLITE_FULL: "cannot grow because the disk is full; free some space, what is recorded so far is safe",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; see that its folder exists and can be written to",
    sqlite3.SQLITE_NOTADB: "is no store of runs; move it away or name another file in ACCUMULATION_LAB_STORE",
    sqlite3.SQLITE_CORRUPT: "is damaged; move it away, and a new one is made at the next start",
    sqlite3.SQLITE_IOERR: "cannot be read or written by the system; check the disk, its free space and its limits",
}


def default_store_path() -> Path:
    """``$ACCUMULATION_LAB_STORE``, or ``.lab/runs.sqlite`` under the project's root."""
    named = os.environ.get("ACCUMULATION_LAB_STORE")
    return Path(named) if named else Path(__file__).parents[2] / ".lab" / "runs.sqlite"


class Database:
    """Connections to one store file, which is made when it is not there.

    Args:
        path: the file; ``default_store_path()`` by default, whose folder is made too.

    Raises:
        StoreError: when the file cannot be opened or is no store of this version; all methods raise it when reading
            or writing fails.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = Path(path) if path is not None else default_store_path()
        self._threads = threading.local()
        if path is None:
            self._make_folder()
        if not self.path.parent.is_dir():
            raise StoreError(f"The store {self.path} cannot be opened: its folder is missing; make the folder first.")
        if self.path.is_dir():
            raise StoreError(f"The store {self.path} is a folder; name a file in ACCUMULATION_LAB_STORE.")
        with self.reading() as connection:
            found, ours = _version(connection), _holds_runs(connection)
        if found == 0:
            self._create()
        elif found > VERSION and ours:
            raise StoreError(
                f"The store {self.path} was made by a newer version of this project (store version {found}, and this "
                f"one reads {VERSION}); update the project, or name another file in ACCUMULATION_LAB_STORE."
            )
        elif found != VERSION or not ours:
            raise self._foreign()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """This thread's connection, outside a transaction."""
        try:
            yield self._connection()
        except sqlite3.Error as error:
            raise self._failure(error) from error

    @contextmanager
    def writing(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """This thread's connection inside a transaction: committed at the end, rolled back on any exception.

        Nothing committed is lost with a killed process; a power cut can take the last transactions back, unless one
        of them, or one after them, was ``durable``.
        """
        with self.reading() as connection:
            connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                # SQLite has rolled back by itself after some failures, a full disk among them.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._threads, "connection", None)
        if connection is None:
            connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)
            connection.row_factory = sqlite3.Row
            self._threads.connection = connection
        return connection

    def _create(self) -> None:
        # The switch to WAL does not wait for a lock, so processes that make the same store take turns.
        with self._creation_lock(), self.reading() as connection:
            if _version(connection) == VERSION:
                return
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise self._foreign()
            connection.execute("PRAGMA journal_mode=WAL")
            connection.executescript(f"BEGIN IMMEDIATE; {TABLES} PRAGMA user_version={VERSION}; COMMIT;")

    @contextmanager
    def _creation_lock(self) -> Iterator[None]:
        try:
            lock = FileLock(f"{self.path}.creation", timeout=BUSY_SECONDS)
            with lock:
                yield
        except OSError as error:
            raise StoreError(f"The store {self.path} cannot be made: {_reason(error)}.") from error

    def _make_folder(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"The store's folder {self.path.parent} cannot be made: {_reason(error)}.") from error

    def _foreign(self) -> StoreError:
        return StoreError(f"The store {self.path} {REMEDIES[sqlite3.SQLITE_NOTADB]}.")

    def _failure(self, error: sqlite3.Error) -> StoreError:
        # Extended codes keep the kind of failure in their lowest byte.
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if "no such table" in str(error):
            return StoreError(f"The store {self.path} was deleted or emptied while it was in use; start the app again.")
        remedy = REMEDIES.get(code, f"failed ({error}); move it away if that lasts, and a new one is made")
        return StoreError(f"The store {self.path} {remedy}.")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _holds_runs(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'runs'").fetchone() is not None


def _reason(error: OSError) -> str:
    return f"{error.strerror or error}; see that its folder exists, can be written to and has space"
