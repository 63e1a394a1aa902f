"""A store that cannot be read or written says why in one sentence, and what to do."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from small_runs import claimed, record, small

from accum_core.errors import StoreError
from accum_core.runs import database as database_module
from accum_core.runs.database import default_store_path
from accum_core.runs.store import Store


def test_the_default_store_is_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCUMULATION_LAB_STORE", str(tmp_path / "class" / "runs.sqlite"))
    assert Store().path == default_store_path() == tmp_path / "class" / "runs.sqlite"
    monkeypatch.delenv("ACCUMULATION_LAB_STORE")
    assert default_store_path().parts[-2:] == (".lab", "runs.sqlite")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"nowhere/runs\.sqlite cannot be opened: its folder is missing; make"):
        Store(tmp_path / "nowhere" / "runs.sqlite")


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a folder; name a file"):
        Store(tmp_path)


def test_a_text_file_is_no_store(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    path.write_text("update,loss\n" * 100)
    with pytest.raises(StoreError, match="is no store of runs; move it away"):
        Store(path)
    assert path.read_text().startswith("update,loss")


@pytest.mark.parametrize("statement", ["CREATE TABLE books (title)", "PRAGMA user_version = 99"])
def test_another_program_s_database_is_left_alone(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "runs.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="is no store of runs; move it away"):
        Store(path)
    assert path.read_bytes() == before


def test_a_newer_store_is_told_from_another_program_s(store: Store) -> None:
    with store.database.reading() as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match=r"newer version of this project \(store version 99,.*update the project"):
        Store(store.path)


def test_a_store_that_was_deleted_while_in_use_says_so(store: Store) -> None:
    with store.database.reading() as connection:
        connection.execute("DROP TABLE runs")
    with pytest.raises(
        StoreError, match=r"runs\.sqlite was deleted or emptied while it was in use; start the app again"
    ):
        store.runs()


def test_a_locked_store_says_so_and_can_still_be_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = store.submit(small())
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.05)
    second = Store(store.path)
    with store.database.writing():
        assert second.get(run_id).state == "queued"
        with pytest.raises(StoreError, match=r"runs\.sqlite was locked by another program.*close what holds it"):
            second.submit(small(seed=1))
    second.submit(small(seed=1))


def test_a_read_only_store_says_so_and_can_still_be_read(store: Store) -> None:
    run_id = store.submit(small())
    with store.database.reading() as connection:
        connection.execute("PRAGMA query_only = ON")
    with pytest.raises(StoreError, match=r"runs\.sqlite is read-only; allow writing .*ACCUMULATION_LAB_STORE"):
        store.submit(small(seed=1))
    assert store.get(run_id).state == "queued"


def test_a_full_disk_loses_nothing_that_was_recorded(store: Store) -> None:
    run_id = store.submit(small())
    lease = claimed(store)
    lease.write([record(1)])
    with store.database.reading() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
    large = [record(update, instruments={"sketch": {"text": "x" * 4000}}) for update in range(2, 12)]
    with pytest.raises(StoreError, match=r"runs\.sqlite cannot grow because the disk is full; free some space"):
        lease.write(large)
    assert [entry.update for entry in store.records(run_id)] == [1]
    with store.database.reading() as connection:
        connection.execute("PRAGMA max_page_count = 1073741823")
    lease.write(large)
    assert store.records(run_id) == [record(1), *large]


def test_a_damaged_store_says_so(store: Store) -> None:
    store.submit(small())
    with store.database.reading() as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    with store.path.open("r+b") as file:
        file.seek(size)
        file.write(b"\xff" * (store.path.stat().st_size - size))
    with pytest.raises(StoreError, match=r"runs\.sqlite is damaged; move it away"):
        Store(store.path).runs()
