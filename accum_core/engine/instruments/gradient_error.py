"""Distance of the accumulated gradient from that of one true batch, at equal weights: in all and by layer.

norm(g - g_ref) / norm(g_ref), the cosine between g and g_ref, and norm(g) / norm(g_ref). A layer is a child of the
network: its stem, its head, and so on. Costs one forward and backward pass of the full batch when due.
"""

from __future__ import annotations

import math
from typing import Any

from accum_core.engine.instrument import Instrument, Window
from accum_core.engine.reference import gradient_error, reference_gradient

TITLE = "Gradient error"


class GradientErrorInstrument(Instrument):
    """Fields: ``relative_error``, ``cosine``, ``norm_ratio``, ``by_layer`` (layer -> relative error)."""

    def measure(self, window: Window) -> dict[str, Any]:
        """Compare ``.grad`` with the reference of the same samples."""
        reference = reference_gradient(window.model, window.inputs, window.targets, window.objective)
        error = gradient_error(window.model, reference)
        squares: dict[str, list[tuple[float, float]]] = {}
        for name, part in error.by_parameter.items():
            norm = reference.by_parameter[name].double().norm().item()
            difference = part.relative_error * norm if norm else 0.0
            squares.setdefault(name.partition(".")[0], []).append((difference**2, norm**2))
        return {
            "relative_error": error.relative_error,
            "cosine": error.cosine,
            "norm_ratio": error.norm_ratio,
            "by_layer": {layer: _relative(parts) for layer, parts in squares.items()},
        }


def _relative(parts: list[tuple[float, float]]) -> float:
    """Relative error of several parameters taken together, from their squared differences and norms."""
    difference, norm = (math.fsum(column) for column in zip(*parts, strict=True))
    return math.sqrt(difference / norm) if norm else 0.0


def create() -> Instrument:
    """A new gradient-error instrument."""
    return GradientErrorInstrument()
