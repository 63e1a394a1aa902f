"""Records as columns: the same records again, whatever they hold, and each name once a run."""

from __future__ import annotations

import json
import math
from typing import Any

import made_results
from hypothesis import given
from hypothesis import strategies as st

from accum_core.record_columns import pack, unpack
from accum_core.records import Change, Incident, Term, UpdateRecord, Validation

NUMBERS = st.floats(width=64) | st.sampled_from([0.0, -0.0, math.nan, math.inf])
TERMS = st.dictionaries(st.sampled_from(["pixels", "aux", "0"]), st.builds(Term, loss=NUMBERS, weight=NUMBERS))
RECORDS = st.builds(
    UpdateRecord,
    update=st.integers(1, 9),
    loss=NUMBERS,
    seconds=NUMBERS,
    terms=st.just({"pixels": Term(loss=0.5, weight=2.0)}) | TERMS,
    norm=st.sampled_from(["batch", "group"]),
    instruments=st.dictionaries(st.sampled_from(["a", "b"]), st.dictionaries(st.text(max_size=2), NUMBERS), max_size=2),
    validation=st.none() | st.builds(Validation, loss=NUMBERS, class_iou=st.lists(NUMBERS, max_size=2).map(tuple)),
    changes=st.just(()) | st.just((Change(field="norm", old="batch", new="group"),)),
    incidents=st.just(()) | st.just((Incident(kind="overflow", text="too large"),)),
)


def read_back(records: list[UpdateRecord]) -> list[UpdateRecord]:
    """Through JSON text, as a file holds them."""
    rows: list[dict[str, Any]] = unpack(json.loads(json.dumps(pack(records))))
    return [UpdateRecord.model_validate(row) for row in rows]


@given(st.lists(RECORDS, min_size=1, max_size=4))
def test_unpacked_records_are_the_packed_ones(records: list[UpdateRecord]) -> None:
    """Compared as they are written, which tells -0.0 from 0.0 and takes NaN for NaN."""
    assert repr(read_back(records)) == repr(records)


def test_what_all_records_share_is_written_once() -> None:
    columns = pack([made_results.record(update) for update in (1, 2, 3)])
    assert columns["update"] == [1, 2, 3]
    assert columns["samples"] == [8, 16, 24]
    assert columns["norm"] == "batch"
    assert columns["terms"] == {"cross_entropy": {"loss": 1.0, "weight": 8.0}}
    assert columns["validation"] == columns["changes"] == {}


def test_what_few_records_have_stands_under_their_places() -> None:
    columns = pack([made_results.record(1), made_results.record(2, error=0.25), made_results.record(3)])
    assert columns["instruments"] == {"1": {"gradient_error": {"relative_error": 0.25, "cosine": 0.5}}}
