"""torchvision's segmentation networks: sizes, heads and rates of its recipe, and weights read from disk."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from made_pictures import DOG, make_coco, rectangle
from torch import nn
from torchvision.models import Weights, get_model, mobilenet_v3_large, resnet50

from accum_core.engine import building, segmentation_models
from accum_core.engine.data_folder import VARIABLE
from accum_core.engine.models import fcn_resnet50, lraspp_mobilenet_v3_large
from accum_core.engine.workloads import coco_voc
from accum_core.errors import DataError, SettingError
from accum_core.records import RunConfig
from experiments.cli import main

PARAMETERS = {
    "fcn_resnet50": 35322218, "fcn_resnet101": 54314346, "deeplabv3_resnet50": 42004074,
    "deeplabv3_resnet101": 60996202, "deeplabv3_mobilenet_v3_large": 11029328, "lraspp_mobilenet_v3_large": 3221538,
}  # fmt: skip
"""As the metadata of torchvision's weights state them, for 21 classes."""


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_networks_have_the_published_sizes(name: str) -> None:
    model = segmentation_models.build(name, 3, 21)
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]
    assert set(segmentation_models.coefficients(name)) == ({"out"} if name.startswith("lraspp") else {"out", "aux"})


def test_the_auxiliary_head_learns_at_ten_times_the_rate() -> None:
    model = fcn_resnet50.build(3, 21)
    config = RunConfig.of(workload="voc2012", model="fcn_resnet50", learning_rate=0.02, warmup_updates=0, updates=100)
    updater, _ = building.updater(config, model, torch.device("cpu"))
    rates = {id(parameter): group["lr"] for group in updater.optimizer.param_groups for parameter in group["params"]}
    found = {name: rates[id(parameter)] for name, parameter in model.named_parameters()}
    expected = {name: 0.2 if name.startswith("aux_classifier") else 0.02 for name in found}
    assert found == pytest.approx(expected)
    assert len(set(expected.values())) == 2


def test_other_than_three_colours_are_refused() -> None:
    with pytest.raises(SettingError, match="in_channels = 1"):
        lraspp_mobilenet_v3_large.build(1, 2)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder, and an empty place where torch keeps what it downloads."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "data"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    (tmp_path / "data" / "weights").mkdir(parents=True)
    (tmp_path / "torch" / "hub" / "checkpoints").mkdir(parents=True)
    return tmp_path / "data"


def made_weights(folder: Path, model: nn.Module, monkeypatch: pytest.MonkeyPatch, place: str) -> Path:
    """A file of the model's state, whose name holds its own hash, in the place of a published one."""
    file = folder / "made.pth"
    torch.save(model.state_dict(), file)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:8]
    path = file.rename(folder / f"made-{digest}.pth")
    weights = Weights(
        url=f"https://example.org/models/{path.name}",
        transforms=nn.Identity,
        meta={
            "_file_size": 12.5,
            "categories": ["class"] * 21,
            "_metrics": {"COCO-val2017-VOC-labels": {"miou": 57.9, "pixel_acc": 91.2}},
        },
    )
    if place == "published":
        monkeypatch.setattr(segmentation_models, "published_weights", lambda name: weights)
    else:
        monkeypatch.setattr(segmentation_models, "BACKBONES", {place: weights})
    return path


@pytest.mark.parametrize(
    ("name", "backbone", "build"),
    [
        ("lraspp_mobilenet_v3_large", "mobilenet_v3_large", mobilenet_v3_large),
        ("deeplabv3_resnet50", "resnet50", resnet50),
    ],
)
def test_a_backbone_is_what_torchvision_loads(
    data: Path, monkeypatch: pytest.MonkeyPatch, name: str, backbone: str, build: type[nn.Module]
) -> None:
    """torchvision's own builder with the same state in its backbone; the heads keep their initial weights."""
    torch.manual_seed(3)
    donor = build(weights=None)
    made_weights(data / "weights", donor, monkeypatch, backbone)
    monkeypatch.setattr(
        "torchvision.models._api.WeightsEnum.get_state_dict", lambda self, **options: donor.state_dict()
    )
    expected = get_model(name, weights=None, weights_backbone="IMAGENET1K_V1", num_classes=5).backbone.state_dict()
    model = segmentation_models.build(name, 3, 5)
    heads = {key: value.clone() for key, value in model.classifier.state_dict().items()}
    segmentation_models.load_backbone(model, name)
    found = model.backbone.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert all(torch.equal(model.classifier.state_dict()[key], heads[key]) for key in heads)


def test_weights_that_are_missing_say_where_to_place_what(data: Path) -> None:
    model = lraspp_mobilenet_v3_large.build(3, 21)
    with pytest.raises(
        DataError,
        match=r"weights mobilenet_v3_large-8738ca79\.pth: are neither of .*checkpoints; place https://.* \(21 MB\)",
    ):
        segmentation_models.load_backbone(model, "lraspp_mobilenet_v3_large")
    with pytest.raises(DataError, match=r"lraspp_mobilenet_v3_large-d234d4ea\.pth.*\(12 MB\).*data/weights"):
        segmentation_models.published("lraspp_mobilenet_v3_large")


def test_damaged_and_foreign_weights_are_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made_weights(data / "weights", nn.Linear(2, 2), monkeypatch, "mobilenet_v3_large")
    model = lraspp_mobilenet_v3_large.build(3, 21)
    with pytest.raises(DataError, match="of another network"):
        segmentation_models.load_backbone(model, "lraspp_mobilenet_v3_large")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="damaged or incomplete, as its SHA-256 begins with"):
        segmentation_models.load_backbone(model, "lraspp_mobilenet_v3_large")


def test_published_weights_are_evaluated_beside_the_published_quality(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On two made pictures, with weights of our own where torch keeps its downloads; held against a plain loop."""
    monkeypatch.setenv("ACCUMULATION_LAB_LOADERS", "0")
    torch.manual_seed(4)
    donor = get_model("lraspp_mobilenet_v3_large", weights=None, weights_backbone=None, num_classes=21)
    made_weights(data.parent / "torch" / "hub" / "checkpoints", donor, monkeypatch, "published")
    objects = [[rectangle(DOG, 5, 5, 50, 35)], [rectangle(DOG, 0, 0, 20, 20)]]
    make_coco(data, objects, objects)
    monkeypatch.setattr("accum_core.engine.workloads.load", lambda name: small())

    def small() -> coco_voc.Segmentation:
        workload = coco_voc.load()
        workload.base = 64
        return workload

    assert main(["evaluate", "lraspp_mobilenet_v3_large"]) == 0
    measured, published = capsys.readouterr().out.splitlines()
    workload = small()
    right = pixels = 0
    with torch.no_grad():
        for view in map(workload._whole, range(2)):
            images, targets = workload._batch([view])
            right += int((donor.eval()(images)["out"].argmax(1) == targets).sum())
            pixels += targets.numel()
    assert measured.endswith(f"pixel_accuracy {right / pixels:.4g}")
    assert published == "published by torchvision: miou 0.579  pixel_accuracy 0.912"


def test_an_unknown_network_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "resnet50"]) == 2
    assert "is no model of coco_voc; use one of lraspp_mobilenet_v3_large" in capsys.readouterr().err


def test_the_published_quality_is_torchvisions() -> None:
    """The table of torchvision's documentation, as its weights carry it."""
    assert segmentation_models.published_quality("deeplabv3_resnet101") == (pytest.approx(0.674), pytest.approx(0.924))
    assert segmentation_models.published_quality("fcn_resnet50") == (pytest.approx(0.605), pytest.approx(0.914))
