"""Where the data sets lie that are too large to come with the project."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from accum_core.errors import DataError

VARIABLE = "ACCUMULATION_LAB_DATA"
ROOT = Path(__file__).parents[2]


def data_folder() -> Path:
    """The folder that ``ACCUMULATION_LAB_DATA`` names, or ``.lab/data`` in the project's root."""
    return Path(os.environ.get(VARIABLE) or ROOT / ".lab" / "data")


def shown(folder: Path) -> str:
    """A folder for a sentence: from the project's root where it lies under it."""
    return str(folder.relative_to(ROOT)) if folder.is_relative_to(ROOT) else str(folder)


def elsewhere(size: float) -> str:
    """The clause that ends a refusal: another folder may be named, or has to be, as the disk is too small.

    Args:
        size: bytes of the data set.
    """
    folder = data_folder()
    free = shutil.disk_usage(next(place for place in (folder, *folder.parents) if place.exists())).free
    if free >= size:
        return f"or name another folder in {VARIABLE}"
    return f"but name a folder on another disk in {VARIABLE} first, as this one has only {free / 1e9:.1f} GB free"


def require(workload: str, names: Iterable[str | Path], remedy: str, size: float) -> None:
    """Refuse a data folder that does not hold everything that a workload needs.

    Args:
        names: of files and folders, from the data folder.
        remedy: what to place there, where it is to be found, and how large it is.
        size: the same in bytes.

    Raises:
        DataError: naming how many are missing and the first of them.
    """
    folder = data_folder()
    missing = [str(name) for name in names if not (folder / name).exists()]
    if missing:
        others = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise DataError(
            f"workload {workload}: {shown(folder)} lacks {missing[0]}{others}: {remedy}, {elsewhere(size)}."
        )
