"""The average of the weights: its recurrence, what becomes of buffers, half precision, and that it counts updates."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_nets import Product, ProductLoss, dense, pixels, product_batches
from torch import nn

from accum_core.engine.accumulate import accumulate_gradients
from accum_core.engine.averaging import WeightAverage
from accum_core.errors import SettingError

quick = settings(max_examples=30, deadline=None)


def weight_of(average: WeightAverage) -> float:
    return float(average.module.weight)


@quick
@given(st.lists(st.floats(-10, 10), min_size=1, max_size=20), st.floats(0, 0.9999), st.booleans())
def test_the_average_follows_its_recurrence(weights: list[float], decay: float, warmup: bool):
    """e_1 = w_1, e_k = d e_(k-1) + (1 - d) w_k; with a warm-up d = min(decay, (1 + n) / (10 + n)) after n moves."""
    model = Product(0.5)
    average = WeightAverage(model, decay, warmup=warmup)
    assert weight_of(average) == 0.5
    expected = weights[0]
    for moves, weight in enumerate(weights):
        with torch.no_grad():
            model.weight.fill_(weight)
        average.update_parameters(model)
        kept = min(decay, (1 + moves) / (10 + moves)) if warmup else decay
        if moves:
            expected = kept * expected + (1 - kept) * weight
        assert weight_of(average) == pytest.approx(expected, rel=1e-12, abs=1e-12)
        assert float(model.weight.detach()) == weight
    assert int(average.n_averaged) == len(weights)


def test_a_constant_weight_is_its_own_average_to_the_bit():
    torch.manual_seed(0)
    model = dense()
    average = WeightAverage(model, 0.999)
    for _ in range(50):
        average.update_parameters(model)
    for name, parameter in model.named_parameters():
        assert torch.equal(average.module.get_parameter(name), parameter)


def test_running_statistics_are_averaged_and_counts_are_copied():
    """BatchNorm sees constant inputs 1, 2, 3, momentum 0.1: running means r_k = 0.9 r_(k-1) + 0.1 x_k, averaged with
    decay 0.5; num_batches_tracked is 3 (0.5 x 1 + 0.5 x 2 would have been rounded down to 1 and stayed)."""
    model = nn.BatchNorm1d(1).double()
    average = WeightAverage(model, 0.5)
    running, expected = 0.0, None
    for x in (1.0, 2.0, 3.0):
        model(torch.full((4, 1), x, dtype=torch.float64))
        average.update_parameters(model)
        running = 0.9 * running + 0.1 * x
        expected = running if expected is None else 0.5 * expected + 0.5 * running
        assert float(average.module.running_mean) == pytest.approx(expected, rel=1e-12)
        assert int(average.module.num_batches_tracked) == int(model.num_batches_tracked)
    assert int(average.module.num_batches_tracked) == 3


class Masked(nn.Module):
    """A weight beside buffers of every kind: an attention mask, a flag, a count, a table."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
        self.register_buffer("flag", torch.tensor([True, False]))
        self.register_buffer("count", torch.tensor(0, dtype=torch.int32))
        self.register_buffer("table", torch.tensor([0.1, 0.7]), persistent=False)


def test_buffers_that_are_no_statistics_stay_what_they_are():
    model = Masked()
    average = WeightAverage(model, 0.9)
    for number in range(5):
        model.count += 7
        model.flag.logical_not_()
        average.update_parameters(model)
        for name, buffer in model.named_buffers():
            assert torch.equal(average.module.get_buffer(name), buffer), (name, number)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_in_half_precision_are_averaged_in_float32(dtype: torch.dtype):
    """w = 1, then 2 a thousand times, decay 0.999: 2 - 0.999^1000 = 1.6323; in bfloat16, whose step above 1 is 1/128,
    each move of 0.001 would be rounded away."""
    model = Product(1.0, dtype=dtype)
    average = WeightAverage(model, 0.999)
    average.update_parameters(model)
    with torch.no_grad():
        model.weight.fill_(2.0)
    for _ in range(1000):
        average.update_parameters(model)
    assert average.module.weight.dtype == torch.float32
    assert weight_of(average) == pytest.approx(2 - 0.999**1000, rel=1e-4)
    assert model.weight.dtype == dtype


@pytest.mark.parametrize("decay", [0.5, 0.9])
def test_the_average_moves_once_an_update_whatever_n_is(decay: float):
    """Gradients 1 to 8 at N = 1, 2, 4, 8 in windows of 8: one update, so one move; and over four windows, four."""
    found = []
    for steps in (1, 2, 4, 8):
        model = Product()
        average = WeightAverage(model, decay)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        size = 8 // steps
        for window in range(4):
            xs = [float(x * (window + 1)) for x in range(1, 9)]
            batches = product_batches(*[xs[start : start + size] for start in range(0, 8, size)])
            accumulate_gradients(model, batches, ProductLoss())
            optimizer.step()
            average.update_parameters(model)
        assert int(average.n_averaged) == 4
        found.append(weight_of(average))
    # w_k = -0.45 (1 + ... + k): means of 4.5 times the window's number, lr 0.1.
    expected, weight = 0.0, 0.0
    for number in range(1, 5):
        weight -= 0.45 * number
        expected = weight if number == 1 else decay * expected + (1 - decay) * weight
    assert found == pytest.approx([expected] * 4, rel=1e-12)


@pytest.mark.parametrize("warmup", [False, True])
def test_a_saved_average_goes_on_to_the_same_bits(warmup: bool):
    def moved(model: nn.Module, average: WeightAverage, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator))
        model(torch.randn(2, 2, 3, 3, generator=generator))
        average.update_parameters(model)

    torch.manual_seed(1)
    model = pixels(nn.BatchNorm2d(4))
    average = WeightAverage(model, 0.9, warmup=warmup)
    for seed in range(3):
        moved(model, average, seed)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "average": average.state_dict()}, file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    other = pixels(nn.BatchNorm2d(4))
    other.load_state_dict(state["model"])
    resumed = WeightAverage(other, 0.9, warmup=warmup)
    resumed.load_state_dict(state["average"])
    for seed in range(3, 6):
        moved(model, average, seed)
        moved(other, resumed, seed)
    assert int(resumed.n_averaged) == 6
    assert average.state_dict().keys() == resumed.state_dict().keys()
    assert all(torch.equal(tensor, resumed.state_dict()[name]) for name, tensor in average.state_dict().items())


def test_the_average_is_not_trained_and_shares_nothing_with_the_model():
    model = dense()
    average = WeightAverage(model, 0.9)
    assert not any(parameter.requires_grad for parameter in average.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())
    before = {name: tensor.clone() for name, tensor in average.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in average.state_dict().items())


def test_a_model_of_another_structure_is_refused():
    """Paired in order, as torch would, the group norm's weights would have moved a batch norm's average."""
    average = WeightAverage(pixels(nn.BatchNorm2d(4)), 0.9)
    with pytest.raises(SettingError, match="model = 'Sequential'.*module"):
        average.update_parameters(pixels(nn.GroupNorm(2, 4)))
    with pytest.raises(SettingError, match="model = 'Sequential'"):
        average.update_parameters(pixels(nn.BatchNorm2d(8), channels=8))


def test_after_its_module_was_changed_alike_the_average_goes_on():
    model = pixels(nn.BatchNorm2d(4))
    average = WeightAverage(model, 0.9)
    average.update_parameters(model)
    for net in (model, average.module):
        net[1] = nn.GroupNorm(2, 4)
    with torch.no_grad():
        model[1].weight.fill_(2.0)
    average.update_parameters(model)
    assert average.module[1].weight.tolist() == pytest.approx([1.1] * 4, rel=1e-6)


@pytest.mark.parametrize("decay", [-0.1, 1.0, 1.5, float("nan")])
def test_a_decay_that_averages_nothing_is_refused(decay: Any):
    with pytest.raises(SettingError, match=f"decay = {decay}"):
        WeightAverage(dense(), decay)
