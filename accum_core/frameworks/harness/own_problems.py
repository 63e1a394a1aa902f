"""The problems of the kind ``own``: a small network of the user's, with a loss of the user's, for each case.

Samples differ in kind as well as in length: a short sequence has other tokens than a long one, a map with few labels
another class. So a micro-batch that counts too much turns the gradient, and what is wrong is far from what is right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from accum_core.conformance.cases import CASES
from accum_core.engine.models.gpt import GPT
from accum_core.frameworks.contract import Batch, Sample
from accum_core.frameworks.harness.problem import Problem, seeded

IGNORED_TOKEN = -100
IGNORED_PIXEL = 255
CLASSES = 4
VOCABULARY = 24
LENGTHS = {
    "unequal_tokens": (4, 53, 11, 7, 29, 16, 5, 41),
    "two_ranks": (4, 53, 11, 7, 29, 16, 5, 41),
    "empty_micro_batch": (9, 30, 12, 18),
    "logged_loss": (4, 30, 7, 16, 25, 5, 11, 40),
}
COUNTS = {
    "ragged": 10,
    "short_window": 20,
    "iterable": 20,
    "n_above_epoch": 6,
    "clipping": 16,
    "schedule": 16,
    "bf16": 16,
    "resume": 24,
}


def own_problem(case: str) -> Problem:
    """A case's problem for a module and a loss of the user's."""
    return MAKERS[CASES[case].model](case)


def _classes(case: str) -> Problem:
    """A perceptron ``[M, 6]`` to ``[M, 4]``."""
    samples = _vectors(COUNTS.get(case, 8))
    class_weights = torch.tensor([1.0, 10.0, 0.2, 3.0], dtype=torch.float64) if case == "class_weights" else None
    return _problem(case, _perceptron, samples, _stacked, class_weights=class_weights)


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def _vectors(count: int) -> list[Sample]:
    """Later samples lie elsewhere and are of other classes than earlier ones."""
    generator = torch.Generator().manual_seed(1)
    made: list[Sample] = []
    for index in range(count):
        inputs = torch.randn(6, generator=generator, dtype=torch.float64) + index * 3.0 / count - 1.5
        made.append({"inputs": inputs, "labels": torch.tensor(index * CLASSES // count)})
    return made


def _pixels(case: str) -> Problem:
    """A convolution ``[M, 3, 8, 8]`` to ``[M, 4, 8, 8]``; of each map other shares of its rows are labelled."""
    generator = torch.Generator().manual_seed(2)
    samples = []
    for index, rows in enumerate((1, 8, 3, 6)):
        inputs = torch.randn(3, 8, 8, generator=generator, dtype=torch.float64) + index - 1.5
        labels = torch.full((8, 8), IGNORED_PIXEL)
        labels[:rows] = index
        samples.append({"inputs": inputs, "labels": labels})
    return _problem(case, _convolutional, samples, _stacked, ignored=IGNORED_PIXEL)


def _convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.Tanh(), nn.Conv2d(6, CLASSES, 1))


def _batch_norm(case: str) -> Problem:
    """A convolution with BatchNorm, ``[M, 3, 6, 6]`` to ``[M, 4]``."""
    generator = torch.Generator().manual_seed(3)
    samples = []
    for index in range(8):
        inputs = torch.randn(3, 6, 6, generator=generator, dtype=torch.float64) * (1 + index / 4) + index / 2
        samples.append({"inputs": inputs, "labels": torch.tensor(index * CLASSES // 8)})
    return _problem(case, _normalised, samples, _stacked)


def _normalised() -> nn.Module:
    features = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Tanh(), nn.AdaptiveAvgPool2d(1))
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(6, CLASSES))


def _tokens(case: str) -> Problem:
    """The engine's GPT at a width of 16, ``[M, T]`` to ``[M, T, 24]``; sequences of unequal length."""
    samples = [_sequence(index, length) for index, length in enumerate(LENGTHS[case])]
    if case == "empty_micro_batch":
        samples[2] = {**samples[2], "labels": torch.full_like(samples[2]["labels"], IGNORED_TOKEN)}
    return _problem(case, _gpt, samples, _padded, ignored=IGNORED_TOKEN)


def _gpt() -> nn.Module:
    return GPT(VOCABULARY, 64, width=16, depth=2, heads=2)


def _sequence(index: int, length: int) -> Sample:
    """Each sequence draws from three tokens of its own; labels are the next tokens, so all of them are predicted."""
    generator = torch.Generator().manual_seed(100 + index)
    tokens = index * 3 + torch.randint(3, (length + 1,), generator=generator)
    return {"inputs": tokens[:-1], "labels": tokens[1:]}


def _stacked(samples: Sequence[Sample]) -> Batch:
    return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}


def _padded(samples: Sequence[Sample]) -> Batch:
    """Padding at the end, with an ignored label; no token before it sees it."""
    fill = {"inputs": 0, "labels": IGNORED_TOKEN}
    pad = nn.utils.rnn.pad_sequence
    return {name: pad([s[name] for s in samples], batch_first=True, padding_value=fill[name]) for name in fill}


def _problem(
    case: str,
    build: Callable[[], nn.Module],
    samples: Sequence[Sample],
    collate: Callable[[Sequence[Sample]], Batch],
    *,
    ignored: int = IGNORED_TOKEN,
    class_weights: Tensor | None = None,
) -> Problem:
    return Problem(
        settings=CASES[case].settings,
        build=seeded(build),
        samples=samples,
        collate=collate,
        loss=partial(_cross_entropy, ignored=ignored, class_weights=class_weights, reduction="mean"),
        total=partial(_cross_entropy, ignored=ignored, class_weights=class_weights, reduction="sum"),
        weight=partial(_weight, ignored=ignored, class_weights=class_weights),
    )


def _cross_entropy(
    logits: Tensor, labels: Tensor, *, ignored: int, class_weights: Tensor | None, reduction: str
) -> Tensor:
    if logits.ndim == 3:
        logits, labels = logits.flatten(0, 1), labels.flatten()
    weights = None if class_weights is None else class_weights.to(logits.dtype)
    return F.cross_entropy(logits, labels, weights, ignore_index=ignored, reduction=reduction)


def _weight(labels: Tensor, *, ignored: int, class_weights: Tensor | None) -> float:
    valid = labels[labels != ignored]
    return float(valid.numel() if class_weights is None else class_weights[valid].sum())


MAKERS: Mapping[str, Callable[[str], Problem]] = {
    "classes": _classes,
    "pixels": _pixels,
    "tokens": _tokens,
    "batch_norm": _batch_norm,
}
