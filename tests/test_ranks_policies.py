"""What two and four ranks decide together: to skip, to stop, to take smaller micro-batches; and trainings over them.

A training over several ranks must leave the records of one process that passes the same windows.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from one_rank_policies import LITTLE, RUNS, trained, workload_of
from over_ranks import Found, found
from tiny_workload import stand_in, tiny

from accum_core.engine import Training
from accum_core.engine.sampling import WindowSampler, micro_batch_sizes

WORLDS = (2, 4)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Found]]:
    """What each rank of each world found."""
    return found("one_rank_policies.py", tmp_path_factory.mktemp("ranks"), WORLDS)


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def ranks(measured: dict[int, list[Found]], world: int) -> list[Found]:
    return measured[world]


# Gradients that are not finite.


def test_d38_a_micro_batch_that_is_not_finite_is_left_out_on_one_rank_and_counted_on_all(
    ranks: list[Found], world: int
):
    """D38: one NaN on rank 1, then a window in which rank 1 has nothing else. w = 2 minus each window's mean.

    Per rank 1 and 2; then 3 and 2, of rank 1 the 3 alone; then 2 and 2, of rank 1 nothing.
    """
    means = 1.5, (5 * world - 2) / (2 * world - 1), 2.0
    for rank in ranks:
        assert rank["skip_micro_batch"]["skipped"] == [0, 1, 2]
        assert rank["skip_micro_batch"]["made"] == [True, True, True]
        assert rank["skip_micro_batch"]["kinds"] == ["skipped_micro_batches"] * 2
        assert rank["skip_micro_batch"]["weight"] == pytest.approx(2 - sum(means), rel=1e-12)
    assert len({rank["skip_micro_batch"]["weight"] for rank in ranks}) == 1


def test_d38_a_window_that_is_not_finite_on_one_rank_is_skipped_on_all(ranks: list[Found]):
    """D38: the second and third windows make no update anywhere: w = 2 - 1.5."""
    for rank in ranks:
        assert rank["skip_window"]["made"] == [True, False, False]
        assert rank["skip_window"]["kinds"] == ["non_finite"] * 2
        assert rank["skip_window"]["counts"][-1] == 2
        assert rank["skip_window"]["weight"] == 0.5


def test_d38_all_ranks_stop_by_the_same_sentence(ranks: list[Found]):
    for rank in ranks:
        assert rank["stop"].startswith("loss = nan at update 2:")


def test_an_overflow_on_one_rank_skips_the_update_on_all(ranks: list[Found]):
    """Scaled by 1024, gradients of 1000 overflow on rank 1 alone. Then 2 on all: w = 1 - 2, at half the scale."""
    for rank in ranks:
        first, second = rank["overflow"]["updates"]
        assert (first["made"], first["kinds"]) == (False, ["overflow"])
        assert (second["made"], second["kinds"]) == (True, [])
        assert (rank["overflow"]["scale"], rank["overflow"]["skipped"]) == (512.0, 1)
        assert rank["overflow"]["weight"] == -1.0


# Memory.


def test_d45_all_ranks_go_on_with_what_the_smallest_one_holds(ranks: list[Found]):
    """D45: 8 samples a rank; rank 1 holds 8, 3 or 1 at once, the others all: micro-batches of 8, 2 and 1 everywhere,
    and the gradient of all samples."""
    for rank in ranks:
        for tried, micro in zip(rank["shrunk"], (8, 2, 1), strict=False):
            assert (tried["micro"], tried["steps"]) == (micro, 8 // micro)
            assert tried["last"] == [micro] * (8 // micro)
            assert tried["error"] <= 1e-12


def test_d45_where_one_sample_does_not_fit_on_one_rank_all_say_so(ranks: list[Found]):
    for rank in ranks:
        assert rank["shrunk"][3]["refused"].startswith("micro_batch_size = 1: ")
        assert rank["shrunk"][3]["left"] == 0


def test_d45_a_training_shrinks_on_all_ranks_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, ranks: list[Found], world: int
):
    """Micro-batches of 2, of which rank 1 holds 1: from update 1 on N is 8 / world, told there alone."""
    stand_in(monkeypatch)(num_samples=24)
    for rank in ranks:
        records = [json.loads(record) for record in rank["little_memory"]]
        assert [record["micro_batch_size"] for record in records] == [1, 1, 1]
        assert [record["accumulation_steps"] for record in records] == [8 // world] * 3
        told = [[incident["kind"] for incident in record["incidents"]] for record in records]
        assert told == [["out_of_memory"], [], []]
        for record, one in zip(records, Training(tiny(**LITTLE)).run(), strict=True):
            assert (record["loss"], record["gradient_norm"]) == pytest.approx((one.loss, one.gradient_norm), rel=1e-10)


# Counting.


def test_c23_samples_are_counted_over_all_ranks(ranks: list[Found], world: int):
    """C23: 12 micro-batches of 8 on each of two ranks, N = 4: 3 updates, 192 samples."""
    for rank in ranks:
        assert rank["counts"] == [3, 12 * 8 * world, 12, 0]


@pytest.mark.parametrize(
    ("ranks", "samples", "sizes"), [(1, 29, {2, 1}), (2, 29, {2, 1}), (2, 28, {2}), (4, 30, {2, 1})]
)
def test_every_micro_batch_size_of_every_rank_is_known_before_training(ranks: int, samples: int, sizes: set[int]):
    """Windows of 8 in micro-batches of 2; of a tail of 5 two ranks take 2 + 1 and 2, of one of 6 four 2, 2, 1, 1."""
    sampler = WindowSampler(samples, drop_tail=False, seed=0)
    assert set(micro_batch_sizes(tiny(tail="rescale"), sampler, ranks)) == sizes


# Trainings.

OF_ONE_RANK = {"seconds", "samples_per_second", "micro_batches", "accumulation_steps", "instruments", "validation"}


@pytest.mark.parametrize("name", RUNS)
def test_a_training_over_ranks_leaves_the_records_of_one_process(
    monkeypatch: pytest.MonkeyPatch, ranks: list[Found], world: int, name: str
):
    """GroupNorm in float64, tails that leave ranks without a sample. C20: the rate of update k is that of one process.

    Every rank agrees, rank 0 alone measures and validates.
    """
    monkeypatch.setattr("accum_core.engine.training.load", lambda _: workload_of(name))
    expected = [json.loads(record) for record in trained(name)]
    for number, rank in enumerate(ranks):
        records = [json.loads(record) for record in rank["runs"][name]]
        assert len(records) == len(expected)
        for record, one in zip(records, expected, strict=True):
            close(record, one, without=OF_ONE_RANK)
            assert record["learning_rate"] == one["learning_rate"]
            assert record["accumulation_steps"] * world == one["accumulation_steps"]
            if number:
                assert record["validation"] is None and record["instruments"] == {}
            else:
                close(record["validation"], one["validation"])
                assert record["instruments"].keys() == one["instruments"].keys()
                if measured := record["instruments"].get("gradient_error"):
                    assert measured["relative_error"] <= 1e-12
                if measured := record["instruments"].get("micro_gradient_norms"):
                    norms = one["instruments"]["micro_gradient_norms"]["norms"]
                    assert measured["norms"] == pytest.approx(norms[: len(measured["norms"])], rel=1e-10)


def close(found: Any, expected: Any, without: set[str] = frozenset()) -> None:
    """Equal to 1e-10 in every number, and equal in everything else."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected.keys() - without:
            close(found[key], expected[key])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            close(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-10, abs=1e-13, nan_ok=True)
    else:
        assert found == expected
