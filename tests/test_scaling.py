"""The rules for a changed effective batch: values from the papers, and what each rule promises to keep."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from small_nets import Product, ProductLoss, product_batches
from tiny_workload import Use, stand_in, tiny

from accum_core.engine import train
from accum_core.engine.accumulate import accumulate_gradients
from accum_core.engine.controls import QueueControls
from accum_core.errors import SettingError
from accum_core.records import Message, RunConfig
from accum_core.scaling import (
    Stage,
    beta_at_equal_half_life,
    growing_batch,
    half_life,
    linear_rate,
    square_root_rate,
    stage_of,
)

batches = st.integers(1, 65536)
rates = st.floats(1e-6, 10)
quick = settings(max_examples=50, deadline=None)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    return stand_in(monkeypatch)


# Learning rates.


def test_linear_scaling_gives_goyals_rate():
    """Goyal et al. 2017: 0.1 at 256 images becomes 0.1 x 8192 / 256 = 3.2 at 8192."""
    assert linear_rate(0.1, 256, 8192) == pytest.approx(3.2, rel=1e-15)


@quick
@given(st.integers(1, 8), st.floats(-3, 3), st.floats(0.01, 1))
def test_one_scaled_update_is_k_small_ones_where_the_gradient_is_constant(k: int, slope: float, rate: float):
    """The loss w x has gradient x everywhere: k steps of SGD at the rate are one step at k times the rate."""
    small, large = Product(), Product()
    optimizer = torch.optim.SGD(small.parameters(), lr=rate)
    for _ in range(k):
        accumulate_gradients(small, product_batches([slope] * 2), ProductLoss())
        optimizer.step()
    accumulate_gradients(large, product_batches(*[[slope] * 2] * k), ProductLoss())
    torch.optim.SGD(large.parameters(), lr=linear_rate(rate, 2, 2 * k)).step()
    assert float(large.weight.detach()) == pytest.approx(float(small.weight.detach()), rel=1e-12, abs=1e-15)


@quick
@given(rates, batches, batches)
def test_the_square_root_keeps_the_variance_of_a_step(rate: float, base: int, new: int):
    """The mean of B independent samples of variance v has v / B, a step of it rate^2 v / B."""
    scaled = square_root_rate(rate, base, new)
    assert scaled**2 / new == pytest.approx(rate**2 / base, rel=1e-12)


def test_four_times_the_batch_doubles_the_rate_by_the_square_root():
    assert square_root_rate(0.1, 64, 256) == pytest.approx(0.2, rel=1e-15)
    assert square_root_rate(0.1, 256, 64) == pytest.approx(0.05, rel=1e-15)


@pytest.mark.parametrize("rule", [linear_rate, square_root_rate])
@quick
@given(rate=rates, sizes=st.tuples(batches, batches, batches))
def test_two_changes_of_the_batch_are_one(rule: Any, rate: float, sizes: tuple[int, int, int]):
    first, second, third = sizes
    twice = rule(rule(rate, first, second), second, third)
    assert twice == pytest.approx(rule(rate, first, third), rel=1e-12)
    assert rule(rate, first, first) == rate


# The gradual warm-up to a scaled rate.


@quick
@given(rates, batches, batches, st.integers(1, 50), st.sampled_from(["linear", "square_root"]))
def test_a_raised_rate_is_warmed_up_from_the_base_rate(rate: float, base: int, new: int, warmup: int, rule: Any):
    """Goyal et al. 2017, section 2.2, whose ramp is linear: update k of W has base + (scaled - base) k / W."""
    base, new = min(base, new), max(base, new)
    scaled = rate * (new / base if rule == "linear" else math.sqrt(new / base))
    assume(base < new and scaled <= 100)
    run = RunConfig.of(
        scaling=rule, learning_rate=rate, base_batch_size=base, effective_batch_size=new, micro_batch_size=new,
        schedule="constant", updates=warmup + 2, warmup_updates=warmup,
    )  # fmt: skip
    found = [run.peak_learning_rate * run.shape.share(k) for k in range(1, warmup + 3)]
    ramp = [rate + (scaled - rate) * k / warmup for k in range(1, warmup + 1)]
    assert found == pytest.approx([*ramp, scaled, scaled], rel=1e-12)


@pytest.mark.parametrize("rule", ["none", "linear", "square_root"])
@pytest.mark.parametrize("base", [8, 32])
def test_a_rate_that_is_not_raised_is_warmed_up_from_zero(rule: Any, base: int):
    """At an effective batch of 8, which is the base or a quarter of it. Carried over to the same, nothing changes."""
    run = RunConfig.of(
        scaling=rule, learning_rate=0.1, base_batch_size=base, effective_batch_size=8, schedule="constant", updates=6,
        warmup_updates=4,
    )  # fmt: skip
    peak = 0.1 * {"none": 1, "linear": 8 / base, "square_root": math.sqrt(8 / base)}[rule]
    found = [run.peak_learning_rate * run.shape.share(k) for k in range(1, 7)]
    assert found == pytest.approx([peak * min(1, k / 4) for k in range(1, 7)], rel=1e-12)


def test_training_climbs_from_the_base_rate_and_after_a_live_change_from_the_new_one(use: Use):
    """Base 2, effective 8, W = 4, rate 0.1: 0.1 + 0.3 k / 4; from update 3 on rate 0.01: 0.01 + 0.03 k / 4."""
    config = tiny(
        scaling="linear", base_batch_size=2, learning_rate=0.1, schedule="constant", updates=6, warmup_updates=4
    )
    ramp = [1 + 3 * min(k, 4) / 4 for k in range(1, 7)]
    assert [record.learning_rate for record in train(config)] == pytest.approx([0.1 * r for r in ramp], rel=1e-12)
    controls = QueueControls()
    found = []
    for record in train(config, controls):
        found.append(record.learning_rate)
        if record.update == 2:
            controls.send(Message(kind="set", field="learning_rate", value=0.01))
    assert found == pytest.approx([0.1 * r for r in ramp[:2]] + [0.01 * r for r in ramp[2:]], rel=1e-12)


# Adam's beta2.


@quick
@given(st.floats(0.5, 0.9999), batches, st.floats(0.05, 20))
def test_the_half_life_in_samples_stays(beta: float, base: int, ratio: float):
    """The definition of a half-life: what is left of an average after that many samples is a half."""
    new = max(1, round(base * ratio))
    scaled = beta_at_equal_half_life(beta, base, new)
    assert half_life(scaled, new) == pytest.approx(half_life(beta, base), rel=1e-9)
    assert scaled ** (half_life(beta, base) / new) == pytest.approx(0.5, rel=1e-9)


def test_twice_the_batch_squares_beta2():
    """One update of 2 B samples forgets what two updates of B do: 0.95^2 = 0.9025; 0.9^(1/2) the other way."""
    assert beta_at_equal_half_life(0.95, 32, 64) == pytest.approx(0.9025, rel=1e-15)
    assert beta_at_equal_half_life(0.81, 64, 32) == pytest.approx(0.9, rel=1e-15)
    assert half_life(0.5, 32) == 32


def test_adams_average_remembers_as_many_samples():
    """Adam's second moment after one gradient of 1 and then zeros: equal after equal samples, for both batches."""
    left = {}
    for batch in (2, 8):
        weight = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
        beta = beta_at_equal_half_life(0.9, 2, batch)
        optimizer = torch.optim.Adam([weight], betas=(0.9, beta))
        for gradient in [1.0] + [0.0] * (48 // batch):
            weight.grad = torch.full_like(weight, gradient)
            optimizer.step()
        left[batch] = float(optimizer.state[weight]["exp_avg_sq"]) / (1 - beta)
    assert left[2] == pytest.approx(0.9**24, rel=1e-12)
    assert left[8] == pytest.approx(left[2], rel=1e-12)


# Smith's growing batch.


def test_where_the_rate_would_fall_by_five_the_batch_grows_by_five():
    """Milestones after 60, 120 and 160 of 200 updates: 60, then 60/5, 40/25 and 40/125 updates, the last filled up."""
    assert growing_batch([60, 120, 160], 5, updates=200) == (
        Stage(60, 1.0, 1),
        Stage(12, 1.0, 5),
        Stage(2, 1.0, 25),
        Stage(1, 1.0, 125),
    )


def test_at_the_bound_the_rate_is_divided_again():
    """Batch at most 30 times the base: 5 x 5 = 25 fits, 125 does not, so the third milestone divides the rate."""
    stages = growing_batch([60, 120, 170], 5, updates=200, largest_batch_factor=30)
    assert [(stage.rate_factor, stage.batch_factor) for stage in stages] == [(1, 1), (1, 5), (1, 25), (0.2, 25)]
    assert [stage.updates for stage in stages] == [60, 12, 2, 2]


def test_a_bound_of_one_is_the_step_schedule_of_torch():
    """MultiStepLR, which divides the rate when a milestone's updates are made."""
    stages = growing_batch([3, 5], 10, updates=8, largest_batch_factor=1)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    steps = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5], gamma=0.1)
    for update in range(1, 9):
        stage = stage_of(stages, update)
        assert stage.rate_factor == pytest.approx(steps.get_last_lr()[0], rel=1e-12)
        assert stage.batch_factor == 1
        optimizer.step()
        steps.step()


@quick
@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(2, 10), st.integers(1, 500))
def test_the_noise_scale_of_both_schedules_is_equal_at_every_update(lengths: list[int], factor: int, bound: int):
    """g = rate x data set size / batch at each update of the growing batch, and at the update of the dividing
    schedule that sees the same sample; stages whose samples fill their windows, so that the two stay in step."""
    lengths = [length * factor**index for index, length in enumerate(lengths)]
    milestones = [sum(lengths[:index]) for index in range(1, len(lengths))]
    growing = growing_batch(milestones, factor, updates=sum(lengths), largest_batch_factor=bound)
    seen = 0  # in base batches, which is the dividing schedule's number of updates
    for update in range(1, sum(stage.updates for stage in growing) + 1):
        stage = stage_of(growing, update)
        divided = Fraction(1, factor ** sum(milestone <= seen for milestone in milestones))
        assert stage.rate_factor / stage.batch_factor == pytest.approx(float(divided), rel=1e-12)
        assert stage.batch_factor <= bound
        seen += stage.batch_factor
    assert seen == sum(lengths)


@quick
@given(st.lists(st.integers(1, 200), min_size=1, max_size=5), st.integers(2, 10), st.none() | st.integers(1, 200))
def test_each_stage_sees_its_samples_and_less_than_a_window_more(lengths: list[int], factor: int, bound: int | None):
    milestones = [sum(lengths[:index]) for index in range(1, len(lengths))]
    stages = growing_batch(milestones, factor, updates=sum(lengths), largest_batch_factor=bound)
    assert len(stages) == len(lengths)
    for length, stage in zip(lengths, stages, strict=True):
        assert length <= stage.updates * stage.batch_factor < length + stage.batch_factor


# Refusals.


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: linear_rate(0.0, 1, 2), "learning_rate = 0.0"),
        (lambda: linear_rate(math.inf, 1, 2), "learning_rate = inf"),
        (lambda: square_root_rate(math.nan, 1, 2), "learning_rate = nan"),
        (lambda: linear_rate(0.1, 0, 2), "base = 0"),
        (lambda: square_root_rate(0.1, 1, -2), "new = -2"),
        (lambda: linear_rate(0.1, 1, 2.5), "new = 2.5"),
        (lambda: beta_at_equal_half_life(1.0, 1, 2), "beta = 1.0"),
        (lambda: half_life(0.0, 2), "beta = 0.0"),
        (lambda: half_life(0.9, 0), "batch_size = 0"),
        (lambda: growing_batch([5], 1, updates=9), "factor = 1"),
        (lambda: growing_batch([5, 5], 2, updates=9), r"milestones = \[5, 5\].*updates = 9"),
        (lambda: growing_batch([9], 2, updates=9), r"milestones = \[9\]"),
        (lambda: growing_batch([0], 2, updates=9), r"milestones = \[0\]"),
        (lambda: growing_batch([5], 2, updates=9, largest_batch_factor=0), "largest_batch_factor = 0"),
        (lambda: growing_batch([], 2, updates=0), "updates = 0"),
        (lambda: stage_of(growing_batch([4], 2, updates=8), 7), "update = 7.*1 to 6"),
        (lambda: stage_of(growing_batch([4], 2, updates=8), 0), "update = 0"),
    ],
)
def test_what_no_rule_covers_is_refused_by_name_and_value(call: Any, message: str):
    with pytest.raises(SettingError, match=message):
        call()
