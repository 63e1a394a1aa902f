"""The embedded data set: its arrays, its hash and its pictures. NumPy and Pillow, no torch.

Where it comes from stands in ``data/README.md``.
"""

from __future__ import annotations

import base64
import hashlib
import io
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from accum_core.errors import DataError

FILE: Final = Path(__file__).parents[1] / "data" / "landcover64.npz"
SHA256: Final = "aa2e0db8cff0798b4cbd791d009037f447c67c5721cbc3a3261b5261a1b92bd5"
VALIDATION_FOLD: Final = 0
CLASS_NAMES: Final = ("water", "forest", "shrub and savanna", "grass, crop and urban", "snow and ice", "barren")
# One colour a class, told apart by lightness as well as by hue, so that the maps read without colour vision.
CLASS_COLORS: Final = ("#1f4e9c", "#12632f", "#97c95c", "#e2b33c", "#f4f6f8", "#9a6a50")
# Validation tiles that hold several classes each; their predictions are stored with every validation.
DISPLAY_TILES: Final = (22, 82, 98, 132)


@dataclass(frozen=True, slots=True)
class Tiles:
    """A part of the data set.

    Attributes:
        images: uint8 ``[S, 64, 64, 3]``, RGB.
        labels: uint8 ``[S, 64, 64]``, class index 0 to 5.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]


@cache
def load(file: Path = FILE) -> tuple[Tiles, Tiles]:
    """Training tiles (folds 1 to 4) and validation tiles (fold 0), in the file's order.

    Raises:
        DataError: when the file is missing or its hash is not the one this version was made for.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise DataError(
            f"data file {file.name} cannot be read ({error.strerror}): restore data/{file.name} from the repository "
            "or rebuild it with data/rebuild.py."
        ) from None
    if (found := hashlib.sha256(content).hexdigest()) != SHA256:
        raise DataError(
            f"data file {file.name} is damaged: its SHA-256 begins with {found[:12]}, expected {SHA256[:12]}; "
            f"restore data/{file.name} from the repository or rebuild it with data/rebuild.py."
        )
    with np.load(io.BytesIO(content)) as arrays:
        images, labels, fold = arrays["images"], arrays["labels"], arrays["fold"]
    held_out = fold == VALIDATION_FOLD
    return Tiles(images[~held_out], labels[~held_out]), Tiles(images[held_out], labels[held_out])


def label_picture(labels: NDArray[np.integer]) -> str:
    """A map of class indices ``[H, W]`` as a base64 PNG in the class colours."""
    picture = Image.fromarray(np.asarray(labels, dtype=np.uint8), mode="P")
    picture.putpalette(b"".join(bytes.fromhex(color[1:]) for color in CLASS_COLORS))
    return _png(picture)


def image_picture(image: NDArray[np.uint8]) -> str:
    """An RGB tile ``[H, W, 3]`` as a base64 PNG."""
    return _png(Image.fromarray(image))


def _png(picture: Image.Image) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode("ascii")
