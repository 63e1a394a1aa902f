"""Handwritten digits, 8 x 8 pixels with noise: scikit-learn's bundled set, so nothing is fetched.

1,437 of the 1,797 digits train; the last 360 in the set's order validate, each under four draws of the noise. The noise
is part of the data: drawn once from a fixed seed, the same for every run.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from accum_core.engine import classification
from accum_core.engine.objectives import CrossEntropy
from accum_core.records import Validation

TITLE = "Digits, 8 x 8 pixels with noise"
MODELS = ("mlp", "conv")
MEASURE = "error"
LOSS = "cross_entropy"
SAMPLES = "digits"
ORDER = 20
CLASSES = 10
HELD_OUT = 360
DRAWS = 4
NOISE = 0.5
"""Standard deviation of the noise, in units of the training pixels' standard deviation."""
NOISE_SEED = 20180322


class Digits:
    """The data set as tensors: pixels less their training mean, over their training deviation, plus the noise."""

    def __init__(self) -> None:
        found = load_digits()
        images = torch.from_numpy(found.images).float().unsqueeze(1)
        labels = torch.from_numpy(found.target).long()
        training, held_out = images[:-HELD_OUT], images[-HELD_OUT:].repeat(DRAWS, 1, 1, 1)
        mean, deviation = training.mean(), training.std()
        noise = torch.Generator().manual_seed(NOISE_SEED)

        def noisy(clean: Tensor) -> Tensor:
            return (clean - mean) / deviation + NOISE * torch.randn(clean.shape, generator=noise)

        self._images, self._labels = noisy(training), labels[:-HELD_OUT]
        self._held_out = noisy(held_out), labels[-HELD_OUT:].repeat(DRAWS)
        self.num_samples = len(self._images)
        self.objective = CrossEntropy()

    def build_model(self, name: str) -> nn.Module:
        """A network for one colour and ten classes."""
        module = importlib.import_module(f"accum_core.engine.models.{name}")
        model: nn.Module = module.build(1, CLASSES)
        return model

    def samples(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Images float32 ``[B, 1, 8, 8]`` and classes int64 ``[B]``."""
        chosen = torch.as_tensor(indices)
        return self._images[chosen], self._labels[chosen]

    def validate(self, model: nn.Module) -> Validation:
        """Share of wrong digits and loss over the held-out digits under each draw of the noise."""
        return classification.validate(model, [self._held_out])


def load() -> Digits:
    """The data set that scikit-learn carries."""
    return Digits()
