"""Take away the activation behind a norm that brings its own, and put it back."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from torch import Tensor, nn

# Tanh and sigmoid bound an output, which such a norm does not; PReLU has parameters, which must not be lost.
RECTIFIERS = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish)


class Absorbed(nn.Module):
    """The identity in the place of an activation that the norm before it has taken over."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        # In a tuple, so that it is no layer of the model while it is out of use.
        self.kept = (activation,)

    def forward(self, input: Tensor) -> Tensor:
        return input


def absorb(model: nn.Module, owns: Callable[[nn.Module], bool]) -> None:
    """Replace each rectifier that follows a norm of a kind directly within an ``nn.Sequential``.

    A network that calls its activations in a ``forward`` of its own keeps them, as no one can tell from its layers
    what follows what.

    Args:
        model: changed in place.
        owns: whether a layer is of that kind.
    """
    for parent in model.modules():
        if isinstance(parent, nn.Sequential):
            for (_, norm), (name, following) in pairwise(list(parent._modules.items())):
                if norm is not None and owns(norm) and isinstance(following, RECTIFIERS):
                    setattr(parent, name, Absorbed(following).train(following.training))


def release(model: nn.Module) -> None:
    """Put every activation back that was absorbed."""
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if isinstance(child, Absorbed):
                setattr(parent, name, child.kept[0].train(child.training))
