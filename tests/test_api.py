"""The route that live charts grow from: what it gives, what it refuses, and that nobody gets a point twice."""

from __future__ import annotations

import csv
import gzip
import io
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import Client, served
from small_runs import CONFIG, ENVIRONMENT, claimed, record

from accum_core.records import RunResult, UpdateRecord, Validation
from accum_core.runs.store import Store
from accum_core.statistics import encode_sketch
from accum_ui import run_view
from accum_ui.api import PLOTLY, PLOTLY_ADDRESS
from accum_ui.run_view import MOST_POINTS

BROWSERS = 30


@pytest.fixture
def client(store: Store) -> Iterator[Client]:
    with served(store) as port, Client(port) as client:
        yield client


def measured(update: int) -> UpdateRecord:
    """A record with everything due."""
    by_layer = {"stem": 0.5, "image_pool": math.nan}
    error = {"relative_error": 0.5, "cosine": 0.25, "norm_ratio": 1.0, "by_layer": by_layer}
    instruments = {
        "gradient_error": error,
        "weight_sketch": {"sketch": encode_sketch(np.ones(4)), "norm": 2.0},
        "saved_bytes": {"micro_batch": 2**20, "full_batch": 2**22},
    }
    validation = Validation(
        miou=0.5, pixel_accuracy=0.75, class_iou=(0.5, math.nan), loss=1.0, pictures=(f"map {update}",)
    )
    return record(update, instruments=instruments, validation=validation)


def finished(store: Store, records: list[UpdateRecord]) -> str:
    """A stored run of ``CONFIG`` beside its stored reference, which has the same records."""
    for config in (CONFIG.reference(), CONFIG):
        result = RunResult(config=config, environment=ENVIRONMENT, records=tuple(records))
        run_id = store.add_result(result, "a_result")
    return run_id


@pytest.mark.parametrize("value", ["abc", "-1", "1.5", "", "1e3", "0x1", "٣", "9" * 40, "nan"])
@pytest.mark.parametrize("name", ["since", "reference_since"])
def test_a_parameter_that_is_no_update_is_refused_in_a_sentence(
    store: Store, client: Client, name: str, value: str
) -> None:
    from urllib.parse import quote

    run_id = store.submit(CONFIG)
    reply = client.get(f"/api/runs/{run_id}?{name}={quote(value)}")
    assert reply.status == 400
    assert reply.json == {"error": f"{name} = {value!r}: must be the number of an update, 0 or more."}


@pytest.mark.parametrize("suffix", ["", ".csv"])
def test_an_unknown_run_is_not_found_and_says_what_to_do(client: Client, suffix: str) -> None:
    reply = client.get(f"/api/runs/0123456789ab{suffix}")
    assert reply.status == 404
    assert "'0123456789ab'" in reply.json["error"] and "start the run again" in reply.json["error"]


def test_only_reading_is_allowed(store: Store, client: Client) -> None:
    assert client.get(f"/api/runs/{store.submit(CONFIG)}", method="POST").status == 405


def test_a_store_that_cannot_be_read_is_told_and_not_a_crash(store: Store, client: Client) -> None:
    run_id = store.submit(CONFIG)
    store.path.write_bytes(b"this is no database at all" * 200)
    for extra in store.path.parent.glob(f"{store.path.name}-*"):
        extra.unlink()
    reply = client.get(f"/api/runs/{run_id}")
    assert reply.status == 503
    assert reply.json["error"].endswith(".")


def test_a_queued_run_says_where_it_waits(store: Store, client: Client) -> None:
    store.submit(CONFIG)
    second = store.submit(CONFIG.model_copy(update={"seed": 1}))
    reply = client.get(f"/api/runs/{second}")
    assert reply.headers["cache-control"] == "no-store"
    found = reply.json
    assert (found["state"], found["update"], found["total"], found["queue"]) == ("queued", 0, 12, 2)
    assert found["run"]["update"] == [] and found["reference"] is None


def test_a_reply_holds_both_runs_and_what_follows_from_them(store: Store, client: Client) -> None:
    found = client.get(f"/api/runs/{finished(store, [measured(1), record(2), measured(3)])}").json
    assert found["state"] == "done"
    for columns in (found["run"], found["reference"]["columns"]):
        assert columns["update"] == [1, 2, 3]
        assert columns["loss"] == pytest.approx([1, 1 / 2, 1 / 3], rel=1e-4)
        assert columns["gradient_error"] == [0.5, None, 0.5]
        assert columns["miou"] == [0.5, None, 0.5]
    assert found["distance"]["update"] == [1, 3] and found["distance"]["weight_distance"] == [0, 0]
    assert found["distance"]["samples"] == [record(1).samples, record(3).samples]
    assert found["layers"]["names"] == ["stem", "image pool"]
    assert (found["layers"]["update"], found["layers"]["errors"]) == ([1, 3], [[0.5, None], [0.5, None]])
    assert found["memory"]["mebibytes"] == [4.0, 1.0]
    assert found["pictures"]["run"] == {"update": 3, "images": ["map 3"]}
    assert found["classes"] == [{"run": 0.5, "reference": 0.5}, {"run": None, "reference": None}]


def test_since_gives_only_what_is_new(store: Store, client: Client) -> None:
    run_id = finished(store, [measured(update) for update in range(1, 6)])
    found = client.get(f"/api/runs/{run_id}?since=4&reference_since=3").json
    assert found["run"]["update"] == [5]
    assert found["reference"]["columns"]["update"] == [4, 5]
    assert found["distance"]["update"] == [4, 5]
    assert found["layers"]["update"] == [5]
    nothing = client.get(f"/api/runs/{run_id}?since=5&reference_since=5").json
    assert nothing["run"]["update"] == nothing["distance"]["update"] == []
    assert nothing["pictures"] == {"run": None, "reference": None}


def test_a_very_long_run_is_thinned(store: Store, client: Client) -> None:
    length = 2 * MOST_POINTS + 1
    found = client.get(f"/api/runs/{finished(store, [record(update) for update in range(1, length + 1)])}").json
    updates = found["run"]["update"]
    assert len(updates) <= MOST_POINTS and updates[0] == 1 and updates[-1] == length
    assert len(found["reference"]["columns"]["update"]) <= MOST_POINTS


def rows(text: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text.decode())))


def test_csv_holds_every_update_of_both_runs(store: Store, client: Client) -> None:
    run_id = finished(store, [measured(1), record(2)])
    reply = client.get(f"/api/runs/{run_id}.csv?columns=loss,gradient_error,layers,weight_distance")
    assert reply.headers["content-disposition"] == f'attachment; filename="{run_id}_loss.csv"'
    first, second = rows(reply.body)
    assert first == {
        "update": "1", "samples": str(record(1).samples), "seconds": "0.1",
        "loss": "1.0", "gradient_error": "0.5", "weight_distance": "0.0",
        "reference_loss": "1.0", "reference_gradient_error": "0.5",
        "stem": "0.5", "image_pool": "",
    }  # fmt: skip
    assert second == dict.fromkeys(first, "") | {
        "update": "2", "samples": str(record(2).samples), "seconds": "0.2", "loss": "0.5", "reference_loss": "0.5",
    }  # fmt: skip
    assert {"miou", "cosine", "samples_per_second"} <= set(rows(client.get(f"/api/runs/{run_id}.csv").body)[0])


def test_an_unknown_column_is_refused_with_those_there_are(store: Store, client: Client) -> None:
    reply = client.get(f"/api/runs/{store.submit(CONFIG)}.csv?columns=loss,foo")
    assert reply.status == 400
    assert "columns = 'foo'" in reply.json["error"] and "gradient_error" in reply.json["error"]


def test_the_charts_script_is_served_compressed_and_kept(client: Client) -> None:
    packed = client.get(f"/{PLOTLY_ADDRESS}", **{"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip" and "immutable" in packed.headers["cache-control"]
    assert gzip.decompress(packed.body) == PLOTLY.read_bytes() == client.get(f"/{PLOTLY_ADDRESS}").body
    assert b"plotly.js (cartesian - minified) v4.1.1" in packed.body[:0] + PLOTLY.read_bytes()[:200]
    assert "MIT" in Path(PLOTLY.with_name("plotly-cartesian-LICENSE.txt")).read_text(encoding="utf-8")


def test_thirty_browsers_get_every_point_exactly_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_view, "LEAST_AGE", 0.002)
    run_id, _ = store.submit(CONFIG), store.submit(CONFIG.reference())
    run, reference = claimed(store), claimed(store)
    problems: list[BaseException] = []
    got: list[dict[str, list[Any]]] = []

    def browse(port: int) -> None:
        seen: dict[str, list[Any]] = {"run": [], "reference": [], "distance": [], "layers": []}
        ends = (0, 0)
        try:
            with Client(port) as client:
                while ends != (12, 12):
                    found = client.get(f"/api/runs/{run_id}?since={ends[0]}&reference_since={ends[1]}").json
                    seen["run"] += found["run"]["update"]
                    seen["reference"] += found["reference"]["columns"]["update"] if found["reference"] else []
                    seen["distance"] += found["distance"]["update"]
                    seen["layers"] += found["layers"]["update"]
                    ends = len(seen["run"]), len(seen["reference"])
        except BaseException as error:
            problems.append(error)
        got.append(seen)

    with served(store) as port:
        browsers = [threading.Thread(target=browse, args=(port,)) for _ in range(BROWSERS)]
        for browser in browsers:
            browser.start()
        for update in range(1, 13):
            run.write([measured(update)])
            if update % 3 == 0:
                reference.write([measured(before) for before in range(update - 2, update + 1)])
        for browser in browsers:
            browser.join()
    assert not problems
    everything = list(range(1, 13))
    assert got == [dict.fromkeys(("run", "reference", "distance", "layers"), everything)] * BROWSERS
