"""The data folder: what is missing is named, and a disk too small for it as well."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from accum_core.engine import data_folder
from accum_core.errors import DataError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder that is yet to be made, on a disk with 5 GB free."""
    monkeypatch.setenv(data_folder.VARIABLE, str(tmp_path / "data"))
    free = {str(tmp_path): SimpleNamespace(free=5e9)}
    monkeypatch.setattr(data_folder.shutil, "disk_usage", lambda place: free[str(place)])
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("size", "clause"),
    [
        (5e9, "or name another folder in ACCUMULATION_LAB_DATA"),
        (6e9, "but name a folder on another disk in ACCUMULATION_LAB_DATA first, as this one has only 5.0 GB free"),
    ],
)
def test_a_disk_too_small_for_the_data_set_is_told(folder: Path, size: float, clause: str) -> None:
    with pytest.raises(DataError) as refused:
        data_folder.require("pictures", ["a/b.zip", "a/c.zip"], "unpack them there", size)
    assert str(refused.value) == f"workload pictures: {folder} lacks a/b.zip and 1 more: unpack them there, {clause}."
