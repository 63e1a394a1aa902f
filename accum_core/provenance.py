"""Which code made a result: a version that changes with the code, not with its comments or layout."""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent
BESIDE_ENGINE = (
    "batching.py",
    "landcover.py",
    "language_settings.py",
    "noise_scale.py",
    "norm_statistics.py",
    "python_functions.py",
    "records.py",
    "reduction.py",
    "run_config.py",
    "scaling.py",
    "schedule.py",
    "statistics.py",
)
"""What a training uses besides ``engine``; errors and names decide no number."""


@cache
def code_version() -> str:
    """Twelve hexadecimal digits over the syntax of every file that can change a run's numbers.

    Docstrings, comments and layout do not count, nor does the store, which only carries records.
    """
    digest = hashlib.sha256()
    for path in sorted([*(ROOT / "engine").rglob("*.py"), *(ROOT / name for name in BESIDE_ENGINE)]):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                first = node.body[0] if node.body else None
                if (
                    isinstance(first, ast.Expr)
                    and isinstance(first.value, ast.Constant)
                    and isinstance(first.value.value, str)
                ):
                    node.body = node.body[1:]
        digest.update(path.relative_to(ROOT).as_posix().encode() + ast.dump(tree).encode())
    return digest.hexdigest()[:12]
