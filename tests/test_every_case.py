"""Every fault that people reported has a test that names it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

CASES = (
    "S1 S2 S3 S4 S5 S7 S8 S10 S11 T12 T13 T14 T15 T17 C19 C20 C21 C23 C24 C26 P27 P29 P30 P47 "
    "D34 D35 D37 D38 D45 B39 B41 B42 B43 B46 R48 R50 R53"
).split()


def test_every_case_is_named_by_a_test() -> None:
    named: set[str] = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        if path == Path(__file__) or path.stem.startswith("test_pitfalls"):  # those run the cards, not the engine
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                named |= set(re.findall(r"\b[STCPDBR]\d\d?\b", f"{ast.get_docstring(node) or ''}"))
                named |= {part.upper() for part in node.name.split("_")}
    assert [case for case in CASES if case not in named] == []
