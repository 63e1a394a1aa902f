"""Faults that people who accumulate gradients reported, each with a small input and its right value.

The ids group them: S scaling of the loss, T the tail, C counting and schedules, P clipping, B batch statistics,
R resuming and speed. Two ranks (S2, D34, D35) stand in test_ranks.py, B46 in test_memory.py. Unless a row says
otherwise: one weight w, loss w x, so that the gradient of a sample is its x, and plain SGD.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from small_nets import Product, ProductLoss, dense, product_batches
from tiny_workload import Use, stand_in, tiny
from torch import nn

from accum_core.batching import BatchPlan
from accum_core.engine import CrossEntropy, Training, accumulate_gradients, train
from accum_core.errors import SettingError
from accum_core.reduction import LossReduction


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    return stand_in(monkeypatch)


def gradient(*micro_batches: list[float], reduction: Any = "exact") -> float:
    """Accumulated gradient of the one-weight net."""
    model = Product()
    accumulate_gradients(model, product_batches(*micro_batches), ProductLoss(), reduction=reduction)
    return float(model.weight.grad)


def one_sample_windows(xs: list[float], steps: int, *, drop: bool = False) -> Iterator[list[list[float]]]:
    """An epoch of micro-batches of one sample, cut into windows of N."""
    for window in BatchPlan(steps, 1).windows(len(xs), drop_tail=drop):
        yield [[xs[sample]] for sample in window]


def epoch(xs: list[float], steps: int, tail: Any = "rescale", lr: float = 1.0) -> tuple[float, int]:
    """The change of w over an epoch of plain SGD, and the number of updates."""
    model, updates = Product(), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    rule = LossReduction("exact", tail, steps)
    for window in one_sample_windows(xs, steps, drop=tail == "drop"):
        accumulate_gradients(model, product_batches(*window), ProductLoss(), reduction=rule)
        optimizer.step()
        updates += 1
    return float(model.weight.detach()), updates


# Scaling the loss.


def test_s1_short_sequences_weigh_by_their_tokens():
    """S1: 1 token with x = 10 and 3 tokens with x = 2 -> 4.0 (6.0 as the mean of means)."""
    assert gradient([10.0], [2.0, 2.0, 2.0]) == pytest.approx(4.0, rel=1e-12)
    assert gradient([10.0], [2.0, 2.0, 2.0], reduction="mean_of_means") == pytest.approx(6.0, rel=1e-12)


def test_s3_a_ragged_last_micro_batch_counts_by_its_samples():
    """S3: sizes 4, 4, 2 with means 1, 2, 6 -> 2.4 (3.0)."""
    sizes = ([1.0] * 4, [2.0] * 4, [6.0] * 2)
    assert gradient(*sizes) == pytest.approx(2.4, rel=1e-12)
    assert gradient(*sizes, reduction="mean_of_means") == pytest.approx(3.0, rel=1e-12)


def test_s4_class_weights_are_the_denominator():
    """S4: logits [2, 0] and [0, 0], targets 0 and 1, class weights 1 and 10, one sample a micro-batch -> 0.6417.

    (ln(1 + e^-2) + 10 ln 2) / 11; the mean of the two micro-batches' means is 0.4100.
    """
    model = nn.Linear(1, 2, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[2.0], [0.0]]))
    batches = [(torch.tensor([[x]]).double(), torch.tensor([y])) for x, y in ((1.0, 0), (0.0, 1))]
    result = accumulate_gradients(model, batches, CrossEntropy(class_weights=torch.tensor([1.0, 10.0]).double()))
    assert result.loss == pytest.approx((math.log(1 + math.exp(-2)) + 10 * math.log(2)) / 11, rel=1e-12)
    assert result.loss == pytest.approx(0.6417, abs=5e-5)


def test_s5_a_micro_batch_of_ignored_labels_adds_nothing():
    """S5: it adds 0 to the sum and 0 to the weight; loss and gradient are those of the other micro-batch alone."""
    torch.manual_seed(0)
    model, inputs, labels = dense().double(), torch.randn(2, 3).double(), torch.tensor([0, 3])
    alone = accumulate_gradients(model, [(inputs, labels)], CrossEntropy())
    expected = [p.grad.clone() for p in model.parameters()]
    for order in (1, -1):
        batches = [(inputs, labels), (inputs, torch.full((2,), -100))][::order]
        result = accumulate_gradients(model, batches, CrossEntropy())
        assert result.loss == pytest.approx(alone.loss, rel=1e-12)
        for parameter, gradient_alone in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient_alone, rtol=1e-12, atol=1e-15)


def test_s5_a_window_of_ignored_labels_has_no_gradient(use: Use):
    """S5: without a valid label there is nothing to divide: gradient 0, no NaN; training warns and makes no update."""
    model = dense()
    result = accumulate_gradients(model, [(torch.randn(2, 3), torch.full((2,), -100))] * 2, CrossEntropy())
    assert result.terms["cross_entropy"].weight == 0
    assert result.loss == 0
    assert all(not p.grad.any() for p in model.parameters())
    workload = use(num_samples=2, unlabelled=[0])
    config = tiny(effective_batch_size=1, micro_batch_size=1, updates=4, warmup_updates=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        records = list(train(config))
    without = len(workload.windows) - len(records)
    assert without >= 3
    assert len(caught) == without
    assert [record.learning_rate for record in records] == pytest.approx([0.1 * (1 - k / 4) ** 0.9 for k in range(4)])


def test_s7_the_loss_is_divided():
    """S7: gradients 1, 3, 2 and lr 0.1 -> a step of -0.2 for the mean (-0.6 for the sum)."""
    for reduction, step in (("exact", -0.2), ("sum", -0.6)):
        model = Product()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        accumulate_gradients(model, product_batches([1.0], [3.0], [2.0]), ProductLoss(), reduction=reduction)  # type: ignore[arg-type]
        optimizer.step()
        assert float(model.weight.detach()) == pytest.approx(step, rel=1e-12)


def test_s8_the_gradient_norm_does_not_depend_on_n(use: Use):
    """S8: over the same 8 samples the norm before clipping is equal for N = 1, 2, 4, 8; in training as well."""
    torch.manual_seed(0)
    model, inputs, labels = dense().double(), torch.randn(8, 3).double(), torch.arange(8) % 4
    norms = []
    for steps in (1, 2, 4, 8):
        accumulate_gradients(model, list(zip(inputs.chunk(steps), labels.chunk(steps), strict=True)), CrossEntropy())
        norms.append(float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])))
    assert norms == pytest.approx([norms[0]] * 4, rel=1e-12)
    recorded = [next(train(tiny(micro_batch_size=8 // steps))).gradient_norm for steps in (1, 2, 4, 8)]
    assert recorded == pytest.approx([recorded[0]] * 4, rel=1e-12)


# The last, incomplete window.


def test_t12_the_tail_is_divided_by_what_it_holds():
    """T12: lr 1, gradients 1 2 3 4 5, N = 2 -> w changes by -10 (-7.5 when the tail is divided by N)."""
    xs = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert epoch(xs, 2)[0] == pytest.approx(-10.0, rel=1e-12)
    assert epoch(xs, 2, "divide_by_n")[0] == pytest.approx(-7.5, rel=1e-12)


def test_t13_the_tail_is_stepped_unless_it_is_dropped_on_purpose():
    """T13: the same -> 3 updates (2 updates and -5 when dropped)."""
    xs = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert epoch(xs, 2)[1] == 3
    assert epoch(xs, 2, "drop") == (pytest.approx(-5.0, rel=1e-12), 2)


@pytest.mark.parametrize("tail", ["drop", "rescale", "divide_by_n"])
def test_t14_nothing_leaks_into_the_next_epoch(use: Use, tail: str):
    """T14: after an epoch every gradient is None; the next epoch's first window starts with its first micro-batch."""
    training = Training(tiny(tail=tail, updates=8))
    windows_an_epoch = 3 if tail == "drop" else 4
    for record in training.run():
        # No public way leads to the model of a training.
        assert all(parameter.grad is None for parameter in training.model.parameters())
        if record.update == windows_an_epoch:
            before = record.micro_batches
        if record.update == windows_an_epoch + 1:
            assert record.epoch == 1
            assert record.micro_batches - before == 4
    # And in the loop itself: the first window's gradient is the same after a window that was never stepped.
    model = Product()
    for _ in range(2):
        accumulate_gradients(model, product_batches([1.0], [2.0]), ProductLoss())
        assert float(model.weight.grad) == 1.5
        accumulate_gradients(model, product_batches([5.0]), ProductLoss())


def test_t15_fewer_micro_batches_than_n_make_one_update():
    """T15: 3 micro-batches with gradients 1, 2, 3 and N = 4 -> 1 update with gradient 2."""
    assert epoch([1.0, 2.0, 3.0], 4) == (pytest.approx(-2.0, rel=1e-12), 1)


# Counting and schedules.


def test_c19_the_schedule_steps_once_a_window():
    """C19: 10 micro-batches, N = 4, gamma 0.5 from lr 1 -> 0.125 (0.000977 when stepped a micro-batch)."""
    model = Product()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    for window in one_sample_windows([0.0] * 10, 4):
        accumulate_gradients(model, product_batches(*window), ProductLoss())
        optimizer.step()
        schedule.step()
    assert schedule.get_last_lr() == [0.125]


@pytest.mark.parametrize("micro", [8, 4, 2, 1])
def test_c19_the_rate_of_training_does_not_depend_on_n(use: Use, micro: int):
    """C19: update k of 10, warm-up 3: 0.1 min(1, k / 3) (1 - (k - 1) / 10)^0.9 for every N."""
    rates = [record.learning_rate for record in train(tiny(micro_batch_size=micro))]
    assert rates == pytest.approx([0.1 * min(1, k / 3) * (1 - (k - 1) / 10) ** 0.9 for k in range(1, 11)], rel=1e-12)


def test_c21_a_kept_tail_is_an_update_of_the_schedules_total():
    """C21: 10 micro-batches, N = 4, tail kept -> 3 updates an epoch and the last lr is exactly the minimum."""
    windows = list(one_sample_windows([0.0] * 10, 4))
    assert len(windows) == 3
    model = Product()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.25, total_iters=len(windows))
    for window in windows:
        accumulate_gradients(model, product_batches(*window), ProductLoss())
        optimizer.step()
        schedule.step()
    assert schedule.get_last_lr() == [0.25]


def test_c23_every_counter_is_recorded(use: Use):
    """C23: 12 micro-batches, N = 4, micro 8, world 2 -> 3 updates and 192 samples; on one rank, 3 updates of 4
    micro-batches and 96 samples, all counted side by side."""
    plan = BatchPlan(64, 8, 2)
    windows = plan.windows(192)
    assert (len(windows), plan.accumulation_steps, sum(map(len, windows))) == (3, 4, 192)
    use(num_samples=96)
    records = list(train(tiny(effective_batch_size=32, micro_batch_size=8, updates=4, warmup_updates=0)))
    counters = [(record.update, record.micro_batches, record.samples, record.epoch) for record in records]
    assert counters == [(1, 4, 32, 0), (2, 8, 64, 0), (3, 12, 96, 0), (4, 16, 128, 1)]


def test_c24_decay_and_adams_counter_go_by_windows():
    """C24: w = 1, zero gradients, decoupled decay 0.1, lr 0.1, one window of 4 -> 0.99 (0.9606); Adam's step is 1."""
    model = Product(1.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    accumulate_gradients(model, product_batches(*[[0.0]] * 4), ProductLoss())
    optimizer.step()
    assert float(model.weight.detach()) == pytest.approx(0.99, rel=1e-12)
    assert int(optimizer.state[model.weight]["step"]) == 1


# Clipping.


def test_p27_the_window_is_clipped_and_not_the_micro_batch():
    """P27: gradients [1, 0] and [0, 1], mean then clip to 0.5 -> [0.3536, 0.3536] ([0.2236, 0.4472])."""
    model = nn.Linear(2, 1, bias=False).double()
    batches = [(torch.tensor([row]).double(), torch.ones(1, 1).double()) for row in ([1.0, 0.0], [0.0, 1.0])]
    accumulate_gradients(model, batches, ProductLoss())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    assert model.weight.grad[0].tolist() == pytest.approx([math.sqrt(1 / 8)] * 2, rel=1e-5)


# Batch statistics.


def test_b41_one_value_a_channel_is_found_before_training(use: Use):
    """B41: refused with the layer's name, the micro-batch size and what to use instead, before any update."""
    workload = use()
    with pytest.raises(SettingError, match=r"micro_batch_size = 1: .*pool\.2.*use .*(2 or more|group)"):
        Training(tiny(norm="batch", micro_batch_size=1))
    assert workload.windows == []


# Resuming and speed.


def test_r48_another_n_is_not_gone_on_with_unnoticed(use: Use):
    """R48: a state of N = 4 in a run of N = 2 (micro-batches of 2 and of 4) is refused with both values."""
    state = Training(tiny(micro_batch_size=2)).state_dict()
    with pytest.raises(SettingError, match=r"micro_batch_size = 4: .*\b2\b"):
        Training(tiny(micro_batch_size=4)).load_state_dict(state)


def test_r50_frozen_parameters_keep_their_gradients():
    """R50: what a frozen parameter held in .grad before the pass is there after it, unchanged."""
    torch.manual_seed(0)
    model = dense()
    model[2].weight.requires_grad_(False)
    model[2].weight.grad = torch.full_like(model[2].weight, 3.0)
    accumulate_gradients(model, [(torch.randn(2, 3), torch.tensor([0, 1]))] * 2, CrossEntropy())
    assert torch.equal(model[2].weight.grad, torch.full_like(model[2].weight, 3.0))


def test_r53_samples_a_second_stand_beside_updates(use: Use):
    """R53: a window's samples a second are its samples over its seconds, whatever N is."""
    for micro in (8, 1):
        seconds = 0.0
        for record in train(tiny(micro_batch_size=micro, updates=4)):
            assert record.samples_per_second * (record.seconds - seconds) == pytest.approx(8, rel=1e-6)
            seconds = record.seconds
