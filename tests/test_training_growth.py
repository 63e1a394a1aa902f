"""Trainings whose batch grows or is scaled, in other number types, and the numbers that each rank draws.

Expected values are worked out: sizes and rates from the settings, losses from float32 within the lower type's bits.
"""

from __future__ import annotations

import copy
import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from tiny_workload import Use, same, stand_in, tiny, weights
from torch import Tensor

from accum_core.engine import Training, train
from accum_core.engine.reproducible import reproducible
from accum_core.records import RunConfig, UpdateRecord


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    return stand_in(monkeypatch)


def finish(config: RunConfig) -> tuple[list[UpdateRecord], dict[str, Tensor]]:
    training = Training(config)
    return list(training.run()), weights(training.state_dict())


@pytest.mark.parametrize("micro", [2, 4])
def test_n_grows_where_the_schedule_would_divide_the_rate(use: Use, micro: int):
    """Smith et al. 2018, factor 1/2 after updates 2 and 4: windows of 4, 8 and 16 at one rate; 56 samples are two
    epochs of 28, in each of which every sample comes once across the changes. One true batch stays one."""
    workload = use(num_samples=28)
    config = tiny(
        effective_batch_size=4, micro_batch_size=micro, updates=7, warmup_updates=0, schedule="step", decay="batch",
        milestones=(2, 4), decay_factor=0.5, tail="rescale",
    )  # fmt: skip
    records, _ = finish(config)
    sizes = [4, 4, 8, 8, 4, 16, 12]
    assert [len(window) for window in workload.windows] == sizes
    assert sorted(sum(workload.windows[:5], [])) == sorted(sum(workload.windows[5:], [])) == list(range(28))
    assert [record.samples for record in records] == [sum(sizes[:k]) for k in range(1, 8)]
    assert {record.learning_rate for record in records} == {0.1}
    growth = [1, 1, 2, 2, 4, 4, 4]
    split = [(micro, n * 4 // micro) for n in growth] if micro < 4 else [(4 * n, 1) for n in growth]
    assert [(record.micro_batch_size, record.accumulation_steps) for record in records] == split


@pytest.mark.parametrize(
    ("largest", "sizes", "shares"),
    [
        (None, [4, 8, 16, 32], [1, 1, 1, 1]),
        (31, [4, 8, 16, 16], [1, 1, 1, 1 / 2]),
        (8, [4, 8, 8, 8], [1, 1, 1 / 2, 1 / 4]),
        (4, [4, 4, 4, 4], [1, 1 / 2, 1 / 4, 1 / 8]),
    ],
)
def test_where_the_batch_may_not_grow_the_rate_falls(
    use: Use, largest: int | None, sizes: list[int], shares: list[float]
):
    """Three milestones of 1/2, at each of which rate / batch halves, one way or the other."""
    use(num_samples=64)
    config = tiny(
        effective_batch_size=4, micro_batch_size=2, updates=4, warmup_updates=0, schedule="step", decay="batch",
        milestones=(1, 2, 3), decay_factor=0.5, largest_batch_size=largest,
    )  # fmt: skip
    records, _ = finish(config)
    assert [record.micro_batch_size * record.accumulation_steps for record in records] == sizes
    assert [record.learning_rate for record in records] == pytest.approx([0.1 * share for share in shares])


def test_the_corrected_momentum_follows_n(use: Use):
    """B39: 1 - (1 - 0.1)^(1 / N) with N = 2, then 4 when the batch has grown, in the averaged network as well; also
    for a run gone on with after it grew."""
    config = tiny(
        effective_batch_size=4, micro_batch_size=2, updates=4, warmup_updates=0, schedule="step", decay="batch",
        milestones=(2,), decay_factor=0.5, norm="batch_corrected", average_decay=0.9,
    )  # fmt: skip
    training = Training(config)
    found = []
    for record in training.run():
        found.append(training.model.get_submodule("stem.1").momentum)
        if record.update == 3:
            other = Training(config)
            other.load_state_dict(copy.deepcopy(training.state_dict()))
    assert found == pytest.approx([1 - 0.9 ** (1 / n) for n in (2, 2, 4, 4)], rel=1e-12)
    list(other.run())
    assert same(weights(other.state_dict()), weights(training.state_dict()))


def test_with_the_rate_the_batch_stays_and_the_rate_falls(use: Use):
    config = tiny(updates=6, warmup_updates=0, schedule="step", milestones=(2, 4), decay_factor=0.5)
    records, _ = finish(config)
    assert [record.learning_rate for record in records] == [0.1, 0.1, 0.05, 0.05, 0.025, 0.025]
    assert {record.accumulation_steps for record in records} == {4}


@pytest.mark.parametrize(
    ("settings", "rate", "beta2"),
    [
        ({"scaling": "linear"}, 0.1 * 8 / 32, 0.999),
        ({"scaling": "square_root"}, 0.1 * math.sqrt(8 / 32), 0.999),
        ({"scaling": "half_life", "optimizer": "adamw"}, 0.1, 0.999 ** (8 / 32)),
    ],
)
def test_rules_of_scaling_reach_the_optimizer(use: Use, settings: Any, rate: float, beta2: float):
    """From a batch of 32 to 8: the rate by 1/4 or 1/2, beta2 at the half-life in samples, 0.999^(1/4)."""
    config = tiny(**settings, warmup_updates=0, updates=1, base_batch_size=32)
    assert next(train(config)).learning_rate == pytest.approx(rate, rel=1e-12)
    assert config.scaled_beta2 == pytest.approx(beta2, rel=1e-12)


@pytest.mark.parametrize(
    ("precision", "bound"), [("bfloat16_autocast", 0.03), ("float16_autocast", 0.005), ("bfloat16", 0.05)]
)
def test_number_types_train_close_to_float32(use: Use, precision: Any, bound: float):
    """The first window's loss and gradient norm, N = 4, and a run that stays finite with adamw and clipping."""
    expected = next(train(tiny(precision="float32")))
    config = tiny(precision=precision, optimizer="adamw", learning_rate=0.01, clip_norm=1.0, average_decay=0.9)
    records, final = finish(config)
    assert records[0].loss == pytest.approx(expected.loss, rel=bound)
    assert records[0].gradient_norm == pytest.approx(expected.gradient_norm, rel=bound)
    assert len(records) == 10
    assert all(tensor.isfinite().all() for tensor in final.values())


def test_every_rank_draws_its_own_numbers_of_every_library():
    """And the same again for the same seed, update and rank."""

    def draws(rank: int) -> list[float]:
        with reproducible(3, 5, torch.device("cpu"), rank):
            return [torch.rand(()).item(), float(np.random.rand()), random.random()]

    assert draws(1) == draws(1)
    for first, second in zip(draws(0), draws(1), strict=True):
        assert first != second
