"""A window that does not fit into the memory: begun again in smaller micro-batches of the same samples.

Ids: B42 (the effective batch stays), B43 (every sample once, buffers and random state first put back). The limit is
simulated, but for one real refusal of the CPU's allocator.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawing_nets import Drawing, same_draws, seed
from hypothesis import given, settings
from hypothesis import strategies as st
from small_nets import dense, gradients, relative_error
from torch import Tensor

from accum_core.batching import BatchPlan
from accum_core.engine.accumulate import accumulate_gradients
from accum_core.engine.objectives import CrossEntropy
from accum_core.engine.precision import Precision
from accum_core.engine.snapshot import random_states
from accum_core.engine.tolerant import accumulate_tolerantly
from accum_core.engine.window import MicroBatch, WindowResult
from accum_core.errors import OutOfMemoryError
from accum_core.reduction import LossReduction


def eight() -> MicroBatch:
    """Eight samples with labels."""
    numbers = torch.Generator().manual_seed(8)
    return torch.randn(8, 3, generator=numbers, dtype=torch.float64), torch.randint(4, (8,), generator=numbers)


class Limited(CrossEntropy):
    """Memory for micro-batches of ``most`` samples; larger ones fail from their ``after``-th forward pass on.

    Attributes:
        seen: the first input value of every sample of a finished pass, one list a try.
    """

    def __init__(self, most: int, fail: Callable[[], Any], after: int = 0) -> None:
        super().__init__()
        self.most, self.fail, self.after = most, fail, after
        self.passed = 0
        self.size = 0
        self.seen: list[list[float]] = []
        self.outputs: list[weakref.ref[Tensor]] = []

    def sums(self, model: Any, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        if len(inputs) != self.size:  # another try
            assert all(ref() is None for ref in self.outputs), "the failed try still holds its graph"
            self.size, self.passed = len(inputs), 0
            self.seen.append([])
        sums = super().sums(model, inputs, targets)
        self.outputs.append(weakref.ref(sums["cross_entropy"]))
        if len(inputs) > self.most and self.passed == self.after:
            self.fail()
        self.passed += 1
        self.seen[-1] += inputs[:, 0].tolist()
        return sums


def cuda() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def cpu() -> None:
    torch.empty(2**55)  # a real refusal: 128 pebibytes


def begin_again(objective: CrossEntropy, micro: int) -> tuple[Drawing, WindowResult, BatchPlan | None]:
    """The window of 8 samples of a drawing net at seed 0, cut by a plan that may shrink."""
    seed(0)
    model = Drawing().double()
    inputs, labels = eight()

    def cut(plan: BatchPlan | None) -> list[MicroBatch]:
        assert plan is not None
        return [(inputs[part], labels[part]) for part in plan.slices(len(inputs))]

    result, plan = accumulate_tolerantly(
        model, cut, objective, LossReduction(), world_size=1, precision=Precision(), skip_non_finite=False,
        plan=BatchPlan(8, micro),
    )  # fmt: skip
    return model, result, plan


@pytest.mark.parametrize("fail", [cuda, cpu])
@pytest.mark.parametrize(("micro", "after"), [(8, 0), (4, 0), (4, 1)])
def test_b42_b43_the_window_fits_in_smaller_micro_batches(fail: Any, micro: int, after: int):
    """B42, B43: memory for 2 of 8 samples -> micro-batch 2, N = 4; gradient, running statistics and random state to
    the bit those of the run that began so; every sample once; what the failed try held is free before the next."""
    model, result, plan = begin_again(Limited(8, fail), 2)
    expected = gradients(model) | dict(model.named_buffers()), random_states(), result
    objective = Limited(2, fail, after)
    model, result, plan = begin_again(objective, micro)
    assert plan == BatchPlan(8, 2)
    assert plan.accumulation_steps == result.micro_batches == 4
    assert result == expected[2]
    found = gradients(model) | dict(model.named_buffers())
    assert all(torch.equal(found[name], tensor) for name, tensor in expected[0].items())
    assert same_draws(random_states(), expected[1])
    assert objective.seen[-1] == eight()[0][:, 0].tolist()
    assert len(objective.seen) == {8: 3, 4: 2}[micro]


@pytest.mark.parametrize("fail", [cuda, cpu])
def test_one_sample_that_does_not_fit_is_told_in_a_sentence(fail: Any):
    class Frozen(Limited):
        def sums(self, model: Any, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
            return self.fail()

    with pytest.raises(OutOfMemoryError, match="micro_batch_size = 1: one sample at a time does not fit.*try") as told:
        begin_again(Frozen(0, fail), 8)
    assert told.value.micro_batch_size == 1


@pytest.mark.parametrize("error", [RuntimeError("shapes do not fit"), ValueError("no"), OSError()])
def test_other_errors_are_raised_as_they_are(error: Exception):
    def fail() -> None:
        raise error

    objective = Limited(2, fail)
    with pytest.raises(type(error)) as raised:
        begin_again(objective, 8)
    assert raised.value is error
    assert len(objective.seen) == 1


def test_without_a_plan_nothing_is_halved():
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        accumulate_gradients(dense().double(), [eight()], Limited(1, cuda), non_finite="skip_micro_batch")


@settings(max_examples=25, deadline=None)
@given(st.sets(st.integers(0, 7), max_size=7), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]))
def test_both_at_once_leave_out_what_is_bad_in_the_smaller_ones(bad: set[int], micro: int, most: int):
    """Too small a memory and bad samples: micro-batches of the size that fits at last are left out."""
    torch.manual_seed(0)
    model = dense().double()
    size = min(micro, most)
    inputs, labels = eight()
    parts = [slice(start, start + size) for start in range(0, 8, size)]
    good = [part for part in parts if not bad & set(range(part.start, part.stop))]
    expected = {}
    if good:
        accumulate_gradients(model, [(inputs[part], labels[part]) for part in good], CrossEntropy())
        expected = gradients(model)
    inputs = inputs.clone()
    inputs[list(bad), 1] = torch.nan
    result, plan = accumulate_tolerantly(
        model, lambda plan: [(inputs[part], labels[part]) for part in plan.slices()], Limited(most, cuda),
        LossReduction(), world_size=1, precision=Precision(), skip_non_finite=True, plan=BatchPlan(8, micro),
    )  # fmt: skip
    assert plan == BatchPlan(8, size)
    assert (result.skipped, result.micro_batches) == (len(parts) - len(good), len(good))
    assert relative_error(gradients(model), expected) <= 1e-12
