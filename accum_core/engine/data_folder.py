"""Where the data sets lie that are too large to come with the project."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "ACCUMULATION_LAB_DATA"
ROOT = Path(__file__).parents[2]


def data_folder() -> Path:
    """The folder that ``ACCUMULATION_LAB_DATA`` names, or ``.lab/data`` in the project's root."""
    return Path(os.environ.get(VARIABLE) or ROOT / ".lab" / "data")


def shown(folder: Path) -> str:
    """A folder for a sentence: from the project's root where it lies under it."""
    return str(folder.relative_to(ROOT)) if folder.is_relative_to(ROOT) else str(folder)
