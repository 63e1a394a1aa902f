"""A run that lives in a folder of its own: settings, records and one checkpoint, to go on from after anything."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from accum_core.errors import LabError, SettingError, StoreError
from accum_core.records import RunConfig, UpdateRecord

if TYPE_CHECKING:
    from accum_core.engine import Training


class RunFolder:
    """The files of one run: ``settings.json``, ``records.jsonl``, ``checkpoint.pt``, and ``model`` at its end.

    A record is on the disk before the checkpoint of its update is, so whatever ends the process, a resumed run finds
    all records up to its checkpoint; later ones are made again, with the same numbers. ``lock`` is locked by the
    process that trains there; the system unlocks it when the process ends, however that happens.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.model = path / "model"
        self._settings = path / "settings.json"
        self._records = path / "records.jsonl"
        self._checkpoint = path / "checkpoint.pt"
        self._lock = path / "lock"
        self._held: int | None = None

    def check_new(self) -> None:
        """Refuse a folder that no new run can have, before anything long is begun.

        Raises:
            SettingError: for one that holds something, or cannot be made.
        """
        try:
            # A process that was killed while it began leaves these two, and no run.
            own = {self._lock, self._settings_part}
            if self.path.exists() and not own.issuperset(self.path.iterdir()):
                remedy = "holds something already; name a new folder, or go on with the run in it by --resume"
                raise SettingError("out", str(self.path), remedy)
            there = next(place for place in (self.path.absolute(), *self.path.absolute().parents) if place.exists())
            if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
                raise SettingError("out", str(self.path), f"cannot be made in {there}; name another")
        except OSError as error:
            raise self._unusable(error) from None

    def begin(self, config: RunConfig) -> None:
        """Make the folder, for a new run, and hold it.

        Raises:
            SettingError: for one that holds something, cannot be made or is another process's.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from None
        self.hold("out")
        self.check_new()
        try:
            self._settings_part.write_text(config.model_dump_json(indent=1) + "\n", encoding="utf-8")
            os.replace(self._settings_part, self._settings)
            self._records.touch()
        except OSError as error:
            raise self._unusable(error) from None

    def hold(self, field: str) -> None:
        """Keep other processes from training here, until ``close`` or the end of this one.

        Args:
            field: the setting that named the folder, for a refusal.

        Raises:
            SettingError: when another process trains here, or the folder cannot be written.
        """
        try:
            self._held = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            remedy = "is in use: another process trains there; wait until it ends or stop it, or name another folder"
            raise SettingError(field, str(self.path), remedy) from None
        except OSError as error:
            # Some network disks know no locks; a folder there can be trained in all the same.
            if self._held is None:
                remedy = f"cannot be written ({error.strerror}); name a folder that can"
                raise SettingError(field, str(self.path), remedy) from None

    def close(self) -> None:
        """Let other processes train here."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def config(self) -> RunConfig:
        """The settings of the run in the folder.

        Raises:
            SettingError: for a folder without a run, or with settings that are no fine-tuning's.
        """
        try:
            config = RunConfig.model_validate_json(self._settings.read_bytes())
            if config.language is not None:
                return config
            remedy = f"its {self._settings.name} names no language model and text; put back what --out wrote there"
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
        for part in self.path.glob(f"{self._checkpoint.name}*.part"):  # of a process that was killed while it saved
            part.unlink()
        if self._checkpoint.exists():
            self._load(training)
        kept: list[bytes] = []
        try:
            kept = self._records.read_bytes().splitlines(keepends=True)[: training.update]
            records = [UpdateRecord.model_validate_json(line) for line in kept]
        except (OSError, ValidationError):
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

    def _load(self, training: Training) -> None:
        from accum_core.engine import checkpoints

        state = checkpoints.load(self._checkpoint)
        try:
            # One by one, as the sentence about all of them together would be a page.
            theirs, mine = RunConfig.model_validate_json(state["asked"]).language, training.config.language
            for field, value in dict(mine or ()).items():
                if value != (made := getattr(theirs, field)):
                    raise SettingError(field, value, f"the checkpoint was made with {made!r}; use that, or start anew")
            training.load_state_dict(state)
        except LabError:
            raise
        except (AttributeError, KeyError, TypeError, RuntimeError, ValueError):
            raise StoreError(f"{self._checkpoint} is no checkpoint of this run, or damaged: start anew.") from None

    @property
    def _settings_part(self) -> Path:
        return self._settings.with_suffix(".part")

    def _unusable(self, error: OSError) -> SettingError:
        return SettingError("out", str(self.path), f"cannot be written ({error.strerror}); name another")

    def _unwritten(self, error: OSError) -> LabError:
        reason = error.strerror or str(error)
        return LabError(f"{self.path} cannot be written ({reason}): free some space, then go on by --resume.")
