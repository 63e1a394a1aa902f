"""Pascal VOC 2012, segmentation: 20 classes and a background, 1,464 pictures to train on and 1,449 to validate.

The data folder holds ``VOCdevkit/VOC2012``. Pixels on the objects' borders count for nothing.
"""

from __future__ import annotations

from pathlib import Path

from torchvision.datasets import VOCSegmentation

from accum_core.engine.data_folder import data_folder, require
from accum_core.engine.loading import loader_processes
from accum_core.engine.segmentation import Segmentation

TITLE = "Pascal VOC 2012"
MODELS = (
    "lraspp_mobilenet_v3_large",
    "deeplabv3_mobilenet_v3_large",
    "deeplabv3_resnet50",
    "deeplabv3_resnet101",
    "fcn_resnet50",
    "fcn_resnet101",
)
MEASURE = "miou"
SAMPLES = "pictures"
ORDER = 71
IN_LAB = False
CLASSES = 21
FOLDER = Path("VOCdevkit") / "VOC2012"
SIZE = 2e9
REMEDY = (
    "unpack VOCtrainval_11-May-2012.tar (2 GB, http://host.robots.ox.ac.uk/pascal/VOC/voc2012/) there, so that it "
    f"holds {FOLDER.as_posix()}"
)


def load() -> Segmentation:
    """The data set from the data folder.

    Raises:
        DataError: saying what to place where, when something is missing.
    """
    folder = data_folder()
    lists = [FOLDER / "ImageSets" / "Segmentation" / f"{part}.txt" for part in ("train", "val")]
    require("voc2012", lists, REMEDY, SIZE)
    training, held_out = (VOCSegmentation(folder, "2012", part) for part in ("train", "val"))
    files = [*training.images, *training.masks, *held_out.images, *held_out.masks]
    require("voc2012", [Path(file).relative_to(folder) for file in files], REMEDY, SIZE)
    return Segmentation(training, held_out, CLASSES, processes=loader_processes())
