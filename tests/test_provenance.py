"""The code version changes with what can change a run's numbers, and with nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from accum_core import provenance

DECIDE_NO_NUMBER = {"accum_core", "accum_core.catalogue", "accum_core.errors", "accum_core.provenance"}


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The library in another folder, whose version is asked for instead."""
    root = tmp_path / "accum_core"
    shutil.copytree(provenance.ROOT, root, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(provenance, "ROOT", root)
    return root


def version() -> str:
    return provenance.code_version.__wrapped__()


def test_a_copy_has_the_same_version(copy: Path) -> None:
    assert version() == provenance.code_version()


@pytest.mark.parametrize("name", ["engine/training.py", "reduction.py", "landcover.py"])
def test_comments_docstrings_and_layout_do_not_count(copy: Path, name: str) -> None:
    before, file = version(), copy / name
    text = file.read_text()
    docstring = text[: text.index('"""', 3) + 3]
    file.write_text(text.replace(docstring, '"""Another docstring."""\n\n\n\n# and a comment', 1))
    assert version() == before


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("schedule.py", "POLY_POWER: Final = 0.9", "POLY_POWER: Final = 0.8"),
        ("engine/training.py", "MOST_SKIPS = 30", "MOST_SKIPS = 31"),
        ("engine/norms/batch.py", "BATCH_INDEPENDENT = False", "BATCH_INDEPENDENT = True"),
        ("reduction.py", "1 / total if weight", "2 / total if weight"),
        ("batching.py", "size = self.effective_batch_size", "size = self.micro_batch_size"),
        ("landcover.py", "VALIDATION_FOLD: Final = 0", "VALIDATION_FOLD: Final = 1"),
    ],
)
def test_what_changes_numbers_counts(copy: Path, name: str, old: str, new: str) -> None:
    before, file = version(), copy / name
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    assert version() != before


def test_every_module_that_a_training_imports_counts() -> None:
    code = (
        "import sys; from accum_core.engine import Training; from accum_core.records import RunConfig;"
        "Training(RunConfig.of(updates=1, warmup_updates=0, extra_instruments=('sample_noise', 'samples')));"
        "print(*[name for name in sys.modules if name.split('.')[0] == 'accum_core'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=provenance.ROOT.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    counted = {f"accum_core.{Path(name).stem}" for name in provenance.BESIDE_ENGINE}
    beside = {name for name in done.stdout.split() if not name.startswith("accum_core.engine")}
    assert beside - DECIDE_NO_NUMBER == counted
