"""CIFAR-10: 50,000 pictures of 32 x 32 pixels in ten classes to train on, 10,000 to validate, from a local folder.

Training pictures are cropped from a frame of four pixels and mirrored at random. The pictures stay in memory as bytes.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torchvision.datasets import CIFAR10

from accum_core.engine import augmentation, classification
from accum_core.engine.data_folder import data_folder, elsewhere, shown
from accum_core.engine.objectives import CrossEntropy
from accum_core.errors import DataError
from accum_core.records import Validation

TITLE = "CIFAR-10"
MODELS = ("resnet18_small", "resnet44", "wide_resnet16_4")
MEASURE = "error"
LOSS = "cross_entropy"
SAMPLES = "pictures"
ORDER = 80
IN_LAB = False
"""It needs a GPU and data that do not come with the project: for experiments, not for the Lab's menu."""
CLASSES = 10
PADDING = 4
VALIDATION_BATCH = 500


class Cifar10:
    """The data set; pictures are normalised by the training pictures' mean and deviation of each colour."""

    def __init__(self) -> None:
        self._images, self._labels = _read(train=True)
        self._held_out = _read(train=False)
        unit = self._images.double() / 255
        self._mean = unit.mean(dim=(0, 2, 3)).float().view(-1, 1, 1)
        self._deviation = unit.std(dim=(0, 2, 3)).float().view(-1, 1, 1)
        self.num_samples = len(self._images)
        self.objective = CrossEntropy()

    def build_model(self, name: str) -> nn.Module:
        """A network for three colours and ten classes."""
        module = importlib.import_module(f"accum_core.engine.models.{name}")
        model: nn.Module = module.build(3, CLASSES)
        return model

    def samples(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Pictures as they are, float32 ``[B, 3, 32, 32]``, and classes int64 ``[B]``."""
        chosen = torch.as_tensor(indices)
        return self._normalised(self._images[chosen]), self._labels[chosen]

    def augmented(self, indices: Sequence[int], seed: int, epoch: int) -> tuple[Tensor, Tensor]:
        """The same, cropped and mirrored as the seed and the epoch decide for each picture."""
        images, labels = self.samples(indices)
        pictures = []
        for image, index in zip(images, indices, strict=True):
            numbers = augmentation.draws(seed, epoch, index)
            picture = augmentation.padded_crop(image, numbers, PADDING)
            pictures.append(picture.flip(-1) if augmentation.flips(numbers) else picture)
        return torch.stack(pictures).contiguous(memory_format=torch.channels_last), labels

    def validate(self, model: nn.Module) -> Validation:
        """Share of wrong pictures and loss over the held-out ones."""
        return classification.validate(model, self._batches())

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        images, labels = self._held_out
        for part, truth in zip(images.split(VALIDATION_BATCH), labels.split(VALIDATION_BATCH), strict=True):
            yield self._normalised(part), truth

    def _normalised(self, images: Tensor) -> Tensor:
        return (images.float() / 255 - self._mean) / self._deviation


def _read(*, train: bool) -> tuple[Tensor, Tensor]:
    """Pictures uint8 ``[S, 3, 32, 32]`` and classes int64 ``[S]``."""
    folder = data_folder()
    try:
        found = CIFAR10(folder, train=train, download=False)
    except (OSError, RuntimeError, EOFError):
        raise DataError(
            f"workload cifar10: {shown(folder)} does not hold CIFAR-10 whole: unpack cifar-10-python.tar.gz (163 MB, "
            "https://www.cs.toronto.edu/~kriz/cifar.html) there, so that it holds the folder cifar-10-batches-py, "
            f"{elsewhere(163e6)}."
        ) from None
    return torch.from_numpy(found.data).permute(0, 3, 1, 2).contiguous(), torch.tensor(found.targets)


def load() -> Cifar10:
    """The data set from the data folder.

    Raises:
        DataError: saying what to place where, when a file is missing or is not the published one.
    """
    return Cifar10()
