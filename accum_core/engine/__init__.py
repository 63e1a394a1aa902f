"""The part of the library that computes; nothing else imports torch.

``accumulate`` is the one loop, ``reference`` the full batch that it is held against, ``update`` the step that follows a
window, ``training`` the generator on top of them. Norms, instruments, workloads and models are one file each in the
folder of that name.
"""

from accum_core.engine import schedules
from accum_core.engine.accumulate import WindowResult, accumulate_gradients
from accum_core.engine.averaging import WeightAverage
from accum_core.engine.controls import Controls, QueueControls
from accum_core.engine.normalization import check_norms, convert_norms
from accum_core.engine.objectives import Contrastive, CrossEntropy, Objective, Penalized
from accum_core.engine.precision import Precision
from accum_core.engine.recompute import checkpoint_activations
from accum_core.engine.reference import Gradient, GradientError, gradient_error, reference_gradient
from accum_core.engine.training import Training, train
from accum_core.engine.update import Update, Updater
from accum_core.engine.windows import windows
from accum_core.errors import SettingError
from accum_core.reduction import LossReduction

__all__ = [
    "Contrastive",
    "Controls",
    "CrossEntropy",
    "Gradient",
    "GradientError",
    "LossReduction",
    "Objective",
    "Penalized",
    "Precision",
    "QueueControls",
    "SettingError",
    "Training",
    "Update",
    "Updater",
    "WeightAverage",
    "WindowResult",
    "accumulate_gradients",
    "check_norms",
    "checkpoint_activations",
    "convert_norms",
    "gradient_error",
    "reference_gradient",
    "schedules",
    "train",
    "windows",
]
