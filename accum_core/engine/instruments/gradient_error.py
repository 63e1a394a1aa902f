"""Distance of the accumulated gradient from that of one true batch, at equal weights: in all and by layer.

norm(g - g_ref) / norm(g_ref), the cosine between g and g_ref, and norm(g) / norm(g_ref). A layer is a child of the
network: its stem, its head, and so on. Costs one forward and backward pass of the full batch when due.
"""

from __future__ import annotations

from typing import Any

import torch

from accum_core.engine.instrument import Instrument, Window
from accum_core.engine.reference import gradient_error, layer_errors, reference_gradient

TITLE = "Gradient error"


class GradientErrorInstrument(Instrument):
    """Fields: ``relative_error``, ``cosine``, ``norm_ratio``, ``by_layer`` (layer -> relative error)."""

    def measure(self, window: Window) -> dict[str, Any]:
        """Compare ``.grad`` with the reference of the same samples."""
        low = next(window.model.parameters()).dtype in (torch.bfloat16, torch.float16)
        dtype = torch.float32 if low else None  # so that the error of low precision shows
        reference = reference_gradient(window.model, window.inputs, window.targets, window.objective, dtype=dtype)
        error = gradient_error(window.model, reference)
        layers = layer_errors(window.model, reference)
        return {
            "relative_error": error.relative_error,
            "cosine": error.cosine,
            "norm_ratio": error.norm_ratio,
            "by_layer": {layer: part.relative_error for layer, part in layers.items()},
        }


def create() -> Instrument:
    """A new gradient-error instrument."""
    return GradientErrorInstrument()
