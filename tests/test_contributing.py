"""CONTRIBUTING.md's files, added to a copy of the project: one file each, found and used without another change."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
COPIED = ("accum_core", "accum_ui", "experiments", "pages", "docs", "static", ".streamlit")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with every file of CONTRIBUTING.md in it."""
    copy = tmp_path_factory.mktemp("project")
    for folder in COPIED:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "data").symlink_to(ROOT / "data")
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    skeletons = re.findall(r"^`([\w/]+\.py)`\n\n```python\n(.*?)```", text, re.DOTALL | re.MULTILINE)
    assert len(skeletons) == 5
    for name, content in skeletons:
        assert not (copy / name).exists(), f"{name} is there already: choose another example"
        (copy / name).write_text(content, encoding="utf-8")
    return copy


def run(project: Path, *arguments: str) -> str:
    environment = os.environ | {
        "ACCUMULATION_LAB_STORE": str(project / "runs.sqlite"),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(project),
    }
    command = [sys.executable, "-W", "error", *arguments]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_norm_instrument_and_workload_train_together(project: Path) -> None:
    settings = "--workload squares --model unet --norm rms --effective 8 --micro 2 --updates 2 --threads 1".split()
    run(project, "-m", "experiments", "train", *settings, "--json", "run.json")
    outcome = json.loads((project / "run.json").read_text())
    assert outcome["config"]["norm"] == "rms"
    first = outcome["records"][0]["instruments"]
    assert first["largest_entry"]["largest"] > 0
    # The norm is batch-independent: rounding alone is left.
    assert first["gradient_error"]["relative_error"] < 1e-4


def test_paper_runs(project: Path) -> None:
    listed = json.loads(run(project, "-m", "experiments", "list", "--json"))
    assert "mean_of_means" in [experiment["name"] for experiment in listed]
    run(project, "-m", "experiments", "run", "mean_of_means", "--preset", "smoke", "--json", "paper.json")
    outcome = json.loads((project / "paper.json").read_text())
    (claim,) = outcome["claims"]
    # Two seeds of two updates leave a wide interval, so the verdict may be inconclusive; the effect is rounding.
    assert claim["num_seeds"] == 2
    assert 0 < claim["effect"] < 1e-4


def test_page_is_in_the_navigation_and_renders(project: Path) -> None:
    code = (
        "from streamlit.testing.v1 import AppTest; from accum_ui.navigation import page_files;"
        "assert ('Words', 'words', 'Decide') in [(page.title, page.address, page.group) for page in page_files()];"
        "page = AppTest.from_file('pages/9_Words.py').run(timeout=60);"
        "assert not page.exception, page.exception; print(page.markdown[0].value)"
    )
    assert "accumulation steps" in run(project, "-c", code)
