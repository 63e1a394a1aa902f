"""The oracle: the gradient of one true batch at the model's present parameters, and how far another one is from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from accum_core.engine.objectives import Objective, mean_loss

_Sums = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Gradient:
    """A gradient with the loss that it belongs to.

    Attributes:
        loss: the batch's loss, weighted mean over its samples.
        by_parameter: name -> tensor of the parameter's shape; zero where the loss does not depend on it.
    """

    loss: float
    by_parameter: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class ParameterError:
    """Distance of one gradient from the reference: all of it, or one parameter's part.

    Attributes:
        relative_error: norm(g - g_ref) / norm(g_ref); 0 if both are zero, infinite if only the reference is.
        cosine: of the angle between the two; 1 if both are zero, 0 if one is.
        norm_ratio: norm(g) / norm(g_ref), with the same rule as the error (1 if both are zero).
    """

    relative_error: float
    cosine: float
    norm_ratio: float


@dataclass(frozen=True, slots=True)
class GradientError(ParameterError):
    """``ParameterError`` over all parameters together, and for each of them."""

    by_parameter: Mapping[str, ParameterError]


@dataclass(frozen=True, slots=True)
class LayerError:
    """Distance of the gradient of the parameters that one layer holds itself from the reference.

    Attributes:
        layer: its name in the model.
        relative_error: as in ``ParameterError``.
        share: squared norm of g - g_ref here over that of all parameters; 0 where the two gradients are equal.
    """

    layer: str
    relative_error: float
    share: float


def reference_gradient(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    objective: Objective,
    *,
    dtype: torch.dtype | None = None,
    buffers: Mapping[str, Tensor] | None = None,
) -> Gradient:
    """The gradient of all samples in one pass, in the mode (training or evaluation) that the model is in.

    Works on copies: parameters, ``.grad``, buffers and the random state are as before (tests/test_reference.py).

    Args:
        inputs, targets: the window's samples ``[B, ...]``.
        dtype: compute in this floating-point type (``torch.float64`` for an oracle); the model's own by default.
        buffers: to start from by their names, the model's present ones by default; a layer that normalises by running
            statistics needs those that the window began with.

    Returns:
        One tensor a trainable parameter, in ``dtype``.
    """
    parameters = {
        name: parameter.detach().to(dtype or parameter.dtype, copy=True).requires_grad_(parameter.requires_grad)
        for name, parameter in model.named_parameters()
    }
    copies = {
        name: buffer.detach().to(dtype if dtype and buffer.is_floating_point() else buffer.dtype, copy=True)
        for name, buffer in {**dict(model.named_buffers()), **(buffers or {})}.items()
    }
    device = next(iter(parameters.values())).device if parameters else inputs.device
    inputs, targets = inputs.to(device), targets.to(device)
    if dtype is not None and inputs.is_floating_point():
        inputs = inputs.to(dtype)

    def predict(batch: Tensor) -> Tensor:
        prediction: Tensor = functional_call(model, (parameters, copies), (batch,))
        return prediction

    trainable = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.enable_grad():
        loss = mean_loss(objective, predict, inputs, targets, parameters)
        gradients = torch.autograd.grad(loss, list(trainable.values()), allow_unused=True) if trainable else ()
    return Gradient(
        loss=loss.item(),
        by_parameter={
            name: torch.zeros_like(parameter) if gradient is None else gradient
            for (name, parameter), gradient in zip(trainable.items(), gradients, strict=True)
        },
    )


def gradient_error(model: nn.Module, reference: Gradient) -> GradientError:
    """Compare the gradients in ``.grad`` with the reference; norms and products are taken in float64.

    Args:
        model: a trainable parameter without ``.grad`` counts as a gradient of zero.
        reference: from ``reference_gradient`` on the same model.
    """
    sums = _sums(model, reference)
    overall = _compare(*sums.values())
    return GradientError(
        relative_error=overall.relative_error,
        cosine=overall.cosine,
        norm_ratio=overall.norm_ratio,
        by_parameter={name: _compare(row) for name, row in sums.items()},
    )


def layer_errors(model: nn.Module, reference: Gradient) -> dict[str, ParameterError]:
    """``gradient_error`` for each layer: the parameters under one child of the model, taken together."""
    layers: dict[str, list[_Sums]] = {}
    for name, row in _sums(model, reference).items():
        layers.setdefault(name.partition(".")[0], []).append(row)
    return {layer: _compare(*rows) for layer, rows in layers.items()}


def depth_errors(model: nn.Module, reference: Gradient, order: Sequence[str]) -> list[LayerError]:
    """``gradient_error`` for each layer that holds parameters itself, without those of the layers inside it.

    Args:
        order: names of layers. Those without a parameter in the reference are left out, those missing come last.
    """
    layers: dict[str, list[_Sums]] = {name: [] for name in order}
    for name, row in _sums(model, reference).items():
        layers.setdefault(name.rpartition(".")[0], []).append(row)
    squares = {layer: math.fsum(row[0] for row in rows) for layer, rows in layers.items() if rows}
    total = math.fsum(squares.values())
    return [
        LayerError(layer, _compare(*layers[layer]).relative_error, square / total if total else 0.0)
        for layer, square in squares.items()
    ]


def _sums(model: nn.Module, reference: Gradient) -> dict[str, _Sums]:
    """For each parameter the squared norms of g - g_ref, g and g_ref, and the product of g and g_ref."""
    own = dict(model.named_parameters())
    rows = []
    for name, tensor in reference.by_parameter.items():
        expected = tensor.double()
        gradient = own[name].grad
        actual = torch.zeros_like(expected) if gradient is None else gradient.detach().to(expected)
        squares = [part.square().sum() for part in (actual - expected, actual, expected)]
        rows.append(torch.stack([*squares, (actual * expected).sum()]))
    sums = torch.stack(rows).tolist() if rows else []
    return dict(zip(reference.by_parameter, map(tuple, sums), strict=True))


def _compare(*parts: _Sums) -> ParameterError:
    """The distance of one or more parameters' gradient from the reference."""
    difference, actual, expected, product = map(math.fsum, zip(*parts, strict=True)) if parts else (0.0,) * 4
    if not expected:
        return ParameterError(math.inf, 0.0, math.inf) if actual else ParameterError(0.0, 1.0, 1.0)
    cosine = product / (math.sqrt(actual) * math.sqrt(expected)) if actual else 0.0
    return ParameterError(math.sqrt(difference / expected), cosine, math.sqrt(actual / expected))
