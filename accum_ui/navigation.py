"""The pages, read from the files of ``pages``: ``3_Loss_scaling.py`` is "Loss scaling", third, at ``/loss-scaling``.

A page may name its group in a constant ``GROUP = "Reproduce"``; without one it stands under "See". The first page
(``0_``) is the start and stands above the groups. A new page is one new file.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PAGES: Final = Path(__file__).parents[1] / "pages"
GROUPS: Final = ("", "See", "Reproduce", "Decide")


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file of ``pages``: its place, title, address, group ("" for the start) and what its docstring says of it."""

    path: Path
    title: str
    address: str
    group: str
    summary: str


def page_files(folder: Path = PAGES) -> list[PageFile]:
    """Every page in the order of the numbers in the file names."""
    found: list[PageFile] = []
    for path in sorted(folder.glob("[0-9]*_*.py"), key=lambda path: int(path.stem.split("_")[0])):
        title = path.stem.split("_", 1)[1].replace("_", " ")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        group = "" if not found else _group(tree)
        summary = (ast.get_docstring(tree) or "").partition("\n")[0].partition(": ")[2]
        found.append(PageFile(path, title, title.lower().replace(" ", "-"), group, summary))
    return found


def grouped(files: list[PageFile]) -> dict[str, list[PageFile]]:
    """Pages by group, the known groups first."""
    names = [*GROUPS, *(file.group for file in files)]
    groups = {name: [file for file in files if file.group == name] for name in dict.fromkeys(names)}
    return {name: members for name, members in groups.items() if members}


def _group(tree: ast.Module) -> str:
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="GROUP")], value=ast.Constant(value=str(group))):
                return group
    return "See"
