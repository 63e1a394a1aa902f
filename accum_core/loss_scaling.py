"""What each reduction makes of one window: its loss, its gradient, and the weight that a label ends up with.

NumPy in float64, no torch. A micro-batch enters as what no division has touched yet: its summed loss, its weight and
its summed gradient. So every reduction is computed from the same three things, with ``LossReduction``'s factors. The
reference is not: it comes from one pass over all labels of the window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse, vstack
from scipy.special import log_softmax

from accum_core.errors import SettingError
from accum_core.reduction import LossReduction, ReductionKind

IGNORED: Final = -100  # the target of a label that counts for nothing, as in torch.nn.functional.cross_entropy
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One micro-batch before anything is divided.

    Attributes:
        samples, labels, valid: how many samples it holds, their labels, and how many of these are not ignored.
        weight: what its own mean divides by: its valid labels, or the sum of their class weights.
        loss_sum: its loss, summed over the valid labels.
        gradient_sum: float64, any shape: the gradient of ``loss_sum``.
    """

    samples: int
    labels: int
    valid: int
    weight: float
    loss_sum: float
    gradient_sum: Array

    @property
    def mean_loss(self) -> float:
        """Its own mean, NaN for a weight of 0, which is 0 / 0."""
        return self.loss_sum / self.weight if self.weight else math.nan


@dataclass(frozen=True, slots=True)
class Window:
    """The micro-batches of one window, and the same labels as one batch.

    Attributes:
        micro_batches: in their order, with gradients of one shape.
        whole: all labels of the window in one pass. It is computed from the labels and not from the micro-batches, so
            that a reduction's gradient error is found against something that the reduction did not make.
    """

    micro_batches: tuple[MicroBatch, ...]
    whole: MicroBatch


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a loop with one reduction computes for a window.

    Attributes:
        kind: the reduction.
        updates: whether an update follows: not after a dropped tail, nor in a window without a valid label.
        loss: as such a loop reports it; NaN where it takes the mean of a micro-batch without a valid label, None
            where it makes no update.
        gradient: what lies in the gradient buffers when the optimizer steps; zeros where it makes no update.
        error: gradient error, norm(gradient - reference) / norm(reference); None where that has no meaning.
        cosine: of gradient and reference, None where one of them is zero.
        label_weights: for each micro-batch, the weight of one of its labels as a multiple of the fair one, which the
            whole batch gives it; NaN for a micro-batch without a valid label.
    """

    kind: ReductionKind
    updates: bool
    loss: float | None
    gradient: Array
    error: float | None
    cosine: float | None
    label_weights: tuple[float, ...]


def reference(window: Window) -> tuple[float, Array] | None:
    """Loss and gradient of the window's labels in one pass; None when no label is valid."""
    whole = window.whole
    return (whole.mean_loss, whole.gradient_sum / whole.weight) if whole.weight else None


def divide(window: Window, rule: LossReduction) -> Outcome:
    """What a loop with this reduction and tail rule computes for the window.

    ``exact`` gives the reference, to rounding, for any weights; ``mean_of_means`` where the weights are equal or the
    micro-batches' mean gradients are (tests/test_loss_scaling.py: 1e-12). A tail that is divided by N is neither.

    Args:
        window: as ``SoftmaxRegression.window`` or ``numbers`` makes it.
        rule: ``accumulation_steps`` is the N of a full window; without it the window counts as full.

    Raises:
        SettingError: for an empty window, or one of more than N micro-batches.
    """
    micro_batches = window.micro_batches
    if not micro_batches:
        raise SettingError("micro_batches", [], "a window holds at least one micro-batch")
    count, full = len(micro_batches), rule.accumulation_steps or len(micro_batches)
    if count > full:
        raise SettingError("accumulation_steps", full, f"the window holds {count} micro-batches; use at least {count}")
    weights = [micro.weight for micro in micro_batches]
    truth = reference(window)
    updates = truth is not None and not (rule.tail == "drop" and count < full)
    factors = rule.factors(weights) if updates else (0.0,) * count
    gradient = _summed([factor * micro.gradient_sum for factor, micro in zip(factors, micro_batches, strict=True)])
    total = window.whole.weight
    error, cosine = (None, None) if truth is None else compare(gradient, truth[1])
    return Outcome(
        kind=rule.kind,
        updates=updates,
        loss=_reported(rule.kind, factors, micro_batches) if updates else None,
        gradient=gradient,
        error=error,
        cosine=cosine,
        label_weights=tuple(
            factor * total if weight else math.nan for factor, weight in zip(factors, weights, strict=True)
        ),
    )


def _reported(kind: ReductionKind, factors: Sequence[float], micro_batches: Sequence[MicroBatch]) -> float:
    if kind in ("mean_of_means", "sum_of_means") and not all(micro.weight for micro in micro_batches):
        return math.nan  # 0 / 0 is added to the loss; its gradient is 0, so the gradient stays finite
    return math.fsum(factor * micro.loss_sum for factor, micro in zip(factors, micro_batches, strict=True))


def compare(gradient: Array, truth: Array) -> tuple[float | None, float | None]:
    """Gradient error and cosine of a gradient against the reference; None where a norm of 0 leaves them undefined."""
    norm, size = float(np.linalg.norm(truth)), float(np.linalg.norm(gradient))
    if not norm:
        return (None if size else 0.0), None
    error = float(np.linalg.norm(gradient - truth)) / norm
    return error, float((gradient / size * (truth / norm)).sum()) if size else None


def _summed(gradients: Sequence[Array]) -> Array:
    # One after the other, as the gradient buffers of a training loop add up.
    total = np.zeros_like(gradients[0], dtype=np.float64)
    for gradient in gradients:
        total += gradient
    return total


@dataclass(frozen=True, slots=True)
class SoftmaxRegression:
    """Softmax regression with cross-entropy: logits = features @ weights. Its gradient has a closed form.

    Attributes:
        weights: float64 ``[F, C]``; a bias is the weight of a feature that is always 1.
        class_weights: float64 ``[C]``; the weight of a label is its class's, 1 by default.
    """

    weights: Array
    class_weights: Array | None = None

    def window(self, parts: Sequence[tuple[Array | csr_array, NDArray[np.int64], int]]) -> Window:
        """Micro-batches of these features, targets and numbers of samples, and all of their labels in one pass.

        Args:
            parts: what ``micro_batch`` takes, for one micro-batch after the other; at least one.
        """
        features, targets, samples = zip(*parts, strict=True)
        every = vstack(features, format="csr") if issparse(features[0]) else np.concatenate(features)
        whole = self.micro_batch(every, np.concatenate(targets), sum(samples))
        return Window(tuple(self.micro_batch(*part) for part in parts), whole)

    def micro_batch(self, features: Array | csr_array, targets: NDArray[np.int64], samples: int) -> MicroBatch:
        """Sum the loss and its gradient over the valid labels of one micro-batch.

        With p = softmax(logits) and c the class weights, loss = -sum c[y] log p[y] and
        gradient = features^T (c[y] (p - onehot(y))): torch's autograd gives the same to 1e-12
        (tests/test_loss_scaling.py).

        Args:
            features: ``[L, F]``, a row a label.
            targets: ``[L]``, class indices, ``IGNORED`` for a label that counts for nothing.
            samples: how many samples the labels belong to.
        """
        valid = targets != IGNORED
        rows, classes = features[valid], targets[valid]
        log_p = log_softmax(rows @ self.weights, axis=1)
        weight = np.ones(len(classes)) if self.class_weights is None else self.class_weights[classes]
        places = np.arange(len(classes))
        loss_sum = -float(weight @ log_p[places, classes])
        slope = np.exp(log_p)
        slope[places, classes] -= 1
        slope *= weight[:, None]
        return MicroBatch(samples, len(targets), len(classes), float(weight.sum()), loss_sum, rows.T @ slope)


def numbers(values: Sequence[Sequence[float]]) -> Window:
    """A window of a model with one weight w = 1 and the loss w x, so that each label's x is its gradient."""
    return Window(tuple(map(_of_numbers, values)), _of_numbers([x for xs in values for x in xs]))


def _of_numbers(xs: Sequence[float]) -> MicroBatch:
    # Added up as they are written: 0.1 + 0.2 - 0.3 is 0 to whoever checks by hand.
    total = float(sum(Fraction(str(x)) for x in xs))
    return MicroBatch(len(xs), len(xs), len(xs), float(len(xs)), total, np.array([total]))
