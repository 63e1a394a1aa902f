"""Over two ranks, parameters that come with a live change of norm are exchanged like the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from one_rank_norms import SETTINGS, Script
from over_ranks import found
from tiny_workload import stand_in, tiny

from accum_core.engine import Training


def test_a_live_change_over_two_ranks_is_that_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each rank passes half of a window; the norms are exact, so the course is that of one process."""
    stand_in(monkeypatch)
    alone = Training(tiny(**SETTINGS))
    losses = [record.loss for record in alone.run(Script())]
    ranks = found("one_rank_norms.py", tmp_path, (2,))[2]
    for rank in ranks:
        assert rank["losses"] == pytest.approx(losses, rel=1e-9)
        for name, parameter in alone.model.named_parameters():
            assert rank["weights"][name] == pytest.approx(parameter.flatten().tolist(), rel=1e-9, abs=1e-12), name
    assert ranks[0]["weights"] == ranks[1]["weights"]
