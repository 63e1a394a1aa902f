"""What each sample weighs in a loss: known from the targets alone, where the loss's terms agree on it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from accum_core.engine.objectives import Objective, needs_whole_window


def sample_weights(objective: Objective, targets: Iterable[Tensor]) -> NDArray[np.float64] | None:
    """What each sample weighs, ``[B]``, up to a common factor.

    Args:
        objective: penalties, which no sample weighs, do not count.
        targets: one tensor ``[1, ...]`` a sample.

    Returns:
        None where there is no one weight: in a loss whose samples meet, or of several terms that weigh samples
        differently.
    """
    if needs_whole_window(objective):
        return None
    weights = [objective.weights(sample) for sample in targets]
    found: NDArray[np.float64] | None = None
    for name, coefficient in objective.coefficients.items():
        term = np.array([float(weight[name]) for weight in weights])
        if not coefficient or not term.sum():
            continue
        if found is not None and not np.allclose(term / term.sum(), found / found.sum(), rtol=1e-9, atol=0):
            return None
        found = term
    return found
