"""The ways in which an epoch's samples become micro-batches, against values by hand."""

from __future__ import annotations

import pytest
from scalar_courses import ONE_TO_FIVE, by, end, scalar_problem

from accum_core.frameworks.harness.cuts import Cut, cuts
from accum_core.frameworks.harness.oracle import course


@pytest.mark.parametrize(
    ("cut", "weight", "updates"),
    [
        ("in order", -((1 + 2 + 3) / 3 + (4 + 5) / 2), 2),
        ("whole", -(1 + 2 + 3) / 3, 1),
        ("filled up", -((1 + 2 + 3) / 3 + (4 + 5 + 1) / 3), 2),
    ],
)
def test_a_smaller_last_micro_batch(cut: Cut, weight: float, updates: int) -> None:
    """1 to 5 in micro-batches of 3, each a window."""
    problem = scalar_problem(ONE_TO_FIVE, micro_batch_size=3, accumulation_steps=1)
    ran = course(problem, by("sum over weight", cut=cut))
    assert end(ran) == pytest.approx([weight], rel=1e-12)
    assert ran.updates == updates


@pytest.mark.parametrize(
    ("cut", "weight", "updates"),
    [
        ("in order", -(6 + 6) / 2, 1),  # 10 and 2 beside 6
        ("by turns", -(8 + 2) / 2, 1),  # 10 and 6 beside 2
        ("filled up", -(6 + 8) / 2, 1),  # 10 and 2 beside 6 and 10
        ("each rank all", -(6 + 6), 2),  # 10 and 2 beside themselves, then 6 beside itself
    ],
)
def test_samples_on_two_ranks(cut: Cut, weight: float, updates: int) -> None:
    """10, 2 and 6 in micro-batches of 2, one on each rank: the mean of their means."""
    problem = scalar_problem([[10.0], [2.0], [6.0]], micro_batch_size=2, accumulation_steps=1, world_size=2)
    ran = course(problem, by("mean of means over the window's micro-batches", cut=cut))
    assert end(ran) == pytest.approx([weight], rel=1e-12)
    assert ran.updates == updates


def test_only_cuts_that_differ_are_tried() -> None:
    """Five samples in twos leave one over; four leave none, so that nothing can be left out or filled up."""
    five = scalar_problem(ONE_TO_FIVE, micro_batch_size=2, accumulation_steps=2).settings
    assert list(cuts(5, five)) == [("in order", True), ("whole", False), ("filled up", True)]
    assert list(cuts(4, five)) == [("in order", False)]


def test_a_loader_that_drops_a_smaller_micro_batch_leaves_a_short_window() -> None:
    """10 samples in fours, N = 3: of the two whole micro-batches nothing is stepped where a window must be full."""
    samples = [[float(value)] for value in range(10)]
    problem = scalar_problem(samples, micro_batch_size=4, accumulation_steps=3)
    assert end(course(problem, by("sum over weight", cut="whole", tail="dropped"))) == [0]
    assert end(course(problem, by("sum over weight", cut="whole"))) == pytest.approx([-3.5], rel=1e-12)
