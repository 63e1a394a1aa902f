"""What one normalising layer passes on to the layer that takes its place: channels, eps and affine parameters."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class ChannelSource:
    """A normalising layer about to be replaced.

    Attributes:
        name: the layer's name in its model, for messages.
        module: the layer itself.
        channels: size of dimension 1 of its input.
        eps: what it adds to the variance.
        like: a floating-point tensor of the layer or, when it has none, of its model: device and type of the new one.
    """

    name: str
    module: nn.Module
    channels: int
    eps: float
    like: Tensor | None

    def finish(self, layer: nn.Module) -> nn.Module:
        """Give the new layer the affine parameters, device, type and mode of the old one.

        The Parameter objects themselves move over, so an optimizer keeps its state for them. Parameters that the new
        layer has besides are frozen where all of the old one's are.
        """
        parameters = {name: getattr(self.module, name) for name in ("weight", "bias")}
        present = list(self.module.parameters())
        if self.like is not None:
            layer.to(device=self.like.device, dtype=self.like.dtype)
        layer.requires_grad_(not present or any(parameter.requires_grad for parameter in present))
        for name, parameter in parameters.items():
            setattr(layer, name, parameter)
        if hasattr(layer, "affine"):
            setattr(layer, "affine", parameters["weight"] is not None)  # noqa: B010 (nn.Module hides its type)
        return layer.train(self.module.training)
