"""Papers and published figures that more than one experiment answers to, as they stand there."""

from __future__ import annotations

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
