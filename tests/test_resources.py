"""What the pages share, as the first start on a fresh machine finds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from accum_ui import resources


def test_the_first_start_makes_the_folder_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "runs.sqlite"
    monkeypatch.setenv("ACCUMULATION_LAB_STORE", str(path))
    assert resources.store().path == path
    assert path.is_file()
