"""Land cover with ignored pixels: each training tile is labelled on one side of a line, from a 64th of it to all.

As where annotators drew a part of each picture. How much of a tile is labelled is drawn once for each tile from a fixed
seed, as the square of a uniform number: a third of it in the mean, with a deviation of nine tenths of that. The rest is
ignored by the loss, so tiles weigh unequally. Validation is that of the whole tiles of ``landcover``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from accum_core.engine.workloads.landcover import Landcover

TITLE = "Land cover, partly labelled tiles"
MODELS = ("deeplab", "unet")
MEASURE = "miou"
LOSS = "cross_entropy_of_valid_labels"
SAMPLES = "images"
ORDER = 15
IN_LAB = False
"""For experiments: in the Lab it would pass for the embedded data set."""
IGNORED = -100
SEED = 20241015
LEAST_SHARE = 1 / 64


class PartlyLabelled(Landcover):
    """The embedded data set with ``IGNORED`` where a training tile has no label."""

    def __init__(self) -> None:
        super().__init__()
        draws = np.random.default_rng(SEED).uniform(size=(self.num_samples, 2))
        self._shares = np.maximum(LEAST_SHARE, draws[:, 0] ** 2)
        self._angles = 2 * np.pi * draws[:, 1]

    def samples(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Images as in ``Landcover``, and labels int64 ``[B, 64, 64]`` that hold ``IGNORED``."""
        images, labels = super().samples(indices)
        valid = torch.stack([self._valid(index, labels.shape[-1]) for index in indices])
        return images, labels.where(valid, torch.tensor(IGNORED))

    def _valid(self, tile: int, size: int) -> Tensor:
        """Where a tile is labelled, bool ``[size, size]``: the pixels that come first in the direction of its angle."""
        rows, columns = np.mgrid[:size, :size]
        order = np.argsort((np.cos(self._angles[tile]) * columns + np.sin(self._angles[tile]) * rows).ravel())
        valid = np.zeros(size * size, dtype=bool)
        valid[order[: round(self._shares[tile] * size * size)]] = True
        return torch.from_numpy(valid.reshape(size, size))


def load() -> PartlyLabelled:
    """The embedded data set.

    Raises:
        DataError: when its file is missing or damaged.
    """
    return PartlyLabelled()
