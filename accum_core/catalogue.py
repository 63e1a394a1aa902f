"""What the project offers, read from the file names and constants under ``engine`` without importing torch.

A norm, an instrument, a workload and a model are one file each. Its constants in capitals (``TITLE``, ``MODELS``,
...) are literals, so they can be read from the syntax tree: a page lists every norm without waiting for torch.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from accum_core.errors import SettingError

Kind = Literal["norms", "instruments", "workloads", "models"]
ENGINE = Path(__file__).parent / "engine"


@cache
def entries(kind: Kind) -> Mapping[str, Mapping[str, Any]]:
    """Everything of one kind, in the order of each file's ``ORDER`` (then by name): name -> its constants.

    The constants are the file's top-level assignments of literals to names in capitals.
    """
    found = {}
    for path in sorted((ENGINE / kind).glob("[a-z]*.py")):
        found[path.stem] = MappingProxyType(constants(path))
    ordered = sorted(found.items(), key=lambda item: (item[1].get("ORDER", 100), item[0]))
    return MappingProxyType(dict(ordered))


def check(kind: Kind, field: str, name: str) -> None:
    """Refuse a name that has no file.

    Raises:
        SettingError: naming the field, the value and what there is.
    """
    if name not in entries(kind):
        raise SettingError(field, name, f"is not known; use one of {', '.join(entries(kind))}")


def constants(path: Path) -> dict[str, Any]:
    """A file's top-level assignments of literals to names in capitals."""
    found = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and target.id.isupper() and value is not None:
            try:
                found[target.id] = ast.literal_eval(value)
            except ValueError:
                continue
    return found
