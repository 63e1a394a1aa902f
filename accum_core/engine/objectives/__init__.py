"""Losses as sums and weights; ``objective`` says what one is, and each other file is one."""

from accum_core.engine.objectives.contrastive import Contrastive
from accum_core.engine.objectives.cross_entropy import CrossEntropy
from accum_core.engine.objectives.heads import HeadsCrossEntropy
from accum_core.engine.objectives.objective import (
    Objective,
    Penalty,
    Predict,
    WholeWindow,
    mean_loss,
    needs_whole_window,
    penalties_of,
    window_loss,
)
from accum_core.engine.objectives.penalty import Penalized

__all__ = [
    "Contrastive",
    "CrossEntropy",
    "HeadsCrossEntropy",
    "Objective",
    "Penalized",
    "Penalty",
    "Predict",
    "WholeWindow",
    "mean_loss",
    "needs_whole_window",
    "penalties_of",
    "window_loss",
]
