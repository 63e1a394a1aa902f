"""The loops of ``accum_core.frameworks`` as readers see them: their source, read from the text and never imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from accum_core.conformance.frameworks import FOLDER, defects, frameworks, kinds

PACKAGE: Final = "accum_core.frameworks"
CONTRACT: Final = "contract"  # what every loop is handed; its source says nothing of a framework

Key = tuple[str, str]
"""A file's stem and a name that it defines."""


@dataclass(frozen=True, slots=True)
class Defect:
    """What looks like a framework's own fault: its title, one sentence, and the smallest script that shows it."""

    title: str
    sentence: str
    script: str


@dataclass(frozen=True, slots=True)
class Loops:
    """One framework's file.

    Attributes:
        title: the framework's name as its makers write it.
        file: its path within the project.
        distribution: what must be installed; "" for our own loop and for recipes.
        kinds: titles of the kinds of module, head or loader, by name.
        defects: with a script each.
        loop: source of ``train`` and of what it calls in its file, with the imports that they need.
        mended: source of ``train_mended``, of what it calls itself, and of what that needs beyond ``loop``; "" where
            there is none.
        beside: source of what both take from other files of the folder, each part under its file's name.
    """

    title: str
    file: str
    distribution: str
    kinds: Mapping[str, str]
    defects: tuple[Defect, ...]
    loop: str
    mended: str
    beside: str


@dataclass(frozen=True, slots=True)
class _Module:
    """A parsed file: its text, its top-level definitions, and the imports that its names come from."""

    text: str
    definitions: Mapping[str, ast.stmt]
    imported: Mapping[str, ast.Import | ast.ImportFrom]


@cache
def all_loops() -> Mapping[str, Loops]:
    """Every framework by its short name, in the order of ``frameworks``."""
    modules = {path.stem: _parse(path) for path in FOLDER.glob("[a-z]*.py")}
    found = {str(of["NAME"]): _loops(modules, file, of) for file, of in frameworks().items()}
    return MappingProxyType(found)


def _loops(modules: Mapping[str, _Module], file: str, constants: Mapping[str, Any]) -> Loops:
    plain = _reached(modules, (file, "train"))
    has_mend = "train_mended" in modules[file].definitions
    mended = _reached(modules, (file, "train_mended")) if has_mend else []
    called = set(_mentioned(modules, (file, "train_mended"))) if has_mend else set()
    return Loops(
        title=str(constants["TITLE"]),
        file=f"accum_core/frameworks/{file}.py",
        distribution="" if "VERSION" in constants else str(constants["DISTRIBUTION"]),
        kinds=kinds(file),
        defects=tuple(Defect(*defect) for defect in defects(file)),
        loop=_source(modules, [key for key in plain if key[0] == file], file),
        mended=_source(
            modules, [key for key in mended if key[0] == file and (key not in plain or key in called)], file
        ),
        beside=_source(modules, [key for key in dict.fromkeys((*plain, *mended)) if key[0] != file], file),
    )


def _parse(path: Path) -> _Module:
    text = path.read_text(encoding="utf-8")
    definitions: dict[str, ast.stmt] = {}
    imported: dict[str, ast.Import | ast.ImportFrom] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            imported |= {(alias.asname or alias.name.split(".")[0]): node for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            definitions[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            definitions |= {name.id: node for name in names if isinstance(name, ast.Name)}
    return _Module(text, definitions, imported)


def _reached(modules: Mapping[str, _Module], start: Key) -> list[Key]:
    """The start and all definitions that it leads to, in this folder, in the order of the files' text."""
    found: dict[Key, None] = {}
    open_keys = [start]
    while open_keys:
        key = open_keys.pop()
        if key not in found:
            found[key] = None
            open_keys += _mentioned(modules, key)
    return sorted(found, key=lambda key: (key[0] != start[0], key[0], modules[key[0]].definitions[key[1]].lineno))


def _mentioned(modules: Mapping[str, _Module], key: Key) -> Iterator[Key]:
    module = modules[key[0]]
    for node in ast.walk(module.definitions[key[1]]):
        name = node.value if isinstance(node, ast.Attribute) else node
        if not isinstance(name, ast.Name):
            continue
        if name.id in module.definitions:
            yield key[0], name.id
            continue
        origin = module.imported.get(name.id)
        if not isinstance(origin, ast.ImportFrom) or not (origin.module or "").startswith(PACKAGE):
            continue
        if origin.module == PACKAGE and isinstance(node, ast.Attribute):  # plain.loader
            other = name.id, node.attr
        else:  # from accum_core.frameworks.plain import loader
            other = (origin.module or "").rpartition(".")[2], name.id
        if other[0] != CONTRACT and other[0] in modules and other[1] in modules[other[0]].definitions:
            yield other


def _source(modules: Mapping[str, _Module], keys: list[Key], stem: str) -> str:
    """The text of these definitions, the imports that they need above them, each file's part under its name."""
    parts = []
    for file in dict.fromkeys(key[0] for key in keys):
        module = modules[file]
        nodes = list(dict.fromkeys(module.definitions[name] for where, name in keys if where == file))
        names = {node.id for part in nodes for node in ast.walk(part) if isinstance(node, ast.Name)}
        lines = {
            ast.get_source_segment(module.text, origin) or "": None
            for name, origin in module.imported.items()
            if name in names
        }
        head = ([f"# {file}.py"] if file != stem else []) + list(lines)
        parts.append("\n\n\n".join([*(["\n".join(head)] if head else []), *(_text(module, node) for node in nodes)]))
    return "\n\n\n".join(parts)


def _text(module: _Module, node: ast.stmt) -> str:
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
    first = min([node.lineno, *(mark.lineno for mark in decorators)])
    return "\n".join(module.text.splitlines()[first - 1 : node.end_lineno])
