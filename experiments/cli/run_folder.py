"""A run that lives in a folder of its own: settings, records and one checkpoint, to go on from after anything."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from accum_core.errors import LabError, SettingError
from accum_core.records import RunConfig, UpdateRecord

if TYPE_CHECKING:
    from accum_core.engine import Training


class RunFolder:
    """The files of one run: ``settings.json``, ``records.jsonl``, ``checkpoint.pt``, and ``model`` at its end.

    A record is on the disk before the checkpoint of its update is, so whatever ends the process, a resumed run finds
    all records up to its checkpoint; later ones are made again, with the same numbers.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.model = path / "model"
        self._settings = path / "settings.json"
        self._records = path / "records.jsonl"
        self._checkpoint = path / "checkpoint.pt"

    def begin(self, config: RunConfig) -> None:
        """Make the folder, for a new run.

        Raises:
            SettingError: for one that holds something, or cannot be made.
        """
        try:
            if self.path.exists() and any(self.path.iterdir()):
                remedy = "holds something already; name a new folder, or go on with the run in it by --resume"
                raise SettingError("out", str(self.path), remedy)
            self.path.mkdir(parents=True, exist_ok=True)
            part = self._settings.with_suffix(".part")
            part.write_text(config.model_dump_json(indent=1) + "\n", encoding="utf-8")
            os.replace(part, self._settings)
        except OSError as error:
            raise SettingError("out", str(self.path), f"cannot be written ({error.strerror}); name another") from None

    def config(self) -> RunConfig:
        """The settings of the run in the folder.

        Raises:
            SettingError: for a folder without a run.
        """
        try:
            return RunConfig.model_validate_json(self._settings.read_bytes())
        except OSError as error:
            remedy = f"holds no run ({self._settings.name}: {error.strerror}); name the folder that --out named"
        except ValidationError:
            remedy = f"its {self._settings.name} is damaged or of another version; start anew"
        raise SettingError("resume", str(self.path), remedy)

    def held_bytes(self) -> int:
        """Bytes of the checkpoint that is there already."""
        return self._checkpoint.stat().st_size if self._checkpoint.exists() else 0

    def restore(self, training: Training) -> list[UpdateRecord]:
        """Bring a training to the folder's checkpoint, if there is one, and give the records up to it.

        Raises:
            SettingError: for a checkpoint of another code version.
            StoreError: for a damaged one.
            LabError: when records are missing, or the disk is full; the file is untouched then.
        """
        from accum_core.engine import checkpoints

        if self._checkpoint.exists():
            training.load_state_dict(checkpoints.load(self._checkpoint))
        lines = self._records.read_bytes().splitlines(keepends=True) if self._records.exists() else []
        kept = lines[: training.update]
        try:
            records = [UpdateRecord.model_validate_json(line) for line in kept]
        except ValidationError:
            records = []
        if [record.update for record in records] != list(range(1, training.update + 1)):
            raise LabError(f"{self._records} lacks records of the {training.update} updates made: start anew.")
        part = self._records.with_suffix(".part")
        try:
            part.write_bytes(b"".join(kept))
            os.replace(part, self._records)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise LabError(
                f"{self._records}: cannot be written ({error.strerror}); free some space and go on by "
                f"--resume {self.path}."
            ) from None
        return records

    def add(self, record: UpdateRecord) -> None:
        """Append a record.

        Raises:
            LabError: on a full disk.
        """
        try:
            with self._records.open("ab") as file:
                file.write(record.model_dump_json().encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._unwritten(error) from None

    def save(self, training: Training) -> None:
        """Replace the checkpoint.

        Raises:
            LabError: on a full disk; the old one is untouched.
        """
        from accum_core.engine import checkpoints

        try:
            checkpoints.save(training.state_dict(), self._checkpoint)
        except OSError as error:
            raise self._unwritten(error) from None

    def _unwritten(self, error: OSError) -> LabError:
        reason = error.strerror or str(error)
        return LabError(f"{self.path} cannot be written ({reason}): free some space, then go on by --resume.")
