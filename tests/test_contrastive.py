"""S10 and S11: a loss in which all samples of a window meet, exact under accumulation through cached representations.

The full batch is written out by hand (quotients by norms, log-sum-exp over rows and columns) in float64.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_nets import gradients, gradients_of, relative_error
from torch import Tensor, nn

from accum_core.engine.accumulate import accumulate_gradients
from accum_core.engine.cached import accumulate_cached
from accum_core.engine.objectives import Contrastive, CrossEntropy, Penalized, WholeWindow, mean_loss
from accum_core.engine.precision import Precision
from accum_core.engine.reference import reference_gradient
from accum_core.errors import SettingError
from accum_core.reduction import LossReduction

BAR = 1e-12
IGNORED = -100
MicroBatch = tuple[Tensor, Tensor]


def by_hand(vectors: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """The mean loss of the pairs that count, from the network's outputs [B, 2, D]."""
    anchors, positives = vectors[targets != IGNORED].unbind(1)
    similarities = torch.stack(
        [torch.stack([a @ p / (a.norm() * p.norm() * temperature) for p in positives]) for a in anchors]
    )
    own = similarities.diagonal()
    return (similarities.logsumexp(1) + similarities.logsumexp(0) - 2 * own).mean() / 2


def network(dropout: float = 0.0, norm: nn.Module | None = None) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(3, 5), nn.Tanh(), nn.Dropout(dropout), norm or nn.Identity(), nn.Linear(5, 4)
    ).double()


def window(*sizes: int, seed: int = 0, ignored: float = 0.0) -> list[MicroBatch]:
    numbers = torch.Generator().manual_seed(seed)
    batches = []
    for size in sizes:
        inputs = torch.randn(size, 2, 3, generator=numbers, dtype=torch.float64)
        keep = torch.rand(size, generator=numbers) >= ignored
        batches.append((inputs, torch.where(keep, 0, IGNORED)))
    return batches


def whole(batches: list[MicroBatch]) -> MicroBatch:
    inputs, targets = (torch.cat(part) for part in zip(*batches, strict=True))
    return inputs, targets


def test_s10_eight_equal_embeddings_have_the_loss_ln_8_however_they_are_split():
    """Each of 8 candidates is as likely as the others: ln 8 = 2.0794."""
    model = nn.Linear(3, 4).double()
    inputs, targets = torch.ones(8, 2, 3, dtype=torch.float64), torch.zeros(8, dtype=torch.int64)
    for size in (8, 4, 2, 1):
        batches = list(zip(inputs.split(size), targets.split(size), strict=True))
        result = accumulate_cached(model, batches, Contrastive(0.05))
        assert result.loss == pytest.approx(math.log(8), rel=1e-12)
        assert (result.samples, result.micro_batches) == (8, 8 // size)
        assert result.terms["contrastive"].weight == 8


@pytest.mark.parametrize(("size", "loss"), [(8, math.log(8)), (2, math.log(2)), (1, 0.0)])
def test_s10_the_mean_of_means_loses_the_negatives(size: int, loss: float):
    """The wrong way, which was reported: 0.6931 at micro-batch 2 and 0 at 1."""
    inputs, targets = torch.ones(8, 2, 3), torch.zeros(8, dtype=torch.int64)
    batches = list(zip(inputs.split(size), targets.split(size), strict=True))
    result = accumulate_gradients(nn.Linear(3, 4), batches, Contrastive(), reduction="mean_of_means")
    assert result.loss == pytest.approx(loss, abs=1e-6)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.sampled_from([0.0, 0.4]),
    st.floats(0.05, 2.0),
    st.integers(0, 10_000),
)
def test_any_split_has_the_gradient_of_one_batch(sizes: list[int], ignored: float, temperature: float, seed: int):
    model, batches = network(), window(*sizes, seed=seed, ignored=ignored)
    inputs, targets = whole(batches)
    objective = Contrastive(temperature)
    result = accumulate_cached(model, batches, objective)
    count = int((targets != IGNORED).sum())
    assert result.terms["contrastive"].weight == count
    assert result.empty is (count == 0)
    if count < 2:  # no pair has a negative: the loss is 0, and so is its gradient
        assert result.loss == pytest.approx(0, abs=BAR)
        assert all(gradient.abs().max() <= BAR for gradient in gradients(model).values())
        return
    loss = by_hand(model(inputs.flatten(0, 1)).unflatten(0, (-1, 2)), targets, temperature)
    assert result.loss == pytest.approx(loss.item(), rel=BAR, abs=BAR)
    assert mean_loss(objective, model, inputs, targets).item() == pytest.approx(loss.item(), rel=BAR, abs=BAR)
    expected = gradients_of(loss, model)
    size = sum(float(gradient.square().sum()) for gradient in expected.values()) ** 0.5
    assert relative_error(gradients(model), expected) * size <= BAR * max(size, 1.0)


def test_the_reference_gradient_is_that_of_one_batch():
    model, batches = network(), window(3, 1, 2)
    reference = reference_gradient(model, *whole(batches), Contrastive())
    accumulate_cached(model, batches, Contrastive())
    assert relative_error(gradients(model), dict(reference.by_parameter)) <= BAR


def test_s11_both_passes_draw_the_same_masks_and_a_rerun_is_bit_equal():
    model, batches = network(dropout=0.4), window(3, 2, 3)
    masks: list[Tensor] = []
    model[2].register_forward_hook(lambda module, arguments, output: masks.append(output.detach() == 0))
    found = []
    for _ in range(2):
        torch.manual_seed(7)
        loss = accumulate_cached(model, batches, Contrastive()).loss
        found.append((loss, gradients(model), torch.get_rng_state()))
    first, second = masks[:3], masks[3:6]
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert not torch.equal(first[0], first[2])
    assert found[0][0] == found[1][0]
    assert all(torch.equal(gradient, found[1][1][name]) for name, gradient in found[0][1].items())
    # The random state goes on as after one pass of each micro-batch.
    torch.manual_seed(7)
    for inputs, _ in batches:
        model(inputs.flatten(0, 1))
    assert torch.equal(found[0][2], torch.get_rng_state())


def test_s11_what_a_watcher_draws_moves_no_mask():
    model, batches = network(dropout=0.4), window(3, 2, 3)
    found = []
    for watch in (None, lambda index: torch.rand(index + 1)):
        torch.manual_seed(7)
        accumulate_cached(model, batches, Contrastive(), after_micro_batch=watch)
        found.append((gradients(model), torch.get_rng_state()))
    assert all(torch.equal(gradient, found[1][0][name]) for name, gradient in found[0][0].items())
    assert torch.equal(found[0][1], found[1][1])


def test_s11_with_dropout_it_is_the_gradient_of_the_masks_that_were_drawn():
    """By hand: every micro-batch's graph kept, with masks from the same seed, and one loss of all of them."""
    model, batches = network(dropout=0.4), window(3, 2, 3)
    torch.manual_seed(7)
    vectors = torch.cat([model(inputs.flatten(0, 1)).unflatten(0, (-1, 2)) for inputs, _ in batches])
    expected = gradients_of(by_hand(vectors, whole(batches)[1], 0.07), model)
    torch.manual_seed(7)
    accumulate_cached(model, batches, Contrastive())
    assert relative_error(gradients(model), expected) <= BAR


def test_buffers_move_once():
    model, batches = network(norm=nn.BatchNorm1d(5)), window(3, 2, 3)
    once = network(norm=nn.BatchNorm1d(5))
    for inputs, _ in batches:
        once(inputs.flatten(0, 1))
    accumulate_cached(model, batches, Contrastive())
    assert int(model[3].num_batches_tracked) == 3
    for mine, expected in zip(model.buffers(), once.buffers(), strict=True):
        assert torch.equal(mine, expected)


def test_no_graph_is_kept_between_micro_batches():
    """Tensors saved for backward are counted when a forward pass begins: none is left of any pass before."""
    model, batches = network(), window(3, 2, 3)
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    at_start, at_end = [], []

    class Saved:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor
            alive.add(self)

    model.register_forward_pre_hook(lambda *_: at_start.append(len(alive)))
    model.register_forward_hook(lambda *_: at_end.append(len(alive)))
    with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.tensor):
        accumulate_cached(model, batches, Contrastive())
    assert at_start == [0] * 6
    assert at_end[:3] == [0] * 3
    assert min(at_end[3:]) > 0


def test_gradients_are_replaced_and_frozen_parameters_left_alone():
    model, batches = network(), window(2, 2)
    accumulate_cached(model, batches, Contrastive())
    expected = gradients(model)
    model[0].requires_grad_(False)
    held = torch.ones_like(model[0].weight)
    model[0].weight.grad = held
    calls: list[int] = []
    accumulate_cached(model, batches, Contrastive(), after_micro_batch=calls.append)
    assert model[0].weight.grad is held
    assert bool((held == 1).all())
    assert torch.equal(model[4].weight.grad, expected["4.weight"])
    assert calls == [0, 1]


def test_a_penalty_is_added_once():
    """d/dw of 0.5 * sum of w^2 is w, on top of the loss's gradient."""
    model, batches = network(), window(2, 1, 2)
    plain = accumulate_cached(model, batches, Contrastive())
    alone = gradients(model)
    l2 = Penalized(Contrastive(), lambda named: torch.stack([w.square().sum() for w in named.values()]).sum(), 0.5)
    assert isinstance(l2, WholeWindow)
    result = accumulate_cached(model, batches, l2)
    expected = {name: alone[name] + parameter.detach() for name, parameter in model.named_parameters()}
    assert relative_error(gradients(model), expected) <= BAR
    size = sum(parameter.detach().square().sum().item() for parameter in model.parameters())
    assert result.loss == pytest.approx(plain.loss + 0.5 * size, rel=BAR)
    assert result.terms["penalty"].loss == pytest.approx(size, rel=BAR)


def test_scale_tail_and_accumulators():
    """A power of two scales without rounding; two micro-batches divided as if they were four give half."""
    model, batches = network(), window(2, 3)
    accumulate_cached(model, batches, Contrastive())
    expected = gradients(model)
    accumulate_cached(model, batches, Contrastive(), precision=Precision(loss_scale=8.0))
    assert relative_error({n: g / 8 for n, g in gradients(model).items()}, expected) <= BAR
    accumulate_cached(model, batches, Contrastive(), rule=LossReduction("exact", "divide_by_n", 4))
    assert relative_error({n: g * 2 for n, g in gradients(model).items()}, expected) <= BAR
    model.to(torch.bfloat16)
    inside: list[torch.dtype] = []
    low = [(inputs.to(torch.bfloat16), targets) for inputs, targets in batches]
    accumulate_cached(model, low, Contrastive(), after_micro_batch=lambda _: inside.append(model[0].weight.grad.dtype))
    assert inside == [torch.float32] * 2
    assert model[0].weight.grad.dtype == torch.bfloat16


def test_a_callers_autocast_loses_no_gradient():
    """Weights that the pass without graph has cast would not lead the second pass back to the parameters."""
    model, batches = network().float(), [(inputs.float(), targets) for inputs, targets in window(2, 3)]
    accumulate_cached(model, batches, Contrastive(1.0), precision=Precision(autocast=torch.bfloat16))
    expected = gradients(model)
    with torch.autocast("cpu", torch.bfloat16):
        accumulate_cached(model, batches, Contrastive(1.0))
    found = gradients(model)
    assert found.keys() == expected.keys()
    assert all(torch.equal(gradient, found[name]) for name, gradient in expected.items())


class OwnNumbers(nn.Module):
    """Noise from a generator of its own, which nobody puts back."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = torch.Generator().manual_seed(0)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + torch.randn(inputs.shape, generator=self.numbers)


def test_a_second_pass_that_does_not_repeat_the_first_is_refused():
    model = network(norm=OwnNumbers())
    with pytest.raises(SettingError, match="model = 'Sequential': .*second pass"):
        accumulate_cached(model, window(2, 2), Contrastive())
    assert not gradients(model)


def test_refusals():
    model, batches = network(), window(2, 2)
    with pytest.raises(SettingError, match="world_size = 2: .*negatives on the other ranks"):
        accumulate_cached(model, batches, Contrastive(), world_size=2)
    with pytest.raises(SettingError, match="reduction = 'mean_of_means': .*use exact"):
        accumulate_cached(model, batches, Contrastive(), rule=LossReduction("mean_of_means"))
    with pytest.raises(SettingError, match="micro_batches"):
        accumulate_cached(model, [], Contrastive())
    with pytest.raises(SettingError, match="temperature = 0"):
        Contrastive(0.0)
    with pytest.raises(SettingError, match=r"inputs = \[4, 3\]: "):
        accumulate_cached(model, [(torch.zeros(4, 3, dtype=torch.float64), torch.zeros(4))], Contrastive())
    assert isinstance(Contrastive(), WholeWindow)
    assert not isinstance(CrossEntropy(), WholeWindow)
