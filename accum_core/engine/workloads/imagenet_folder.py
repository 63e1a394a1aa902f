"""ImageNet, or any pictures sorted into a folder a class: read from disk as they are needed, by several threads.

The data folder holds ``imagenet/train/CLASS/PICTURE`` and ``imagenet/val/CLASS/PICTURE``. Training pictures are
cropped, resized and mirrored at random; validation takes the middle 224 x 224
pixels after the shorter side is made 256, once.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.datasets import ImageFolder
from torchvision.transforms.v2 import functional as pictures

from accum_core.engine import augmentation, classification
from accum_core.engine.data_folder import data_folder, elsewhere, shown
from accum_core.engine.objectives import CrossEntropy
from accum_core.errors import DataError
from accum_core.records import Validation

TITLE = "ImageNet folders"
MODELS = ("resnet50", "resnet18")
MEASURE = "error"
LOSS = "cross_entropy"
SAMPLES = "pictures"
ORDER = 90
IN_LAB = False
SIZE = 224
SHORTER_SIDE = 256
VALIDATION_BATCH = 100
MEAN = [0.485, 0.456, 0.406]
DEVIATION = [0.229, 0.224, 0.225]
"""Of ImageNet's colours in [0, 1], as torchvision's recipes have them."""


class ImagenetFolder:
    """Paths and classes; no picture stays in memory."""

    def __init__(self) -> None:
        self._training, self._held_out = _find("train"), _find("val")
        for part, other, found in (
            ("train", "val", set(self._training.classes) - set(self._held_out.classes)),
            ("val", "train", set(self._held_out.classes) - set(self._training.classes)),
        ):
            if found:
                raise DataError(
                    f"workload imagenet_folder: imagenet/{part} has a folder {min(found)} that imagenet/{other} has "
                    f"not ({len(found):,} such in all): both need the same folders, one a class."
                )
        self.num_samples = len(self._training.samples)
        self.objective = CrossEntropy()

    def build_model(self, name: str) -> nn.Module:
        """A network for three colours and as many classes as there are folders."""
        module = importlib.import_module(f"accum_core.engine.models.{name}")
        model: nn.Module = module.build(3, len(self._training.classes))
        return model

    def samples(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The middle of the training pictures, float32 ``[B, 3, 224, 224]``, and classes int64 ``[B]``."""
        return _load([self._training.samples[index] for index in indices], [_middle] * len(indices))

    def augmented(self, indices: Sequence[int], seed: int, epoch: int) -> tuple[Tensor, Tensor]:
        """Parts of the training pictures, resized and mirrored as the seed and the epoch decide for each picture."""

        def part_of(index: int) -> Callable[[Image.Image], Image.Image]:
            return lambda picture: _part(picture, seed, epoch, index)

        return _load([self._training.samples[index] for index in indices], [part_of(index) for index in indices])

    def validate(self, model: nn.Module) -> Validation:
        """Share of wrong pictures (top 1, one crop) and loss over the held-out ones."""
        return classification.validate(model, self._batches())

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        held_out = self._held_out.samples
        for start in range(0, len(held_out), VALIDATION_BATCH):
            batch = held_out[start : start + VALIDATION_BATCH]
            yield _load(batch, [_middle] * len(batch))


def _load(
    files: Sequence[tuple[str, int]], crops: Sequence[Callable[[Image.Image], Image.Image]]
) -> tuple[Tensor, Tensor]:
    def one(path: str, crop: Callable[[Image.Image], Image.Image]) -> Tensor:
        try:
            with Image.open(path) as file:
                cropped = crop(file.convert("RGB"))
        except OSError:
            raise DataError(f"picture {Path(path).name}: cannot be read; restore it from the data set.") from None
        unit = pictures.to_dtype(pictures.pil_to_tensor(cropped), scale=True)
        normalised: Tensor = pictures.normalize(unit, MEAN, DEVIATION)
        return normalised

    # Decoding and resizing let go of the interpreter's lock, so threads do; they end with the window.
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        images = list(threads.map(one, [path for path, _ in files], crops))
    return torch.stack(images).contiguous(memory_format=torch.channels_last), torch.tensor([k for _, k in files])


def _middle(picture: Image.Image) -> Image.Image:
    resized: Image.Image = pictures.center_crop(pictures.resize(picture, [SHORTER_SIDE]), [SIZE, SIZE])
    return resized


def _part(picture: Image.Image, seed: int, epoch: int, index: int) -> Image.Image:
    numbers = augmentation.draws(seed, epoch, index)
    box = augmentation.resized_crop_box(numbers, picture.height, picture.width)
    part: Image.Image = pictures.resized_crop(picture, *box, [SIZE, SIZE])
    return pictures.horizontal_flip(part) if augmentation.flips(numbers) else part


def _find(part: str) -> ImageFolder:
    folder = data_folder() / "imagenet" / part
    try:
        return ImageFolder(str(folder))
    except OSError:
        raise DataError(
            f"workload imagenet_folder: {shown(folder)} does not hold pictures in one folder a class: place ImageNet "
            "(ILSVRC 2012, 138 GB to train and 6.3 GB to validate, https://image-net.org) as imagenet/train and "
            f"imagenet/val in {shown(data_folder())}, {elsewhere(144.3e9)}."
        ) from None


def load() -> ImagenetFolder:
    """The data set from the data folder.

    Raises:
        DataError: saying what to place where, when a folder is missing or empty.
    """
    return ImagenetFolder()
