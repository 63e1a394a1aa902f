"""Number types of a window: sums in float32, passes under autocast, half-precision losses that do not overflow.

Ids: P47 (a bfloat16 accumulator drops small terms). Expected values are float32's or float64's, with the bound that
the bits of the lower type give: a unit roundoff of 2^-8 for bfloat16 and 2^-11 for float16.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_nets import Product, ProductLoss, dense, gradients, relative_error
from torch import Tensor, nn

from accum_core.engine.accumulate import accumulate_gradients
from accum_core.engine.objectives import CrossEntropy, Penalized
from accum_core.engine.precision import Precision
from accum_core.engine.reference import reference_gradient
from accum_core.engine.window import MicroBatch

LOW = [(torch.bfloat16, 2**-8), (torch.float16, 2**-11)]


def low_batches(xs: list[float], dtype: torch.dtype) -> list[MicroBatch]:
    """One sample a micro-batch, in a type of few bits."""
    return [(torch.tensor([x], dtype=dtype), torch.ones(1, dtype=dtype)) for x in xs]


def batch(size: int = 24) -> MicroBatch:
    numbers = torch.Generator().manual_seed(3)
    labels = torch.randint(4, (size,), generator=numbers)
    labels[::5] = -100
    return torch.randn(size, 3, generator=numbers), labels


def cut(sizes: list[int], dtype: torch.dtype = torch.float32) -> list[MicroBatch]:
    inputs, labels = batch(sum(sizes))
    return list(zip(inputs.to(dtype).split(sizes), labels.split(sizes), strict=True))


# What the gradients are summed in.


@pytest.mark.parametrize(("accumulators", "expected"), [(torch.float32, 2.0), (None, 1.0)])
def test_p47_small_terms_are_not_dropped(accumulators: torch.dtype | None, expected: float):
    """P47: gradients 1 and then 1000 times 0.001 -> 2.0; 1.0 when they are added up in bfloat16."""
    model = Product(0.0, torch.bfloat16)
    accumulate_gradients(
        model, low_batches([1.0] + [0.001] * 1000, torch.bfloat16), ProductLoss(), reduction="sum",
        precision=Precision(accumulators=accumulators),
    )  # fmt: skip
    assert float(model.weight.grad) == expected
    assert model.weight.grad.dtype == model.weight.grad_dtype == torch.bfloat16


@pytest.mark.parametrize("non_finite", ["keep", "skip_micro_batch"])
def test_p47_float32_is_the_default_for_every_policy(non_finite: Any):
    """P47: 256 and then 256 times 1 -> 512; in bfloat16, 256 + 1 is 256."""
    model, seen = Product(0.0, torch.bfloat16), []
    accumulate_gradients(
        model, low_batches([256.0] + [1.0] * 256, torch.bfloat16), ProductLoss(), reduction="sum",
        non_finite=non_finite, after_micro_batch=lambda _: seen.append(model.weight.grad.dtype),
    )  # fmt: skip
    assert float(model.weight.grad) == 512.0
    assert set(seen) == {torch.float32}


@pytest.mark.parametrize(("dtype", "roundoff"), LOW)
def test_p47_the_sum_is_rounded_once(dtype: torch.dtype, roundoff: float):
    """The gradient is the float32 sum of the micro-batches' own gradients, rounded to the parameter's type."""
    torch.manual_seed(0)
    model = dense().to(dtype)
    batches, total = cut([2] * 12, dtype), {}
    weight = sum(CrossEntropy().weights(labels)["cross_entropy"] for _, labels in batches)
    for inputs, labels in batches:
        loss = nn.functional.cross_entropy(model(inputs).float(), labels, reduction="sum") / weight
        names, parameters = zip(*model.named_parameters(), strict=True)
        for name, part in zip(names, torch.autograd.grad(loss, parameters), strict=True):
            total[name] = total.get(name, 0) + part.float()
    accumulate_gradients(model, batches, CrossEntropy())
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient.float(), total[name], rtol=2 * roundoff, atol=1e-6)


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_optimizers_step_what_was_summed_in_float32(optimizer: Any):
    """With a penalty, twice over: the second window starts from None in float32 again."""
    model = dense().bfloat16()
    steps = optimizer(model.parameters(), lr=0.01)
    objective = Penalized(CrossEntropy(), lambda named: named["0.weight"].float().square().sum(), 0.01)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for _ in range(2):
        accumulate_gradients(model, cut([6, 6], torch.bfloat16), objective)
        assert all(parameter.grad.dtype == torch.bfloat16 for parameter in model.parameters())
        steps.step()
        steps.zero_grad()
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_only_low_types_are_widened_and_frozen_parameters_are_left():
    model = nn.Sequential(nn.Linear(3, 6).bfloat16(), nn.Linear(6, 4).bfloat16(), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    frozen = torch.ones_like(model[0].weight)
    model[0].weight.grad = frozen
    widened = Precision().widened(model.parameters())
    assert {id(parameter) for parameter in widened} == {id(parameter) for parameter in model[1].parameters()}
    assert Precision(accumulators=None).widened(model.parameters()) == []
    assert model[0].weight.grad is frozen


# What the passes compute in.


@pytest.mark.parametrize(("dtype", "roundoff"), LOW)
@pytest.mark.parametrize("sizes", [[24], [6] * 4, [1] * 24, [10, 2, 12]])
def test_autocast_gives_float32s_gradient_to_its_bits(dtype: torch.dtype, roundoff: float, sizes: list[int]):
    """A handful of roundings on the way: within 8 unit roundoffs of the float32 batch for every split; the scale of
    the loss keeps float16's small gradients, and parameters and gradients stay float32."""
    torch.manual_seed(0)
    model = dense(width=16)
    reference = reference_gradient(model, *batch(), CrossEntropy())
    scale = 1024.0 if dtype is torch.float16 else 1.0
    result = accumulate_gradients(model, cut(sizes), CrossEntropy(), precision=Precision(dtype, loss_scale=scale))
    found = {name: gradient / scale for name, gradient in gradients(model).items()}
    error = relative_error(found, dict(reference.by_parameter))
    assert 0 < error <= 8 * roundoff
    assert result.loss == pytest.approx(reference.loss, rel=8 * roundoff)
    assert all(gradient.dtype == torch.float32 for gradient in found.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_passes_are_under_autocast_and_nothing_else_is(dtype: torch.dtype):
    seen: list[tuple[torch.dtype, bool]] = []

    class Seeing(CrossEntropy):
        def sums(self, model: Any, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
            seen.append((model(inputs).dtype, torch.is_autocast_enabled("cpu")))
            return super().sums(model, inputs, targets)

    def after(_: int) -> None:
        assert not torch.is_autocast_enabled("cpu")

    accumulate_gradients(dense(), cut([6, 6]), Seeing(), precision=Precision(dtype), after_micro_batch=after)
    assert seen == [(dtype, True)] * 2


@pytest.mark.parametrize("precision", [Precision(torch.float16), Precision()])
def test_a_sum_above_the_largest_float16_is_no_overflow(precision: Precision):
    """70000 labels of log 4 each sum up to 97041, above 65504; the mean is log 4, its gradient (p - y) / 70000."""
    model = nn.Linear(3, 4)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    inputs, labels = torch.ones(2, 35000, 3), torch.zeros(2, 35000, dtype=torch.long)
    if precision.autocast is None:
        model, inputs = model.half(), inputs.half()
    result = accumulate_gradients(
        model, [(inputs, labels)], CrossEntropy(), precision=Precision(precision.autocast, loss_scale=16384.0)
    )
    assert result.loss == pytest.approx(torch.log(torch.tensor(4.0)).item(), rel=1e-3)
    expected = torch.tensor([-0.75, 0.25, 0.25, 0.25])
    torch.testing.assert_close(model.bias.grad.float() / 16384, expected, rtol=5e-3, atol=0)


def test_a_factor_below_the_smallest_float16_is_no_underflow():
    """Class weights of 1e9: the factor of a sum is 1 / 4e9, 0 in float16, and the gradient is still (p - y) / 4."""
    model = nn.Linear(3, 4)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    objective = CrossEntropy(class_weights=torch.full((4,), 1e9))
    batches = [(torch.ones(2, 3), torch.tensor([0, 1])), (torch.ones(2, 3), torch.tensor([2, 3]))]
    result = accumulate_gradients(model, [batches[0]] * 2, objective, precision=Precision(torch.float16))
    assert result.loss == pytest.approx(torch.log(torch.tensor(4.0)).item(), rel=1e-3)
    torch.testing.assert_close(model.bias.grad, torch.tensor([-0.25, -0.25, 0.25, 0.25]), rtol=2e-3, atol=0)
    accumulate_gradients(model, batches, objective, precision=Precision(torch.float16))
    torch.testing.assert_close(model.bias.grad, torch.zeros(4), rtol=0, atol=1e-3)
