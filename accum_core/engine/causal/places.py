"""Where models and data sets lie, in a folder or by a name on the hub; and what goes wrong there, in a sentence."""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accum_core import text_files
from accum_core.engine.tolerant import is_out_of_memory
from accum_core.errors import DataError, LabError

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
FILES = {".json", ".jsonl"}
"""Endings of files of text, which no name on the hub is taken to have."""
ADAPTERS = "adapter_config.json"


def framework(name: str) -> Any:
    """A library that is not needed for anything else.

    Raises:
        LabError: saying what to install.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        remedy = "install it by `pip install -r requirements-frameworks.txt`"
        raise LabError(
            f"Language models of one's own need {name}, which cannot be imported ({error}): {remedy}."
        ) from None


def model_digest(name: str) -> str:
    """What a model is now: SHA-256 of a folder's files, hexadecimal, or the commit of a model on the hub.

    Raises:
        DataError: for one that is not there or cannot be read.
    """
    expect(name, "model", "config.json")
    if not Path(name).is_dir():
        # The hub's cache keeps each commit's files in a folder of that name.
        find = framework("transformers").utils.cached_file
        return Path(read(lambda: find(name, "config.json"), "model", name)).parent.name
    found = hashlib.sha256()
    for path in sorted(Path(name).iterdir()):
        # What a folder says for people, and what a system hides in it, decides no number.
        if path.is_file() and path.suffix != ".md" and not path.name.startswith("."):
            found.update(f"{path.name} {text_files.digest(path)}\n".encode())
    return found.hexdigest()


def expect(name: str, what: str, file: str) -> None:
    """Refuse what is neither a folder nor a name that the hub could know.

    Args:
        what: ``model`` or ``data``.
        file: that a folder must hold; "" for none.

    Raises:
        DataError: saying what to name instead.
    """
    folder = Path(name)
    if folder.is_dir():
        if not (folder / file).exists():
            has_adapters = (folder / ADAPTERS).exists()
            adapters = " (it holds adapters; name the model that they belong to)" if has_adapters else ""
            raise DataError(
                f"{what} {name}: the folder has no {file}{adapters}: name one as save_pretrained writes it."
            )
    elif folder.is_file():
        raise DataError(f"{what} {name}: is a file: name the folder that holds it beside its {file}.")
    elif not HUB_NAME.fullmatch(name) or folder.suffix in FILES:
        kind = "folder" if file else "file or folder"
        raise DataError(f"{what} {name}: there is no such {kind}, and no hub has such a name: check the path.")


def read(reading: Callable[[], Any], what: str, name: str) -> Any:
    """What a library reads.

    Args:
        what: beginning or ending with ``model``, or ``data``.

    Raises:
        DataError: for whatever it raises, as a sentence.
    """
    try:
        return reading()
    except Exception as error:  # damaged files and missing networks raise errors of any class
        if is_out_of_memory(error):
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".:")
        if Path(name).is_dir():
            raise DataError(f"{what} {name}: the folder cannot be read ({reason}): mend or replace it.") from None
        kind = " --repo-type dataset" if what == "data" else ""
        raise DataError(
            f"{what} {name}: is no folder here, and the hub did not give it ({reason}): on a machine with a network "
            f"run `hf download {name}{kind} --local-dir FOLDER`, place FOLDER here, and give its path instead of the "
            "name."
        ) from None
