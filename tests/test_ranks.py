"""Two ranks under torch.distributed (gloo) with DistributedDataParallel, each in its own process.

The expected gradients are those of one process that sees both ranks' samples.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RANK = Path(__file__).with_name("one_rank.py")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks found."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(RANK.parent.parent)}
    processes = [
        subprocess.Popen(
            [sys.executable, str(RANK), str(rank), str(folder)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    messages = []
    try:
        messages = [process.communicate(timeout=120)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], messages
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_s2_tokens_of_all_ranks_divide_the_sum(ranks: list[dict[str, Any]]):
    """S2: 1 token with gradient 10 on one rank, 3 with gradient 2 on the other: 4.0, not each rank's mean, 6.0."""
    for found in ranks:
        assert found["exact"] == pytest.approx({"gradient": 4.0, "loss": 4.0, "weight": 4.0}, rel=1e-12)
        assert found["samples"] == (1 if found["rank"] == 0 else 3)


def test_the_mean_of_means_over_ranks_is_what_other_loops_compute(ranks: list[dict[str, Any]]):
    """Each rank's mean, averaged over ranks: (10 + 2) / 2 = 6; the loss told is still the weighted mean."""
    for found in ranks:
        assert found["mean_of_means"] == pytest.approx({"gradient": 6.0, "loss": 4.0, "weight": 4.0}, rel=1e-12)


def test_ragged_windows_over_ranks_equal_one_process(ranks: list[dict[str, Any]]):
    """Micro-batches of 3, 1 on one rank and 2, 2 on the other, some labels ignored, classes weighted."""
    for found in ranks:
        assert found["against_full_batch"] <= 1e-12
        assert found["against_loss"] <= 1e-12


def test_d35_every_micro_batch_of_every_rank_counts(ranks: list[dict[str, Any]]):
    """D35: gradients 1 and 3 on one rank, 5 and 7 on the other: 4 on both, not 3 and 5."""
    assert [found["exchanged"] for found in ranks] == pytest.approx([4.0, 4.0], rel=1e-12)


def test_d34_a_window_costs_one_reduction_of_the_gradients(ranks: list[dict[str, Any]]):
    """D34: three micro-batches a rank, one bucket: one all-reduce of gradients, not one a micro-batch."""
    assert [found["reductions"] for found in ranks] == [1, 1]


def test_a_world_that_is_not_there_is_refused(ranks: list[dict[str, Any]]):
    for found in ranks:
        assert "world_size = 3" in found["refusal"]
        assert "2 rank" in found["refusal"]
