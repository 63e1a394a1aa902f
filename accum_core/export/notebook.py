"""A rendered template made into a notebook: its cells begin with lines such as ``%% code``."""

from __future__ import annotations

import re

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from accum_core.export.rendering import with_imports


def notebook(text: str) -> str:
    """The notebook as JSON, in nbformat 4.5.

    Its cells are numbered and not named at random, so one run gives one file.
    """
    made = []
    parts = re.split(r"^%% (code|markdown)\n", text, flags=re.MULTILINE)[1:]
    cells = list(zip(parts[::2], parts[1::2], strict=True))
    code = "\n".join(source for kind, source in cells if kind == "code")
    for number, (kind, source) in enumerate(cells, 1):
        if kind == "code":
            made.append(new_code_cell(with_imports(source, code).strip(), id=f"cell-{number}"))
        else:
            made.append(new_markdown_cell(source.strip(), id=f"cell-{number}"))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book = new_notebook(cells=made, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})
    nbformat.validate(book)
    return str(nbformat.writes(book))
