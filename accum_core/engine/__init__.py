"""The part of the library that computes; nothing else imports torch.

``accumulate`` is the one loop, ``reference`` the full batch that it is held against, ``training`` the generator on top
of both. Norms, instruments, workloads and models are one file each in the folder of that name.
"""

from accum_core.engine.accumulate import WindowResult, accumulate_gradients
from accum_core.engine.controls import Controls, QueueControls
from accum_core.engine.normalization import check_norms, convert_norms
from accum_core.engine.objectives import CrossEntropy, Objective
from accum_core.engine.reference import Gradient, GradientError, gradient_error, reference_gradient
from accum_core.engine.training import Training, train

__all__ = [
    "Controls",
    "CrossEntropy",
    "Gradient",
    "GradientError",
    "Objective",
    "QueueControls",
    "Training",
    "WindowResult",
    "accumulate_gradients",
    "check_norms",
    "convert_norms",
    "gradient_error",
    "reference_gradient",
    "train",
]
