"""Distance of the accumulated gradient from that of one true batch, at equal weights: in all and by layer.

norm(g - g_ref) / norm(g_ref), the cosine between g and g_ref, and norm(g) / norm(g_ref). A layer is a child of the
network: its stem, its head, and so on. By depth, in the order in which the network runs them, is every layer that
holds parameters itself, with its share of the squared error: where in the network the error arises and how it grows.
Costs one forward and backward pass of the full batch when due.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from accum_core.engine.instrument import Instrument, Window, seeing
from accum_core.engine.norm_layers import runs_in_step
from accum_core.engine.reference import depth_errors, gradient_error, layer_errors, reference_gradient

TITLE = "Gradient error"


class GradientErrorInstrument(Instrument):
    """Fields: ``relative_error``, ``cosine``, ``norm_ratio``, ``by_layer`` (layer -> relative error), ``by_depth``.

    ``by_depth`` holds ``names``, ``relative_error`` and ``share`` of the layers, one list each. Layers that the network
    does not run as such, because another reads their parameters, come last.
    """

    def measure(self, window: Window) -> dict[str, Any]:
        """Compare ``.grad`` with the reference of the same samples."""
        dtype = _type_of_reference(window.model)
        holders = {
            name: module
            for name, module in window.model.named_modules()
            if any(parameter.requires_grad for parameter in module.parameters(recurse=False))
        }
        order: dict[str, None] = {}
        with seeing(holders, lambda name, _: order.setdefault(name)):
            samples = window.inputs, window.targets
            reference = reference_gradient(
                window.model, *samples, window.objective, dtype=dtype, buffers=window.buffers
            )
        error = gradient_error(window.model, reference)
        layers = layer_errors(window.model, reference)
        depth = depth_errors(window.model, reference, list(order))
        return {
            "relative_error": error.relative_error,
            "cosine": error.cosine,
            "norm_ratio": error.norm_ratio,
            "by_layer": {layer: part.relative_error for layer, part in layers.items()},
            "by_depth": {
                "names": [part.layer for part in depth],
                "relative_error": [part.relative_error for part in depth],
                "share": [part.share for part in depth],
            },
        }


def _type_of_reference(model: nn.Module) -> torch.dtype | None:
    """What the full batch is computed in: None is the model's own type, in which it mostly rounds as the window does.

    Low precision is held against float32, so that its error shows. A window in step takes its statistics in float64,
    and comes nearer to the exact gradient than one batch in float32, whose own rounding would be taken for an error
    (docs/log.md, 2026-11-29).
    """
    present = next(model.parameters()).dtype
    if present in (torch.bfloat16, torch.float16):
        return torch.float32
    return torch.float64 if present == torch.float32 and runs_in_step(model) else None


def create() -> Instrument:
    """A new gradient-error instrument."""
    return GradientErrorInstrument()
