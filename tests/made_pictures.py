"""Small made files in the form of VOC 2012, Oxford-IIIT Pet and COCO 2017."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

TRAINING, HELD_OUT = 5, 3
SIZE = (60, 40)
"""Width and height of the made pictures, in pixels."""
DOG, PERSON, STOP_SIGN = 18, 1, 13
"""Numbers in COCO; the third is none of VOC's classes."""


def picture(seed: int, size: tuple[int, int] = SIZE) -> Image.Image:
    """Smooth colours, so that JPEG keeps them."""
    rows, columns = np.mgrid[0 : size[1], 0 : size[0]]
    colours = np.stack([rows * 4, columns * 3, np.full_like(rows, 20 * seed % 256)], axis=-1)
    return Image.fromarray(colours.clip(0, 255).astype(np.uint8))


def make_voc(data: Path) -> Path:
    """A map of class 12 (dog) left of column 20, a border of two columns that does not count, background."""
    folder = data / "VOCdevkit" / "VOC2012"
    for name in ("ImageSets/Segmentation", "JPEGImages", "SegmentationClass"):
        (folder / name).mkdir(parents=True)
    for part, count, first in (("train", TRAINING, 0), ("val", HELD_OUT, 100)):
        names = [f"2007_{first + k:06d}" for k in range(count)]
        (folder / "ImageSets" / "Segmentation" / f"{part}.txt").write_text("".join(f"{name}\n" for name in names))
        for k, name in enumerate(names):
            picture(k).save(folder / "JPEGImages" / f"{name}.jpg", quality=95)
            classes = np.zeros(SIZE[::-1], dtype=np.uint8)
            classes[:, :20], classes[:, 20:22] = 12, 255
            image = Image.fromarray(classes, mode="P")
            image.putpalette(list(range(256)) * 3)
            image.save(folder / "SegmentationClass" / f"{name}.png")
    return folder


def make_pets(data: Path) -> Path:
    """A trimap: 1 (animal) left of column 20, 3 (not classified) up to column 24, 2 (background) after it."""
    folder = data / "oxford-iiit-pet"
    for name in ("images", "annotations/trimaps"):
        (folder / name).mkdir(parents=True)
    for part, count in (("trainval", TRAINING), ("test", HELD_OUT)):
        names = [f"Abyssinian_{part}_{k}" for k in range(count)]
        (folder / "annotations" / f"{part}.txt").write_text("".join(f"{name} 1 1 1\n" for name in names))
        for k, name in enumerate(names):
            picture(k).save(folder / "images" / f"{name}.jpg", quality=95)
            marks = np.full(SIZE[::-1], 2, dtype=np.uint8)
            marks[:, :20], marks[:, 20:24] = 1, 3
            Image.fromarray(marks).save(folder / "annotations" / "trimaps" / f"{name}.png")
    return folder


def rectangle(category: int, left: int, top: int, right: int, bottom: int) -> dict[str, Any]:
    """An object whose outline is a polygon."""
    outline = [left, top, right, top, right, bottom, left, bottom]
    return {
        "category_id": category, "segmentation": [outline], "iscrowd": 0, "area": (right - left) * (bottom - top),
    }  # fmt: skip


def crowd(category: int, columns: int) -> dict[str, Any]:
    """A crowd in the first columns; it is run-length encoded, column after column."""
    width, height = SIZE
    counts = [0, columns * height, (width - columns) * height]
    return {
        "category_id": category, "segmentation": {"counts": counts, "size": [height, width]}, "iscrowd": 1,
        "area": columns * height,
    }  # fmt: skip


def make_coco(
    data: Path, training: Sequence[Sequence[dict[str, Any]]], held_out: Sequence[Sequence[dict[str, Any]]]
) -> Path:
    """One picture for each list of objects."""
    folder = data / "coco"
    (folder / "annotations").mkdir(parents=True)
    for part, lists in (("train2017", training), ("val2017", held_out)):
        (folder / part).mkdir()
        images, objects = [], []
        for key, found in enumerate(lists, start=1):
            name = f"{key:012d}.jpg"
            picture(key).save(folder / part / name, quality=95)
            images.append({"id": key, "file_name": name, "width": SIZE[0], "height": SIZE[1]})
            objects += [{"id": 100 * key + k, "image_id": key, **each} for k, each in enumerate(found)]
        categories = [{"id": key, "name": str(key)} for key in (DOG, PERSON, STOP_SIGN)]
        content = {"images": images, "annotations": objects, "categories": categories}
        (folder / "annotations" / f"instances_{part}.json").write_text(json.dumps(content))
    return folder
