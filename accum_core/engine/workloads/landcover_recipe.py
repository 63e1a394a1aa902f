"""The land cover tiles by torchvision's segmentation recipe: its networks, its transforms, from initial weights.

The recipe resizes to 520 pixels and crops 480; here both are 64, a tile's own size. So the code that a GPU runs on
COCO runs here in seconds.
"""

from __future__ import annotations

from PIL import Image
from torch import Tensor

from accum_core import landcover
from accum_core.engine.segmentation import Pair, Segmentation

TITLE = "Land cover, torchvision's recipe"
MODELS = (
    "lraspp_mobilenet_v3_large",
    "deeplabv3_mobilenet_v3_large",
    "deeplabv3_resnet50",
    "deeplabv3_resnet101",
    "fcn_resnet50",
    "fcn_resnet101",
)
MEASURE = "miou"
LOSS = "cross_entropy_of_heads"
SAMPLES = "images"
ORDER = 60
IN_LAB = False
SIZE = 64
VALIDATION_BATCH = 49
MOMENTUM = 0.1
"""PyTorch's default. MobileNetV3 has 0.01, with which running statistics need hundreds of updates."""


class Tiles:
    """A part of the data set as pictures."""

    def __init__(self, tiles: landcover.Tiles) -> None:
        self._tiles = tiles

    def __len__(self) -> int:
        return len(self._tiles.images)

    def __getitem__(self, index: int, /) -> Pair:
        return Image.fromarray(self._tiles.images[index]), Image.fromarray(self._tiles.labels[index])


def load() -> Segmentation:
    """The embedded data set.

    Raises:
        DataError: when its file is missing or damaged.
    """
    training, held_out = landcover.load()
    colours = training.images.reshape(-1, 3) / 255
    return Segmentation(
        Tiles(training),
        Tiles(held_out),
        len(landcover.CLASS_NAMES),
        base=SIZE,
        crop=SIZE,
        mean=colours.mean(axis=0).tolist(),
        deviation=colours.std(axis=0).tolist(),
        together=VALIDATION_BATCH,
        pretrained=False,
        momentum=MOMENTUM,
        draw=_pictures,
    )


def _pictures(maps: Tensor) -> tuple[str, ...]:
    return tuple(landcover.label_picture(maps[tile].numpy()) for tile in landcover.DISPLAY_TILES)
