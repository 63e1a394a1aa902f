"""A run's records as columns, which is how a result file holds them: a name is written once a run, not once an update.

A field of every record is one list with an entry a record, or the bare value where all records have the same. A term of
the loss is held so by its own fields, unless records have different terms (``terms_by_place``). What only some records
have (instruments, validation, changes, incidents) stands under the place of its record, counted from 0. Exact:
``unpack(pack(records))`` are the records again, bit for bit (``tests/test_record_columns.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accum_core.records import Term, UpdateRecord

SPARSE = ("instruments", "validation", "changes", "incidents")


def pack(records: Sequence[UpdateRecord]) -> dict[str, Any]:
    """Columns by field, of plain values that JSON takes (NaN and infinity as Python's json writes them)."""
    rows = [record.model_dump(mode="json", exclude_defaults=True) for record in records]
    columns: dict[str, Any] = {
        name: _column([row[name] for row in rows])
        for name in UpdateRecord.model_fields
        if name not in (*SPARSE, "update", "terms")
    }
    columns["update"] = [row["update"] for row in rows]
    for name in SPARSE:
        columns[name] = _by_place(rows, name)
    if len({tuple(row["terms"]) for row in rows}) > 1:
        return columns | {"terms_by_place": _by_place(rows, "terms")}
    columns["terms"] = {
        term: {field: _column([row["terms"][term][field] for row in rows]) for field in Term.model_fields}
        for term in rows[0]["terms"]
    }
    return columns


def unpack(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One mapping a record, as ``UpdateRecord`` takes it.

    Raises:
        KeyError, TypeError, IndexError, AttributeError: for columns that ``pack`` did not make.
    """
    rows: list[dict[str, Any]] = [{"update": update, "terms": {}} for update in columns["update"]]
    for name, column in columns.items():
        if name in (*SPARSE, "terms_by_place"):
            for place, value in column.items():
                rows[int(place)][name.removesuffix("_by_place")] = value
        elif name == "terms":
            for term, fields in column.items():
                spread = {field: _spread(values, len(rows)) for field, values in fields.items()}
                for place, row in enumerate(rows):
                    row["terms"][term] = {field: values[place] for field, values in spread.items()}
        elif name != "update":
            for row, value in zip(rows, _spread(column, len(rows)), strict=True):
                row[name] = value
    return rows


def _by_place(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return {str(place): row[name] for place, row in enumerate(rows) if name in row}


def _column(values: list[Any]) -> Any:
    """Told apart by how they are written, as 0.0 equals -0.0 and NaN does not equal itself."""
    return values[0] if len(set(map(repr, values))) == 1 else values


def _spread(column: Any, count: int) -> list[Any]:
    return column if isinstance(column, list) else [column] * count
