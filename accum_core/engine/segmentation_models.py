"""torchvision's segmentation networks, with backbones trained on ImageNet and with torchvision's own weights.

Nothing is fetched: weights are read from the data folder or from where torch keeps those that it downloaded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

import torch
from torch import Tensor, nn
from torchvision import models
from torchvision.models import Weights, get_model, get_model_weights

from accum_core.engine.data_folder import VARIABLE, data_folder, shown
from accum_core.errors import DataError, SettingError

COEFFICIENTS: Final[Mapping[str, float]] = MappingProxyType({"out": 1.0, "aux": 0.5})
"""Of the heads' losses in torchvision's reference recipe."""
AUX_RATE: Final = 10.0
"""Factor on the learning rate of the auxiliary head there."""
BACKBONES: Final[Mapping[str, Weights]] = MappingProxyType(
    {
        "resnet50": models.ResNet50_Weights.IMAGENET1K_V1.value,
        "resnet101": models.ResNet101_Weights.IMAGENET1K_V1.value,
        "mobilenet_v3_large": models.MobileNet_V3_Large_Weights.IMAGENET1K_V1.value,
    }
)
"""The backbone's weights that torchvision began each of its networks with."""


def build(name: str, in_channels: int, num_classes: int) -> nn.Module:
    """One of torchvision's networks with its default initial weights; with an auxiliary head where it can have one.

    Outputs ``{"out": [M, classes, H, W], "aux": ...}`` from images ``[M, 3, H, W]``. The auxiliary head learns at ten
    times the rate.

    Raises:
        SettingError: for other than three colours, for which torchvision has no stem.
    """
    if in_channels != 3:
        raise SettingError("in_channels", in_channels, "must be 3, the colours that torchvision's stem takes")
    model: nn.Module = get_model(
        name, weights=None, weights_backbone=None, num_classes=num_classes, aux_loss=has_aux_head(name)
    )
    if has_aux_head(name):
        model.rate_multipliers = {"aux_classifier": AUX_RATE}  # type: ignore[assignment]
    return model


def has_aux_head(name: str) -> bool:
    """Whether torchvision trains the network with an auxiliary head: all but LR-ASPP."""
    return not name.startswith("lraspp")


def coefficients(name: str) -> dict[str, float]:
    """The factor on the loss of each head that the network has."""
    return {head: factor for head, factor in COEFFICIENTS.items() if head == "out" or has_aux_head(name)}


def load_backbone(model: nn.Module, name: str) -> None:
    """Give a network the backbone that torchvision trained on ImageNet.

    Raises:
        DataError: saying what to place where, when the file is missing or is not the published one.
    """
    (backbone,) = (weights for backbone, weights in BACKBONES.items() if name.endswith(backbone))
    state = _read(backbone)
    part = model.get_submodule("backbone")
    expected = part.state_dict()
    # A MobileNet's layers lie under "features" there, and the classifier is no part of a backbone.
    found = {key.removeprefix("features."): tensor for key, tensor in state.items()}
    _fill(part, {key: found[key] for key in expected if key in found}, backbone)


def published(name: str) -> nn.Module:
    """The network that torchvision trained on COCO with the VOC labels: 21 classes.

    Raises:
        DataError: saying what to place where, when the file is missing or is not the published one.
    """
    weights = published_weights(name)
    model = build(name, 3, len(weights.meta["categories"]))
    _fill(model, _read(weights), weights)
    return model


def published_weights(name: str) -> Weights:
    """What torchvision published of a network: where its weights are, and in ``meta`` how good they are."""
    weights: Weights = get_model_weights(name)["COCO_WITH_VOC_LABELS_V1"].value
    return weights


def published_quality(name: str) -> tuple[float, float]:
    """mIoU and pixel accuracy on COCO val2017 with the VOC labels, in [0, 1], as the weights' metadata state them."""
    metrics: Mapping[str, Any] = published_weights(name).meta["_metrics"]["COCO-val2017-VOC-labels"]
    return metrics["miou"] / 100, metrics["pixel_acc"] / 100


def _fill(module: nn.Module, state: Mapping[str, Tensor], weights: Weights) -> None:
    try:
        module.load_state_dict(state)
    except RuntimeError:
        raise DataError(f"weights {_file_name(weights)}: are of another network; {_remedy(weights)}.") from None


def _read(weights: Weights) -> dict[str, Tensor]:
    """The state of a file that is the published one by the digits in its name, which begin its SHA-256."""
    name = _file_name(weights)
    path = next((folder / name for folder in _folders() if (folder / name).is_file()), None)
    if path is None:
        places = " and ".join(shown(folder) for folder in _folders())
        raise DataError(f"weights {name}: are neither of {places}; {_remedy(weights)}.")
    expected = PurePosixPath(name).stem.rpartition("-")[2]
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if not found.startswith(expected):
        raise DataError(
            f"weights {name}: the file is damaged or incomplete, as its SHA-256 begins with {found[:8]}; "
            f"{_remedy(weights)}."
        )
    state: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def _folders() -> tuple[Path, Path]:
    return data_folder() / "weights", Path(torch.hub.get_dir()) / "checkpoints"


def _file_name(weights: Weights) -> str:
    return PurePosixPath(urlsplit(weights.url).path).name


def _remedy(weights: Weights) -> str:
    size = weights.meta["_file_size"]
    return (
        f"place {weights.url} ({size:.0f} MB) in {shown(_folders()[0])} as it is, fetched on a machine with a "
        f"connection if this one has none, or name another data folder in {VARIABLE}"
    )
