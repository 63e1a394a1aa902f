"""Records put together by epoch: a mean by samples, worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from accum_core.epochs import epoch_losses
from accum_core.records import UpdateRecord


@dataclass
class Made:
    """What is read of a record."""

    update: int
    epoch: int
    samples: int
    loss: float


def records(*rows: tuple[int, int, int, float]) -> list[UpdateRecord]:
    return cast(list[UpdateRecord], [Made(*row) for row in rows])


def test_windows_count_by_their_samples() -> None:
    """Windows of 2, 2 and 4, then 4: (2 x 8 + 2 x 4 + 4 x 1) / 8 = 3.5, and 2."""
    found = epoch_losses(records((1, 0, 2, 8.0), (2, 0, 4, 4.0), (3, 0, 8, 1.0), (4, 1, 12, 2.0)))
    assert found == [(1, 3, pytest.approx(3.5)), (2, 4, pytest.approx(2.0))]
    assert found[0].update == 3 and found[1].epoch == 2


def test_no_records_have_no_epochs() -> None:
    assert epoch_losses([]) == []


def test_an_epoch_that_no_window_began_in_is_left_out() -> None:
    """With a batch of the whole set, dropped tails, or a restart of the order."""
    found: Any = epoch_losses(records((1, 0, 5, 1.0), (2, 2, 10, 3.0)))
    assert [(row.epoch, row.loss) for row in found] == [(1, 1.0), (3, 3.0)]
