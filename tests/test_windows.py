"""Windows of an iterable: the tail's rules, no length asked for, nothing read ahead, held or kept for later."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_nets import Product, ProductLoss, product_batches
from torch.utils.data import DataLoader, TensorDataset

from accum_core.batching import BatchPlan
from accum_core.engine.accumulate import accumulate_gradients
from accum_core.engine.windows import windows
from accum_core.errors import SettingError
from accum_core.reduction import TAIL_RULES, LossReduction

quick = settings(max_examples=60, deadline=None)
tails = st.sampled_from(TAIL_RULES)


def stream(*micro_batches: list[float]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Micro-batches of the one-weight net as a generator, which has no length."""
    yield from product_batches(*micro_batches)


def epoch(model: Product, micro_batches: Iterable[Any], steps: int, tail: Any = "rescale") -> int:
    """Plain SGD at rate 1 over one epoch; the number of updates."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    rule = LossReduction("exact", tail, steps)
    updates = 0
    for window in windows(micro_batches, steps, tail=tail):
        accumulate_gradients(model, window, ProductLoss(), reduction=rule)
        optimizer.step()
        optimizer.zero_grad()
        updates += 1
    return updates


@pytest.mark.parametrize(
    ("tail", "change", "updates"), [("rescale", -10.0, 3), ("divide_by_n", -7.5, 3), ("drop", -5.0, 2)]
)
def test_t12_t13_t17_a_generator_of_five(tail: str, change: float, updates: int):
    """T12, T13, T17: gradients 1 to 5, N = 2, lr 1: means 1.5, 3.5 and 5 -> -10; a tail divided by N counts 2.5 and
    gives -7.5, a dropped one leaves -5."""
    model = Product()
    assert epoch(model, stream([1.0], [2.0], [3.0], [4.0], [5.0]), 2, tail) == updates
    assert float(model.weight.detach()) == pytest.approx(change, rel=1e-12)


def test_t15_n_above_the_number_of_micro_batches_is_one_short_window():
    """T15: 3 micro-batches with gradients 1, 2, 3 and N = 4 -> 1 update with gradient 2."""
    model = Product()
    assert epoch(model, stream([1.0], [2.0], [3.0]), 4) == 1
    assert float(model.weight.detach()) == pytest.approx(-2.0, rel=1e-12)


def test_t14_every_epoch_starts_a_window_of_its_own():
    """T14: 3 micro-batches and N = 2 twice over: no window holds micro-batches of two epochs, no gradient is left."""
    model = Product()
    loader = product_batches([1.0], [2.0], [3.0])
    cut = [[float(inputs) for inputs, _ in window] for _ in range(2) for window in windows(loader, 2)]
    assert cut == [[1.0, 2.0], [3.0]] * 2
    for number in (1, 2):
        assert epoch(model, loader, 2) == 2
        assert model.weight.grad is None
        assert float(model.weight.detach()) == pytest.approx(-4.5 * number, rel=1e-12)


@quick
@given(st.integers(0, 60), st.integers(1, 20), tails)
def test_windows_hold_every_micro_batch_once_and_in_order(length: int, steps: int, tail: Any):
    cut = list(windows((index for index in range(length)), steps, tail=tail))
    kept = length - length % steps if tail == "drop" else length
    assert [index for window in cut for index in window] == list(range(kept))
    assert all(len(window) == steps for window in cut[:-1])
    assert all(1 <= len(window) <= steps for window in cut)
    assert len(cut) == len(BatchPlan(steps, 1).windows(length, drop_tail=tail == "drop"))


@quick
@given(st.lists(st.lists(st.floats(-3, 3), min_size=1, max_size=4), min_size=1, max_size=9), st.integers(1, 10), tails)
def test_an_epochs_updates_weigh_all_that_it_keeps(micro_batches: list[list[float]], steps: int, tail: Any):
    """Ragged micro-batches: the windows' weights add up to the samples, and w moves by each window's mean."""
    model, rule = Product(), LossReduction("exact", tail, steps)
    chunks = [micro_batches[start : start + steps] for start in range(0, len(micro_batches), steps)]
    if tail == "drop" and len(chunks[-1]) < steps:
        chunks.pop()
    expected = []
    for chunk in chunks:
        samples = [x for micro_batch in chunk for x in micro_batch]
        share = len(chunk) / steps if tail == "divide_by_n" else 1.0
        expected.append((len(samples), share * sum(samples) / len(samples)))
    found = []
    for window in windows(stream(*micro_batches), steps, tail=tail):
        result = accumulate_gradients(model, window, ProductLoss(), reduction=rule)
        found.append((result.terms["product"].weight, float(model.weight.grad)))
    assert len(found) == len(expected)
    assert sum(weight for weight, _ in found) == sum(weight for weight, _ in expected)
    for (_, gradient), (_, mean) in zip(found, expected, strict=True):
        assert gradient == pytest.approx(mean, rel=1e-12, abs=1e-12)


def test_a_window_is_full_when_it_holds_n_micro_batches_whatever_their_sizes():
    """15 samples in micro-batches of 4 are 4 micro-batches, the last of 3: one full window of N = 4, not a tail."""
    loader = DataLoader(TensorDataset(torch.arange(15.0)), batch_size=4)
    assert [[len(x) for (x,) in window] for window in windows(loader, 4, tail="drop")] == [[4, 4, 4, 3]]


def test_nothing_is_read_before_a_window_is_asked_for():
    read: list[int] = []

    def source() -> Iterator[int]:
        for index in range(5):
            read.append(index)
            yield index

    cut = windows(source(), 2)
    assert read == []
    for window, so_far in (([0, 1], 2), ([2, 3], 4), ([4], 5)):
        assert next(cut) == window
        assert len(read) == so_far
    assert next(cut, None) is None


@pytest.mark.parametrize("length", [8, 9])
def test_at_most_one_window_of_inputs_is_held(length: int):
    """Inputs alive while the next window is read, when the consumer lets go of the one before: those read for it."""
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0

    def source() -> Iterator[torch.Tensor]:
        nonlocal most
        for _ in range(length):
            inputs = torch.zeros(1)
            alive.append(weakref.ref(inputs))
            gc.collect(0)
            most = max(most, sum(ref() is not None for ref in alive))
            yield inputs
            del inputs

    cut = windows(source(), 3)
    while (window := next(cut, None)) is not None:
        del window
    assert most == 3
    assert not any(ref() is not None for ref in alive)


def test_an_error_of_the_source_is_not_swallowed():
    def source() -> Iterator[int]:
        yield 0
        yield 1
        raise OSError("the disk is gone")

    cut = windows(source(), 2)
    assert next(cut) == [0, 1]
    with pytest.raises(OSError, match="the disk is gone"):
        next(cut)


@pytest.mark.parametrize("steps", [0, -1, 2.0, True, None])
def test_an_n_that_is_no_count_is_refused_at_once(steps: Any):
    with pytest.raises(SettingError, match=f"accumulation_steps = {steps!r}"):
        windows([1], steps)


def test_an_unknown_tail_is_refused_at_once():
    with pytest.raises(SettingError, match="tail = 'keep': use one of rescale, drop, divide_by_n"):
        windows([1], 2, tail="keep")  # type: ignore[arg-type]
