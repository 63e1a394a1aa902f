"""A contrastive loss with in-batch negatives: every pair of the window is a negative of every other."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional as F

from accum_core.engine.objectives.objective import Predict
from accum_core.errors import SettingError


class Contrastive:
    """The symmetric InfoNCE of CLIP (Radford et al. 2021, arXiv 2103.00020, figure 3), with one network for both sides.

    With unit vectors a_i of the anchors and p_i of the positives, and s_ij = a_i . p_j / temperature, a pair adds
    -(log softmax_j s_ij + log softmax_j s_ji)[j = i] / 2, and weighs 1.

    Its value depends on how many pairs meet, so micro-batches do not add up to the batch: 8 pairs of equal embeddings
    have the loss ln 8, in fours of micro-batch 2 ln 2, and one at a time 0. It is a ``WholeWindow`` objective:
    ``accumulate_gradients`` sends it through ``accumulate_cached``, which is exact. Only the reductions that are there
    to show wrong loops (``mean_of_means`` and the like) split it (tests/test_contrastive.py).

    Inputs are ``[M, 2, ...]``, anchor and positive; the network is called with ``[2 M, ...]``, in the order of the
    pairs, and gives ``[2 M, ...]``. Targets ``[M]`` say which pairs count.

    Args:
        temperature: above 0; CLIP starts at 0.07.
        ignore_index: target of a pair that is left out, as anchor, positive and negative.

    Raises:
        SettingError: for a temperature that is not above 0, or inputs that are not pairs.
    """

    coefficients: Mapping[str, float] = MappingProxyType({"contrastive": 1.0})

    def __init__(self, temperature: float = 0.07, ignore_index: int = -100) -> None:
        if not temperature > 0:
            raise SettingError("temperature", temperature, "must be above 0")
        self.temperature = temperature
        self.ignore_index = ignore_index

    def weights(self, targets: Tensor) -> dict[str, float]:
        """The pairs that count."""
        return {"contrastive": float(torch.count_nonzero(targets != self.ignore_index))}

    def represent(self, model: Predict, inputs: Tensor) -> Tensor:
        """Unit vectors ``[M, 2, D]`` of the pairs ``[M, 2, ...]``."""
        if inputs.ndim < 2 or inputs.shape[1] != 2:
            raise SettingError("inputs", list(inputs.shape), "a contrastive loss takes pairs: [M, 2, ...]")
        vectors = F.normalize(model(inputs.flatten(0, 1)).flatten(1), dim=1)
        return vectors.view(len(inputs), 2, -1)

    def window_sums(self, representations: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """The summed loss of the pairs that count, from ``[B, 2, D]``; 0, with a graph, when there is none."""
        anchors, positives = representations[targets != self.ignore_index].unbind(1)
        similarities = anchors @ positives.T / self.temperature
        own = torch.arange(len(anchors), device=anchors.device)
        forth, back = (F.cross_entropy(each, own, reduction="sum") for each in (similarities, similarities.T))
        return {"contrastive": (forth + back) / 2}

    def sums(self, model: Predict, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """The summed loss of one batch in which all pairs meet: not a part of a window's."""
        return self.window_sums(self.represent(model, inputs), targets)
