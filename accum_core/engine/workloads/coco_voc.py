"""COCO 2017 with the 20 classes of Pascal VOC and a background, as torchvision's segmentation recipe reads it.

The data folder holds ``coco/train2017``, ``coco/val2017`` and ``coco/annotations``. Objects of other classes are
background; where two objects overlap, the pixels count for nothing. Training leaves out pictures whose objects of these
classes cover 1,000 pixels or fewer; validation takes all.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pycocotools.coco import COCO
from torchvision.datasets import CocoDetection

from accum_core.engine.data_folder import data_folder, require
from accum_core.engine.loading import loader_processes
from accum_core.engine.segmentation import IGNORED, Pair, Segmentation
from accum_core.errors import DataError

TITLE = "COCO 2017 with VOC's classes"
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
SAMPLES = "pictures"
ORDER = 70
IN_LAB = False
MALFORMED = (AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""What reading annotations of another form than COCO's raises, in pycocotools and here."""
CATEGORIES = (0, 5, 2, 16, 9, 44, 6, 3, 17, 62, 21, 67, 18, 19, 4, 1, 64, 20, 63, 7, 72)
"""COCO's number of each of VOC's classes, in VOC's order; 0 is the background."""
SMALLEST_AREA = 1000
SIZE = 19.2e9
REMEDY = (
    "unpack train2017.zip (18 GB), val2017.zip (1 GB) and annotations_trainval2017.zip (241 MB) from "
    "https://cocodataset.org/#download in its folder coco"
)


class CocoPictures:
    """Pictures of one part of COCO with maps made from the outlines of their objects.

    Args:
        part: ``train2017`` or ``val2017``.
        only_with_objects: leave out pictures whose objects of VOC's classes are small, or missing.
    """

    def __init__(self, part: str, *, only_with_objects: bool) -> None:
        folder = data_folder() / "coco"
        self._outlines = f"annotations/instances_{part}.json"
        try:
            with redirect_stdout(sys.stderr):  # it tells of its progress
                self._found = CocoDetection(folder / part, folder / self._outlines)
            coco: COCO = self._found.coco
            keys = enumerate(self._found.ids)
            self._kept = [
                index for index, key in keys if not only_with_objects or _area(coco.imgToAnns[key]) > SMALLEST_AREA
            ]
            files = [f"coco/{part}/{coco.imgs[self._found.ids[index]]['file_name']}" for index in self._kept]
        except MALFORMED:
            raise DataError(f"workload coco_voc: coco/{self._outlines} is damaged; {REMEDY}.") from None
        if not files:
            rule = f" with objects of VOC's classes of more than {SMALLEST_AREA:,} pixels" if only_with_objects else ""
            raise DataError(f"workload coco_voc: coco/{self._outlines} lists no pictures{rule}; {REMEDY}.")
        require("coco_voc", files, REMEDY, SIZE)

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, index: int, /) -> Pair:
        image, objects = self._found[self._kept[index]]
        try:
            return image, self._map(image, objects)
        except Exception:  # of an outline that is none, pycocotools raises just that
            key = self._found.ids[self._kept[index]]
            raise DataError(
                f"workload coco_voc: an outline of picture {key} in coco/{self._outlines} is damaged; {REMEDY}."
            ) from None

    def _map(self, image: Image.Image, objects: Sequence[Mapping[str, Any]]) -> Image.Image:
        classes = np.zeros((image.height, image.width), dtype=np.uint8)
        covered = np.zeros_like(classes)
        for each in objects:
            if each["category_id"] in CATEGORIES:
                mask = self._mask(each)
                classes = np.maximum(classes, mask * np.uint8(CATEGORIES.index(each["category_id"])))
                covered += mask
        classes[covered > 1] = IGNORED
        return Image.fromarray(classes)

    def _mask(self, each: Mapping[str, Any]) -> NDArray[np.uint8]:
        with warnings.catch_warnings():
            # pycocotools hands its memory to NumPy in the way of NumPy 1.
            warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
            mask: NDArray[np.uint8] = self._found.coco.annToMask(each)
        return mask


def _area(objects: Sequence[Mapping[str, Any]]) -> float:
    return math.fsum(each["area"] for each in objects if each["category_id"] in CATEGORIES)


def load() -> Segmentation:
    """The data set from the data folder.

    Raises:
        DataError: saying what to place where, when something is missing or damaged.
    """
    parts = ("train2017", "val2017")
    require(
        "coco_voc",
        [name for part in parts for name in (f"coco/{part}", f"coco/annotations/instances_{part}.json")],
        REMEDY,
        SIZE,
    )
    training, held_out = (CocoPictures(part, only_with_objects=part == "train2017") for part in parts)
    return Segmentation(training, held_out, len(CATEGORIES), processes=loader_processes())
