"""What a verdict says beside the gradient: updates, rates, ranks, numbers that are none, and logged values."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from accum_core.conformance.results import Measured
from accum_core.frameworks.harness.judge import Judge, Seen, judge_logged
from accum_core.frameworks.harness.oracle import Course
from accum_core.frameworks.harness.own_problems import own_problem


def judged(**seen: object) -> Measured:
    """Of one step of SGD on one batch, and what else is given."""
    problem = own_problem("equal")
    model, batch = problem.build(), problem.collate(problem.samples)
    problem.loss(model(batch["inputs"]), batch["labels"]).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    right = Seen(weights=weights, updates=1, final_lr=0.1, logged=(), seconds=0.0)
    return Judge(problem, "equal").measure(replace(right, **seen))  # type: ignore[arg-type]


def test_one_batch_is_exact() -> None:
    found = judged()
    assert (found.verdict, found.formula) == ("exact", "sum over weight")
    assert found.gradient_error is not None and found.gradient_error <= 1e-10


@pytest.mark.parametrize(
    ("seen", "explanation"),
    [
        ({"updates": 2}, "2 updates instead of 1."),
        ({"final_lr": 0.05}, "A last rate of 0.05 instead of 0.1."),
        ({"ranks_agree": False}, "The ranks hold different weights at the end."),
        ({"updates": 2, "final_lr": 0.05}, "2 updates instead of 1; a last rate of 0.05 instead of 0.1."),
    ],
)
def test_right_weights_are_not_all(seen: dict[str, object], explanation: str) -> None:
    found = judged(**seen)
    assert (found.verdict, found.explanation, found.formula) == ("wrong", explanation, "sum over weight")


def test_weights_that_are_no_numbers_are_wrong() -> None:
    model = own_problem("equal").build()
    weights = {name: torch.full_like(parameter, float("nan")) for name, parameter in model.named_parameters()}
    found = judged(weights=weights, logged=[float("nan"), 1.0])
    assert (found.verdict, found.gradient_error, found.logged) == ("wrong", None, (None, 1.0))
    assert found.explanation == "The weights are no longer finite."


# Two windows of 2 micro-batches: sums 10, 6 and 4, 20 over weights 1, 3 and 2, 2.
RAN = Course(
    weights={},
    updates=2,
    final_lr=0.1,
    losses=[
        {"sum over weight": 4, "mean of means": 6, "last micro-batch": 2, "first micro-batch": 10,
         "sum of means": 12, "mean over N again": 3, "last over N": 1, "sum": 16},
        {"sum over weight": 6, "mean of means": 6, "last micro-batch": 10, "first micro-batch": 2,
         "sum of means": 12, "mean over N again": 3, "last over N": 5, "sum": 24},
    ],
    micro_losses=[10, 2, 2, 10],
)  # fmt: skip


@pytest.mark.parametrize(
    ("logged", "verdict", "names"),
    [
        ([4.00003, 6], "exact", ["sum over weight"]),
        ([6, 6], "wrong", ["mean of means"]),
        ([2, 10], "wrong", ["last micro-batch"]),
        ([12, 12], "wrong", ["sum of means"]),
        ([10, 2, 2, 10], "wrong", ["every micro-batch"]),
        ([10, 6, 14 / 3, 6], "wrong", ["mean so far"]),
        ([6], "wrong", ["mean of the epoch"]),
        ([4], "wrong", []),
        ([], "user's duty", []),
    ],
)
def test_what_is_logged_is_named(logged: list[float], verdict: str, names: list[str]) -> None:
    found, _, named = judge_logged(logged, RAN)
    assert (found, named) == (verdict, names)
