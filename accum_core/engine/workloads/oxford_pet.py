"""Oxford-IIIT Pet: cats and dogs before a background, 3,680 pictures to train on and 3,669 to validate.

The data folder holds ``oxford-iiit-pet/images`` and ``oxford-iiit-pet/annotations``. The band between animal and
background, which the data set does not classify, counts for nothing.
"""

from __future__ import annotations

from pathlib import Path

from torchvision.datasets import OxfordIIITPet

from accum_core.engine.data_folder import data_folder, require
from accum_core.engine.loading import loader_processes
from accum_core.engine.name_lists import read_names
from accum_core.engine.segmentation import IGNORED, Pair, Segmentation

TITLE = "Oxford-IIIT Pet"
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
ORDER = 72
IN_LAB = False
CLASSES = {1: 1, 2: 0}
"""The file's number -> class: the animal is 1, the background 0; everything else counts for nothing."""
FOLDER = Path("oxford-iiit-pet")
SIZE = 811e6
REMEDY = (
    "unpack images.tar.gz and annotations.tar.gz (811 MB together, https://www.robots.ox.ac.uk/~vgg/data/pets/) in "
    f"its folder {FOLDER}"
)


class Pets:
    """Pictures of one part of the data set with maps of two classes."""

    def __init__(self, part: str) -> None:
        self._found = OxfordIIITPet(data_folder(), part, target_types="segmentation")

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, index: int, /) -> Pair:
        image, marks = self._found[index]
        return image, marks.point([CLASSES.get(mark, IGNORED) for mark in range(256)])


def load() -> Segmentation:
    """The data set from the data folder.

    Raises:
        DataError: saying what to place where, when something is missing or damaged.
    """
    lists = [FOLDER / "annotations" / f"{part}.txt" for part in ("trainval", "test")]
    require("oxford_pet", [*lists, FOLDER / "images"], REMEDY, SIZE)
    form = "NAME CLASS SPECIES BREED"
    names = [name for part in lists for name in read_names("oxford_pet", part.as_posix(), form, REMEDY)]
    files = [file for name in names for file in (f"images/{name}.jpg", f"annotations/trimaps/{name}.png")]
    require("oxford_pet", [FOLDER / file for file in files], REMEDY, SIZE)
    return Segmentation(Pets("trainval"), Pets("test"), len(CLASSES), processes=loader_processes())
