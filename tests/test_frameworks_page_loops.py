"""The loops that the page of frameworks shows: whole, of the files as they are, and read without importing them."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import ROOT

from accum_core.conformance import loops, mathematics
from accum_core.conformance.loops import all_loops
from accum_core.frameworks.harness import formulas


def undefined(source: str, path: Path) -> set[str]:
    """The names that a source uses and nobody defines, as ruff finds them."""
    path.write_text("from __future__ import annotations\n" + source, encoding="utf-8")
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "--output-format", "json"]
    done = subprocess.run([*command, str(path)], capture_output=True, text=True)
    return {found["message"].split("`")[1] for found in json.loads(done.stdout)}


@pytest.mark.parametrize("name", list(all_loops()))
def test_a_loop_is_whole(name: str, tmp_path: Path) -> None:
    """Every name that it uses is defined or imported in what is shown."""
    shown = all_loops()[name]
    assert "def train(task: Task) -> Outcome:" in shown.loop
    assert undefined(shown.loop, tmp_path / "loop.py") == set()
    assert undefined(f"{shown.loop}\n{shown.mended}", tmp_path / "mended.py") == set()
    assert undefined(shown.beside, tmp_path / "beside.py") == set()
    assert (ROOT / shown.file).exists()


def test_a_missing_part_would_be_seen(tmp_path: Path) -> None:
    assert undefined("def train(task: Task):\n    return accumulate(task)\n", tmp_path / "loop.py") == {
        "Task",
        "accumulate",
    }


def test_what_a_loop_calls_in_its_file_and_beside_it_is_shown_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("import math\n\ndef used():\n    return math.pi\n\ndef unused():\n    pass\n")
    (tmp_path / "one.py").write_text(
        "import os\nimport sys\nfrom accum_core.frameworks import beside\n"
        "TURNS, REST = 3, 4\n\ndef other():\n    return os\n\ndef mended():\n    return step()\n\n"
        "@staticmethod\ndef step():\n    return sys, TURNS, REST\n\n"
        "def train(task):\n    return step(), beside.used()\n"
    )
    modules = {stem: loops._parse(tmp_path / f"{stem}.py") for stem in ("beside", "one")}
    reached = loops._reached(modules, ("one", "train"))
    assert set(reached) == {*(("one", name) for name in ("REST", "TURNS", "step", "train")), ("beside", "used")}
    source = loops._source(modules, reached, "one")
    assert ast.parse(source) and source.startswith(
        "import sys\nfrom accum_core.frameworks import beside\n\n\nTURNS, REST = 3, 4\n\n\n@staticmethod\ndef step():"
    )
    assert source.endswith("# beside.py\nimport math\n\n\ndef used():\n    return math.pi")
    assert "import os" not in source and "unused" not in source


def test_a_mend_shows_what_it_calls_even_where_the_loop_has_it_too() -> None:
    """The loss that a user of the Trainer has to write is shared by both."""
    shown = all_loops()["transformers"]
    assert "def loss_of(" in shown.loop and "def loss_of(" in shown.mended
    assert "def train_mended(" in shown.mended and "def arguments(" not in shown.mended


def test_every_division_has_its_mathematics() -> None:
    named = {**formulas.DIVISIONS, **formulas.OVER_RANKS}
    assert set(mathematics.DIVISIONS) == set(named)
    for name in named:
        assert mathematics.division(f"{name}; the short window is dropped") == mathematics.DIVISIONS[name]
    assert r"\text{labels before the shift}" in mathematics.division("sum over labels before the shift")
    assert mathematics.division("a way of its own") == ""
