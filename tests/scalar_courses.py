"""Problems whose weights move by gradients that are the data, for the courses of formulas."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from scalar_tasks import IGNORED, Scalars, scalar_task

from accum_core.frameworks.contract import Batch, Sample
from accum_core.frameworks.harness.formulas import DIVISIONS, OVER_RANKS, Formula
from accum_core.frameworks.harness.oracle import Course
from accum_core.frameworks.harness.problem import Problem

ONE_TO_FIVE = [[1.0], [2.0], [3.0], [4.0], [5.0]]


def scalar_problem(samples: Sequence[Sequence[Any]], *, start: Sequence[float] = (0.0,), **settings: Any) -> Problem:
    """A loss whose gradient is the value; a rate of 1."""
    task = scalar_task(samples, Path(), start=start, **settings)
    return Problem(
        settings=task.settings,
        build=lambda: Scalars(start),
        samples=task.samples,
        collate=padded,
        loss=task.loss,
        total=task.total,
        weight=task.weight,
    )


def padded(samples: Sequence[Sample]) -> Batch:
    """Labels behind a sample's end are ignored."""
    fill = {"inputs": 0, "labels": IGNORED}
    pad = torch.nn.utils.rnn.pad_sequence
    return {name: pad([one[name] for one in samples], batch_first=True, padding_value=fill[name]) for name in fill}


def by(division: str, **parts: Any) -> Formula:
    """A formula by the name of its division; its other parts are right where nothing is said."""
    return Formula(division, {**DIVISIONS, **OVER_RANKS}[division], **parts)


def end(ran: Course) -> list[float]:
    weights: list[float] = ran.weights["weights"].tolist()
    return weights
