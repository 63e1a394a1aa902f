"""Schedules count updates and follow their closed forms; torch's schedulers and the papers give the values."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_nets import Product, ProductLoss, product_batches
from torch import nn
from torch.optim import lr_scheduler as torchs

from accum_core.batching import BatchPlan
from accum_core.engine.accumulate import accumulate_gradients
from accum_core.engine.schedules import build, rescale
from accum_core.engine.windows import windows
from accum_core.errors import SettingError
from accum_core.schedule import SCHEDULE_KINDS, Schedule

CLOSED = 1e-12
quick = settings(max_examples=40, deadline=None)


def sgd(*rates: float) -> torch.optim.SGD:
    """An optimizer with one parameter group a rate."""
    return torch.optim.SGD([{"params": [nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates])


def used(optimizer: torch.optim.Optimizer, schedule: torchs.LRScheduler, updates: int) -> list[float]:
    """The first group's rate in each of so many updates."""
    rates = []
    for _ in range(updates):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


def options(kind: str, updates: int) -> dict[str, Any]:
    return {"milestones": sorted({max(1, updates // 3), max(1, updates // 2)}), "factor": 0.5} if kind == "step" else {}


# Closed forms.


@quick
@given(st.integers(2, 300), st.data(), st.floats(1e-4, 10))
def test_poly_is_the_warm_up_times_the_segmentation_recipes_power(updates: int, data: st.DataObject, base: float):
    """Update k of T: base min(1, k / W) (1 - (k - 1) / T)^0.9."""
    warmup = data.draw(st.integers(0, updates - 1))
    optimizer = sgd(base)
    rates = used(optimizer, build(optimizer, "poly", updates=updates, warmup_updates=warmup), updates)
    expected = [
        base * (min(1, k / warmup) if warmup else 1) * (1 - (k - 1) / updates) ** 0.9 for k in range(1, updates + 1)
    ]
    assert rates == pytest.approx(expected, rel=CLOSED)
    assert optimizer.param_groups[0]["lr"] == 0


@quick
@given(st.integers(2, 300), st.data(), st.floats(1e-4, 10), st.floats(0, 1), st.sampled_from(["cosine", "linear"]))
def test_cosine_and_linear_decay_over_what_the_warm_up_leaves(
    updates: int, data: st.DataObject, base: float, minimum: float, kind: Any
):
    """k <= W: base k / W; then with p = (k - 1 - W) / (T - W) from base at p = 0 down to the minimum at p = 1."""
    warmup = data.draw(st.integers(0, updates - 1))
    optimizer = sgd(base)
    schedule = build(optimizer, kind, updates=updates, warmup_updates=warmup, minimum=minimum)
    expected = []
    for k in range(1, updates + 1):
        p = (k - 1 - warmup) / (updates - warmup)
        shape = (1 + math.cos(math.pi * p)) / 2 if kind == "cosine" else 1 - p
        expected.append(base * (k / warmup if k <= warmup else minimum + (1 - minimum) * shape))
    # The formula as written loses digits near the end: 1 + cos and 1 - p are small differences there.
    assert used(optimizer, schedule, updates) == pytest.approx(expected, rel=CLOSED, abs=1e-15 * base)
    assert optimizer.param_groups[0]["lr"] == base * minimum


def test_the_last_digits_hold_where_little_is_left():
    """Update T of T = 10^6: (1/T)^0.9, 1/T, and sin^2(d / 2) with d = pi / T, which is d^2/4 (1 - d^2/12 + ...)."""
    last, d = 10**6, math.pi / 10**6
    assert Schedule("poly", last).share(last) == pytest.approx(10**-5.4, rel=CLOSED)
    assert Schedule("linear", last).share(last) == pytest.approx(1e-6, rel=CLOSED)
    assert Schedule("cosine", last).share(last) == pytest.approx(d * d / 4 * (1 - d * d / 12), rel=CLOSED)


@pytest.mark.parametrize(
    ("kind", "settings", "twin"),
    [
        ("poly", {}, lambda o: torchs.PolynomialLR(o, total_iters=40, power=0.9)),
        ("cosine", {"minimum": 0.1}, lambda o: torchs.CosineAnnealingLR(o, T_max=40, eta_min=0.03)),
        ("linear", {"minimum": 0.1}, lambda o: torchs.LinearLR(o, 1.0, 0.1, total_iters=40)),
        ("constant", {}, lambda o: torchs.LambdaLR(o, lambda _: 1.0)),
        ("step", {"milestones": (7, 20)}, lambda o: torchs.MultiStepLR(o, [7, 20], gamma=0.1)),
    ],
)
def test_without_a_warm_up_the_rates_are_those_of_torchs_scheduler(kind: Any, settings: Any, twin: Any):
    """Another implementation, which multiplies from update to update; both end on the same rate after update T."""
    ours, theirs = sgd(0.3), sgd(0.3)
    schedule, other = build(ours, kind, updates=40, warmup_updates=0, **settings), twin(theirs)
    assert used(ours, schedule, 40) == pytest.approx(used(theirs, other, 40), rel=1e-9)
    assert ours.param_groups[0]["lr"] == pytest.approx(theirs.param_groups[0]["lr"], rel=1e-9, abs=1e-15)


def test_a_warm_up_stands_before_steps_that_count_from_the_start():
    """W = 4, milestones after 4 and 6 updates, factor 0.1: k / 4, then 0.1 from update 5 and 0.01 from update 7 on."""
    optimizer = sgd(1.0)
    schedule = build(optimizer, "step", updates=8, warmup_updates=4, milestones=(4, 6))
    expected = [0.25, 0.5, 0.75, 1.0, 0.1, 0.1, 0.01, 0.01]
    assert used(optimizer, schedule, 8) == pytest.approx(expected, rel=CLOSED)


def test_a_gradual_warm_up_climbs_from_the_small_batchs_rate():
    """Goyal et al. 2017, 2.2: from 0.1 to 3.2 by equal steps; 3.2 (1/32 + 31/32 k/W), at k = W = 5 the whole 3.2."""
    optimizer = sgd(3.2)
    schedule = build(optimizer, "constant", updates=7, warmup_updates=5, warmup_from=256 / 8192)
    rates = used(optimizer, schedule, 7)
    assert rates == pytest.approx([0.1 + 3.1 * k / 5 for k in range(1, 6)] + [3.2, 3.2], rel=CLOSED)


def test_after_the_last_update_no_schedule_is_below_its_minimum():
    step, constant = Schedule("step", 10, minimum=0.3, milestones=(2, 4), factor=0.5), Schedule("constant", 10)
    assert [*map(step.share, (1, 2, 3, 4, 5, 10)), constant.share(11)] == [1.0, 1.0, 0.5, 0.5, 0.3, 0.3, 1.0]
    for kind in ("poly", "cosine", "linear"):
        assert [Schedule(kind, 10, 2, minimum=0.1).share(k) for k in (11, 12, 1000)] == [0.1] * 3  # type: ignore[arg-type]


# Counting.


def run(kind: Any, micro_batches: int, steps: int, **settings: Any) -> tuple[list[float], float]:
    """Rates used over an epoch of micro-batches cut into windows, and the rate that is left."""
    model = Product()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    updates = len(BatchPlan(steps, 1).windows(micro_batches))
    schedule = build(optimizer, kind, updates=updates, warmup_updates=0, **settings)
    rates = []
    for window in windows(iter(product_batches(*[[0.0]] * micro_batches)), steps):
        rates.append(optimizer.param_groups[0]["lr"])
        accumulate_gradients(model, window, ProductLoss())
        optimizer.step()
        schedule.step()
    return rates, optimizer.param_groups[0]["lr"]


def test_c19_the_schedule_steps_once_an_update():
    """C19: 10 micro-batches, N = 4, gamma 0.5 from lr 1 -> 0.125 (0.5^10 = 0.000977 when stepped a micro-batch)."""
    rates, left = run("step", 10, 4, milestones=(1, 2, 3), factor=0.5)
    assert rates == [1.0, 0.5, 0.25]
    assert left == 0.125


@quick
@given(st.integers(1, 60), st.integers(1, 12))
def test_c19_the_number_of_halvings_is_the_number_of_windows(micro_batches: int, steps: int):
    """C19, any length and N: 0.5^ceil(M / N)."""
    updates = math.ceil(micro_batches / steps)
    _, left = run("step", micro_batches, steps, milestones=tuple(range(1, updates + 1)), factor=0.5)
    assert left == 0.5**updates


@pytest.mark.parametrize("kind", SCHEDULE_KINDS)
@pytest.mark.parametrize(("effective", "micro"), [(16, 2), (16, 8), (8, 1)])
def test_c20_the_rate_of_update_k_does_not_depend_on_the_world(kind: Any, effective: int, micro: int):
    """C20: world 1 and 2 share one effective batch, so an epoch of 100 samples has ceil(100 / effective) updates on
    both; each rank passes its own micro-batches, N / world of them, and steps its schedule once a window."""
    rates = {}
    for world in (1, 2):
        plan = BatchPlan(effective, micro, world)
        updates = len(plan.windows(100))
        assert updates == math.ceil(100 / effective)
        model = Product()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        schedule = build(optimizer, kind, updates=updates, warmup_updates=2, **options(kind, updates))
        rates[world] = []
        for samples in plan.windows(100):
            share = len(samples) // world
            batches = product_batches(*[[0.0] * (piece.stop - piece.start) for piece in plan.slices(share)])
            accumulate_gradients(model, batches, ProductLoss())
            rates[world].append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
    assert rates[1] == rates[2]


@pytest.mark.parametrize("kind", ["poly", "cosine", "linear"])
@pytest.mark.parametrize("minimum", [0.0, 0.25, 0.1])
def test_c21_a_kept_tail_is_counted_and_the_last_rate_is_exactly_the_minimum(kind: Any, minimum: float):
    """C21: 10 micro-batches, N = 4, tail kept -> 3 updates an epoch and the last lr is exactly the minimum."""
    rates, left = run(kind, 10, 4, minimum=minimum)
    assert len(rates) == 3
    assert left == minimum
    assert min(rates) > minimum


@quick
@given(st.integers(1, 60), st.integers(1, 12), st.floats(0, 0.99), st.sampled_from(["poly", "cosine", "linear"]))
def test_c21_the_minimum_is_reached_with_the_last_window_and_not_before(
    micro_batches: int, steps: int, minimum: float, kind: Any
):
    """C21, any length and N."""
    rates, left = run(kind, micro_batches, steps, minimum=minimum)
    assert len(rates) == math.ceil(micro_batches / steps)
    assert left == minimum
    assert min(rates) > minimum


@pytest.mark.parametrize("kind", SCHEDULE_KINDS)
def test_a_skipped_update_holds_the_schedule(kind: Any):
    """Windows 3 and 4 are skipped: the rate waits, and the updates that are made use 1, 2, 3, ... in turn."""
    optimizer, plain = sgd(0.1), sgd(0.1)
    settings = dict(updates=6, warmup_updates=2, **options(kind, 6))
    schedule = build(optimizer, kind, **settings)
    rates = []
    for window in range(8):
        rates += [] if window in (2, 3) else used(optimizer, schedule, 1)
    assert rates == used(plain, build(plain, kind, **settings), 6)


# State and live changes.


@pytest.mark.parametrize("kind", SCHEDULE_KINDS)
def test_a_saved_schedule_goes_on_to_the_same_bits(kind: Any):
    """Saved and loaded with weights_only after 5 of 12 updates; the optimizer's own state holds the present rate."""
    settings = dict(updates=12, warmup_updates=3, **options(kind, 12))
    straight, first, second = sgd(0.1, 0.3), sgd(0.1, 0.3), sgd(0.1, 0.3)
    expected = used(straight, build(straight, kind, **settings), 12)
    schedule = build(first, kind, **settings)
    begun = used(first, schedule, 5)
    file = io.BytesIO()
    torch.save({"optimizer": first.state_dict(), "schedule": schedule.state_dict()}, file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    resumed = build(second, kind, **settings)
    second.load_state_dict(state["optimizer"])
    resumed.load_state_dict(state["schedule"])
    assert resumed.state_dict() == schedule.state_dict()
    assert begun + used(second, resumed, 7) == expected
    assert [group["lr"] for group in second.param_groups] == [group["lr"] for group in straight.param_groups]


@pytest.mark.parametrize("kind", SCHEDULE_KINDS)
def test_a_new_base_rate_multiplies_what_is_left(kind: Any):
    """0.1 becomes 0.025 after update 4: from update 5 on a quarter of the rates without the change, in both groups."""
    settings = dict(updates=10, warmup_updates=6, **options(kind, 10))
    plain, changed = sgd(0.1, 0.3), sgd(0.1, 0.3)
    expected = used(plain, build(plain, kind, **settings), 10)
    schedule = build(changed, kind, **settings)
    rates = used(changed, schedule, 4)
    rescale(schedule, 0.025)
    assert schedule.get_last_lr() == [group["lr"] for group in changed.param_groups]
    assert changed.param_groups[1]["lr"] == pytest.approx(3 * changed.param_groups[0]["lr"], rel=CLOSED)
    rates += used(changed, schedule, 6)
    assert rates == pytest.approx(expected[:4] + [rate / 4 for rate in expected[4:]], rel=CLOSED)


def test_a_base_rate_changed_and_changed_back_leaves_no_trace():
    optimizer = sgd(0.1)
    schedule = build(optimizer, "poly", updates=9, warmup_updates=2)
    before = schedule.state_dict()
    for rate in (0.7, 0.3, 0.1):
        rescale(schedule, rate)
    assert schedule.state_dict() == before


# Refusals.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(kind="triangle"), "schedule = 'triangle': use one of poly, cosine, linear, constant, step"),
        (dict(updates=0, warmup_updates=0), "updates = 0"),
        (dict(warmup_updates=10), "warmup_updates = 10.*updates = 10"),
        (dict(minimum=1.5), "minimum = 1.5"),
        (dict(minimum=math.nan), "minimum = nan"),
        (dict(warmup_from=2.0), "warmup_from = 2.0"),
        (dict(kind="constant", minimum=0.1), "minimum = 0.1.*constant"),
        (dict(milestones=(3,)), r"milestones = \(3,\).*only a step schedule"),
        (dict(kind="step"), r"milestones = \(\).*at least one"),
        (dict(kind="step", milestones=(3, 3)), r"milestones = \(3, 3\)"),
        (dict(kind="step", milestones=(0, 3)), r"milestones = \(0, 3\)"),
        (dict(kind="step", milestones=(3,), factor=0.0), "factor = 0.0"),
        (dict(kind="step", milestones=(3,), factor=10), "factor = 10"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_by_name_and_value(settings: dict[str, Any], message: str):
    with pytest.raises(SettingError, match=message):
        build(sgd(0.1), **{"kind": "poly", "updates": 10, "warmup_updates": 2, **settings})


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
def test_a_base_rate_that_is_none_is_refused(rate: float):
    with pytest.raises(SettingError, match=f"learning_rate = {rate}"):
        rescale(build(sgd(0.1), "poly", updates=10, warmup_updates=2), rate)
