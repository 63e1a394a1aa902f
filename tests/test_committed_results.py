"""What the committed results say of themselves is what their records say when they are read anew."""

from __future__ import annotations

import pytest

import experiments
from accum_core.result_file import ResultFile
from experiments.report import findings

COMMITTED = [name for name in experiments.discover() if experiments.result_path(name).exists()]


@pytest.mark.parametrize("name", COMMITTED)
def test_verdicts_are_those_of_the_records(name: str) -> None:
    """A card tells the verdicts of the first line, the opened paper those of the runs: of a long run the file keeps
    only some records, so a measure must not count them."""
    result = ResultFile.read(experiments.result_path(name))
    found = findings.find(experiments.find(name), result)
    for one, written in zip(found.judged, result.claims, strict=True):
        assert (one.claim.id, one.verdict.verdict, one.verdict.num_seeds) == (
            written.id,
            written.verdict,
            written.num_seeds,
        )
        told = (one.verdict.effect, one.verdict.low, one.verdict.high)
        assert told == pytest.approx((written.effect, written.low, written.high), rel=1e-9, abs=1e-15)
