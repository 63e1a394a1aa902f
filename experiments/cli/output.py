"""The files that the commands write for others: checked before the work begins, strict JSON at its end."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from pydantic import ConfigDict, TypeAdapter

from accum_core.errors import LabError, SettingError
from experiments.cli import ranks

Command = TypeVar("Command", bound=Callable[..., Any])
STRICT = TypeAdapter[Any](Any, config=ConfigDict(ser_json_inf_nan="null"))


def json_option(content: str) -> Callable[[Command], Command]:
    """The option ``--json FILE``; a file that cannot be written is refused before the command starts."""
    return click.option(
        "--json",
        "json_path",
        type=click.Path(path_type=Path),
        metavar="FILE",
        callback=writable,
        help=f"Write {content} to FILE as JSON (null for a number that is not finite).",
    )


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write strict JSON: no NaN, no Infinity.

    Args:
        path: the file; one that exists is replaced.
        content: plain values, as ``model_dump()`` gives them.

    Raises:
        LabError: if the file cannot be written after all, say on a full disk.
    """
    try:
        path.write_bytes(STRICT.dump_json(content, indent=1) + b"\n")
    except OSError as error:
        remove_part(path)
        raise LabError(f"--json = {str(path)!r}: could not be written ({error.strerror}); name another file.") from None


def remove_part(path: Path) -> None:
    """Take away what could not be written to its end, as a part reads like a whole; a device is left alone."""
    if path.is_file():
        path.unlink()


def writable(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """Callback of an option that names a file to write.

    Raises:
        SettingError: before the command starts, for a file that cannot be written.
    """
    if path is None or ranks.rank() != 0:
        return path
    existed = os.path.lexists(path)  # which no name is too long for, and a link to a missing file is one
    try:
        path.open("ab").close()
    except OSError as error:
        raise SettingError(
            parameter.opts[0], str(path), f"cannot be written ({error.strerror}); name a file in a folder that exists"
        ) from None
    if not existed:
        path.unlink()
    return path
