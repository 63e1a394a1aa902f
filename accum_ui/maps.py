"""The pictures that predictions are shown beside: image, truth and the legend, without torch.

A workload with maps keeps them in a module of ``accum_core`` that bears its name.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from typing import Any


@cache
def maps(workload: str) -> dict[str, Any] | None:
    """Base64 PNGs of the display samples and their truths, and each class with its colour; None without maps.

    Raises:
        DataError: for a data file that is missing or damaged.
    """
    name = f"accum_core.{workload}"
    if importlib.util.find_spec(name) is None:
        return None
    source = importlib.import_module(name)
    _, validation = source.load()
    tiles = list(source.DISPLAY_TILES)
    return {
        "images": [source.image_picture(validation.images[tile]) for tile in tiles],
        "truths": [source.label_picture(validation.labels[tile]) for tile in tiles],
        "classes": [
            {"name": name, "color": color} for name, color in zip(source.CLASS_NAMES, source.CLASS_COLORS, strict=True)
        ],
    }
