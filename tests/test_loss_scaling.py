"""What each reduction makes of a window, held against torch's autograd, the one loop, and values worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from torch import nn

from accum_core.engine import CrossEntropy, accumulate_gradients
from accum_core.errors import SettingError
from accum_core.loss_scaling import IGNORED, SoftmaxRegression, Window, divide, numbers, reference
from accum_core.reduction import REDUCTION_KINDS, LossReduction, ReductionKind

BAR = 1e-12
FEATURES, CLASSES = 5, 4
quick = settings(max_examples=25, deadline=None)


def drawn(sizes: Sequence[int], valid: Sequence[int], seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Features and targets of each micro-batch, all but the first ``valid`` labels ignored."""
    random = np.random.default_rng(seed)
    found = []
    for size, kept in zip(sizes, valid, strict=True):
        targets = random.integers(0, CLASSES, size)
        targets[kept:] = IGNORED
        found.append((random.normal(size=(size, FEATURES)), targets))
    return found


def model(seed: int, class_weights: bool = False) -> SoftmaxRegression:
    random = np.random.default_rng(seed + 1)
    weights = random.normal(size=(FEATURES, CLASSES))
    return SoftmaxRegression(weights, random.uniform(0.1, 10, CLASSES) if class_weights else None)


def window(sizes: Sequence[int], valid: Sequence[int], seed: int, class_weights: bool = False) -> Window:
    return model(seed, class_weights).window([(x, y, len(y)) for x, y in drawn(sizes, valid, seed)])


@st.composite
def shapes(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Sizes and valid labels of 1 to 8 micro-batches, at least one label valid."""
    valid = draw(st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any))
    return [count + draw(st.integers(0, 3)) + (count == 0) for count in valid], valid


@quick
@given(shapes(), st.integers(0, 1000), st.booleans(), st.sampled_from(REDUCTION_KINDS))
def test_every_reduction_is_what_the_one_loop_does(
    shape: tuple[list[int], list[int]], seed: int, weighed: bool, kind: ReductionKind
) -> None:
    """The same window through autograd and ``accumulate_gradients``, in float64."""
    net = model(seed, weighed)
    linear = nn.Linear(FEATURES, CLASSES, bias=False).double()
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(net.weights.T))
    class_weights = None if net.class_weights is None else torch.from_numpy(net.class_weights)
    batches = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in drawn(*shape, seed)]
    done = accumulate_gradients(linear, batches, CrossEntropy(IGNORED, class_weights), reduction=kind)
    outcome = divide(window(*shape, seed, weighed), LossReduction(kind))
    expected = linear.weight.grad.T.numpy()
    assert np.linalg.norm(outcome.gradient - expected) <= BAR * np.linalg.norm(expected)
    truth = reference(window(*shape, seed, weighed))
    assert truth is not None and truth[0] == pytest.approx(done.loss, rel=BAR)


@quick
@given(shapes(), st.integers(0, 1000), st.booleans())
def test_exact_is_the_whole_batch_for_any_window(shape: tuple[list[int], list[int]], seed: int, weighed: bool) -> None:
    """Against the same labels as one micro-batch, which torch's own mean divides."""
    net, parts = model(seed, weighed), drawn(*shape, seed)
    x, y = (np.concatenate(part) for part in zip(*parts, strict=True))
    weights = torch.from_numpy(net.weights).requires_grad_()
    class_weights = None if net.class_weights is None else torch.from_numpy(net.class_weights)
    loss = nn.functional.cross_entropy(torch.from_numpy(x) @ weights, torch.from_numpy(y), class_weights)
    loss.backward()
    whole = window(*shape, seed, weighed)
    outcome, truth = divide(whole, LossReduction("exact")), reference(whole)
    assert outcome.error is not None and outcome.error <= BAR
    assert outcome.loss == pytest.approx(loss.item(), rel=BAR)
    assert weights.grad is not None and truth is not None
    assert truth[0] == pytest.approx(loss.item(), rel=BAR)
    assert np.linalg.norm(truth[1] - weights.grad.numpy()) <= BAR * weights.grad.norm().item()
    assert np.linalg.norm(outcome.gradient - weights.grad.numpy()) <= BAR * weights.grad.norm().item()
    assert [w for w in outcome.label_weights if not math.isnan(w)] == pytest.approx([1] * sum(map(bool, shape[1])))


@quick
@given(shapes(), st.integers(0, 1000), st.booleans(), st.data())
def test_the_reference_does_not_depend_on_the_cut(
    shape: tuple[list[int], list[int]], seed: int, weighed: bool, data: st.DataObject
) -> None:
    """The same labels cut elsewhere, some of the pieces empty: the same bits."""
    parts = drawn(*shape, seed)
    x, y = (np.concatenate(part) for part in zip(*parts, strict=True))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(y)), max_size=4)))
    pieces = zip(np.split(x, cuts), np.split(y, cuts), strict=True)
    one = reference(window(*shape, seed, weighed))
    other = reference(model(seed, weighed).window([(*piece, len(piece[1])) for piece in pieces]))
    assert one is not None and other is not None
    assert one[0] == other[0] and np.array_equal(one[1], other[1])


@quick
@given(shapes(), st.integers(0, 1000), st.floats(1e-3, 10))
def test_the_reference_does_not_come_from_the_micro_batches(
    shape: tuple[list[int], list[int]], seed: int, fault: float
) -> None:
    """Every summed gradient too large by the same share: the exact division is off by it, the reference not at all."""
    sound = window(*shape, seed)
    wrong = tuple(replace(micro, gradient_sum=micro.gradient_sum * (1 + fault)) for micro in sound.micro_batches)
    outcome = divide(replace(sound, micro_batches=wrong), LossReduction("exact"))
    assert outcome.error == pytest.approx(fault, rel=1e-9)


@quick
@given(st.integers(1, 9), st.integers(1, 8), st.integers(0, 1000))
def test_the_mean_of_means_is_exact_for_equal_weights(labels: int, count: int, seed: int) -> None:
    outcome = divide(window([labels] * count, [labels] * count, seed), LossReduction("mean_of_means"))
    assert outcome.error is not None and outcome.error <= BAR
    assert outcome.label_weights == pytest.approx([1] * count)


@quick
@given(st.lists(st.integers(1, 9), min_size=2, max_size=8), st.integers(0, 1000))
def test_the_mean_of_means_is_off_for_unequal_weights(valid: list[int], seed: int) -> None:
    """Gradients that are drawn at random do not happen to be equal."""
    assume(len(set(valid)) > 1)
    outcome = divide(window(valid, valid, seed), LossReduction("mean_of_means"))
    assert outcome.error is not None and outcome.error > 1e-6


@quick
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 1000))
def test_the_mean_of_means_is_exact_where_mean_gradients_are_equal(valid: list[int], seed: int) -> None:
    """The same label over and over: any weights, one mean gradient."""
    x, y = drawn([1], [1], seed)[0]
    net = model(seed)
    same = net.window([(x.repeat(n, axis=0), y.repeat(n), n) for n in valid])
    outcome = divide(same, LossReduction("mean_of_means"))
    assert outcome.error is not None and outcome.error <= BAR


@quick
@given(shapes(), st.integers(0, 1000))
def test_means_and_sums_differ_by_their_factor(shape: tuple[list[int], list[int]], seed: int) -> None:
    """The sum is the exact gradient times the labels, the sum of means N times the mean of means."""
    parts = window(*shape, seed)
    exact, means, sums, total = (divide(parts, LossReduction(k)).gradient for k in REDUCTION_KINDS)
    assert total == pytest.approx(exact * sum(shape[1]), rel=1e-9, abs=1e-12)
    assert sums == pytest.approx(means * len(shape[1]), rel=1e-9, abs=1e-12)


def gradient(xs: Sequence[Sequence[float]], kind: ReductionKind = "exact", **rule: object) -> float:
    return float(divide(numbers(xs), LossReduction(kind, **rule)).gradient[0])  # type: ignore[arg-type]


def test_s1_short_sequences() -> None:
    """S1: (10 + 3 x 2) / 4 = 4; the mean of the means 10 and 2 is 6."""
    xs = [[10.0], [2.0, 2.0, 2.0]]
    assert [gradient(xs, kind) for kind in REDUCTION_KINDS] == [4.0, 6.0, 12.0, 16.0]
    means = divide(numbers(xs), LossReduction("mean_of_means"))
    assert means.loss == 6.0 and means.error == 0.5
    assert means.label_weights == pytest.approx([2, 2 / 3])


def test_s3_a_ragged_last_micro_batch() -> None:
    """S3: (4 x 1 + 4 x 2 + 2 x 6) / 10 = 2.4; the mean of the means is 3."""
    xs = [[1.0] * 4, [2.0] * 4, [6.0] * 2]
    assert gradient(xs) == pytest.approx(2.4, rel=BAR)
    assert gradient(xs, "mean_of_means") == pytest.approx(3.0, rel=BAR)


def test_s4_class_weights() -> None:
    """S4: (ln(1 + e^-2) + 10 ln 2) / 11 = 0.6417; the mean of the means is 0.4100."""
    net = SoftmaxRegression(np.array([[2.0, 0.0], [0.0, 0.0]]), np.array([1.0, 10.0]))
    parts = net.window([(np.eye(2)[[row]], np.array([row]), 1) for row in (0, 1)])
    one, two = math.log1p(math.exp(-2)), math.log(2)
    assert divide(parts, LossReduction("exact")).loss == pytest.approx((one + 10 * two) / 11, rel=BAR)
    assert divide(parts, LossReduction("mean_of_means")).loss == pytest.approx((one + two) / 2, rel=BAR)
    assert (one + 10 * two) / 11 == pytest.approx(0.6417, abs=5e-5) and (one + two) / 2 == pytest.approx(0.41, abs=5e-5)


def test_s5_a_micro_batch_without_a_valid_label() -> None:
    """S5: it adds nothing to the exact division; a loop of means reports what torch's mean gives: nan."""
    parts = window([4, 3, 2], [4, 0, 2], seed=1)
    exact, means = (divide(parts, LossReduction(kind)) for kind in ("exact", "mean_of_means"))
    first, empty, last = parts.micro_batches
    without = divide(replace(parts, micro_batches=(first, last)), LossReduction("exact"))
    assert exact.loss == without.loss and np.array_equal(exact.gradient, without.gradient)
    none_valid = nn.functional.cross_entropy(torch.zeros(3, CLASSES), torch.full((3,), IGNORED))
    assert math.isnan(none_valid.item()) and means.loss is not None and math.isnan(means.loss)
    assert np.isfinite(means.gradient).all()
    assert math.isnan(empty.mean_loss)
    # It still counts in N: 6 / (3 x 4), nothing, 6 / (3 x 2).
    assert means.label_weights == pytest.approx([0.5, math.nan, 1.0], nan_ok=True)


@pytest.mark.parametrize("kind", REDUCTION_KINDS)
def test_s5_a_window_without_a_valid_label_makes_no_update(kind: ReductionKind) -> None:
    outcome = divide(window([4, 3], [0, 0], seed=1), LossReduction(kind))
    assert (outcome.updates, outcome.loss, outcome.error, outcome.cosine) == (False, None, None, None)
    assert not outcome.gradient.any()
    assert reference(window([2], [0], seed=1)) is None


def test_s7_no_division() -> None:
    """S7: lr 0.1 times the mean 2 of 1, 3, 2 is a step of 0.2; the sum makes it 0.6."""
    xs = [[1.0], [3.0], [2.0]]
    assert 0.1 * gradient(xs) == pytest.approx(0.2, rel=BAR)
    assert 0.1 * gradient(xs, "sum") == pytest.approx(0.6, rel=BAR)


@pytest.mark.parametrize(("tail", "change", "updates"), [("rescale", 10, 3), ("divide_by_n", 7.5, 3), ("drop", 5, 2)])
def test_t12_t13_the_tail(tail: str, change: float, updates: int) -> None:
    """T12, T13: gradients 1 to 5, N = 2, lr 1: 1.5 + 3.5 and then 5, or half of it, or nothing."""
    rule = LossReduction("exact", tail, 2)  # type: ignore[arg-type]
    outcomes = [divide(numbers([[x] for x in xs]), rule) for xs in ((1.0, 2.0), (3.0, 4.0), (5.0,))]
    assert sum(outcome.gradient[0] for outcome in outcomes) == pytest.approx(change, rel=BAR)
    assert sum(outcome.updates for outcome in outcomes) == updates


def test_t15_a_window_that_never_fills() -> None:
    """T15: gradients 1, 2, 3 and N = 4 -> one update with gradient 2."""
    assert gradient([[1.0], [2.0], [3.0]], tail="rescale", accumulation_steps=4) == 2.0


def test_a_dropped_tail_is_a_gradient_of_nothing() -> None:
    dropped = divide(numbers([[1.0]]), LossReduction("exact", "drop", 2))
    assert (dropped.error, dropped.cosine, dropped.loss) == (1.0, None, None)


def test_a_reference_of_zero_leaves_the_error_undefined() -> None:
    xs = [[1.0], [-0.5, -0.5]]
    assert divide(numbers(xs), LossReduction("exact")).error == 0.0
    means = divide(numbers(xs), LossReduction("mean_of_means"))
    assert means.gradient[0] == 0.25 and means.error is None and means.cosine is None


def test_numbers_add_up_as_they_are_written() -> None:
    """0.1 + 0.2 - 0.3 is 0, and so is the reference, though the doubles next to them leave 2.8e-17."""
    cancelling = numbers([[0.1, 0.2], [-0.3]])
    assert 0.1 + 0.2 - 0.3 != 0
    truth, exact = reference(cancelling), divide(cancelling, LossReduction("exact"))
    assert truth is not None and truth[0] == 0 and not truth[1].any() and exact.error == 0


@quick
@given(st.lists(st.lists(st.integers(-999, 999), min_size=1, max_size=5), min_size=1, max_size=6))
def test_the_reference_of_numbers_is_their_mean(hundredths: list[list[int]]) -> None:
    """In fractions, which do not round."""
    flat = [Fraction(x, 100) for xs in hundredths for x in xs]
    truth = reference(numbers([[x / 100 for x in xs] for xs in hundredths]))
    assert truth is not None and truth[1][0] == pytest.approx(float(sum(flat) / len(flat)), rel=BAR)


@pytest.mark.parametrize(("xs", "field"), [([], "micro_batches"), ([[1.0]] * 3, "accumulation_steps")])
def test_windows_that_cannot_be_are_refused(xs: list[list[float]], field: str) -> None:
    with pytest.raises(SettingError, match=f"^{field} = "):
        divide(numbers(xs), LossReduction("exact", "rescale", 2))


def test_one_hot_features_may_be_sparse() -> None:
    net = SoftmaxRegression(np.random.default_rng(0).normal(size=(6, 6)))
    dense, targets = np.eye(6)[[0, 3, 3, 5]], np.array([1, IGNORED, 2, 0])
    one, other = (net.window([(f, targets, 1), (f, targets, 1)]) for f in (dense, csr_array(dense)))
    for ours, theirs in zip((*one.micro_batches, one.whole), (*other.micro_batches, other.whole), strict=True):
        assert ours.loss_sum == theirs.loss_sum and np.array_equal(ours.gradient_sum, theirs.gradient_sum)
