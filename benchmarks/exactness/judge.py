"""What each gradient of the table of exactness must be, computed without the engine's loop, and how far it is from it.

The gradient of a window is a weighted sum of its micro-batches' gradients. Each of those is computed here by a plain
pass in float64; ``cases.coefficients`` says what they are multiplied by.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from accum_core.batching import BatchPlan
from accum_core.engine.window import MicroBatch
from benchmarks.exactness.cases import Case, coefficients, sees_the_window
from benchmarks.exactness.network import NUMBERS, flat, network, window

# float64 and float32: those of the project. The others: four times what one rounding in the type may be off by, as
# each value passes through several; the passes alone are off by as much.
BOUNDS = {
    "float64": 1e-12,
    "float32": 1e-5,
    "bfloat16 autocast": 4 * 2.0**-8,
    "float16 autocast": 4 * 2.0**-11,
    "bfloat16, sums in float32": 4 * 2.0**-8,
}


@dataclass(frozen=True, slots=True)
class Row:
    """A case and what was found; all but the case is None where no update was made.

    Attributes:
        error: the gradient error against the window in one pass, in float64.
        expected: what that error must be.
        distance: norm(gradient - expected gradient) / norm(expected gradient). Where the gradient must be exact it is
            the error.
        passes: the distance of the passes alone: each micro-batch's gradient from a plain pass in the case's number
            type, summed in float64.
    """

    case: Case
    error: float | None = None
    expected: float | None = None
    distance: float | None = None
    passes: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the gradient is what it must be; for a dropped tail, whether there is none."""
        if self.distance is None:
            return not self.case.makes_an_update
        return self.case.makes_an_update and self.distance <= BOUNDS[self.case.precision]


def judged(case: Case, gradient: Tensor | None) -> Row:
    """A case's row.

    Args:
        gradient: one vector in float64; None where no update was made.
    """
    if gradient is None:
        return Row(case)
    reference = _reference(case.norm, case.samples)
    expected = reference if case.is_exact else expected_gradient(case)
    off = _off(expected, reference)
    return Row(
        case,
        error=_off(gradient, reference),
        expected=off if off > BOUNDS["float64"] else 0.0,
        distance=_off(gradient, expected),
        passes=_off(expected_gradient(case, case.precision), expected),
    )


def expected_gradient(case: Case, precision: str = "float64") -> Tensor:
    """What the case's gradient must be; in another number type, with the rounding of its passes alone."""
    held = window(case.samples, case.plan)
    factors = [factor for own in coefficients(case, [list(map(_weight, own)) for own in held]) for factor in own]
    parts = _parts(case.norm, case.samples, case.plan, precision)
    return torch.tensor(factors, dtype=torch.float64) @ torch.stack(parts)


def _weight(micro_batch: MicroBatch) -> int:
    return int(torch.count_nonzero(micro_batch[1] >= 0))


def _off(gradient: Tensor, expected: Tensor) -> float:
    return float(torch.linalg.vector_norm(gradient - expected) / torch.linalg.vector_norm(expected))


@cache
def _reference(norm: str, samples: int) -> Tensor:
    """The gradient of the mean loss over the window's valid labels, from one pass of the whole window."""
    plan = BatchPlan(samples, samples)
    ((whole,),) = window(samples, plan)
    return _gradients(norm, [[whole]], plan, "float64")[0] / _weight(whole)


@cache
def _parts(norm: str, samples: int, plan: BatchPlan, precision: str) -> list[Tensor]:
    """The gradient of each micro-batch's summed loss, rank after rank."""
    return _gradients(norm, window(samples, plan), plan, precision)


def _gradients(norm: str, held: list[list[MicroBatch]], plan: BatchPlan, precision: str) -> list[Tensor]:
    found = []
    parameters, autocast = NUMBERS[precision]
    for model, logits, labels in _passes(norm, held, plan, parameters, autocast):
        loss = F.cross_entropy(logits.double(), labels, ignore_index=-100, reduction="sum")
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        found.append(flat(torch.autograd.grad(loss, trainable, retain_graph=True, allow_unused=True), trainable))
    return found


def _passes(
    norm: str, held: list[list[MicroBatch]], plan: BatchPlan, parameters: torch.dtype, autocast: torch.dtype | None
) -> Iterator[tuple[nn.Module, Tensor, Tensor]]:
    """The network, the logits and the labels of each micro-batch.

    Where the layers must see the whole window, one pass of it, cut afterwards; elsewhere one pass after the other, each
    rank with buffers of its own.
    """

    def logits(model: nn.Module, images: Tensor) -> Tensor:
        with torch.autocast("cpu", autocast, enabled=autocast is not None):
            found: Tensor = model(images.to(parameters))
        return found

    if sees_the_window(norm):
        model = network(norm, plan).to(parameters)
        every = [micro_batch for own in held for micro_batch in own]
        whole = logits(model, torch.cat([images for images, _ in every]))
        parts = whole.split([len(images) for images, _ in every])
        yield from ((model, part, labels) for part, (_, labels) in zip(parts, every, strict=True))
        return
    for own in held:
        model = network(norm, plan).to(parameters)
        yield from ((model, logits(model, images), labels) for images, labels in own)
