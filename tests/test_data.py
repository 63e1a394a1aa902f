"""The embedded data set against what its README says of it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest

DATA = Path(__file__).parent.parent / "data"
TILE, BLOCK = 64, 128
PIXELS_PER_DEGREE = 15


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
    with np.load(DATA / "landcover64.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def corners(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Row and column of each tile's north-west pixel on the world grid, from its centre's coordinates."""
    north = (90 - arrays["latitude"].astype(float)) * PIXELS_PER_DEGREE - TILE / 2
    west = (arrays["longitude"].astype(float) + 180) * PIXELS_PER_DEGREE - TILE / 2
    exact = np.stack([north, west], axis=1)
    assert np.abs(exact - np.rint(exact)).max() < 1e-3, "the centres do not lie on the pixel grid"
    return np.rint(exact).astype(int)


def test_file_is_the_one_its_readme_names() -> None:
    (digest,) = re.findall(r"`([0-9a-f]{64})`", (DATA / "README.md").read_text())
    assert hashlib.sha256((DATA / "landcover64.npz").read_bytes()).hexdigest() == digest


def test_shapes_and_types(arrays: dict[str, np.ndarray]) -> None:
    found = {name: (array.dtype.name.rstrip("0123456789"), array.shape) for name, array in arrays.items()}
    assert found == {
        "images": ("uint", (989, 64, 64, 3)),
        "labels": ("uint", (989, 64, 64)),
        "latitude": ("float", (989,)),
        "longitude": ("float", (989,)),
        "fold": ("uint", (989,)),
        "class_names": ("str", (6,)),
    }
    assert all(arrays[name].dtype == np.uint8 for name in ("images", "labels", "fold"))
    assert all(arrays[name].dtype == np.float32 for name in ("latitude", "longitude"))


def test_class_shares(arrays: dict[str, np.ndarray]) -> None:
    shares = np.bincount(arrays["labels"].ravel(), minlength=6) / arrays["labels"].size
    rows = re.findall(r"^\| (\d) ([^|]+) \| [\d-]+ \| (0\.\d{3}) \|$", (DATA / "README.md").read_text(), re.MULTILINE)
    assert [name for _, name, _ in rows] == arrays["class_names"].tolist()
    assert [float(share) for *_, share in rows] == [0.211, 0.113, 0.257, 0.246, 0.107, 0.067]
    # The three digits of the table: half a unit of the last one.
    np.testing.assert_allclose(shares, [0.211, 0.113, 0.257, 0.246, 0.107, 0.067], atol=5e-4)


def test_every_tile_has_land_and_two_classes(arrays: dict[str, np.ndarray]) -> None:
    shares = np.stack([np.bincount(tile.ravel(), minlength=6) / tile.size for tile in arrays["labels"]])
    assert (1 - shares[:, 0] > 0.25).all()
    assert ((shares > 0.02).sum(axis=1) >= 2).all()


def test_tiles_do_not_overlap(corners: np.ndarray) -> None:
    assert (corners % TILE == 0).all()
    assert len(np.unique(corners, axis=0)) == len(corners)


def test_no_block_lies_in_two_folds(arrays: dict[str, np.ndarray], corners: np.ndarray) -> None:
    folds: dict[tuple[int, int], set[int]] = {}
    for (row, column), fold in zip((corners // BLOCK).tolist(), arrays["fold"].tolist(), strict=True):
        folds.setdefault((row, column), set()).add(fold)
    assert all(len(found) == 1 for found in folds.values())
    assert np.bincount(arrays["fold"]).tolist()[0] == 196
    assert set(arrays["fold"].tolist()) == {0, 1, 2, 3, 4}
