"""The table of exactness: it leaves no combination out, and what it expects is what arithmetic gives."""

from __future__ import annotations

import math
from itertools import product
from types import MappingProxyType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accum_core import catalogue
from accum_core.engine import CrossEntropy
from accum_core.engine.reference import reference_gradient
from benchmarks.exactness import report
from benchmarks.exactness.cases import TYPES, Case, cases, coefficients, sees_the_window
from benchmarks.exactness.gradients import gradient, gradients
from benchmarks.exactness.judge import Row, expected_gradient, judged
from benchmarks.exactness.network import NUMBERS, network, window

quick = settings(max_examples=30, deadline=None)
weights = st.lists(st.lists(st.integers(1, 500).map(float), min_size=1, max_size=2), min_size=4, max_size=4)


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """As the table is measured."""


def case(**settings: Any) -> Case:
    plain: dict[str, Any] = {
        "norm": "group", "reduction": "exact", "tail": "full window", "precision": "float64", "world_size": 1,
        "checkpointing": False,
    }  # fmt: skip
    return Case(**plain | settings)


def test_every_combination_is_there_once():
    norms = catalogue.entries("norms")
    windows = ("full window", "rescale", "drop", "divide_by_n")
    reductions = ("exact", "mean_of_means", "sum_of_means", "sum")
    every = product(norms, reductions, windows, NUMBERS, (1, 2, 4), (False, True))
    found = cases()
    assert len(found) == len(norms) * 4 * 4 * 5 * 3 * 2
    assert set(found) == {Case(*choice) for choice in every}


# What multiplies each micro-batch's summed loss.


@quick
@given(weights)
def test_coefficients_times_weights_are_each_reductions_total(own: list[list[float]]):
    """Each micro-batch's loss is its weight times a mean of 1, so the window's is sum(c w): 1 where it is divided, of
    4 ranks with n micro-batches each sum(n) / 4 for the sum of means, and sum(w) / 4 for the sum."""

    def total(reduction: str) -> float:
        found = coefficients(case(reduction=reduction, world_size=4), own)
        pairs = zip(found, own, strict=True)
        return sum(c * w for factors, held in pairs for c, w in zip(factors, held, strict=True))

    assert total("exact") == pytest.approx(1, rel=1e-12)
    assert total("mean_of_means") == pytest.approx(1, rel=1e-12)
    assert total("sum_of_means") == pytest.approx(sum(map(len, own)) / 4, rel=1e-12)
    assert total("sum") == pytest.approx(sum(map(sum, own)) / 4, rel=1e-12)


def test_coefficients_of_a_tail_worked_out_by_hand():
    """Two ranks, N = 3 (micro-batches of 4, 4 and 2), a tail of micro-batches that weigh 6 and 2 on one rank, 4 on the
    other."""
    tail = {"world_size": 2, "tail": "divide_by_n"}
    own = [[6.0, 2.0], [4.0]]
    assert coefficients(case(**tail), own) == [pytest.approx([1 / 12 * 3 / 6] * 2), pytest.approx([1 / 12 * 3 / 6])]
    means = coefficients(case(**tail, reduction="mean_of_means"), own)
    assert means == [pytest.approx([1 / 6 / 3 / 2, 1 / 2 / 3 / 2]), pytest.approx([1 / 4 / 3 / 2])]
    rescaled = coefficients(case(world_size=2, tail="rescale", reduction="mean_of_means"), own)
    assert rescaled == [pytest.approx([1 / 6 / 2 / 2, 1 / 2 / 2 / 2]), pytest.approx([1 / 4 / 1 / 2])]


# What each gradient must be.


@pytest.mark.parametrize("norm", ["group", "none"])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_the_expected_gradient_of_exact_is_the_oracles(norm: str, world: int):
    """The reference that the engine's tests trust, of the whole window in one pass."""
    asked = case(norm=norm, world_size=world)
    micro_batches = [part for own in window(asked.samples, asked.plan) for part in own]
    inputs, labels = (torch.cat(parts) for parts in zip(*micro_batches, strict=True))
    model = network(norm, asked.plan)
    found = reference_gradient(model, inputs, labels, CrossEntropy(), dtype=torch.float64).by_parameter
    oracle = torch.cat([tensor.flatten() for tensor in found.values()])
    assert torch.linalg.vector_norm(expected_gradient(asked) - oracle) <= 1e-13 * torch.linalg.vector_norm(oracle)


@pytest.mark.parametrize(("world", "short"), [(1, 3 / 5), (2, 3 / 6), (4, 4 / 8)])
def test_wrong_rows_have_the_errors_of_their_closed_forms(world: int, short: float):
    """A tail of 9 in micro-batches of 4: 3 passes of 5; 2 and 1 of 3 each on 2 ranks; 1 of 2 on each of 4. Divided as
    if it were full it is n / N of what it should be, and nothing divided leaves the labels that one rank has."""
    tail = {"world_size": world, "tail": "divide_by_n"}
    held = window(case(**tail).samples, case(**tail).plan)
    assert sum(map(len, held)) == short * world * case(**tail).plan.accumulation_steps
    labels = sum(int((labels >= 0).sum()) for own in held for _, labels in own)
    for norm in ("group", "layer"):
        exact, summed = (case(norm=norm, reduction=reduction, **tail) for reduction in ("exact", "sum"))
        assert judged(exact, expected_gradient(exact)).expected == pytest.approx(1 - short, rel=1e-12)
        assert judged(summed, expected_gradient(summed)).expected == pytest.approx(labels / world - 1, rel=1e-12)


def test_the_mean_of_means_is_wrong_by_what_each_micro_batchs_own_mean_gives():
    """Of 5 micro-batches, each passed alone: the mean of their mean gradients, against the window's."""
    asked = case(reduction="mean_of_means")
    (held,) = window(asked.samples, asked.plan)
    model = network("group", asked.plan)

    def mean(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = torch.nn.functional.cross_entropy(model(inputs), labels, ignore_index=-100)
        return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))])

    inputs, labels = (torch.cat(parts) for parts in zip(*held, strict=True))
    whole = mean(inputs, labels)
    of_means = sum(mean(*micro_batch) for micro_batch in held) / 5
    off = torch.linalg.vector_norm(of_means - whole) / torch.linalg.vector_norm(whole)
    assert off > 0.01
    assert judged(asked, expected_gradient(asked)).expected == pytest.approx(float(off), rel=1e-10)


def test_a_norm_whose_file_says_that_it_is_exact_must_be(monkeypatch: pytest.MonkeyPatch):
    norms = {"batch": {"BATCH_INDEPENDENT": False}, "window": {"BATCH_INDEPENDENT": False}, "group": {}}
    norms["window"]["EXACT_UNDER_ACCUMULATION"] = norms["group"]["BATCH_INDEPENDENT"] = True
    monkeypatch.setattr(catalogue, "entries", lambda kind: MappingProxyType(norms))
    assert [sees_the_window(norm) for norm in norms] == [False, True, True]
    assert [case(norm=norm).is_exact for norm in norms] == [False, True, True]


# Rows.


@pytest.mark.parametrize("precision", TYPES)
@pytest.mark.parametrize("settings", [{}, {"norm": "batch"}, {"reduction": "sum", "tail": "divide_by_n"}], ids=str)
def test_the_engines_gradient_is_what_it_must_be(precision: str, settings: dict[str, Any]):
    for checkpointing in (False, True):
        asked = case(**settings, precision=precision, checkpointing=checkpointing)
        assert judged(asked, gradient(asked)).holds


def test_ranks_make_what_they_must():
    """2 ranks, of which one makes two passes of the tail and the other one."""
    asked = [
        case(world_size=2, tail="divide_by_n", reduction=reduction, norm=norm)
        for reduction, norm in product(("exact", "mean_of_means"), ("group", "batch"))
    ]
    assert all(judged(case, found).holds for case, found in gradients(asked).items())


def test_a_dropped_tail_makes_no_update_and_only_that_holds():
    asked = case(tail="drop")
    assert gradient(asked) is None
    assert judged(asked, None).holds
    assert not judged(asked, expected_gradient(asked)).holds
    assert not judged(case(), None).holds


@pytest.mark.parametrize("settings", [{}, {"norm": "batch"}, {"reduction": "sum"}], ids=str)
def test_another_gradient_does_not_hold(settings: dict[str, Any]):
    """Off by twice the bound of each type, in one direction; the error of a gradient turned round is as large."""
    for precision, bound in zip(TYPES, (1e-12, 1e-5, 2**-6, 2**-9, 2**-6), strict=True):
        asked = case(**settings, precision=precision)
        right = expected_gradient(asked)
        assert judged(asked, right * (1 + bound / 2)).holds
        assert not judged(asked, right * (1 + bound * 2)).holds
    turned = judged(case(), -expected_gradient(case()))
    assert turned.distance == pytest.approx(2, rel=1e-12)
    assert not turned.holds


def test_the_report_tells_each_row_and_counts_those_that_do_not_hold():
    every = [one for one in cases() if one.norm in ("batch", "group")]
    rows = [Row(one) if one.tail == "drop" else Row(one, 0.25, 0.25, 0.0, 0.0) for one in every]
    rows[0] = Row(rows[0].case, 0.75, 0.25, math.inf, 0.0)
    text = report.text(rows)
    assert "960 combinations: 2 norms" in text
    assert "959 hold, 1 do not" in text
    assert "240 of them the rule is drop" in text
    lines = [line for line in text.splitlines() if line.startswith(("| batch |", "| group |"))]
    assert len(lines) == 2 * 5 * 12
    assert [line for line in lines if "**no**" in line] == [line for line in lines if "0.75" in line]
