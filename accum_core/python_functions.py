"""Functions of the standard library as pairs to fine-tune on: the line that begins one, and what its docstring says.

Read with ``ast`` from the files of the Python that runs, so nothing is imported, fetched or shipped; another version's
functions are a little different, and a run's environment names its Python. Standard library alone, no torch.
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from accum_core.errors import DataError

TRAINING: Final = (
    "ast", "asyncio", "base64", "bdb", "bz2", "codecs", "collections", "configparser", "ctypes", "datetime", "difflib",
    "doctest", "email", "ftplib", "http", "imaplib", "importlib", "inspect", "ipaddress", "locale", "logging", "lzma",
    "mailbox", "multiprocessing", "operator", "os", "pdb", "pickletools", "platform", "poplib", "pydoc", "queue",
    "random", "site", "smtplib", "socket", "socketserver", "ssl", "subprocess", "symtable", "threading", "traceback",
    "turtle", "typing", "unittest", "urllib", "wsgiref", "xmlrpc",
)  # fmt: skip
"""Modules and packages to train on."""
HELD_OUT: Final = ("calendar", "pathlib", "shutil", "statistics", "tarfile", "zipfile")
"""Those to validate on."""
LONGEST: Final = 257
"""Bytes of a pair: a context of 256 reads all but the last of them."""
DISPLAYED: Final = 4
"""Held-out prompts that samples are shown of."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One function.

    Attributes:
        prompt: ``def name(arguments):`` and a line feed, without annotations.
        completion: the docstring's first paragraph on one line, and a line feed.
    """

    prompt: bytes
    completion: bytes


@dataclass(frozen=True, slots=True)
class Functions:
    """Pairs by modules in the order of their names, in each as its files have them; no docstring stands in it twice."""

    training: tuple[Pair, ...]
    held_out: tuple[Pair, ...]

    @property
    def prompts(self) -> tuple[bytes, ...]:
        """The held-out prompts that samples are shown of, spread evenly over the held-out functions."""
        step = max(1, len(self.held_out) // DISPLAYED)
        return tuple(pair.prompt for pair in self.held_out[step // 2 :: step][:DISPLAYED])


@cache
def load(folder: Path | None = None) -> Functions:
    """The functions of the Python that runs, those that a context of 256 bytes holds whole.

    Args:
        folder: where the standard library's files are; where this Python says by default.

    Raises:
        DataError: for a Python whose library is not there as source.
    """
    folder = folder or Path(sysconfig.get_paths()["stdlib"])
    seen: set[bytes] = set()
    # Held out first, so that training goes without what both have.
    held_out = tuple(_new(folder, HELD_OUT, seen))
    training = tuple(_new(folder, TRAINING, seen))
    if not held_out or not training:
        raise DataError(
            f"workload sft: {folder} does not hold the standard library's source; use a Python that is installed as "
            "files, from python.org or conda-forge."
        )
    return Functions(training, held_out)


def _new(folder: Path, modules: tuple[str, ...], seen: set[bytes]) -> Iterator[Pair]:
    for module in modules:
        for path in [*folder.glob(f"{module}.py"), *sorted((folder / module).rglob("*.py"))]:
            if {"test", "tests"} & set(path.relative_to(folder).parts):
                continue
            for pair in pairs(path.read_bytes()):
                if pair.completion not in seen and len(pair.prompt) + len(pair.completion) <= LONGEST:
                    seen.add(pair.completion)
                    yield pair


def pairs(source: bytes) -> Iterator[Pair]:
    """The public functions and methods of one file that have a docstring, from its top to its end."""
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    for node in sorted(found, key=lambda node: (node.lineno, node.col_offset)):
        said = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
        if said and not node.name.startswith("_"):
            for argument in ast.walk(node.args):
                if isinstance(argument, ast.arg):
                    argument.annotation = None
            yield Pair(f"def {node.name}({ast.unparse(node.args)}):\n".encode(), f"{said}\n".encode())
