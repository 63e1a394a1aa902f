"""A training's state in a file that is there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from accum_core.errors import StoreError


def save(state: dict[str, Any], path: Path) -> None:
    """Write the state beside its place, flush it to the disk, then rename it: a crash leaves the old file or the new.

    Raises:
        OSError: when the disk is full or the folder cannot be written; the old file is untouched.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        # torch reports a failed write as RuntimeError; the cause is the disk.
        if isinstance(error, RuntimeError):
            raise OSError(f"checkpoint {path.name} could not be written: {error}") from error
        raise


def load(path: Path) -> dict[str, Any]:
    """Read a state; tensors and plain values only (``weights_only=True``), never code.

    Raises:
        StoreError: when the file is missing or damaged.
    """
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise StoreError(f"checkpoint {path.name} cannot be read ({error}): start the run again.") from error
    return state
