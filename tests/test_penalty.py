"""A penalty on the parameters counts once a window, whatever its split; its gradient is worked out by hand."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import pytest
import torch
from small_nets import Product, ProductLoss, TwoTerms, dense, gradients, product_batches
from torch import Tensor, nn

from accum_core.engine.accumulate import accumulate_gradients
from accum_core.engine.objectives import Contrastive, CrossEntropy, Penalized, WholeWindow, mean_loss
from accum_core.engine.objectives.penalty import add_penalties, penalty_loss
from accum_core.engine.reference import reference_gradient
from accum_core.errors import SettingError


def squares(named: Mapping[str, Tensor]) -> Tensor:
    """The sum of squares; its gradient is 2 w."""
    return torch.stack([tensor.square().sum() for tensor in named.values()]).sum()


def test_one_batch_gives_the_terms_and_the_penalty():
    """w = 3, mean of x = 2 over four samples: 3 * 2 + 0.5 * 9 = 10.5, and the gradient is 2 + 0.5 * 2 * 3 = 5."""
    model, objective = Product(3.0), Penalized(ProductLoss(), squares, 0.5)
    ((inputs, targets),) = product_batches([1.0, 3.0, 2.0, 2.0])
    loss = mean_loss(objective, model, inputs, targets)
    loss.backward()
    assert loss.item() == pytest.approx(10.5, rel=1e-15)
    assert model.weight.grad.item() == pytest.approx(5.0, rel=1e-15)


@pytest.mark.parametrize("split", [([1.0, 3.0, 2.0, 2.0],), ([1.0], [3.0], [2.0], [2.0]), ([1.0, 3.0, 2.0], [2.0])])
def test_it_is_added_once_a_window_and_not_once_a_micro_batch(split: tuple[list[float], ...]):
    """The same window as above: 5 whatever N is. Once a micro-batch it would be 2 + 3 N."""
    model, objective = Product(3.0), Penalized(ProductLoss(), squares, 0.5)
    accumulate_gradients(model, product_batches(*split), objective.objective)
    values = add_penalties(model, objective)
    assert model.weight.grad.item() == pytest.approx(5.0, rel=1e-15)
    assert values == {"penalty": pytest.approx(9.0, rel=1e-15)}
    assert penalty_loss(objective, values) == pytest.approx(4.5, rel=1e-15)


def test_the_scale_of_the_loss_holds_for_it_too():
    model = Product(3.0)
    assert add_penalties(model, Penalized(ProductLoss(), squares, 0.5), scale=1024.0) == {"penalty": 9.0}
    assert model.weight.grad.item() == 1024 * 3.0


def test_the_reference_takes_it_at_its_own_copies():
    """In float64 from a float32 model: the gradient is the terms' own plus 2 c w, to rounding of float64."""
    torch.manual_seed(0)
    model, seen = dense(), []

    def penalty(named: Mapping[str, Tensor]) -> Tensor:
        seen.extend(tensor.dtype for tensor in named.values())
        return squares(named)

    inputs, targets = torch.randn(6, 3), torch.randint(4, (6,))
    alone = reference_gradient(model, inputs, targets, CrossEntropy(), dtype=torch.float64)
    found = reference_gradient(model, inputs, targets, Penalized(CrossEntropy(), penalty, 0.3), dtype=torch.float64)
    for name, parameter in model.named_parameters():
        expected = alone.by_parameter[name] + 0.6 * parameter.detach().double()
        torch.testing.assert_close(found.by_parameter[name], expected, rtol=1e-13, atol=1e-15)
    size = sum(parameter.detach().double().square().sum().item() for parameter in model.parameters())
    assert found.loss == pytest.approx(alone.loss + 0.3 * size, rel=1e-12)
    assert set(seen) == {torch.float64}
    assert not gradients(model)


def test_its_parts_are_those_of_the_objective():
    """So the weights of a window stay known from its targets, and a window without any is seen as one."""
    inner = TwoTerms()
    objective = Penalized(inner, squares, 1e-4, "l2")
    inputs, targets = torch.randn(4, 3), torch.tensor([1.0, -1.0, 2.0, -3.0])
    assert dict(objective.coefficients) == inner.coefficients
    assert objective.weights(targets) == {"squared": 4.0, "absolute": 2.0}
    model = dense()
    found, expected = objective.sums(model, inputs, targets), inner.sums(model, inputs, targets)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_two_penalties_add_up():
    """Derivatives of 0.5 w^2 and of 2 w at w = 3: 3 + 2."""
    model = Product(3.0)
    inner = Penalized(ProductLoss(), squares, 0.5, "l2")
    objective = Penalized(inner, lambda named: named["weight"], 2.0, "level")
    values = add_penalties(model, objective)
    assert values == {"l2": 9.0, "level": 3.0}
    assert model.weight.grad.item() == pytest.approx(5.0)
    assert penalty_loss(objective, values) == pytest.approx(10.5)


def test_frozen_parameters_count_in_the_value_and_get_no_gradient():
    model = nn.Linear(2, 1, bias=True)
    nn.init.constant_(model.weight, 2.0)
    nn.init.constant_(model.bias, 1.0)
    model.weight.requires_grad_(False)
    assert add_penalties(model, Penalized(ProductLoss(), squares, 1.0)) == {"penalty": 9.0}
    assert {name: gradient.tolist() for name, gradient in gradients(model).items()} == {"bias": [2.0]}


def test_an_objective_without_penalties_adds_nothing():
    model = Product(3.0)
    assert add_penalties(model, ProductLoss()) == {}
    assert model.weight.grad is None


def test_what_needs_the_whole_window_needs_it_with_a_penalty_too():
    """Otherwise its window would be split without a word."""
    objective = Penalized(Contrastive(), squares, 1.0)
    assert isinstance(objective, WholeWindow)
    assert isinstance(copy.deepcopy(objective), WholeWindow)
    assert isinstance(Penalized(objective, squares, 1.0, "second"), WholeWindow)
    assert not isinstance(Penalized(CrossEntropy(), squares, 1.0), WholeWindow)


def test_a_name_that_is_taken_is_refused():
    with pytest.raises(SettingError, match="name = 'product': "):
        Penalized(ProductLoss(), squares, 1.0, "product")
    with pytest.raises(SettingError, match="name = 'penalty': "):
        Penalized(Penalized(ProductLoss(), squares, 1.0), squares, 1.0)


def test_a_function_in_place_of_the_model_needs_its_parameters_named():
    ((inputs, targets),) = product_batches([1.0])
    objective = Penalized(ProductLoss(), squares, 0.5)
    with pytest.raises(SettingError, match="parameters = None: "):
        mean_loss(objective, lambda batch: 2 * batch, inputs, targets)
    named = {"weight": torch.tensor(2.0, dtype=torch.float64)}
    assert mean_loss(objective, lambda batch: 2 * batch, inputs, targets, named).item() == 2.0 + 0.5 * 4
