"""The one loop: accumulated gradients equal one pass over the whole window, for any window and objective.

The full batch is written out by hand here (log-softmax, gather, weighted mean) in float64; the bar is 1e-12 relative.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from small_nets import (
    Product,
    ProductLoss,
    Tokens,
    TwoTerms,
    dense,
    gradients,
    gradients_of,
    pixels,
    product_batches,
    relative_error,
)
from torch import Tensor, nn

from accum_core.engine import accumulate_gradients
from accum_core.engine.objectives import CrossEntropy
from accum_core.errors import SettingError
from accum_core.reduction import LossReduction

BAR = 1e-12
quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
kinds = st.sampled_from(["classes", "pixels", "tokens"])
IGNORED = -100


@dataclass
class Window:
    """A drawn window: a model of its kind, micro-batches of ragged sizes, labels of which some are ignored."""

    model: nn.Module
    micro_batches: list[tuple[Tensor, Tensor]]
    class_weights: Tensor | None

    def objective(self) -> CrossEntropy:
        return CrossEntropy(ignore_index=IGNORED, class_weights=self.class_weights)

    def by_hand(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, float]:
        """Summed loss and weight of some samples: -c[y] log p[y] over the valid labels, and the sum of their c[y]."""
        logits = self.model(inputs)
        classes_last = logits.movedim(1, -1) if logits.dim() == 4 else logits
        log_p = classes_last - torch.logsumexp(classes_last, dim=-1, keepdim=True)
        valid = targets != IGNORED
        label = targets[valid]
        weights = torch.ones_like(label, dtype=torch.float64)
        if self.class_weights is not None:
            weights = self.class_weights[label]
        return -(weights * log_p[valid].gather(-1, label[:, None])[:, 0]).sum(), float(weights.sum())

    def gradient_of(self, loss: Tensor) -> dict[str, Tensor]:
        return gradients_of(loss, self.model)

    def full_batch(self) -> tuple[float, dict[str, Tensor], float]:
        inputs, targets = (torch.cat(part) for part in zip(*self.micro_batches, strict=True))
        total, weight = self.by_hand(inputs, targets)
        return float(total.detach()) / weight, self.gradient_of(total / weight), weight


@st.composite
def windows(draw: st.DrawFn, equal_weights: bool = False) -> Window:
    kind = draw(kinds)
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    sizes = [sizes[0]] * len(sizes) if equal_weights else sizes
    numbers = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    torch.manual_seed(draw(st.integers(0, 100)))
    ignored = 0.0 if equal_weights else draw(st.sampled_from([0.0, 0.3, 0.8]))
    model = {"classes": dense, "pixels": pixels, "tokens": Tokens}[kind]().double()
    classes = {"classes": 4, "pixels": 3, "tokens": 5}[kind]
    weighted = not equal_weights and draw(st.booleans())
    class_weights = 0.2 + 3 * torch.rand(classes, generator=numbers).double() if weighted else None
    micro_batches = []
    for size in sizes:
        if kind == "classes":
            inputs, shape = torch.randn(size, 3, dtype=torch.float64, generator=numbers), (size,)
        elif kind == "pixels":
            inputs, shape = torch.randn(size, 2, 3, 5, dtype=torch.float64, generator=numbers), (size, 3, 5)
        else:
            inputs, shape = torch.randint(11, (size, 6), generator=numbers), (size, 6)
        targets = torch.randint(classes, shape, generator=numbers)
        targets[torch.rand(shape, generator=numbers) < ignored] = IGNORED
        micro_batches.append((inputs, targets))
    return Window(model, micro_batches, class_weights)


def has_labels(window: Window) -> bool:
    return any(bool((targets != IGNORED).any()) for _, targets in window.micro_batches)


@quick
@given(windows())
def test_accumulated_gradient_is_the_full_batchs(window: Window):
    assume(has_labels(window))
    loss, expected, weight = window.full_batch()
    result = accumulate_gradients(window.model, window.micro_batches, window.objective())
    assert relative_error(gradients(window.model), expected) <= BAR
    assert result.loss == pytest.approx(loss, rel=BAR)
    assert [term.weight for term in result.terms.values()] == pytest.approx([weight], rel=BAR)
    assert [term.loss for term in result.terms.values()] == pytest.approx([loss], rel=BAR)
    assert result.micro_batches == len(window.micro_batches)
    assert result.samples == sum(len(targets) for _, targets in window.micro_batches)


@quick
@given(windows(), st.sampled_from(["mean_of_means", "sum_of_means", "sum"]))
def test_named_reductions_follow_their_formulas(window: Window, kind: Any):
    """Each micro-batch's mean over N, its mean, or its sum; the loss told is the weighted mean of the window anyway."""
    assume(has_labels(window))
    loss, _, _ = window.full_batch()
    count = len(window.micro_batches)
    total = torch.zeros((), dtype=torch.float64)
    for inputs, targets in window.micro_batches:
        summed, weight = window.by_hand(inputs, targets)
        if weight:
            total = total + summed / {"mean_of_means": weight * count, "sum_of_means": weight, "sum": 1.0}[kind]
    expected = window.gradient_of(total)
    result = accumulate_gradients(window.model, window.micro_batches, window.objective(), reduction=LossReduction(kind))
    assert relative_error(gradients(window.model), expected) <= BAR
    assert result.loss == pytest.approx(loss, rel=BAR)


@quick
@given(windows(equal_weights=True))
def test_with_equal_weights_the_mean_of_means_is_the_full_batch(window: Window):
    _, expected, _ = window.full_batch()
    accumulate_gradients(
        window.model, window.micro_batches, window.objective(), reduction=LossReduction("mean_of_means")
    )
    assert relative_error(gradients(window.model), expected) <= BAR


def test_a_ragged_window_makes_the_mean_of_means_wrong():
    """Sizes 4, 4 and 2 with per-sample losses 1, 2 and 6: 24 / 10 = 2.4 against (1 + 2 + 6) / 3 = 3."""
    for kind, gradient in (("exact", 2.4), ("mean_of_means", 3.0), ("sum_of_means", 9.0), ("sum", 24.0)):
        model = Product()
        batches = product_batches([1.0] * 4, [2.0] * 4, [6.0] * 2)
        accumulate_gradients(model, batches, ProductLoss(), reduction=LossReduction(kind))  # type: ignore[arg-type]
        assert float(model.weight.grad) == pytest.approx(gradient, rel=BAR), kind


def test_a_reduction_may_be_given_by_its_name():
    model = Product()
    accumulate_gradients(model, product_batches([10.0], [2.0, 2.0, 2.0]), ProductLoss(), reduction="mean_of_means")
    assert float(model.weight.grad) == pytest.approx(6.0, rel=BAR)
    with pytest.raises(SettingError, match="reduction = 'average'"):
        accumulate_gradients(model, product_batches([1.0]), ProductLoss(), reduction="average")


@quick
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.floats(0.1, 3),
    st.floats(-2, 2),
    st.integers(0, 1000),
)
def test_terms_of_different_weights_are_each_divided_by_their_own(sizes, squared, absolute, seed):
    """loss = a sum(squared) / samples + b sum(absolute) / valid samples, over the window."""
    torch.manual_seed(seed)
    model = dense().double()
    batches = [(torch.randn(size, 3, dtype=torch.float64), torch.randn(size, dtype=torch.float64)) for size in sizes]
    inputs, targets = (torch.cat(part) for part in zip(*batches, strict=True))
    valid = targets >= 0
    assume(bool(valid.any()))
    outputs = model(inputs).mean(dim=1)
    means = {"squared": ((outputs - targets) ** 2).mean(), "absolute": outputs[valid].abs().mean()}
    loss = squared * means["squared"] + absolute * means["absolute"]
    expected = gradients_of(loss, model)
    result = accumulate_gradients(model, batches, TwoTerms(squared, absolute))
    assert relative_error(gradients(model), expected) <= BAR
    assert result.loss == pytest.approx(float(loss.detach()), rel=BAR, abs=BAR)
    assert {name: term.loss for name, term in result.terms.items()} == pytest.approx(
        {name: float(mean.detach()) for name, mean in means.items()}, rel=BAR
    )
    assert {name: term.weight for name, term in result.terms.items()} == {
        "squared": len(targets),
        "absolute": float(valid.sum()),
    }


def test_batch_norm_makes_the_split_visible():
    """Each micro-batch is normalised alone, so the sum equals the hand-written loop and not the full batch."""
    torch.manual_seed(3)
    model = pixels(nn.BatchNorm2d(4)).double()
    window = Window(model, [(torch.randn(2, 2, 3, 3).double(), torch.randint(3, (2, 3, 3))) for _ in range(4)], None)
    _, full, weight = window.full_batch()
    loop = window.gradient_of(sum(window.by_hand(*batch)[0] for batch in window.micro_batches) / weight)
    accumulate_gradients(model, window.micro_batches, window.objective())
    assert relative_error(gradients(model), loop) <= BAR
    assert relative_error(gradients(model), full) > 0.01


def test_an_ignored_micro_batch_changes_neither_loss_nor_gradient():
    torch.manual_seed(0)
    model, targets = dense().double(), torch.tensor([1, 2])
    inputs = torch.randn(2, 3, dtype=torch.float64)
    objective = CrossEntropy(ignore_index=7)
    alone = accumulate_gradients(model, [(inputs, targets)], objective)
    expected = gradients(model)
    model.zero_grad()
    beside = accumulate_gradients(model, [(inputs, targets), (inputs, torch.full((2,), 7))], objective)
    assert relative_error(gradients(model), expected) <= BAR
    assert beside.loss == pytest.approx(alone.loss, rel=BAR)
    assert math.isfinite(beside.loss)


def test_the_loop_steps_nothing_and_leaves_modes_alone():
    torch.manual_seed(1)
    model = nn.Sequential(dense(), nn.Dropout(0.5), nn.Linear(4, 4)).double()
    model[2].weight.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for training in (True, False):
        model.train(training)
        accumulate_gradients(model, [(torch.randn(2, 3).double(), torch.tensor([0, 3]))] * 2, CrossEntropy())
        assert all(module.training is training for module in model.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model[2].weight.grad is None
    assert model[2].bias.grad is not None


def test_gradients_of_the_window_before_are_replaced():
    """As the docstring says: nothing leaks from one window into the next; a frozen parameter's .grad is left alone."""
    torch.manual_seed(2)
    model = dense().double()
    model[0].weight.requires_grad_(False)
    batches = [(torch.randn(2, 3).double(), torch.tensor([0, 3]))] * 2
    accumulate_gradients(model, batches, CrossEntropy())
    expected = gradients(model)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    accumulate_gradients(model, batches, CrossEntropy())
    frozen = gradients(model).pop("0.weight")
    assert torch.equal(frozen, torch.full_like(frozen, 7.0))
    assert relative_error({name: g for name, g in gradients(model).items() if name != "0.weight"}, expected) == 0


def test_the_callback_hears_of_each_micro_batch_in_turn():
    heard: list[tuple[int, float]] = []
    model = Product()
    accumulate_gradients(
        model,
        product_batches([1.0], [2.0], [6.0]),
        ProductLoss(),
        after_micro_batch=lambda index: heard.append((index, float(model.weight.grad))),
    )
    assert heard == [(0, pytest.approx(1 / 3)), (1, pytest.approx(1.0)), (2, pytest.approx(3.0))]


def test_a_window_without_micro_batches_is_refused():
    with pytest.raises(SettingError, match="micro_batches"):
        accumulate_gradients(Product(), [], ProductLoss())
