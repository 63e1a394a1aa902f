"""``sync_batch`` over two and four ranks (gloo): gradients, statistics and losses of one process with all samples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from over_ranks import Found, found
from test_torchrun import TRAIN, close, start

from experiments.cli import main

WORLDS = (2, 4)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Found]]:
    """What each rank of each world found."""
    return found("one_rank_sync_batch.py", tmp_path_factory.mktemp("ranks"), WORLDS)


@pytest.fixture(params=WORLDS)
def ranks(request: pytest.FixtureRequest, measured: dict[int, list[Found]]) -> list[Found]:
    return measured[request.param]


@pytest.mark.parametrize("sizes", ["equal", "one micro-batch each", "unequal", "a rank without a sample"])
def test_a_window_over_ranks_is_one_batch(ranks: list[Found], sizes: str):
    """Equal numbers of samples, one micro-batch a rank, unequal numbers of both, and empty ones."""
    for rank in ranks:
        assert max(rank[sizes]) <= 1e-12


def test_with_the_wrapper_of_torch_around_the_model(ranks: list[Found]):
    for rank in ranks:
        assert max(rank["wrapped"]) <= 1e-12


def test_a_rank_whose_loss_sees_no_layer_waits_for_none_in_vain(ranks: list[Found]):
    """Labels of one head on one rank alone, and a rank without any label: its samples shape the statistics."""
    for rank in ranks:
        assert max(rank["hidden"]) <= 1e-12


def test_what_would_leave_a_rank_waiting_is_refused_on_all(ranks: list[Found]):
    for rank in ranks:
        empty, single, shrinking = rank["refused"]
        assert "world_size = " in empty and "leaves a rank without a micro-batch" in empty
        assert "layer 1 has one value a channel in the whole window" in single
        assert "shrink_on_out_of_memory" in shrinking and "choose a smaller micro-batch" in shrinking


def test_two_ranks_under_torchrun_leave_the_json_of_one_process(tmp_path: Path, one_thread: None):
    """The command on the real data: the losses, weights and validation of BatchNorm over the undivided batch."""
    short = ["--updates", "2", "--norm", "sync_batch"]
    over_ranks = start(*short, "--json", str(tmp_path / "two.json"))
    try:
        whole = ["--updates", "2", "--norm", "batch", "--micro", "4", "--json", str(tmp_path / "one.json")]
        assert main([*TRAIN, *whole]) == 0
        _, err = over_ranks.communicate(timeout=120)
    finally:
        over_ranks.kill()
    assert over_ranks.returncode == 0, err
    one, two = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("one", "two"))
    assert [record["accumulation_steps"] for record in two["records"]] == [2, 2]
    assert two["metrics"].pop("gradient_error") <= 1e-12 >= one["metrics"].pop("gradient_error")
    close(two["metrics"], one["metrics"])
    for mine, theirs in zip(two["records"], one["records"], strict=True):
        for field in ("update", "samples", "loss", "terms", "gradient_norm"):
            close(mine[field], theirs[field])
