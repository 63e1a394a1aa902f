"""The oracle leaves no trace and equals torch.autograd; the gradient error follows from hand-made gradients."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_nets import Product, ProductLoss, TwoTerms, dense, gradients_of, pixels, product_batches, relative_error
from torch import Tensor, nn
from torch.nn import functional as F

from accum_core.engine import gradient_error, reference_gradient
from accum_core.engine.objectives import CrossEntropy
from accum_core.engine.reference import Gradient


def images(samples: int = 4) -> tuple[Tensor, Tensor]:
    numbers = torch.Generator().manual_seed(5)
    return torch.randn(samples, 2, 4, 4, generator=numbers), torch.randint(3, (samples, 4, 4), generator=numbers)


def by_autograd(model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[float, dict[str, Tensor]]:
    """PyTorch's own mean cross-entropy and its gradients, on a copy."""
    twin = copy.deepcopy(model)
    loss = F.cross_entropy(twin(inputs), targets)
    loss.backward()
    return loss.item(), {name: p.grad for name, p in twin.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("training", [True, False])
def test_it_leaves_everything_as_it_was(training: bool):
    """Parameters, gradients, buffers (num_batches_tracked too), random state, modes and requires_grad."""
    torch.manual_seed(0)
    model = nn.Sequential(pixels(nn.BatchNorm2d(4)), nn.Dropout(0.5))
    model.train(training)
    model[0][0].bias.requires_grad_(False)
    inputs, targets = images()
    F.cross_entropy(model(inputs), targets).backward()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    held = {name: (p, p.grad, None if p.grad is None else p.grad.clone()) for name, p in model.named_parameters()}
    wanted = {name: p.requires_grad for name, p in model.named_parameters()}
    random = torch.get_rng_state()
    for dtype in (None, torch.float64):
        reference_gradient(model, inputs, targets, CrossEntropy(), dtype=dtype)
    assert torch.equal(torch.get_rng_state(), random)
    assert state.keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, state[name]), name
        assert tensor.dtype == state[name].dtype
    for name, parameter in model.named_parameters():
        same, gradient, values = held[name]
        assert parameter is same
        assert parameter.grad is gradient
        assert gradient is None or torch.equal(gradient, values)
        assert parameter.requires_grad is wanted[name]
    assert all(module.training is training for module in model.modules())


def test_it_works_where_gradients_are_switched_off():
    model, (inputs, targets) = pixels(), images()
    with torch.no_grad():
        found = reference_gradient(model, inputs, targets, CrossEntropy())
    assert relative_error(dict(found.by_parameter), by_autograd(model, inputs, targets)[1]) < 1e-6


@pytest.mark.parametrize("norm", [nn.GroupNorm(2, 4), nn.BatchNorm2d(4), nn.InstanceNorm2d(4)], ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_it_equals_autograd_on_one_batch(norm: nn.Module, training: bool):
    torch.manual_seed(1)
    model, (inputs, targets) = pixels(copy.deepcopy(norm)).double().train(training), images()
    loss, expected = by_autograd(model, inputs.double(), targets)
    found = reference_gradient(model, inputs.double(), targets, CrossEntropy())
    assert found.loss == pytest.approx(loss, rel=1e-12)
    assert relative_error(dict(found.by_parameter), expected) < 1e-12


def test_float64_on_request_is_the_float64_model():
    """A float32 model's values are exact in float64: the twin in float64 gives the same gradient to 1e-12."""
    torch.manual_seed(2)
    model, (inputs, targets) = pixels(nn.BatchNorm2d(4)), images()
    loss, expected = by_autograd(copy.deepcopy(model).double(), inputs.double(), targets)
    found = reference_gradient(model, inputs, targets, CrossEntropy(), dtype=torch.float64)
    assert {tensor.dtype for tensor in found.by_parameter.values()} == {torch.float64}
    assert found.loss == pytest.approx(loss, rel=1e-12)
    assert relative_error(dict(found.by_parameter), expected) < 1e-12
    plain = reference_gradient(model, inputs, targets, CrossEntropy())
    assert {tensor.dtype for tensor in plain.by_parameter.values()} == {torch.float32}


def test_dropout_draws_what_the_next_pass_would_draw():
    """The random state is put back, so the reference and a pass after it see the same mask."""
    torch.manual_seed(3)
    model, inputs, targets = nn.Sequential(dense(width=50), nn.Dropout(0.5)), torch.randn(6, 3), torch.arange(6) % 4
    torch.manual_seed(11)
    found = reference_gradient(model, inputs, targets, CrossEntropy())
    loss, expected = by_autograd(model, inputs, targets)
    assert found.loss == pytest.approx(loss, rel=1e-6)
    assert relative_error(dict(found.by_parameter), expected) < 1e-6


class Tied(nn.Module):
    """An embedding whose weight is also the output layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.output = nn.Linear(5, 7, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(torch.tanh(self.embedding(tokens)))


def test_tied_parameters_get_one_gradient_with_both_parts():
    torch.manual_seed(4)
    model, tokens = Tied().double(), torch.randint(7, (3, 6))
    twin = copy.deepcopy(model)
    F.cross_entropy(twin(tokens).flatten(0, 1), tokens.flatten()).backward()
    found = reference_gradient(model, tokens, tokens, CrossEntropy())
    assert relative_error(dict(found.by_parameter), {"embedding.weight": twin.embedding.weight.grad}) < 1e-12


def test_frozen_parameters_are_left_out_and_unused_ones_are_zero():
    torch.manual_seed(5)
    model = dense()
    model.register_parameter("idle", nn.Parameter(torch.ones(3)))
    model[0].weight.requires_grad_(False)
    found = reference_gradient(model, torch.randn(2, 3), torch.tensor([0, 1]), CrossEntropy())
    assert set(found.by_parameter) == {"idle", "0.bias", "2.weight", "2.bias"}
    assert torch.equal(found.by_parameter["idle"], torch.zeros(3))


def test_each_term_is_divided_by_its_own_weight():
    """Gradient of 2 mean(squared) + 3 mean over valid of |output|, worked out by autograd on the formula."""
    torch.manual_seed(6)
    model, inputs, targets = dense().double(), torch.randn(4, 3).double(), torch.tensor([1.0, -2.0, 0.5, -1.0]).double()
    outputs = model(inputs).mean(dim=1)
    loss = 2 * ((outputs - targets) ** 2).mean() + 3 * outputs[targets >= 0].abs().mean()
    expected = gradients_of(loss, model)
    found = reference_gradient(model, inputs, targets, TwoTerms(2, 3))
    assert found.loss == pytest.approx(loss.item(), rel=1e-12)
    assert relative_error(dict(found.by_parameter), expected) < 1e-12


def test_a_batch_without_valid_labels_has_a_zero_gradient():
    model = dense()
    found = reference_gradient(model, torch.randn(2, 3), torch.full((2,), -100), CrossEntropy())
    assert found.loss == 0
    assert all(not gradient.any() for gradient in found.by_parameter.values())


# gradient_error


class Pair(nn.Module):
    """Two parameters of two numbers each, to hang gradients on."""

    def __init__(self, first: list[float] | None, second: list[float] | None) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.zeros(2).double()), nn.Parameter(torch.zeros(2).double())
        for parameter, gradient in ((self.first, first), (self.second, second)):
            parameter.grad = None if gradient is None else torch.tensor(gradient, dtype=torch.float64)


def reference(first: list[float], second: list[float]) -> Gradient:
    parts = {"first": first, "second": second}
    return Gradient(0.0, {name: torch.tensor(part, dtype=torch.float64) for name, part in parts.items()})


def test_error_cosine_and_ratio_of_known_gradients():
    """g = (3, 4 | 0, 0) against (3, 0 | 0, 4): off by (0, 4, 0, -4), norm sqrt 32 over 5; product 9 over 25."""
    found = gradient_error(Pair([3, 4], [0, 0]), reference([3, 0], [0, 4]))
    assert found.relative_error == pytest.approx(math.sqrt(32) / 5)
    assert found.cosine == pytest.approx(9 / 25)
    assert found.norm_ratio == pytest.approx(1)
    first, second = found.by_parameter["first"], found.by_parameter["second"]
    assert (first.relative_error, first.cosine, first.norm_ratio) == pytest.approx((4 / 3, 3 / 5, 5 / 3))
    assert (second.relative_error, second.cosine, second.norm_ratio) == pytest.approx((1, 0, 0))


@settings(deadline=None, max_examples=50)
@given(st.floats(-3, 3).filter(lambda scale: abs(scale) > 1e-3), st.floats(1e-12, 1e12))
def test_a_scaled_gradient_is_off_by_its_scale(scale: float, size: float):
    """g = s g_ref: error |s - 1|, cosine the sign of s, ratio |s|, at any size of the gradient."""
    base = [0.3 * size, -0.4 * size]
    found = gradient_error(Pair([scale * x for x in base], [scale * x for x in base]), reference(base, base))
    assert found.relative_error == pytest.approx(abs(scale - 1), rel=1e-9, abs=1e-12)
    assert found.cosine == pytest.approx(math.copysign(1, scale), rel=1e-12)
    assert found.norm_ratio == pytest.approx(abs(scale), rel=1e-12)


def test_gradients_too_small_for_their_squares_product_still_have_a_cosine():
    """1e-100 squared twice is below float64's range; the gradients are equal all the same."""
    found = gradient_error(Pair([1e-100, 0], [0, 0]), reference([1e-100, 0], [0, 0]))
    assert (found.relative_error, found.cosine, found.norm_ratio) == (0, pytest.approx(1), pytest.approx(1))


@pytest.mark.parametrize(
    ("actual", "expected", "numbers"),
    [
        ([0, 0], [0, 0], (0, 1, 1)),
        ([1, 0], [0, 0], (math.inf, 0, math.inf)),
        ([0, 0], [1, 0], (1, 0, 0)),
        (None, [1, 0], (1, 0, 0)),
        (None, [0, 0], (0, 1, 1)),
    ],
)
def test_zero_gradients_have_defined_numbers(actual: list[float] | None, expected: list[float], numbers):
    """Both zero: no error; only the reference zero: infinite; a parameter without .grad counts as zero."""
    found = gradient_error(Pair(actual, actual), reference(expected, expected))
    for error in (found, *found.by_parameter.values()):
        assert (error.relative_error, error.cosine, error.norm_ratio) == numbers


def test_a_float32_gradient_is_compared_in_float64():
    """10 000 equal differences of 1e-4 add up to sqrt(1e4) 1e-4 = 1e-2 over a norm of 100."""
    model = nn.Linear(10_000, 1, bias=False)
    model.weight.grad = torch.full((1, 10_000), 1.0001)
    found = gradient_error(model, Gradient(0.0, {"weight": torch.ones(1, 10_000)}))
    exact = float(torch.tensor(1.0001).double()) - 1
    assert found.relative_error == pytest.approx(exact, rel=1e-9)


def test_reference_and_error_agree_on_the_one_weight_net():
    model = Product()
    inputs, targets = product_batches([10.0, 2.0, 2.0, 2.0])[0]
    found = reference_gradient(model, inputs, targets, ProductLoss())
    assert float(found.by_parameter["weight"]) == 4.0
    model.weight.grad = torch.tensor(6.0).double()
    assert gradient_error(model, found).relative_error == 0.5
