"""MNIST: 60,000 handwritten digits of 28 x 28 pixels to train on, 10,000 to validate, from a local folder."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torchvision.datasets import MNIST

from accum_core.engine import classification
from accum_core.engine.data_folder import data_folder, elsewhere, shown
from accum_core.engine.objectives import CrossEntropy
from accum_core.errors import DataError
from accum_core.records import Validation

TITLE = "MNIST"
MODELS = ("strided_conv",)
MEASURE = "error"
LOSS = "cross_entropy"
SAMPLES = "digits"
ORDER = 85
IN_LAB = False
"""Its data do not come with the project: for experiments, not for the Lab's menu."""
CLASSES = 10
TRAINING, HELD_OUT = 60_000, 10_000
VALIDATION_BATCH = 1000


class Mnist:
    """The data set; pixels less their mean over the training pictures, over their deviation. It stays in memory."""

    def __init__(self) -> None:
        self._images, self._labels = _read(train=True, expected=TRAINING)
        self._held_out = _read(train=False, expected=HELD_OUT)
        self._mean = float(self._images.double().mean())
        self._deviation = float(self._images.double().std())
        self.num_samples = len(self._images)
        self.objective = CrossEntropy()

    def build_model(self, name: str) -> nn.Module:
        """A network for one colour and ten classes."""
        module = importlib.import_module(f"accum_core.engine.models.{name}")
        model: nn.Module = module.build(1, CLASSES)
        return model

    def samples(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Images float32 ``[B, 1, 28, 28]`` and classes int64 ``[B]``."""
        chosen = torch.as_tensor(indices)
        return self._normalised(self._images[chosen]), self._labels[chosen]

    def validate(self, model: nn.Module) -> Validation:
        """Share of wrong digits and loss over the held-out ones."""
        return classification.validate(model, self._batches())

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        images, labels = self._held_out
        for part, truth in zip(images.split(VALIDATION_BATCH), labels.split(VALIDATION_BATCH), strict=True):
            yield self._normalised(part), truth

    def _normalised(self, images: Tensor) -> Tensor:
        return (images.float() - self._mean) / self._deviation


def _read(*, train: bool, expected: int) -> tuple[Tensor, Tensor]:
    """Pictures uint8 ``[S, 1, 28, 28]`` and classes int64 ``[S]``."""
    folder = data_folder()
    try:
        found = MNIST(folder, train=train, download=False)
        # Its files have no hash of their own, but one that was cut off lacks samples.
        if len(found.data) == len(found.targets) == expected:
            return found.data.unsqueeze(1), found.targets.long()
    except (OSError, RuntimeError, ValueError, AssertionError, EOFError):
        pass
    raise DataError(
        f"workload mnist: {shown(folder)} does not hold MNIST whole: unpack the four files of "
        "https://ossci-datasets.s3.amazonaws.com/mnist/ (train-images-idx3-ubyte.gz and so on; 55 MB unpacked) into "
        f"its folder MNIST/raw, {elsewhere(55e6)}."
    )


def load() -> Mnist:
    """The data set from the data folder.

    Raises:
        DataError: saying what to place where, when a file is missing or not whole.
    """
    return Mnist()
