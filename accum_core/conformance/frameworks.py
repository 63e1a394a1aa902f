"""The frameworks that there are, read from the constants of their files without importing one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from accum_core.catalogue import constants
from accum_core.errors import SettingError

FOLDER: Final = Path(__file__).parents[1] / "frameworks"
OWN: Final = "own"


@cache
def frameworks() -> Mapping[str, Mapping[str, Any]]:
    """File name -> its constants, in their ``ORDER``; a file without ``NAME`` is no framework's."""
    found = {path.stem: MappingProxyType(constants(path)) for path in sorted(FOLDER.glob("[a-z]*.py"))}
    named = {file: of for file, of in found.items() if "NAME" in of}
    return MappingProxyType(dict(sorted(named.items(), key=lambda item: (item[1].get("ORDER", 100), item[0]))))


def file_of(name: str) -> str:
    """The file of a framework's short name.

    Raises:
        SettingError: naming those that there are.
    """
    names = {of["NAME"]: file for file, of in frameworks().items()}
    if name not in names:
        raise SettingError("framework", name, f"is not known; use one of {', '.join(names)}")
    return names[name]


def kinds(file: str) -> Mapping[str, str]:
    """The kinds that a framework is tried in, with their titles; ``own`` unless its file says ``OWN = False``."""
    of = frameworks()[file]
    own = {OWN: "a module and a loss of your own"} if of.get("OWN", True) else {}
    return {**own, **of.get("KINDS", {})}


def defects(file: str) -> tuple[tuple[str, str, str], ...]:
    """What looks like a framework's own fault: title, sentence and script; from ``FILE_defects.py`` if there is one."""
    beside = FOLDER / f"{file}_defects.py"
    of = constants(beside) if beside.exists() else frameworks()[file]
    return tuple(of.get("DEFECTS", ()))


def missing(file: str) -> str:
    """What to do if the framework is not installed, one sentence; "" if it is."""
    of = frameworks()[file]
    if not of.get("DISTRIBUTION"):
        return ""
    try:
        version(of["DISTRIBUTION"])
    except PackageNotFoundError:
        return f"{of['TITLE']} is not installed: pip install -r requirements-frameworks.txt."
    return ""
