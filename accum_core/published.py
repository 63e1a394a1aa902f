"""Papers and published figures that more than one experiment answers to, as they stand there."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from accum_core.experiment import Paper, Published

GROUP_NORMALIZATION: Final = Paper("Wu and He", 2018, "Group Normalization", "arXiv 1803.08494")

WU_HE_2018: Final = Published(
    key="wu_he_2018_images_per_gpu",
    citation=GROUP_NORMALIZATION.citation,
    statement="ResNet-50 on ImageNet, 8 GPUs, BatchNorm not synchronised, learning rate 0.1 n / 32 with n images per "
    "GPU: the total batch shrinks with n, where ours is held by accumulating. At 32 images per GPU the paper has "
    "LayerNorm at 25.3 % and InstanceNorm at 28.4 %.",
    x_label="images per GPU",
    y_label="validation error (%), ImageNet",
    series={
        "batch": ((32, 23.6), (16, 23.7), (8, 24.8), (4, 27.3), (2, 34.7)),
        "group": ((32, 24.1), (16, 24.2), (8, 24.0), (4, 24.2), (2, 24.1)),
    },
)

TORCHVISION_RECIPE: Final = Paper(
    "torchvision",
    2019,
    "Semantic segmentation reference training scripts",
    "github.com/pytorch/vision",
    "references/segmentation, and the weights' metadata of torchvision 0.29.1",
)
TORCHVISION_MIOU: Final = MappingProxyType(
    {
        "lraspp_mobilenet_v3_large": (3_221_538, 57.9),
        "deeplabv3_mobilenet_v3_large": (11_029_328, 60.3),
        "fcn_resnet50": (35_322_218, 60.5),
        "deeplabv3_resnet50": (42_004_074, 66.4),
        "fcn_resnet101": (54_314_346, 63.7),
        "deeplabv3_resnet101": (60_996_202, 67.4),
    }
)
"""Network -> parameters, and mIoU in percent on COCO val2017 with VOC's labels."""
TORCHVISION_WEIGHTS: Final = Published(
    key="torchvision_weights",
    citation=TORCHVISION_RECIPE.citation,
    statement="mIoU on COCO val2017 with VOC's labels after the recipe: 8 GPUs x 4 pictures, SyncBatchNorm over all "
    "32. LR-ASPP and the smallest DeepLabv3 have MobileNetV3-Large in them, the others ResNet-50 and ResNet-101.",
    x_label="million parameters",
    y_label="mIoU (%), COCO val2017 with VOC's labels",
    series={
        family: tuple((size / 1e6, miou) for name, (size, miou) in TORCHVISION_MIOU.items() if name.startswith(prefix))
        for family, prefix in (("LR-ASPP", "lraspp"), ("FCN", "fcn"), ("DeepLabv3", "deeplabv3"))
    },
)
