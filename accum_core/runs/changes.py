"""Live changes as the store keeps them: what a run's settings are after them, and what a resumption does to them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence

from accum_core.errors import SettingError
from accum_core.records import Message, RunConfig
from accum_core.runs.rows import add_event


def changed_config(config: RunConfig, message: Message) -> RunConfig:
    """The configuration after a message of kind "set".

    Raises:
        SettingError: for another kind of message, or a value that the field cannot take.
    """
    if message.kind != "set" or message.field is None:
        raise SettingError("message", message.kind, "a change needs kind 'set', a field and a value")
    return config.changed(message.field, message.value)


def present_config(connection: sqlite3.Connection, row: sqlite3.Row) -> RunConfig:
    """The configuration of a run's row after the changes sent so far, without those that the training refused."""
    config = RunConfig.model_validate_json(row["config"])
    sent = "SELECT body FROM messages WHERE run = ? AND kind = 'set' AND NOT refused ORDER BY number"
    for message in connection.execute(sent, (row["id"],)).fetchall():
        config = changed_config(config, Message.model_validate_json(message["body"]))
    return config


def add_message(connection: sqlite3.Connection, run_id: str, message: Message, *, applied: int | None = None) -> None:
    """Leave a message for a run's worker; with ``applied`` it counts as taken before that update."""
    connection.execute(
        "INSERT INTO messages (run, sent, kind, body, applied) VALUES (?, ?, ?, ?, ?)",
        (run_id, time.time(), message.kind, message.model_dump_json(), applied),
    )


def rewind(connection: sqlite3.Connection, row: sqlite3.Row, checkpoint: int, changes: Sequence[Message]) -> None:
    """Take a run back to its checkpoint, for all changes so far and then ``changes`` to take effect right after it.

    The records beyond the checkpoint belong to a course that the run will not take again. They are deleted, so that
    its curve holds every update once; an event says which they were.

    Raises:
        SettingError: for a change that the run's present settings refuse.
    """
    run_id, present = row["id"], present_config(connection, row)
    for change in changes:
        present = changed_config(present, change)
    later = "run = ? AND kind = 'set' AND (applied IS NULL OR applied > ?)"
    connection.execute(f"DELETE FROM messages WHERE refused AND {later}", (run_id, checkpoint))
    connection.execute(f"UPDATE messages SET applied = ? WHERE {later}", (checkpoint + 1, run_id, checkpoint))
    for change in changes:
        add_message(connection, run_id, change, applied=checkpoint + 1)
    connection.execute("DELETE FROM records WHERE run = ? AND at_update > ?", (run_id, checkpoint))
    connection.execute("UPDATE runs SET altered = 1, updates = ? WHERE id = ?", (checkpoint, run_id))
    if row["updates"] > checkpoint:
        text = f"updates {checkpoint + 1} to {row['updates']} are made anew with changed settings"
        add_event(connection, run_id, checkpoint, "rewound", text)
