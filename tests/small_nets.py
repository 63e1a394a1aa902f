"""Small networks and objectives that the tests of the engine share; their answers can be worked out by hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Product(nn.Module):
    """One weight w and the output w x: with the loss w x the gradient of a sample is its x."""

    def __init__(self, weight: float = 0.0, dtype: torch.dtype = torch.float64):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight, dtype=dtype))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.weight * inputs


class ProductLoss:
    """The loss w x, in all weighing 1 a sample; targets are the weights of the samples."""

    def __init__(self, coefficient: float = 1.0):
        self.coefficients = {"product": coefficient}

    def weights(self, targets: Tensor) -> dict[str, float]:
        return {"product": float(targets.sum())}

    def sums(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {"product": (model(inputs) * targets).sum()}


def product_batches(*micro_batches: list[float]) -> list[tuple[Tensor, Tensor]]:
    """Micro-batches of ``ProductLoss``: the x of each sample, each sample weighing 1."""
    return [(torch.tensor(x, dtype=torch.float64), torch.ones(len(x), dtype=torch.float64)) for x in micro_batches]


class TwoTerms:
    """Two terms that weigh differently: squared error a sample and absolute output a valid sample (target >= 0)."""

    def __init__(self, squared: float = 1.0, absolute: float = 0.5):
        self.coefficients = {"squared": squared, "absolute": absolute}

    def weights(self, targets: Tensor) -> dict[str, float]:
        return {"squared": float(len(targets)), "absolute": float((targets >= 0).sum())}

    def sums(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        outputs = model(inputs).mean(dim=1)
        return {"squared": ((outputs - targets) ** 2).sum(), "absolute": (outputs.abs() * (targets >= 0)).sum()}


class Tokens(nn.Module):
    """Tokens [M, T] to logits [M, T, C], with attention over T so that a sample's tokens look at one another."""

    def __init__(self, vocabulary: int = 11, width: int = 4, classes: int = 5):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = x + torch.softmax(x @ x.transpose(1, 2), dim=-1) @ x
        return self.head(self.norm(x))


def dense(inputs: int = 3, classes: int = 4, width: int = 6) -> nn.Sequential:
    """Vectors [M, inputs] to logits [M, classes]; smooth, so that no kink lies between two roundings."""
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, classes))


def pixels(norm: nn.Module | None = None, channels: int = 4, classes: int = 3) -> nn.Sequential:
    """Images [M, 2, H, W] to logits [M, classes, H, W], with a norm of ``channels`` between the convolutions."""
    return nn.Sequential(
        nn.Conv2d(2, channels, 3, padding=1),
        norm if norm is not None else nn.GroupNorm(2, channels),
        nn.Tanh(),
        nn.Conv2d(channels, classes, 1),
    )


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """A copy of each gradient that there is, by the parameter's name."""
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def gradients_of(loss: Tensor, model: nn.Module) -> dict[str, Tensor]:
    """Gradients of a loss by torch.autograd.grad, which leaves ``.grad`` alone."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def relative_error(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """norm(found - expected) / norm(expected) over all parameters; the same names on both sides."""
    assert found.keys() == expected.keys()
    off = sum(float((found[name].double() - expected[name].double()).square().sum()) for name in expected)
    size = sum(float(expected[name].double().square().sum()) for name in expected)
    return (off / size) ** 0.5 if size else off**0.5
