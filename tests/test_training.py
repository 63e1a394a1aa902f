"""Training as a generator: same bits twice, same samples for every split, and an oracle written out in plain torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from tiny_workload import TinyWorkload, Use, course, same, stand_in, tiny, weights
from torch import Tensor
from torch.nn import functional as F

from accum_core.engine import Training, convert_norms, train
from accum_core.engine.sampling import WindowSampler
from accum_core.errors import SettingError
from accum_core.records import RunConfig, UpdateRecord


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    return stand_in(monkeypatch)


def finish(config: RunConfig) -> tuple[list[UpdateRecord], dict[str, Tensor]]:
    """A whole run: its records and its last parameters and buffers."""
    training = Training(config)
    return list(training.run()), weights(training.state_dict())


# The same run twice.


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_two_runs_of_one_configuration_are_bit_equal(use: Use, norm: str):
    """With dropout, whatever the random state that they find."""
    use(dropout=0.3)
    found = []
    for state in (1, 2):
        torch.manual_seed(state)
        found.append(finish(tiny(norm=norm, precision="float32")))
    assert course(found[0][0]) == course(found[1][0])
    assert same(found[0][1], found[1][1])


def test_another_seed_gives_other_weights_and_another_order(use: Use):
    runs = []
    for seed in (0, 1):
        workload = use()
        runs.append((finish(tiny(seed=seed))[0], workload.windows))
    assert runs[0][0][0].loss != runs[1][0][0].loss
    assert runs[0][1] != runs[1][1]


def test_a_training_leaves_the_callers_random_state_alone(use: Use):
    use(dropout=0.3)
    torch.manual_seed(5)
    expected = torch.get_rng_state()
    for _ in train(tiny(updates=4)):
        assert torch.equal(torch.get_rng_state(), expected)


# Every split of the effective batch.


@pytest.mark.parametrize("norm", ["group", "layer", "none"])
def test_every_split_sees_the_same_samples_and_makes_the_same_updates(use: Use, norm: str):
    """N = 1, 2, 4, 8 of an effective batch of 8, in float64: equal losses to 1e-12 at update 1, to 1e-9 after 10."""
    windows, runs = [], []
    for micro in (8, 4, 2, 1):
        workload = use()
        runs.append(finish(tiny(norm=norm, micro_batch_size=micro)))
        windows.append(workload.windows)
    assert all(order == windows[0] for order in windows)
    assert [len(window) for window in windows[0]] == [8] * 10
    reference, final = runs[0]
    for records, parameters in runs[1:]:
        assert records[0].loss == pytest.approx(reference[0].loss, rel=1e-12)
        assert [r.loss for r in records] == pytest.approx([r.loss for r in reference], rel=1e-9)
        assert [r.gradient_norm for r in records] == pytest.approx([r.gradient_norm for r in reference], rel=1e-9)
        assert [r.learning_rate for r in records] == [r.learning_rate for r in reference]
        assert [r.samples for r in records] == [r.samples for r in reference]
        for name, tensor in parameters.items():
            torch.testing.assert_close(tensor, final[name], rtol=1e-9, atol=1e-12)


def test_batch_norm_parts_the_splits(use: Use):
    """The counterpart: the same samples, and another loss at once."""
    losses = [finish(tiny(norm="batch", micro_batch_size=micro, updates=4))[0][0].loss for micro in (8, 2)]
    assert abs(losses[0] - losses[1]) > 1e-4


def test_an_epoch_holds_every_sample_once_in_a_fresh_order(use: Use):
    workload = use(num_samples=24)
    records, _ = finish(tiny(updates=6, seed=3))
    epochs = [sum(workload.windows[:3], []), sum(workload.windows[3:], [])]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(24))
    assert epochs[0] != epochs[1] != list(range(24))
    assert [record.epoch for record in records] == [0, 0, 0, 1, 1, 1]


# What an update is.


def by_hand(config: RunConfig, workload: TinyWorkload) -> Iterator[tuple[float, float, dict[str, Tensor]]]:
    """Losses, gradient norms and parameters of the whole-batch run, with SGD and its schedule written out.

    v = momentum v + gradient + decay w; w = w - lr v; lr = peak min(1, k / warm-up) (1 - (k - 1) / T)^0.9.
    """
    training = Training(config)
    parameters = {name: t for name, t in weights(training.state_dict()).items() if t.is_floating_point()}
    model = workload.build_model(config.model)
    model = convert_norms(model, config.norm, num_groups=config.norm_groups).double()
    velocity = {name: torch.zeros_like(tensor) for name, tensor in parameters.items()}
    sampler = WindowSampler(workload.num_samples, drop_tail=config.tail == "drop", seed=config.seed)
    for k in range(1, config.updates + 1):
        model.load_state_dict(parameters)
        inputs, targets = workload.samples(sampler.next(config.effective_batch_size))
        loss = F.cross_entropy(model(inputs.double()), targets)
        names = [name for name, _ in model.named_parameters()]
        gradients = dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True))
        rate = config.learning_rate * min(1, k / config.warmup_updates) * (1 - (k - 1) / config.updates) ** 0.9
        for name in names:
            step = gradients[name] + config.weight_decay * parameters[name]
            velocity[name] = config.momentum * velocity[name] + step
            parameters[name] = parameters[name] - rate * velocity[name]
        norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients.values()))
        yield loss.item(), norm, parameters


@pytest.mark.parametrize("tail", ["drop", "rescale"])
def test_a_run_equals_the_loop_written_out(use: Use, tail: str):
    """Four micro-batches a window, momentum, decay, schedule, a dropped or a rescaled tail of 2 of 26 samples."""
    config = tiny(tail=tail, weight_decay=0.05, momentum=0.8, updates=9)
    expected = list(by_hand(config, use()))
    records, parameters = finish(config)
    assert [record.loss for record in records] == pytest.approx([loss for loss, _, _ in expected], rel=1e-10)
    assert [record.gradient_norm for record in records] == pytest.approx([norm for _, norm, _ in expected], rel=1e-10)
    for name, tensor in expected[-1][2].items():
        torch.testing.assert_close(parameters[name], tensor, rtol=1e-10, atol=1e-13)


def test_the_rate_counts_updates_and_follows_warm_up_and_polynomial(use: Use):
    """Update k of T = 10 with a warm-up of 3: 0.1 min(1, k / 3) (1 - (k - 1) / 10)^0.9, after it as torch's own."""
    records, _ = finish(tiny())
    rates = [record.learning_rate for record in records]
    assert rates == pytest.approx([0.1 * min(1, k / 3) * (1 - (k - 1) / 10) ** 0.9 for k in range(1, 11)], rel=1e-12)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=10, power=0.9)
    polynomial = []
    for _ in range(10):
        polynomial += schedule.get_last_lr()
        optimizer.step()
        schedule.step()
    assert rates[2:] == pytest.approx(polynomial[2:], rel=1e-9)


def test_without_warm_up_the_first_update_has_the_peak_rate(use: Use):
    assert next(train(tiny(warmup_updates=0))).learning_rate == 0.1


@pytest.mark.parametrize(
    ("tail", "sizes"), [("drop", [8, 8, 8] * 2), ("rescale", [8, 8, 8, 2] * 2), ("divide_by_n", [8, 8, 8, 2] * 2)]
)
def test_counters_of_windows_and_their_tails(use: Use, tail: str, sizes: list[int]):
    """26 samples in windows of 8 and micro-batches of 2, two epochs; samples and micro-batches beside updates."""
    workload = use()
    records, _ = finish(tiny(tail=tail, updates=len(sizes)))
    assert [len(window) for window in workload.windows] == sizes
    assert [record.update for record in records] == list(range(1, len(sizes) + 1))
    assert [record.samples for record in records] == [sum(sizes[:k]) for k in range(1, len(sizes) + 1)]
    assert records[-1].micro_batches == sum(-(-size // 2) for size in sizes)
    assert [record.epoch for record in records] == [0] * (len(sizes) // 2) + [1] * (len(sizes) // 2)


def test_the_tail_divided_by_n_has_a_share_of_the_gradient(use: Use):
    """Update 4 is a tail of 1 micro-batch of N = 4: its gradient is a quarter of the rescaled one."""
    norms = [finish(tiny(tail=tail, updates=4))[0][3].gradient_norm for tail in ("rescale", "divide_by_n")]
    assert norms[1] == pytest.approx(norms[0] / 4, rel=1e-12)


def test_a_window_longer_than_the_epoch_is_one_tail(use: Use):
    """5 samples and an effective batch of 8: one update an epoch, of 5 samples; refused when tails are dropped."""
    use(num_samples=5)
    records = list(train(tiny(tail="rescale", micro_batch_size=8, updates=4)))
    assert [(record.samples, record.epoch) for record in records] == [(5, 0), (10, 1), (15, 2), (20, 3)]
    with pytest.raises(SettingError, match="effective_batch_size = 8: .*5"):
        Training(tiny(tail="drop"))


def test_records_hold_times_terms_and_what_the_split_is(use: Use):
    records, _ = finish(tiny())
    assert all(record.seconds > 0 and record.samples_per_second > 0 for record in records)
    assert all(a.seconds < b.seconds for a, b in pairwise(records))
    for record in records:
        assert (record.micro_batch_size, record.accumulation_steps, record.norm) == (2, 4, "group")
        assert record.terms["cross_entropy"].weight == 8 * 16
        assert record.terms["cross_entropy"].loss == pytest.approx(record.loss, rel=1e-15)
        window_seconds = record.seconds - (records[record.update - 2].seconds if record.update > 1 else 0)
        assert 8 / window_seconds == pytest.approx(record.samples_per_second, rel=1e-6)
        assert UpdateRecord.model_validate_json(record.model_dump_json()) == record


def test_validation_and_instruments_come_when_they_are_due(use: Use):
    """Every 4 updates and at the last; instruments at 1, 5 and 9; memory once."""
    records, _ = finish(tiny())
    assert [r.update for r in records if r.validation is not None] == [4, 8, 10]
    for name in ("gradient_error", "micro_gradient_norms", "weight_sketch"):
        assert [r.update for r in records if name in r.instruments] == [1, 5, 9]
    assert [r.update for r in records if "saved_bytes" in r.instruments] == [1]
    assert all(r.instruments["gradient_error"]["relative_error"] <= 1e-12 for r in records if r.update in (1, 5, 9))


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("interval", ["validate_every", "measure_every"])
def test_watching_does_not_change_the_run(use: Use, norm: str, interval: str):
    """Validation and instruments at every update or hardly ever: the same losses and weights, to the last bit."""
    use(dropout=0.3)
    found = [finish(tiny(norm=norm, **{interval: every})) for every in (1, 1000)]
    hidden = ("validation", "instruments")
    assert course(found[0][0], *hidden) == course(found[1][0], *hidden)
    assert same(found[0][1], found[1][1])


# The real workload.


@pytest.mark.parametrize("model", ["deeplab", "unet"])
def test_land_cover_trains_and_its_splits_agree(model: str):
    """Both networks: one window of 4 tiles in float64, split four ways; gradient and loss agree to 1e-12."""
    found = []
    for micro in (4, 1):
        config = RunConfig.of(
            model=model, norm="group", effective_batch_size=4, micro_batch_size=micro, updates=2, warmup_updates=0,
            precision="float64",
        )  # fmt: skip
        found.append(next(train(config)))
    assert found[1].loss == pytest.approx(found[0].loss, rel=1e-12)
    assert found[1].gradient_norm == pytest.approx(found[0].gradient_norm, rel=1e-11)
    assert found[1].instruments["gradient_error"]["relative_error"] <= 1e-12
    assert 0 < found[1].instruments["saved_bytes"]["micro_batch"] < found[1].instruments["saved_bytes"]["full_batch"]
    assert found[0].loss == pytest.approx(math.log(6), rel=0.3)  # six classes, nothing learnt yet


@pytest.mark.parametrize("norm", ["batch", "batch_renorm", "frozen_batch", "sync_batch"])
def test_the_reference_starts_from_the_windows_own_running_statistics(use: Use, norm: str):
    """An undivided batch is its own reference, also where the layer's output depends on running statistics."""
    use()
    for record in train(tiny(norm=norm, micro_batch_size=8, measure_every=1, updates=4)):
        assert record.instruments["gradient_error"]["relative_error"] <= 1e-12
