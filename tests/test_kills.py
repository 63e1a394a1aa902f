"""kill -9 at instants spread over a run: what comes out is bit-equal to a run that nobody touched.

``make bench`` does the same at fifty random instants.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import kills

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_killed_and_resumed_run_ends_bit_equal(tmp_path: Path) -> None:
    expected, _ = kills.untouched(tmp_path)
    updates = [json.loads(record)["update"] for record in expected.records]
    assert updates == list(range(1, kills.CONFIG.updates + 1))
    for update, delay in ((0, 0.05), (4, 0.0), (8, 0.02)):
        ending, recorded = kills.killed(tmp_path, update, delay)
        assert kills.equal(ending, expected)
        assert update <= recorded < kills.CONFIG.updates


def test_one_bit_is_a_difference(tmp_path: Path) -> None:
    expected, _ = kills.untouched(tmp_path)
    name = next(iter(expected.weights))
    tensor = expected.weights[name].clone()
    first = (0,) * tensor.dim()
    tensor[first] = tensor[first].nextafter(tensor.new_tensor(9.0))
    assert not kills.equal(expected, expected._replace(weights={**expected.weights, name: tensor}))
    assert not kills.equal(expected, expected._replace(records=expected.records[:-1]))
