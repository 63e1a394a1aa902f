"""A window begun again without its micro-batches that are not finite; too small a memory has a file of its own.

Ids: S5 (penalties once a window, windows of which nothing is left), B46 (nothing kept between micro-batches).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from bad_windows import EXPLODES, Explosive, samples, spoiled
from drawing_nets import Drawing, same_draws, seed
from small_nets import Product, ProductLoss, TwoTerms, dense, gradients, product_batches, relative_error
from test_memory import kept_between
from torch import Tensor, nn

from accum_core.batching import BatchPlan
from accum_core.engine.accumulate import accumulate_gradients
from accum_core.engine.objectives import CrossEntropy, Penalized
from accum_core.engine.precision import Precision
from accum_core.engine.snapshot import random_states
from accum_core.engine.tolerant import accumulate_tolerantly
from accum_core.engine.window import MicroBatch
from accum_core.reduction import LossReduction

# Micro-batches that are not finite.


@pytest.mark.parametrize("objective", [CrossEntropy(), TwoTerms()])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, EXPLODES])
@pytest.mark.parametrize("bad", [{0}, {1}, {3}, {0, 1}, {0, 3}, {1, 2}, {0, 1, 2}])
def test_a_window_is_that_of_its_good_micro_batches(objective: Any, value: float, bad: set[int]):
    """Wherever and however many the bad ones are: sum and weight of each term as if they had not come."""
    torch.manual_seed(0)
    model = Explosive().double()
    batches = samples(4, "labels" if isinstance(objective, CrossEntropy) else "values")
    alone = accumulate_gradients(model, [batch for i, batch in enumerate(batches) if i not in bad], objective)
    expected = gradients(model)
    result = accumulate_gradients(model, spoiled(batches, bad, value), objective, non_finite="skip_micro_batch")
    assert relative_error(gradients(model), expected) <= 1e-12
    assert result.loss == pytest.approx(alone.loss, rel=1e-12)
    assert result.terms.keys() == alone.terms.keys()
    assert all(result.terms[name].weight == term.weight for name, term in alone.terms.items())
    assert (result.skipped, result.micro_batches, result.samples) == (len(bad), 4 - len(bad), alone.samples)


def test_the_spoiled_window_is_bad_without_the_policy():
    """The counterpart: kept, it reaches the loss or the gradient."""
    model = Explosive().double()
    for value in (torch.nan, torch.inf, EXPLODES):
        result = accumulate_gradients(model, spoiled(samples(3), {1}, value), CrossEntropy())
        assert not all(gradient.isfinite().all() for gradient in gradients(model).values())
        assert math.isfinite(result.loss) == (value is not torch.nan)  # tanh(inf) is 1, with an infinite input


@pytest.mark.parametrize("value", [torch.nan, EXPLODES])
def test_a_window_of_bad_ones_alone_is_empty(value: float):
    model = Explosive().double()
    result = accumulate_gradients(
        model, spoiled(samples(3), {0, 1, 2}, value), CrossEntropy(), non_finite="skip_micro_batch"
    )
    assert result.empty
    assert (result.skipped, result.micro_batches, result.loss) == (3, 0, 0.0)
    assert not gradients(model)


@pytest.mark.parametrize("bad", [{0}, {2}, {0, 1}])
def test_running_statistics_and_draws_are_those_of_the_good_ones(bad: set[int]):
    """BatchNorm, dropout, NumPy's and Python's draws: as the same window without the bad ones, to the bit."""
    batches = samples(4)[1:]  # BatchNorm needs two samples
    found = []
    for given_batches in (spoiled(batches, bad, torch.nan), [b for i, b in enumerate(batches) if i not in bad]):
        seed(0)
        model = Drawing().double()
        accumulate_gradients(model, given_batches, CrossEntropy(), non_finite="skip_micro_batch")
        found.append((gradients(model) | dict(model.named_buffers()), random_states()))
    assert all(torch.equal(found[0][0][name], tensor) for name, tensor in found[1][0].items())
    assert same_draws(found[0][1], found[1][1])


class Centred(nn.Module):
    """Takes off a running mean that it keeps, in training too, as codebooks and batch renormalisation do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = dense()
        self.register_buffer("mean", torch.zeros(3))
        self.mean: Tensor

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.lerp_(inputs.mean(0), 0.1)
        return self.net(inputs - self.mean)


def test_one_bad_micro_batch_does_not_make_the_next_ones_look_bad():
    """Its NaN would stay in the buffer, and in all that is centred by it; one of four is left out, not four."""
    torch.manual_seed(0)
    model = Centred().double()
    result = accumulate_gradients(
        model, spoiled(samples(4), {0}, torch.nan), CrossEntropy(), non_finite="skip_micro_batch"
    )
    assert (result.skipped, result.micro_batches) == (1, 3)
    assert model.mean.isfinite().all()


def test_a_gradient_may_be_large_as_long_as_it_is_finite():
    """Gradients of 1e30 and 3e30 are numbers, although their squares are too large for float32."""
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    batches = [(torch.full((1, 2), x), torch.ones(1, 1)) for x in (1e30, 3e30)]
    result = accumulate_gradients(model, batches, ProductLoss(), non_finite="skip_micro_batch")
    assert result.skipped == 0
    assert model.weight.grad[0].tolist() == pytest.approx([2e30] * 2, rel=1e-6)


def test_under_a_loss_scale_an_infinite_gradient_is_the_scalers():
    """It says that the scale is too large for this window: nothing is left out, and the gradient shows it."""
    model = Product(0.0, torch.float32)
    batches = [(inputs.float(), ones.float()) for inputs, ones in product_batches([1.0], [1e38])]
    result = accumulate_gradients(
        model, batches, ProductLoss(), precision=Precision(loss_scale=65536.0), non_finite="skip_micro_batch"
    )
    assert (result.skipped, float(model.weight.grad)) == (0, torch.inf)


def test_a_full_window_is_no_tail_because_something_was_left_out():
    """N = 4 and the tail divided by N: gradients 1, 3, 5 and a bad one are 3.0; a tail of 2 of them is 4 / 4."""
    rule = LossReduction("exact", "divide_by_n", 4)
    for xs, expected in (([1.0, torch.nan, 3.0, 5.0], 3.0), ([1.0, 3.0], 1.0)):
        model = Product()
        batches = product_batches(*[[x] for x in xs])
        accumulate_gradients(model, batches, ProductLoss(), reduction=rule, non_finite="skip_micro_batch")
        assert float(model.weight.grad) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1024.0])
@pytest.mark.parametrize("bad", [set(), {0}, {3}])
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_a_penalty_counts_once_a_window(steps: int, bad: set[int], scale: float):
    """S5: w = 3, x = 1..4, penalty w^2 / 2: the mean of the good x, plus 3, whatever N, what is left out, the scale."""
    model = Product(3.0)
    xs = [1.0, 2.0, 3.0, 4.0]
    if steps < 4:
        bad = set()
    good = [x for index, x in enumerate(xs) if index not in bad]
    xs = [torch.nan if index in bad else x for index, x in enumerate(xs)]
    size = 4 // steps
    batches = product_batches(*[xs[start : start + size] for start in range(0, 4, size)])
    objective = Penalized(ProductLoss(), lambda named: named["weight"].square(), 0.5)
    result = accumulate_gradients(
        model, batches, objective, precision=Precision(loss_scale=scale), non_finite="skip_micro_batch"
    )
    assert float(model.weight.grad) / scale == pytest.approx(sum(good) / len(good) + 3.0, rel=1e-12)
    assert result.loss == pytest.approx(3 * sum(good) / len(good) + 4.5, rel=1e-12)


# Memory between micro-batches.


@pytest.mark.parametrize("steps", [2, 4, 8])
@pytest.mark.parametrize("precision", [Precision(), Precision(autocast=torch.bfloat16), Precision(loss_scale=1024.0)])
def test_b46_nothing_is_kept_while_something_is_watched_for(steps: int, precision: Precision):
    """B46: 0 bytes and no node of a graph between micro-batches, with the policies and number types too."""

    def loop(model: nn.Module, batches: list[MicroBatch], after: Callable[[int], None]) -> Any:
        return accumulate_tolerantly(
            model, lambda _: batches, CrossEntropy(), LossReduction(), world_size=1, precision=precision,
            skip_non_finite=True, plan=BatchPlan(4 * steps, 4), after_micro_batch=after,
        )  # fmt: skip

    assert kept_between(loop, steps) == [(0, 0)] * (steps + 1)
