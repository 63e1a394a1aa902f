"""Templates and settings made into the text of an export."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

IMPORTS: Final = "from imports_of_this_file import everything"
"""Stands in a template where the imports come."""
KNOWN: Final = {
    "itertools": "import itertools",
    "math": "import math",
    "partial": "from functools import partial",
    "L": "import lightning as L",
    "np": "import numpy as np",
    "go": "import plotly.graph_objects as go",
    "torch": "import torch",
    "Accelerator": "from accelerate import Accelerator",
    "F": "from torch.nn import functional as F",
    "cross_entropy": "from torch.nn.functional import cross_entropy",
    "convert_norms": "from accum_core.engine import convert_norms",
    "WeightAverage": "from accum_core.engine.averaging import WeightAverage",
    "in_step": "from accum_core.engine.lockstep import in_step",
    "evaluating": "from accum_core.engine.modes import evaluating",
    "norm_kinds": "from accum_core.engine.normalization import norm_kinds",
    "checkpoint_activations": "from accum_core.engine.recompute import checkpoint_activations",
    "LanguageSettings": "from accum_core.language_settings import LanguageSettings",
}
"""Name in a template -> its import, in the order in which they stand; those of one module below make one line."""
OF_MODULES: Final = {
    "transformers": ("Trainer", "TrainerCallback", "TrainingArguments"),
    "accum_core.engine.workloads": ("epoch_samples", "load", "load_with", "objective_of"),
}
STANDARD: Final = ("itertools", "math", "partial")


@cache
def _templates() -> Environment:
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render(template: str, names: dict[str, Any]) -> str:
    """A template's text. Its own empty lines go, ``¶`` stands for one that stays, and ``¶¶`` for two."""
    text = _templates().get_template(f"{template}.jinja").render(names | {"imports": IMPORTS})
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join({"¶": "", "¶¶": "\n"}.get(line, line) for line in lines) + "\n"


def with_imports(text: str, code: str) -> str:
    """The text with the imports of everything that its code uses, and nothing else.

    Args:
        text: holds ``IMPORTS`` once.
        code: Python; the text itself, or the cells of a notebook.
    """
    used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    lines = {name: line for name, line in KNOWN.items() if name in used}
    for module, names in OF_MODULES.items():
        if found := [name for name in names if name in used]:
            lines[module] = f"from {module} import {', '.join(found)}"
    standard = [line for name, line in lines.items() if name in STANDARD]
    third = [line for name, line in lines.items() if name not in STANDARD and "accum_core" not in line]
    # "import x" before "from x import y", each in the order of the alphabet.
    third.sort(key=lambda line: (line.startswith("from"), line.split()[1]))
    ours = sorted(line for line in lines.values() if "accum_core" in line)
    groups = ["\n".join(group) for group in (standard, third, ours) if group]
    after = "\n\n" if re.search(rf"{re.escape(IMPORTS)}\n(?!\n)", text) else "\n"
    return text.replace(f"{IMPORTS}\n", "\n\n".join(groups) + after)
