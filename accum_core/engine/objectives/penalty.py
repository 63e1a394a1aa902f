"""An objective with a penalty: a term of the parameters alone, which counts once a window and not once a micro-batch.

Loops that add an L2 or weight-norm penalty to every micro-batch's loss get it N times over when they sum, and divided
with the rest when they average. Here it takes no part in either: the gradient of coefficient * penalty is added to the
finished sum, by every rank to its own averaged copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from accum_core.engine.objectives.objective import (
    Objective,
    Parameters,
    Penalty,
    Predict,
    needs_whole_window,
    penalties_of,
)
from accum_core.engine.ranks import bare
from accum_core.errors import SettingError


class Penalized:
    """The terms of an objective, and coefficient * penalty(parameters).

    It needs the whole window if the objective does.

    Args:
        objective: the terms that samples weigh; it may have penalties of its own.
        penalty: a scalar tensor from the named parameters, frozen ones included. It uses those that it is given and
            no others: the reference evaluates it at copies.
        coefficient: the factor on it.
        name: of the penalty among the window's terms.

    Raises:
        SettingError: for a name that a term of the objective has.

    >>> l2 = Penalized(objective, lambda named: sum(w.square().sum() for w in named.values()), 0.5e-4)
    """

    def __init__(
        self, objective: Objective, penalty: Callable[[Parameters], Tensor], coefficient: float, name: str = "penalty"
    ) -> None:
        inner = penalties_of(objective)
        if name in inner or name in objective.coefficients:
            raise SettingError("name", name, "is a term of the objective already; give the penalty another name")
        self.objective = objective
        self.penalties: Mapping[str, Penalty] = {**inner, name: Penalty(coefficient, penalty)}
        if needs_whole_window(objective):
            # An instance of WholeWindow too, then, so that its window cannot be split by mistake.
            self.represent = objective.represent
            self.window_sums = objective.window_sums

    @property
    def coefficients(self) -> Mapping[str, float]:
        """Those of the terms that samples weigh."""
        return self.objective.coefficients

    def weights(self, targets: Tensor) -> Mapping[str, float]:
        """Those of the objective: no sample weighs a penalty."""
        return self.objective.weights(targets)

    def sums(self, model: Predict, inputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """Those of the objective."""
        return self.objective.sums(model, inputs, targets)


def add_penalties(model: nn.Module, objective: Objective, scale: float = 1.0) -> dict[str, float]:
    """Add scale * coefficient * the gradient of each penalty to ``.grad``, once a window.

    Every rank adds it after the gradients were averaged: their parameters are equal, so nothing is exchanged. Neither
    hooks nor DistributedDataParallel take part.

    Args:
        model: its trainable parameters get the gradient.
        scale: of the loss, under a GradScaler.

    Returns:
        Each penalty's own value, without coefficient and scale.
    """
    penalties = penalties_of(objective)
    if not penalties:
        return {}
    parameters = dict(bare(model).named_parameters())
    with torch.enable_grad():
        values = {name: penalty.function(parameters) for name, penalty in penalties.items()}
        total = torch.stack([scale * penalties[name].coefficient * value for name, value in values.items()]).sum()
        trainable = [parameter for parameter in parameters.values() if parameter.requires_grad]
        gradients = torch.autograd.grad(total, trainable, allow_unused=True) if trainable else ()
    for parameter, gradient in zip(trainable, gradients, strict=True):
        if gradient is not None:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter, dtype=parameter.grad_dtype)
            parameter.grad.add_(gradient)
    return {name: value.item() for name, value in values.items()}


def penalty_loss(objective: Objective, values: Mapping[str, float]) -> float:
    """What the penalties of these values add to the window's loss."""
    return sum(penalty.coefficient * values[name] for name, penalty in penalties_of(objective).items())
