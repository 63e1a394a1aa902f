"""Pascal VOC 2012, segmentation: 20 classes and a background, 1,464 pictures to train on and 1,449 to validate.

The data folder holds ``VOCdevkit/VOC2012``. Pixels on the objects' borders count for nothing.
"""

from __future__ import annotations

from pathlib import Path

from torchvision.datasets import VOCSegmentation

from accum_core.engine.data_folder import data_folder, require
from accum_core.engine.loading import loader_processes
from accum_core.engine.name_lists import read_names
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
LOSS = "cross_entropy_of_heads"
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
        DataError: saying what to place where, when something is missing or damaged.
    """
    lists = [FOLDER / "ImageSets" / "Segmentation" / f"{part}.txt" for part in ("train", "val")]
    require("voc2012", lists, REMEDY, SIZE)
    names = [name for part in lists for name in read_names("voc2012", part.as_posix(), "NAME", REMEDY)]
    files = [file for name in names for file in (f"JPEGImages/{name}.jpg", f"SegmentationClass/{name}.png")]
    require("voc2012", [FOLDER / file for file in files], REMEDY, SIZE)
    training, held_out = (VOCSegmentation(data_folder(), "2012", part) for part in ("train", "val"))
    return Segmentation(training, held_out, CLASSES, processes=loader_processes())
