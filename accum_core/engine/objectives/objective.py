"""Losses as sums and weights, so that a window can be divided by what it holds.

An objective is a sum of named terms, ``coefficient * sum_i / weight`` each. A term's weight comes from the targets
alone, so a window's total weight is known before its first backward pass.

Two kinds of objective are more than that: one that needs all samples of a window at once (``WholeWindow``), and one
with penalties, which no sample weighs (``WithPenalties``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeGuard, runtime_checkable

import torch
from torch import Tensor, nn

from accum_core.errors import SettingError

Predict = Callable[[Tensor], Tensor]
Parameters = Mapping[str, Tensor]


class Objective(Protocol):
    """What ``accumulate_gradients`` asks of a loss.

    The squared error of a regression, with targets ``[M, D]``:

    >>> class SquaredError:
    ...     coefficients = {"squared_error": 1.0}
    ...     def weights(self, targets):
    ...         return {"squared_error": float(targets.numel())}
    ...     def sums(self, model, inputs, targets):
    ...         return {"squared_error": (model(inputs) - targets).square().sum()}

    A second term is a second name in each of the three.
    """

    @property
    def coefficients(self) -> Mapping[str, float]:
        """The factor on each term's weighted mean, by the term's name."""
        ...

    def weights(self, targets: Tensor) -> Mapping[str, float]:
        """What each term's mean divides by, from the targets ``[M, ...]`` of one micro-batch alone."""
        ...

    def sums(self, model: Predict, inputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """Each term's loss summed over the micro-batch, a scalar tensor with its graph."""
        ...


@runtime_checkable
class WholeWindow(Objective, Protocol):
    """An objective in which every sample meets every other: the sums of a window's parts are not the window's.

    ``sums`` is right on one batch. A window of several micro-batches goes through ``cached.accumulate_cached``, which
    needs the two steps apart.
    """

    def represent(self, model: Predict, inputs: Tensor) -> Tensor:
        """What the loss sees of the inputs ``[M, ...]``: one representation a sample, ``[M, ...]``."""
        ...

    def window_sums(self, representations: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """Each term's loss summed over the window, from all its representations ``[B, ...]`` and targets ``[B]``."""
        ...


@dataclass(frozen=True, slots=True)
class Penalty:
    """A term that depends on the parameters alone; no sample weighs it.

    Attributes:
        coefficient: the factor on it.
        function: a scalar tensor from the named parameters. It uses no others: the reference evaluates it at copies.
    """

    coefficient: float
    function: Callable[[Parameters], Tensor]


@runtime_checkable
class WithPenalties(Protocol):
    """An objective to which penalties are added once a window; ``coefficients`` holds the other terms alone."""

    @property
    def penalties(self) -> Mapping[str, Penalty]:
        """The penalties by their names."""
        ...


def needs_whole_window(objective: Objective) -> TypeGuard[WholeWindow]:
    """Whether the objective is one whose samples meet one another."""
    return hasattr(objective, "window_sums")  # isinstance of a protocol would cost a tiny network two percent


def penalties_of(objective: Objective) -> Mapping[str, Penalty]:
    """The objective's penalties; most have none."""
    penalties: Mapping[str, Penalty] = getattr(objective, "penalties", {})
    return penalties


def window_loss(sums: Mapping[str, float], weights: Mapping[str, float], coefficients: Mapping[str, float]) -> float:
    """The window's loss from its summed terms: sum over terms of coefficient * sum / weight (0 for a weight of 0)."""
    return sum(coefficients[name] * (sums[name] / weights[name] if weights[name] else 0.0) for name in sums)


def mean_loss(
    objective: Objective, model: Predict, inputs: Tensor, targets: Tensor, parameters: Parameters | None = None
) -> Tensor:
    """The objective of one batch as a scalar tensor with its graph, each term divided by the batch's own weight.

    Penalties are added in full, at ``parameters`` (the model's own by default).

    Raises:
        SettingError: for an objective with penalties when the parameters are not known.
    """
    weights = objective.weights(targets)
    sums = objective.sums(model, inputs, targets)
    terms = [objective.coefficients[name] * total / weights[name] for name, total in sums.items() if weights[name]]
    terms = terms or [0.0 * total for total in sums.values()]
    for penalty in penalties_of(objective).values():
        if parameters is None:
            if not isinstance(model, nn.Module):
                raise SettingError("parameters", None, "a penalty needs the parameters of a model that is a function")
            parameters = dict(model.named_parameters())
        terms.append(penalty.coefficient * penalty.function(parameters))
    return torch.stack(terms).sum()
