"""COCO, VOC 2012 and Oxford-IIIT Pet from small made files of the same form: reading, training, refusing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from made_pictures import (
    DOG,
    HELD_OUT,
    PERSON,
    SIZE,
    STOP_SIGN,
    TRAINING,
    crowd,
    make_coco,
    make_pets,
    make_voc,
    rectangle,
)

from accum_core.engine import Training
from accum_core.engine.data_folder import VARIABLE
from accum_core.engine.segmentation import IGNORED
from accum_core.engine.workloads import coco_voc, oxford_pet, voc2012
from accum_core.errors import DataError
from accum_core.records import RunConfig


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setenv("ACCUMULATION_LAB_LOADERS", "0")
    return tmp_path


def test_voc_is_read_with_its_border_ignored(data: Path) -> None:
    make_voc(data)
    workload = voc2012.load()
    assert (len(workload.training), len(workload.held_out), workload.classes) == (TRAINING, HELD_OUT, 21)
    _, classes = workload.training[0]
    values = np.asarray(classes)
    assert (values[:, :20] == 12).all() and (values[:, 20:22] == IGNORED).all() and (values[:, 22:] == 0).all()
    images, targets = workload.augmented([0, 4], 1, 0)
    assert images.shape == (2, 3, 480, 480) and targets.shape == (2, 480, 480)
    assert set(targets.unique().tolist()) <= {0, 12, IGNORED}


def test_a_pet_is_class_1_and_its_outline_counts_for_nothing(data: Path) -> None:
    make_pets(data)
    workload = oxford_pet.load()
    assert (len(workload.training), len(workload.held_out), workload.classes) == (TRAINING, HELD_OUT, 2)
    values = np.asarray(workload.held_out[1][1])
    assert (values[:, :20] == 1).all() and (values[:, 20:24] == IGNORED).all() and (values[:, 24:] == 0).all()


def coco_map(data: Path, *objects: dict[str, object]) -> np.ndarray:
    make_coco(data, [[rectangle(DOG, 0, 0, 59, 39)]], [list(objects)])
    return np.asarray(coco_voc.load().held_out[0][1])


def test_coco_objects_have_vocs_numbers_and_overlaps_count_for_nothing(data: Path) -> None:
    """VOC's alphabetical order has the dog as 12 and the person as 15; a stop sign is background."""
    values = coco_map(
        data, rectangle(DOG, 10, 10, 30, 30), rectangle(PERSON, 20, 20, 50, 35), rectangle(STOP_SIGN, 0, 0, 9, 9)
    )
    assert values.shape == SIZE[::-1]
    assert (values[11:19, 11:29] == 12).all()
    assert (values[31:34, 32:49] == 15).all()
    assert (values[21:29, 21:29] == IGNORED).all()
    assert (values[:9] == 0).all()


def test_a_crowd_is_read_from_its_run_lengths(data: Path) -> None:
    values = coco_map(data, crowd(PERSON, 7))
    assert (values[:, :7] == 15).all() and (values[:, 7:] == 0).all()


def test_the_parts_of_one_object_are_one_object(data: Path) -> None:
    """Outlines that overlap within an object are no overlap of objects."""
    both = rectangle(DOG, 5, 5, 25, 25)
    both["segmentation"] += rectangle(DOG, 15, 15, 35, 35)["segmentation"]
    values = coco_map(data, both)
    assert (values[16:24, 16:24] == 12).all()
    assert set(np.unique(values)) == {0, 12}


def test_training_leaves_out_pictures_of_small_objects_and_validation_none(data: Path) -> None:
    """The area counts VOC's classes together, as torchvision's filter does: more than 1,000 pixels."""
    small, halves = rectangle(DOG, 0, 0, 25, 40), [rectangle(DOG, 0, 0, 25, 25), rectangle(PERSON, 30, 0, 55, 20)]
    lists = [[small], halves, [], [rectangle(STOP_SIGN, 0, 0, 59, 39)], [rectangle(DOG, 0, 0, 40, 26)]]
    make_coco(data, lists, lists)
    workload = coco_voc.load()
    assert [index for index in range(len(lists)) if index in workload.training._kept] == [1, 4]  # type: ignore[attr-defined]
    assert (workload.num_samples, len(workload.held_out)) == (2, 5)


def test_coco_tells_nothing_on_standard_output(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    coco_map(data, rectangle(DOG, 0, 0, 30, 30))
    assert capsys.readouterr().out == ""


MISSING = {
    "coco_voc": (coco_voc.load, r"lacks coco/train2017 and 3 more: .*train2017\.zip \(18 GB\).*annotations_.*241 MB"),
    "voc2012": (voc2012.load, r"lacks VOCdevkit/VOC2012/ImageSets.*VOCtrainval_11-May-2012\.tar \(2 GB, http"),
    "oxford_pet": (oxford_pet.load, r"lacks oxford-iiit-pet/annotations.*images\.tar\.gz.*811 MB"),
}


@pytest.mark.parametrize("name", MISSING)
def test_missing_data_says_what_to_place_where_and_how_large_it_is(data: Path, name: str) -> None:
    read, text = MISSING[name]
    with pytest.raises(DataError, match=rf"workload {name}: .*{text}.*{VARIABLE}"):
        read()


@pytest.mark.parametrize(
    ("make", "read", "lost"),
    [
        (make_voc, voc2012.load, "JPEGImages/2007_000003.jpg"),
        (make_voc, voc2012.load, "SegmentationClass/2007_000100.png"),
        (make_pets, oxford_pet.load, "annotations/trimaps/Abyssinian_test_0.png"),
        (
            lambda data: make_coco(data, [[rectangle(DOG, 0, 0, 59, 39)]], [[]]),
            coco_voc.load,
            "val2017/000000000001.jpg",
        ),
    ],
)
def test_an_incomplete_data_set_names_what_it_lacks(
    data: Path, make: Callable[[Path], Path], read: Callable[[], object], lost: str
) -> None:
    (make(data) / lost).unlink()
    with pytest.raises(DataError, match=rf"lacks [^ ]*{lost}: unpack"):
        read()


def test_damaged_outlines_are_named(data: Path) -> None:
    folder = make_coco(data, [[rectangle(DOG, 0, 0, 59, 39)]], [[]])
    (folder / "annotations" / "instances_val2017.json").write_text('{"images": [')
    with pytest.raises(DataError, match=r"coco/annotations/instances_val2017\.json is damaged; unpack"):
        coco_voc.load()


def test_the_number_of_loaders_changes_no_number_of_a_training(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two updates on small crops, and a validation; the third window is expected and never asked for."""
    make_voc(data)
    config = RunConfig.of(
        workload="voc2012", model="lraspp_mobilenet_v3_large", norm="group", effective_batch_size=2, micro_batch_size=1,
        updates=2, warmup_updates=0, learning_rate=0.01, validate_every=2, measure_every=9,
    )  # fmt: skip
    found = []
    for loaders in ("0", "2"):
        monkeypatch.setenv("ACCUMULATION_LAB_LOADERS", loaders)
        workload = voc2012.load()
        workload.base, workload.crop, workload.pretrained = 40, 32, False
        monkeypatch.setattr("accum_core.engine.training.load", lambda name, workload=workload: workload)
        records = list(Training(config, device=torch.device("cpu")).run())
        found.append([(record.loss, record.gradient_norm, record.validation) for record in records])
    assert repr(found[0]) == repr(found[1])  # an IoU may be NaN
    assert found[0][-1][2] is not None
