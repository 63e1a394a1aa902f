"""A window in progress: left between two micro-batches and gone on with, bit-equal, and its gradient for any split.

Ids: R48 (a window resumed, another N refused), S5 (micro-batches and terms without a valid label), P47 (the type of
``.grad`` is put back).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from drawing_nets import Drawing, seed
from hypothesis import given, settings
from hypothesis import strategies as st
from small_nets import Product, ProductLoss, TwoTerms, dense, gradients, product_batches, relative_error
from torch import Tensor, nn

from accum_core.batching import BatchPlan
from accum_core.engine import checkpoints
from accum_core.engine.accumulate import accumulate_gradients
from accum_core.engine.objectives import CrossEntropy, Objective, Penalized
from accum_core.engine.precision import Precision
from accum_core.engine.reference import gradient_error, reference_gradient
from accum_core.engine.snapshot import random_states, set_random_states
from accum_core.engine.tolerant import accumulate_tolerantly
from accum_core.engine.window import Accumulation, MicroBatch, WindowResult
from accum_core.errors import SettingError
from accum_core.reduction import LossReduction


def four() -> list[MicroBatch]:
    """Ragged micro-batches of 4, 2, 3 and 2, with ignored labels."""
    numbers = torch.Generator().manual_seed(4)
    labels = torch.randint(4, (11,), generator=numbers)
    labels[[1, 8]] = -100
    inputs = torch.randn(11, 3, generator=numbers)
    return list(zip(inputs.split([4, 2, 3, 2]), labels.split([4, 2, 3, 2]), strict=True))


def begin(
    dtype: torch.dtype, precision: Precision, batches: list[MicroBatch] | None = None
) -> tuple[Any, Accumulation]:
    """A drawing net at seed 0, and its window."""
    seed(0)
    model = Drawing().to(dtype)
    batches = [(inputs.to(dtype), labels) for inputs, labels in batches or four()]
    return model, Accumulation(model, batches, CrossEntropy(), LossReduction(), precision=precision)


def outcome(model: nn.Module, result: WindowResult) -> tuple[WindowResult, dict[str, Tensor]]:
    return result, gradients(model) | {name: buffer.clone() for name, buffer in model.named_buffers()}


@pytest.mark.parametrize("made", [1, 2, 3])
@pytest.mark.parametrize(
    ("dtype", "precision"),
    [
        (torch.float32, Precision()),
        (torch.float64, Precision(loss_scale=1024.0)),
        (torch.bfloat16, Precision()),
        (torch.bfloat16, Precision(accumulators=None)),
        (torch.float32, Precision(autocast=torch.bfloat16)),
    ],
)
def test_r48_a_window_goes_on_from_a_file_to_the_bit(tmp_path: Path, made: int, dtype: torch.dtype, precision: Any):
    """R48: left after 1, 2 or 3 of 4 micro-batches: gradients, loss, running statistics as without the stop."""
    model, window = begin(dtype, precision)
    expected = outcome(model, window.complete())

    model, window = begin(dtype, precision)
    for _ in range(made):
        window.advance()
    state = {"window": window.state_dict(), "model": model.state_dict(), "random": random_states()}
    checkpoints.save(state, tmp_path / "inside")
    window.abandon()
    assert not gradients(model)

    state = checkpoints.load(tmp_path / "inside")
    model, window = begin(dtype, precision)
    seed(99)
    model.load_state_dict(state["model"])
    window.load_state_dict(state["window"])
    set_random_states(state["random"])
    assert (window.index, window.left) == (made, 4 - made)
    result, tensors = outcome(model, window.complete())
    assert result == expected[0]
    assert all(torch.equal(tensors[name], tensor) for name, tensor in expected[1].items())
    assert all(p.grad.dtype == p.grad_dtype == dtype for p in model.parameters())


def test_a_state_is_a_copy_that_later_passes_do_not_change():
    _, window = begin(torch.float32, Precision())
    window.advance()
    state = window.state_dict()
    kept = {name: gradient.clone() for name, gradient in state["gradients"].items()}
    window.advance()
    assert all(torch.equal(state["gradients"][name], gradient) for name, gradient in kept.items())
    window.load_state_dict(state)
    window.advance()
    assert all(torch.equal(state["gradients"][name], gradient) for name, gradient in kept.items())


def test_r48_a_state_of_another_n_is_refused_with_both():
    """R48: the state of a window of 4 micro-batches is no state of one of 2."""
    _, window = begin(torch.float32, Precision())
    window.advance()
    _, other = begin(torch.float32, Precision(), four()[:2])
    with pytest.raises(SettingError, match=r"accumulation_steps = 2: .*\b4\b"):
        other.load_state_dict(window.state_dict())


# What goes wrong inside leaves nothing behind.


class Broken(Exception):
    pass


def broken(*_: Any) -> Any:
    raise Broken


class BrokenLoss(CrossEntropy):
    """Fails at its third micro-batch."""

    calls = 0

    def sums(self, model: Any, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        self.calls += 1
        return broken() if self.calls == 3 else super().sums(model, inputs, targets)


@pytest.mark.parametrize(
    ("objective", "after"),
    [(BrokenLoss, None), (CrossEntropy, broken), (lambda: Penalized(CrossEntropy(), broken, 1.0), None)],
)
@pytest.mark.parametrize("non_finite", ["keep", "skip_micro_batch"])
def test_p47_an_error_leaves_no_gradient_and_the_types_as_they_were(objective: Any, after: Any, non_finite: Any):
    """P47: in a pass, in what is called after it, or in the penalty at the end."""
    model = dense().bfloat16()
    batches = [(inputs.bfloat16(), labels) for inputs, labels in four()]
    with pytest.raises(Broken):
        accumulate_gradients(model, batches, objective(), non_finite=non_finite, after_micro_batch=after)
    assert all(p.grad is None and p.grad_dtype == torch.bfloat16 for p in model.parameters())


@pytest.mark.parametrize("non_finite", ["keep", "skip_micro_batch"])
def test_an_interrupt_leaves_no_gradient_either(non_finite: Any):
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    model = dense().bfloat16()
    batches = [(inputs.bfloat16(), labels) for inputs, labels in four()]
    with pytest.raises(KeyboardInterrupt):
        accumulate_gradients(model, batches, CrossEntropy(), non_finite=non_finite, after_micro_batch=interrupt)
    assert all(p.grad is None and p.grad_dtype == torch.bfloat16 for p in model.parameters())


# Micro-batches and terms without a valid label.


class Plain(ProductLoss):
    """Says a plain zero, without a graph, where no sample counts."""

    def sums(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return super().sums(model, inputs, targets) if targets.any() else {"product": torch.zeros(())}


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("non_finite", ["keep", "skip_micro_batch"])
def test_s5_a_micro_batch_that_weighs_nothing_may_have_no_graph(place: int, non_finite: Any):
    """S5: gradients 1 and 3 around a micro-batch whose sum is a plain zero: 2."""
    model, batches = Product(), product_batches([1.0], [3.0])
    batches.insert(place, (torch.tensor([7.0]).double(), torch.zeros(1).double()))
    result = accumulate_gradients(model, batches, Plain(), non_finite=non_finite)
    assert float(model.weight.grad) == 2.0
    assert (result.samples, result.terms["product"].weight) == (3, 2.0)


def test_s5_a_window_of_plain_zeros_is_empty():
    model = Product()
    nothing = (torch.tensor([7.0]).double(), torch.zeros(1).double())
    assert accumulate_gradients(model, [nothing] * 2, Plain()).empty


@pytest.mark.parametrize("split", [[8], [2, 6], [1] * 8, [3, 1, 4]])
def test_s5_a_term_may_be_missing_in_some_micro_batches(split: list[int]):
    """S5: only sample 5 counts for the second of two terms; every split gives the gradient of the batch."""
    torch.manual_seed(0)
    model, inputs = dense().double(), torch.randn(8, 3).double()
    targets = -torch.ones(8).double()
    targets[5] = 2.0
    reference = reference_gradient(model, inputs, targets, TwoTerms())
    batches = list(zip(inputs.split(split), targets.split(split), strict=True))
    result = accumulate_gradients(model, batches, TwoTerms())
    assert gradient_error(model, reference).relative_error <= 1e-12
    assert result.loss == pytest.approx(reference.loss, rel=1e-12)


# Any window.


@st.composite
def windows(draw: Callable[..., Any]) -> tuple[list[MicroBatch], Objective]:
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    total = sum(sizes)
    numbers = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    labels = torch.tensor(draw(st.lists(st.sampled_from([-100, 0, 1, 2, 3]), min_size=total, max_size=total)))
    weights = draw(st.none() | st.lists(st.floats(0.01, 100), min_size=4, max_size=4))
    objective: Objective = CrossEntropy(class_weights=None if weights is None else torch.tensor(weights).double())
    if draw(st.booleans()):
        objective = Penalized(objective, lambda named: named["0.weight"].square().sum(), draw(st.floats(1e-4, 1)))
    inputs = torch.randn(total, 3, generator=numbers, dtype=torch.float64)
    return list(zip(inputs.split(sizes), labels.split(sizes), strict=True)), objective


@settings(max_examples=60, deadline=None)
@given(windows(), st.sampled_from(["keep", "skip_micro_batch", "shrink"]), st.sampled_from([1.0, 65536.0]))
def test_every_policy_with_nothing_wrong_gives_the_reference(window: Any, policy: Any, scale: float):
    """Ragged sizes, ignored labels, class weights, a penalty: 1e-12 in float64 whatever is guarded against."""
    batches, objective = window
    torch.manual_seed(0)
    model = dense().double()
    inputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
    reference = reference_gradient(model, inputs, targets, objective)
    precision = Precision(loss_scale=scale)
    if policy == "shrink":
        result, _ = accumulate_tolerantly(
            model, lambda _: batches, objective, LossReduction(), world_size=1, precision=precision,
            skip_non_finite=False, plan=BatchPlan(len(inputs), 1),
        )  # fmt: skip
    else:
        result = accumulate_gradients(model, batches, objective, precision=precision, non_finite=policy)
    found = {name: gradient / scale for name, gradient in gradients(model).items()}
    expected = {name: gradient for name, gradient in reference.by_parameter.items() if name in found}
    assert relative_error(found, expected) <= 1e-12
    assert result.loss == pytest.approx(reference.loss, rel=1e-12, abs=1e-15)
    assert (result.samples, result.micro_batches, result.skipped) == (len(inputs), len(batches), 0)
