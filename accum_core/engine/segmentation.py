"""Segmentation of pictures with a class a pixel, by the transforms of torchvision's reference recipe.

To train: the shorter side is made a random length from half to twice the base size, the picture is mirrored every
second time, filled up to the crop's size where it is smaller, and cropped. To validate: the shorter side is made the
base size, and every picture is passed at its own size; predictions are compared at that size, not at the file's.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as pictures

from accum_core.engine import augmentation, segmentation_models
from accum_core.engine.loading import Loader
from accum_core.engine.metrics import class_iou, confusion, pixel_accuracy
from accum_core.engine.objectives import HeadsCrossEntropy, window_loss
from accum_core.errors import DataError
from accum_core.records import Validation

IGNORED = 255
BASE, CROP = 520, 480
"""Sizes of the recipe, in pixels."""
MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)
"""Of ImageNet's colours in [0, 1], as torchvision's recipes have them."""

Pair: TypeAlias = tuple[Image.Image, Image.Image]
View: TypeAlias = tuple[Tensor, Tensor]
"""A picture uint8 ``[3, H, W]`` and its classes uint8 ``[H, W]``."""


class Pictures(Protocol):
    """Pictures in three colours with their maps of one byte a pixel: a class, or 255 for a pixel that does not count.

    An ``OSError`` from ``[]`` is a file that cannot be read.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Pair: ...


@dataclass
class Segmentation:
    """A workload of pictures with maps.

    Args:
        training, held_out: what to train and to validate on.
        classes: their number, the background's included.
        base, crop: sizes in pixels.
        mean, deviation: of the three colours in [0, 1].
        processes: that decode the pictures; 0 for those that lie in memory.
        together: held-out pictures in a pass; more than one only where all have one size.
        pretrained: whether networks begin with torchvision's backbones, trained on ImageNet.
        momentum: of BatchNorm's running statistics, in the place of each layer's own.
        draw: from predicted maps uint8 ``[S, H, W]``, all of one size, to what a validation shows of them.

    Attributes:
        objective: of a network with one head.
    """

    training: Pictures
    held_out: Pictures
    classes: int
    base: int = BASE
    crop: int = CROP
    mean: Sequence[float] = MEAN
    deviation: Sequence[float] = DEVIATION
    processes: int = 0
    together: int = 1
    pretrained: bool = True
    momentum: float | None = None
    draw: Callable[[Tensor], tuple[str, ...]] | None = None

    def __post_init__(self) -> None:
        self.num_samples = len(self.training)
        self.objective = HeadsCrossEntropy({"out": 1.0}, IGNORED)
        self._views = Loader(self._part, self.processes)

    def objective_of(self, model: str) -> HeadsCrossEntropy:
        """One term for each head that the network has."""
        return HeadsCrossEntropy(segmentation_models.coefficients(model), IGNORED)

    def build_model(self, name: str) -> nn.Module:
        """A network for three colours and this many classes.

        Raises:
            DataError: when its backbone's weights are needed and are not there.
        """
        model: nn.Module = importlib.import_module(f"accum_core.engine.models.{name}").build(3, self.classes)
        if self.pretrained:
            segmentation_models.load_backbone(model, name)
        for layer in model.modules():
            if self.momentum is not None and isinstance(layer, nn.BatchNorm2d):
                layer.momentum = self.momentum
        return model

    def samples(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The middle of training pictures at the base size, float32 ``[B, 3, C, C]``, and int64 ``[B, C, C]``."""
        return self._batch([self._middle(index) for index in indices])

    def augmented(self, indices: Sequence[int], seed: int, epoch: int) -> tuple[Tensor, Tensor]:
        """Parts of them, resized, mirrored and cropped as the seed and the epoch decide for each picture."""
        return self._batch(list(self._views.items([(seed, epoch, index) for index in indices])))

    def expect(self, indices: Sequence[int], seed: int, epoch: int) -> None:
        """Begin to decode what ``augmented`` will be asked for next."""
        if self.processes:
            self._views.expect([(seed, epoch, index) for index in indices])

    def validate(self, model: nn.Module) -> Validation:
        """mIoU, pixel accuracy and IoU by class from one confusion matrix of all held-out pixels that count.

        The loss is the mean over the same pixels. As torchvision's reference computes them
        (tests/test_segmentation.py); a class that is neither there nor predicted has no part in the mean.
        """
        first = next(model.parameters())
        matrix = torch.zeros(self.classes, self.classes, dtype=torch.int64)
        sums: dict[str, float] = {}
        weights: dict[str, float] = {}
        maps: list[Tensor] = []
        for images, targets in self._held_out_batches():
            outputs = model(images.to(first))
            targets = targets.to(first.device)
            objective = HeadsCrossEntropy({head: segmentation_models.COEFFICIENTS[head] for head in outputs}, IGNORED)
            for head, total in objective.sums_of(outputs, targets).items():
                sums[head] = sums.get(head, 0.0) + total.item()
                weights[head] = weights.get(head, 0.0) + objective.weights(targets)[head]
            predicted = outputs["out"].argmax(1)
            matrix += confusion(predicted, targets, self.classes, IGNORED).cpu()
            if self.draw is not None:
                maps.append(predicted.to(torch.uint8).cpu())
        iou = class_iou(matrix)
        return Validation(
            miou=iou.nanmean().item(),
            pixel_accuracy=pixel_accuracy(matrix),
            class_iou=tuple(iou.tolist()),
            loss=window_loss(sums, weights, segmentation_models.COEFFICIENTS),
            pictures=() if self.draw is None else self.draw(torch.cat(maps)),
        )

    def _held_out_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        views: list[View] = []
        for view in Loader(self._whole, self.processes).items(range(len(self.held_out))):
            views.append(view)
            if len(views) == self.together:
                yield self._batch(views)
                views = []
        if views:
            yield self._batch(views)

    def _part(self, key: tuple[int, int, int]) -> View:
        numbers = augmentation.draws(*key)
        image, classes = self._read(self.training, key[2])
        image, classes = _resized(image, classes, int(numbers.integers(self.base // 2, 2 * self.base, endpoint=True)))
        if augmentation.flips(numbers):
            image, classes = pictures.horizontal_flip(image), pictures.horizontal_flip(classes)
        image, classes = _filled(image, classes, self.crop)
        top, left = (int(numbers.integers(0, side - self.crop, endpoint=True)) for side in (image.height, image.width))
        box = top, left, self.crop, self.crop
        return _view(pictures.crop(image, *box), pictures.crop(classes, *box))

    def _middle(self, index: int) -> View:
        image, classes = _filled(*_resized(*self._read(self.training, index), self.base), self.crop)
        return _view(pictures.center_crop(image, [self.crop]), pictures.center_crop(classes, [self.crop]))

    def _whole(self, index: int) -> View:
        return _view(*_resized(*self._read(self.held_out, index), self.base))

    def _read(self, part: Pictures, index: int) -> Pair:
        try:
            image, classes = part[index]
            counts = classes.histogram()[:IGNORED]
        except OSError as error:
            raise DataError(f"picture {index}: cannot be read ({error}); restore it from the data set.") from None
        highest = max((value for value, count in enumerate(counts) if count), default=0)
        if image.size != classes.size or highest >= self.classes:
            raise DataError(
                f"picture {index}: is {image.size[0]} x {image.size[1]} pixels and its map {classes.size[0]} x "
                f"{classes.size[1]} with classes up to {highest} of {self.classes}; restore both from the data set."
            )
        return image, classes

    def _batch(self, views: Sequence[View]) -> tuple[Tensor, Tensor]:
        images = torch.stack([image for image, _ in views]).contiguous(memory_format=torch.channels_last)
        unit = pictures.to_dtype(images, torch.float32, scale=True)
        normalised: Tensor = pictures.normalize(unit, list(self.mean), list(self.deviation))
        return normalised, torch.stack([classes for _, classes in views]).long()


def _resized(image: Image.Image, classes: Image.Image, shorter: int) -> Pair:
    return pictures.resize(image, [shorter]), pictures.resize(classes, [shorter], InterpolationMode.NEAREST)


def _filled(image: Image.Image, classes: Image.Image, size: int) -> Pair:
    """With black pixels that do not count to the right and below, up to the size."""
    margins = [0, 0, max(0, size - image.width), max(0, size - image.height)]
    return pictures.pad(image, margins, fill=0), pictures.pad(classes, margins, fill=IGNORED)


def _view(image: Image.Image, classes: Image.Image) -> View:
    return pictures.pil_to_tensor(image), pictures.pil_to_tensor(classes)[0]
