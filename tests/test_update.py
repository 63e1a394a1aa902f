"""One update a window: clip, unscale, step, schedule, average, hooks and counts, and what a bad window holds back.

Ids: P27 (clipping once), P29 and P30 (unscaling once), C19, C21, C23 (counts and schedules), C24 (decay and Adam's
counter), C26 (hooks), T17 (an iterable of unknown length), R50 (frozen parameters). One weight w, loss w x, unless
said otherwise.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from bad_windows import EXPLODES, Explosive, samples, spoiled
from small_nets import Product, ProductLoss, dense, gradients, product_batches
from torch import nn

from accum_core.engine import schedules
from accum_core.engine.accumulate import accumulate_gradients
from accum_core.engine.averaging import WeightAverage
from accum_core.engine.objectives import CrossEntropy
from accum_core.engine.precision import Precision
from accum_core.engine.update import Update, Updater
from accum_core.engine.window import MicroBatch
from accum_core.engine.windows import windows
from accum_core.errors import NonFiniteLossError
from accum_core.reduction import LossReduction


def singles(xs: list[float], dtype: torch.dtype = torch.float64) -> list[MicroBatch]:
    """A micro-batch for each x."""
    return [(inputs.to(dtype), ones.to(dtype)) for inputs, ones in product_batches(*[[x] for x in xs])]


def sgd(model: nn.Module, lr: float = 1.0, **settings: Any) -> Updater:
    return Updater(model, torch.optim.SGD(model.parameters(), lr), **settings)


def scaler(scale: float) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale)


def pair() -> tuple[nn.Linear, list[MicroBatch]]:
    """Two weights at 0, and micro-batches with the gradients [1, 0] and [0, 1]."""
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model, [(torch.tensor([row]), torch.ones(1, 1)) for row in ([1.0, 0.0], [0.0, 1.0])]


# Clipping and unscaling.


@pytest.mark.parametrize("scale", [None, 1024.0])
@pytest.mark.parametrize(
    ("clips", "expected"),
    [
        ({"clip_norm": 0.5}, math.sqrt(1 / 8)),
        ({"clip_value": 0.25}, 0.25),
        ({"clip_norm": 0.6, "clip_value": 0.25}, 0.25),
        ({"clip_norm": 0.1, "clip_value": 0.25}, math.sqrt(1 / 200)),
        ({"clip_norm": 2.0}, 0.5),
    ],
)
def test_p27_the_window_is_clipped_once_and_unscaled(clips: Any, expected: float, scale: float | None):
    """P27: [1, 0] and [0, 1], mean [0.5, 0.5], clipped to a norm of 0.5 -> [0.3536, 0.3536]; values first, then the
    norm: 0.25 twice has the norm 0.354. The recorded norm is before it, sqrt(1/2)."""
    model, batches = pair()
    update = sgd(model, scaler=scale and scaler(scale), **clips).update(batches, ProductLoss())
    assert model.weight[0].tolist() == pytest.approx([-expected] * 2, rel=1e-5)
    assert update.gradient_norm == pytest.approx(math.sqrt(0.5), rel=1e-6)


def test_p30_a_window_is_unscaled_once():
    """P30: loss scale 4, two micro-batches of gradient 1, summed -> 2.0 (1.25)."""
    model = Product(0.0, torch.float32)
    updater = sgd(model, scaler=scaler(4.0))
    updater.update(singles([1.0, 1.0], torch.float32), ProductLoss(), reduction=LossReduction("sum"))
    assert float(model.weight.detach()) == -2.0


def test_p29_a_second_unscaling_raises():
    """P29: what is called before the step finds the gradient unscaled; unscaling it again is refused."""
    model = Product(0.0, torch.float32)
    updater = sgd(model, scaler=scaler(4.0))
    for _ in range(2):
        precision = Precision(loss_scale=updater.loss_scale)
        window = accumulate_gradients(model, singles([1.0, 3.0], torch.float32), ProductLoss(), precision=precision)
        assert float(model.weight.grad) == 8.0
        with pytest.raises(RuntimeError, match="already been called"):
            updater.step(window, lambda: updater.scaler.unscale_(updater.optimizer))
        assert model.weight.grad is None  # and the scaler is ready for the next window


class Held:
    """An updater of one float32 weight with everything that an update moves."""

    def __init__(self, **settings: Any) -> None:
        self.model = Product(0.5, torch.float32)
        optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)
        self.average = WeightAverage(self.model, 0.5)
        self.hooked: list[Any] = []
        optimizer.register_step_post_hook(lambda *_: self.hooked.append("step"))
        self.updater = Updater(
            self.model,
            optimizer,
            scheduler=torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
            average=self.average,
            after_update=[self.hooked.append],
            **settings,
        )

    def state(self) -> str:
        state = self.updater.state_dict()
        moved = {name: state[name] for name in ("optimizer", "scheduler", "average")}
        return str((float(self.model.weight.detach()), moved, len(self.hooked), self.updater.updates))

    def update(self, xs: list[float]) -> Update:
        return self.updater.update(singles(xs, torch.float32), ProductLoss())


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_an_overflow_anywhere_in_the_window_skips_the_update(place: int):
    """1e38 times 65536 is infinite in float32: no step, half the scale, everything held, counted, and an incident;
    the next window steps as if it had been the first."""
    held, fresh = Held(scaler=scaler(65536.0)), Held(scaler=scaler(32768.0))
    before = held.state()
    xs = [1.0, 2.0, 3.0, 4.0]
    xs[place] = 1e38
    update = held.update(xs)
    assert not update.made
    assert [incident.kind for incident in update.incidents] == ["overflow"]
    assert "65536 to 32768" in update.incidents[0].text
    assert held.state() == before
    assert not gradients(held.model)
    updater = held.updater
    assert (updater.loss_scale, updater.skipped, updater.samples, updater.micro_batches) == (32768.0, 1, 4, 4)
    assert held.update([1.0, 2.0, 3.0, 4.0]).made
    fresh.update([1.0, 2.0, 3.0, 4.0])
    assert held.state() == fresh.state()


@pytest.mark.parametrize("scale", [2.0**-149, 0.5, 1.0])
def test_what_overflows_without_a_scale_is_no_overflow_of_the_scale(scale: float):
    """At a scale of 1 or less a smaller one helps nothing: the policy for what is not finite decides."""
    torch.manual_seed(0)
    model = Explosive()
    updater = sgd(model, scaler=scaler(scale), non_finite="skip_window")
    before = [parameter.detach().clone() for parameter in model.parameters()]
    ((inputs, labels),) = spoiled(samples(1), {0}, EXPLODES)
    for _ in range(3):
        update = updater.update([(inputs.float(), labels)], CrossEntropy())
        assert not update.made
        assert [incident.kind for incident in update.incidents] == ["non_finite"]
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert updater.skipped == 3
    updater.non_finite = "stop"
    with pytest.raises(NonFiniteLossError, match="gradient norm = nan"):
        updater.update([(inputs.float(), labels)], CrossEntropy())


def test_a_scaler_that_is_switched_off_guards_nothing():
    """GradScaler(enabled=False) would let a gradient that is not a number step."""
    model = Explosive().double()
    updater = sgd(model, scaler=torch.amp.GradScaler("cpu", enabled=False))
    with pytest.raises(NonFiniteLossError, match="gradient norm = nan"):
        updater.update(spoiled(samples(2), {1}, EXPLODES), CrossEntropy())
    assert all(parameter.isfinite().all() for parameter in model.parameters())


# Counting.


@pytest.mark.parametrize(("tail", "change"), [("rescale", -10.0), ("divide_by_n", -7.5)])
def test_t17_a_stream_of_unknown_length(tail: Any, change: float):
    """T12, T17: a generator of 5 micro-batches with gradients 1 to 5, N = 2, lr 1: -10 (-7.5)."""
    model = Product()
    updater, rule = sgd(model), LossReduction("exact", tail, 2)

    def stream() -> Iterator[MicroBatch]:
        yield from singles([1.0, 2.0, 3.0, 4.0, 5.0])

    for window in windows(stream(), 2, tail=tail):
        updater.update(window, ProductLoss(), reduction=rule)
        assert not gradients(model)
    assert float(model.weight.detach()) == pytest.approx(change, rel=1e-12)
    assert (updater.updates, updater.samples, updater.micro_batches) == (3, 5, 5)


def test_c19_c26_schedule_average_and_hooks_go_by_updates():
    """C19, C26: 10 micro-batches, N = 4: 3 updates, so 3 calls of each hook, 3 moves, and a rate of 0.1 / 2^3."""
    held = Held()
    for window in windows(singles([0.5] * 10, torch.float32), 4):
        held.updater.update(window, ProductLoss())
    assert held.updater.learning_rate == 0.1 * 0.5**3
    assert int(held.average.n_averaged) == held.updater.updates == 3
    assert held.hooked[::2] == ["step"] * 3
    assert [update.window.micro_batches for update in held.hooked[1::2]] == [4, 4, 2]


def test_c21_the_schedule_ends_at_its_minimum():
    """C21: 10 micro-batches, N = 4, tail kept -> 3 updates, after which the rate is exactly the minimum."""
    model = Product()
    optimizer = torch.optim.SGD(model.parameters(), 0.8)
    schedule = schedules.build(optimizer, "linear", updates=3, warmup_updates=0, minimum=0.25)
    updater = Updater(model, optimizer, scheduler=schedule)
    for window in windows(iter(singles([0.0] * 10)), 4):
        updater.update(window, ProductLoss())
    assert updater.learning_rate == 0.2


def test_c23_samples_and_micro_batches_stand_beside_updates():
    """C23: 12 micro-batches of 8 samples, N = 4 -> 3 updates, 12 micro-batches and 96 samples on one rank."""
    model = Product()
    updater = sgd(model)
    for window in windows(product_batches(*[[1.0] * 8] * 12), 4):
        updater.update(window, ProductLoss())
    assert (updater.updates, updater.micro_batches, updater.samples, updater.skipped) == (3, 12, 96, 0)


def test_c24_decay_and_adams_counter_go_by_updates():
    """C24: w = 1, zero gradients, decoupled decay 0.1, lr 0.1, one window of 4 -> 0.99; Adam's step is 1."""
    model = Product(1.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    Updater(model, optimizer).update(singles([0.0] * 4), ProductLoss())
    assert float(model.weight.detach()) == pytest.approx(0.99, rel=1e-12)
    assert int(optimizer.state[model.weight]["step"]) == 1


def test_r50_frozen_parameters_are_neither_measured_nor_clipped_nor_cleared():
    """R50: a frozen part keeps what it held in .grad, and the norm is the other part's own, sqrt(1/2)."""
    model, batches = pair()
    both = nn.Sequential(model, nn.Linear(1, 1, bias=False))
    nn.init.ones_(both[1].weight).requires_grad_(False)
    both[1].weight.grad = torch.full((1, 1), 30.0)
    updater = Updater(both, torch.optim.SGD(model.parameters(), 1.0), clip_norm=0.5, clip_value=0.4)
    update = updater.update(batches, ProductLoss())
    assert update.gradient_norm == pytest.approx(math.sqrt(0.5), rel=1e-6)
    assert model.weight[0].tolist() == pytest.approx([-math.sqrt(1 / 8)] * 2, rel=1e-5)
    assert both[1].weight.grad.item() == 30.0


def test_every_trainable_parameter_is_cleared_whether_the_optimizer_has_it_or_not():
    model = dense().double()
    Updater(model, torch.optim.SGD(model[2].parameters(), 0.1)).update(samples(3), CrossEntropy())
    assert not gradients(model)


@pytest.mark.parametrize("skips", [0, 1])
def test_a_saved_updater_goes_on_to_the_bit(skips: int):
    """Optimizer, schedule, scaler, average and counts, through a file of tensors and plain values."""
    held = Held(scaler=scaler(65536.0))
    for xs in [[1.0, 2.0], [1e38, 1.0]][: 1 + skips]:
        held.update(xs)
    file = io.BytesIO()
    torch.save({"model": held.model.state_dict(), "updater": held.updater.state_dict()}, file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    other = Held(scaler=scaler(1.0))
    other.model.load_state_dict(state["model"])
    other.updater.load_state_dict(state["updater"])
    other.hooked = list(held.hooked)
    assert other.updater.loss_scale == held.updater.loss_scale
    for each in (held, other):
        each.update([3.0, -1.0])
    assert other.updater.state_dict()["counts"] == held.updater.state_dict()["counts"]
    assert float(other.model.weight.detach()) == float(held.model.weight.detach())
    assert other.updater.learning_rate == held.updater.learning_rate
    assert float(other.average.module.weight) == float(held.average.module.weight)
