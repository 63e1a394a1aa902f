"""Data folders whose files are there and are not what they should be: one sentence each, never a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_pictures import DOG, make_coco, make_pets, make_voc, rectangle
from PIL import Image

from accum_core.engine.data_folder import VARIABLE
from accum_core.engine.workloads import coco_voc, imagenet_folder, oxford_pet, text_file, text_file_paragraphs, voc2012
from accum_core.errors import DataError


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setenv("ACCUMULATION_LAB_LOADERS", "0")
    return tmp_path


PETS, VOC = (
    (make_pets, oxford_pet.load, "annotations/test.txt"),
    (make_voc, voc2012.load, "ImageSets/Segmentation/val.txt"),
)
LISTS = {
    "empty": (PETS, b"", "the list .*test.txt is empty; unpack"),
    "blank line": (PETS, b"Abyssinian_test_0 1 1 1\n\n", r"line 2 of .*test.txt is '' and not of the form NAME CLASS"),
    "names only": (
        PETS,
        b"Abyssinian_test_0\n",
        "line 1 of .*test.txt is 'Abyssinian_test_0' and not of the form NAME",
    ),
    "no text": (PETS, b"\xff\xfe\x00\x80", "the list .*test.txt cannot be read as text; unpack"),
    "VOC, empty": (VOC, b"", "the list .*val.txt is empty; unpack"),
    "VOC, blank line": (VOC, b"\n2007_000100\n", r"line 1 of .*val.txt is '' and not of the form NAME"),
    "VOC, no text": (VOC, b"\xff\xfe\x00\x80", "the list .*val.txt cannot be read as text; unpack"),
}


@pytest.mark.parametrize("case", LISTS)
def test_a_damaged_list_is_named_with_its_line(data: Path, case: str) -> None:
    (make, read, file), content, sentence = LISTS[case]
    (make(data) / file).write_bytes(content)
    with pytest.raises(DataError, match=sentence):
        read()


def test_a_list_that_is_a_folder_is_named(data: Path) -> None:
    folder = make_pets(data)
    (folder / "annotations" / "test.txt").unlink()
    (folder / "annotations" / "test.txt").mkdir()
    with pytest.raises(DataError, match="the list .*test.txt cannot be read as text"):
        oxford_pet.load()


def coco(data: Path) -> Path:
    return make_coco(data, [[rectangle(DOG, 0, 0, 59, 39)]], [[rectangle(DOG, 0, 0, 59, 39)]])


ANNOTATIONS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a list": lambda content: [],
    "nothing": lambda content: None,
    "a number": lambda content: 7,
    "images of numbers": lambda content: content | {"images": [1, 2]},
    "a picture without a file": lambda content: content | {"images": [{"id": 1}]},
    "annotations of another type": lambda content: content | {"annotations": {"area": 1}},
    "an object without an area": lambda content: (
        content | {"annotations": [{"id": 1, "image_id": 1, "category_id": 18}]}
    ),
    "an area in words": lambda content: content | {"annotations": [content["annotations"][0] | {"area": "large"}]},
}


@pytest.mark.parametrize("case", ANNOTATIONS)
def test_annotations_of_another_form_than_cocos_are_damaged(data: Path, case: str) -> None:
    file = coco(data) / "annotations" / "instances_train2017.json"
    file.write_text(json.dumps(ANNOTATIONS[case](json.loads(file.read_text()))))
    with pytest.raises(DataError, match=r"coco/annotations/instances_train2017\.json is damaged; unpack"):
        coco_voc.load()


def test_annotations_cut_short_are_damaged(data: Path) -> None:
    file = coco(data) / "annotations" / "instances_val2017.json"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"instances_val2017\.json is damaged; unpack"):
        coco_voc.load()


@pytest.mark.parametrize("outline", [7, "text", [["a", "b"]], {"counts": 3}, None])
def test_a_damaged_outline_names_its_picture(data: Path, outline: object) -> None:
    file = coco(data) / "annotations" / "instances_val2017.json"
    content = json.loads(file.read_text())
    content["annotations"][0]["segmentation"] = outline
    file.write_text(json.dumps(content))
    with pytest.raises(
        DataError, match=r"an outline of picture 1 in coco/annotations/instances_val2017\.json is damaged"
    ):
        coco_voc.load().held_out[0]


def test_annotations_of_no_pictures_are_told(data: Path) -> None:
    file = coco(data) / "annotations" / "instances_val2017.json"
    file.write_text(json.dumps({"annotations": [], "categories": []}))
    with pytest.raises(DataError, match=r"instances_val2017\.json lists no pictures; unpack"):
        coco_voc.load()


def test_coco_without_a_picture_to_train_on_says_which_it_takes(data: Path) -> None:
    make_coco(data, [[rectangle(DOG, 0, 0, 10, 10)]], [[]])
    with pytest.raises(DataError, match=r"lists no pictures with objects of VOC's classes of more than 1,000 pixels"):
        coco_voc.load()


def test_a_class_that_one_part_lacks_is_named(data: Path) -> None:
    for part, names in (("train", ("n01", "n02")), ("val", ("n01", "n03"))):
        for name in names:
            (data / "imagenet" / part / name).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(data / "imagenet" / part / name / "0.JPEG")
    with pytest.raises(DataError, match=r"imagenet/train has a folder n02 that imagenet/val has not \(1 such in all\)"):
        imagenet_folder.load()
    (data / "imagenet" / "train" / "n02").rename(data / "imagenet" / "train" / "n01" / "n02")
    with pytest.raises(DataError, match=r"imagenet/val has a folder n03 that imagenet/train has not"):
        imagenet_folder.load()


@pytest.mark.parametrize("workload", [text_file, text_file_paragraphs])
def test_a_folder_in_the_place_of_a_text_is_named(data: Path, workload: Any) -> None:
    (data / "text" / "a.txt").mkdir(parents=True)
    with pytest.raises(
        DataError, match=r"workload text_file.*a\.txt cannot be read \(Is a directory\); make it a readable"
    ):
        workload.load()
