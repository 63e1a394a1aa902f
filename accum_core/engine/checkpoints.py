"""A training's state in a file that is there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, Final

import torch

from accum_core.errors import SettingError, StoreError
from accum_core.provenance import code_version
from accum_core.records import RunConfig

WHOLE: Final = {"asked", "config", "code_version", "model", "updater", "place", "window", "seconds", "split_is_new"}
"""What a training's state holds."""


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


def check(state: dict[str, Any], asked: RunConfig) -> None:
    """Refuse the state of another run: another N, effective batch, seed or anything else, or another code version.

    Args:
        state: of a training.
        asked: the configuration of the training that is to go on from it, without live changes.

    Raises:
        SettingError: naming the first setting that differs, with both values, or what the state lacks.
    """
    if missing := sorted(WHOLE - state.keys()):
        raise SettingError("checkpoint", missing, "is missing in it, so it is not whole; start anew")
    theirs = {"code_version": state["code_version"], **RunConfig.model_validate_json(state["asked"]).model_dump()}
    for field, value in {"code_version": code_version(), **asked.model_dump()}.items():
        if theirs[field] != value:
            raise SettingError(field, value, f"the checkpoint was made with {theirs[field]!r}; use that, or start anew")
