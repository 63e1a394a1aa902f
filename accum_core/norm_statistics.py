"""A window's normalising layers as a record holds them: statistics of any split, and how far they lie apart.

What is kept of a layer is the mean m and the population variance v over the pixels of single samples, channel by
channel. All samples have as many pixels, so those of any group of samples follow (law of total variance):

    mean = average of m,    var = average of v + average of (m - mean)^2

From the micro-batches i with n_i of the window's B samples, and the window w itself, over channels c:

    distance of the means     = sqrt(average over c of sum_i n_i / B (mean_i - mean_w)^2 / (var_w + eps))
    distance of the variances = sqrt(average over c of sum_i n_i / B (var_i - var_w)^2 / (var_w + eps)^2)

The first is in units of the deviation that the layer would divide by, and its square is the share of the window's
variance that lies between micro-batches: it is at most 1, and the micro-batches' variances are too small by it on
average. Both are 0 for one micro-batch. NumPy, no torch (tests/test_norm_statistics.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accum_core.errors import SettingError
from accum_core.statistics import decode_sketch

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Distances:
    """Of a window's micro-batches from the window: their means in deviations, their variances in variances."""

    mean: float
    variance: float


@dataclass(frozen=True, slots=True)
class Opened:
    """A few channels of one layer, sample by sample.

    Attributes:
        name: the layer's in the network; ``kind`` is its norm's.
        channels: which channels these are.
        pixels: that each sample has; 1 in a layer without.
        eps: that the layer adds to a variance.
        means, variances: of each channel and sample over its pixels, ``[K, B]``, samples in the window's order.
    """

    name: str
    kind: str
    channels: tuple[int, ...]
    pixels: int
    eps: float
    means: Array
    variances: Array


def opened(layer: Mapping[str, Any]) -> Opened | None:
    """One of the ``layers`` of a record's ``norm_statistics``; None if the record was too large to keep its samples."""
    if (kept := layer["opened"]) is None:
        return None
    shape = (len(kept["channels"]), -1)
    means, variances = (decode_sketch(kept[name]).astype(np.float64).reshape(shape) for name in ("means", "variances"))
    channels = tuple(kept["channels"])
    return Opened(layer["name"], layer["kind"], channels, layer["pixels"], layer["eps"], means, variances)


def sizes_of(samples: int, micro_batch_size: int) -> list[int]:
    """Samples of each micro-batch of a window that is cut in its order; the last one may be short.

    Raises:
        SettingError: for a size below 1.
    """
    if micro_batch_size < 1:
        raise SettingError("micro_batch_size", micro_batch_size, "must be at least 1")
    return [min(micro_batch_size, samples - start) for start in range(0, samples, micro_batch_size)]


def whole(means: Array, variances: Array) -> tuple[Array, Array]:
    """Mean and variance over all samples, ``[...]``, from those of single samples ``[..., B]``."""
    return means.mean(axis=-1), variances.mean(axis=-1) + means.var(axis=-1)


def split(means: Array, variances: Array, sizes: Sequence[int]) -> tuple[Array, Array]:
    """Mean and variance of each micro-batch, ``[..., N]``, from those of single samples ``[..., B]``.

    Args:
        sizes: samples of each micro-batch, of consecutive samples.

    Raises:
        SettingError: when the sizes are not those of B samples, or one is below 1.
    """
    if sum(sizes) != means.shape[-1] or min(sizes, default=0) < 1:
        raise SettingError("sizes", list(sizes), f"must be at least 1 each and {means.shape[-1]} samples together")
    ends = np.cumsum(sizes)[:-1]
    parts = zip(np.split(means, ends, axis=-1), np.split(variances, ends, axis=-1), strict=True)
    found = [whole(*part) for part in parts]
    return np.stack([mean for mean, _ in found], axis=-1), np.stack([variance for _, variance in found], axis=-1)


def distances(means: Array, variances: Array, sizes: Sequence[int], eps: float) -> Distances:
    """How far a split's micro-batches lie from the window, by the formulas above.

    Args:
        means, variances: of single samples, ``[C, B]``.
        sizes: as for ``split``, with its error.
        eps: that the layer adds to a variance.
    """
    mean, variance = (part[..., None] for part in whole(means, variances))
    own_means, own_variances = split(means, variances, sizes)
    shares = np.asarray(sizes) / means.shape[-1]
    scale = _scale(variance, eps)
    return Distances(
        mean=float(np.sqrt(((own_means - mean) ** 2 / scale @ shares).mean())),
        variance=float(np.sqrt((((own_variances - variance) / scale) ** 2 @ shares).mean())),
    )


def running_distances(
    means: Array, variances: Array, running_mean: Array, running_variance: Array, pixels: int, eps: float
) -> Distances:
    """How far a layer's running statistics ``[C]`` lie from the window's.

    The root mean square over channels of (running mean - mean_w) / sqrt(var_w + eps), and of (running variance -
    unbiased var_w) / (var_w + eps): a running variance follows the variance with one value less in its denominator.

    Args:
        means, variances: of single samples, ``[C, B]``.
        pixels: that each sample has.
    """
    mean, variance = whole(means, variances)
    values = means.shape[-1] * pixels
    unbiased = variance * values / max(values - 1, 1)
    scale = _scale(variance, eps)
    return Distances(
        mean=float(np.sqrt(((running_mean - mean) ** 2 / scale).mean())),
        variance=float(np.sqrt((((running_variance - unbiased) / scale) ** 2).mean())),
    )


def growth(values: Sequence[float]) -> float | None:
    """Factor by which a measure grows from one layer to the next: of the least-squares line through its logarithms.

    Args:
        values: one a layer, in their order of depth. What has no logarithm is left out, its place is not.

    Returns:
        1 for a measure that does not grow; None with fewer than two values.
    """
    points = [(place, math.log(value)) for place, value in enumerate(values) if 0 < value < math.inf]
    if len(points) < 2:
        return None
    places, logarithms = np.array(points).T
    return math.exp(np.polyfit(places, logarithms, 1)[0])


def _scale(variance: Array, eps: float) -> Array:
    """What squares are divided by; a channel that never varies has no distance from itself, with an eps of 0 too."""
    return np.maximum(variance + eps, np.finfo(np.float64).tiny)
