"""Random crops and flips that a seed, an epoch and a sample's index decide, and nothing else.

So a sample looks the same in an epoch whatever the split of the effective batch, the order in which samples are loaded
or the number of threads, and a training that was stopped goes on with the same pictures.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.random import Generator
from torch import Tensor
from torch.nn import functional as F

Box = tuple[int, int, int, int]
TRIES = 10


def draws(seed: int, epoch: int, index: int) -> Generator:
    """The random numbers of one sample in one epoch."""
    return np.random.default_rng((seed, epoch, index))


def flips(numbers: Generator) -> bool:
    """Whether to mirror the sample left to right: every second time."""
    return bool(numbers.random() < 0.5)


def padded_crop(image: Tensor, numbers: Generator, padding: int) -> Tensor:
    """A crop of the image's own size from the image in a frame of zeros.

    Args:
        image: ``[C, H, W]``.
        padding: width of the frame, in pixels.
    """
    height, width = image.shape[1:]
    top, left = numbers.integers(0, 2 * padding, size=2, endpoint=True)
    return F.pad(image, (padding,) * 4)[:, top : top + height, left : left + width]


def resized_crop_box(
    numbers: Generator,
    height: int,
    width: int,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Box:
    """A part of an image to be resized: (top, left, height, width), in pixels (Szegedy et al. 2014).

    Its area is a uniform share of the image's, its width over its height log-uniform. Where that does not fit in
    ``TRIES`` tries, the largest part in the middle whose shape the ratio allows.
    """
    for _ in range(TRIES):
        area = numbers.uniform(*scale) * height * width
        aspect = math.exp(numbers.uniform(math.log(ratio[0]), math.log(ratio[1])))
        part_width, part_height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < part_width <= width and 0 < part_height <= height:
            top = int(numbers.integers(0, height - part_height, endpoint=True))
            left = int(numbers.integers(0, width - part_width, endpoint=True))
            return top, left, part_height, part_width
    part_width = min(width, max(1, int(height * ratio[1])))
    part_height = min(height, max(1, int(width / ratio[0])))
    return (height - part_height) // 2, (width - part_width) // 2, part_height, part_width
