"""Land cover from satellite tiles: six classes, 64 x 64 pixels, 793 tiles to train on and 196 from other regions."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from accum_core import landcover
from accum_core.engine.metrics import class_iou, confusion, pixel_accuracy
from accum_core.engine.objectives import CrossEntropy
from accum_core.records import Validation

TITLE = "Land cover, 64 x 64 tiles"
MODELS = ("deeplab", "unet")
MEASURE = "miou"
LOSS = "cross_entropy"
SAMPLES = "images"
ORDER = 10
VALIDATION_BATCH = 49


class Landcover:
    """The data set as tensors, normalised by the training tiles' mean and deviation of each colour."""

    def __init__(self) -> None:
        training, validation = landcover.load()
        images = _to_unit(training.images)
        self._mean = images.mean(dim=(0, 2, 3), keepdim=True)
        self._deviation = images.std(dim=(0, 2, 3), keepdim=True)
        self._images = self._normalise(images)
        self._labels = torch.from_numpy(training.labels).long()
        self._validation_images = self._normalise(_to_unit(validation.images))
        self._validation_labels = torch.from_numpy(validation.labels).long()
        self.num_samples = len(self._images)
        self.objective = CrossEntropy()

    def build_model(self, name: str) -> nn.Module:
        """A network for three colours and six classes."""
        module = importlib.import_module(f"accum_core.engine.models.{name}")
        model: nn.Module = module.build(3, len(landcover.CLASS_NAMES))
        return model

    def samples(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Images float32 ``[B, 3, 64, 64]`` (channels last in memory) and labels int64 ``[B, 64, 64]``."""
        chosen = torch.as_tensor(indices)
        return self._images[chosen].contiguous(memory_format=torch.channels_last), self._labels[chosen]

    def validate(self, model: nn.Module) -> Validation:
        """mIoU, pixel accuracy, IoU by class and loss on fold 0, and the maps of the display tiles."""
        first = next(model.parameters())
        classes = len(landcover.CLASS_NAMES)
        matrix = torch.zeros(classes, classes, dtype=torch.int64)
        loss, predictions = 0.0, []
        for images, labels in zip(
            self._validation_images.split(VALIDATION_BATCH),
            self._validation_labels.split(VALIDATION_BATCH),
            strict=True,
        ):
            logits, labels = model(images.to(first)), labels.to(first.device)
            loss += F.cross_entropy(logits, labels).item() * len(labels)
            predicted = logits.argmax(1)
            matrix += confusion(predicted, labels, classes).cpu()
            predictions.append(predicted.to(torch.uint8).cpu())
        iou = class_iou(matrix)
        maps = torch.cat(predictions).numpy()
        return Validation(
            miou=iou.nanmean().item(),
            pixel_accuracy=pixel_accuracy(matrix),
            class_iou=tuple(iou.tolist()),
            loss=loss / len(self._validation_labels),
            pictures=tuple(landcover.label_picture(maps[tile]) for tile in landcover.DISPLAY_TILES),
        )

    def _normalise(self, images: Tensor) -> Tensor:
        return (images - self._mean) / self._deviation


def _to_unit(images: object) -> Tensor:
    """uint8 ``[S, H, W, 3]`` as float32 ``[S, 3, H, W]`` in [0, 1]."""
    return torch.as_tensor(images).permute(0, 3, 1, 2).float().div(255).contiguous()


def load() -> Landcover:
    """The embedded data set.

    Raises:
        DataError: when its file is missing or damaged.
    """
    return Landcover()
