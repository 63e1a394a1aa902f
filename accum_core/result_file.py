"""A committed result: one experiment's verdicts and runs in one file of JSON lines, sealed by a hash of its content.

The first line holds the experiment's name, preset, seeds, verdicts, environment and ``sha256``; each further line is
one run with the label that the experiment knows it by. The hash covers everything but itself, so that an edited or
truncated file is noticed instead of believed. Line ends do not count.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from pydantic import ValidationError

from accum_core.claims import Verdict
from accum_core.errors import DataError
from accum_core.records import Environment, Record, RunResult, UpdateRecord


class StoredRun(Record):
    """One run of an experiment.

    Attributes:
        label: what the experiment calls the run within its seed ("batch_2").
        seed: the seed that it belongs to.
        result: configuration, environment and records.
    """

    label: str
    seed: int
    result: RunResult


class ResultFile(Record):
    """What a finished experiment leaves.

    Attributes:
        experiment, preset: names.
        seeds: those that the verdicts rest on.
        claims: one verdict a claim.
        environment: where the experiment was run, with its date and code version.
        runs: every run of every seed.
    """

    experiment: str
    preset: str
    seeds: tuple[int, ...]
    claims: tuple[Verdict, ...]
    environment: Environment
    runs: tuple[StoredRun, ...]

    def write(self, path: Path) -> None:
        """Replace the file in one step; of a run's pictures and opened layers a few are kept (``_slim``)."""
        header = self.model_dump(mode="json", exclude={"runs"})
        body = [_slim(run).model_dump_json() for run in self.runs]
        header["sha256"] = _seal(header, body)
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, suffix=".part", delete=False) as part:
            part.write("\n".join([json.dumps(header), *body]) + "\n")
        os.chmod(part.name, 0o644)  # a temporary file is the owner's alone; a result is for everyone
        os.replace(part.name, path)

    @classmethod
    def read(cls, path: Path) -> ResultFile:
        """The file's content, checked against its hash.

        Raises:
            DataError: for a file that is missing, is no result file, or was changed after it was written.
        """
        try:
            first, *body = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
            header = json.loads(first)
            seal = header.pop("sha256")
        except OSError as error:
            raise DataError(f"{path.name}: cannot be read ({error.strerror}); run its experiment.") from None
        except (ValueError, KeyError, AttributeError, TypeError):
            raise DataError(f"{path.name}: is no result file; run its experiment again to write it.") from None
        if seal != _seal(header, body):
            raise DataError(
                f"{path.name}: its content does not match its sha256, so it was changed after it was written; "
                "restore the committed file, or run its experiment again."
            )
        try:
            runs = [StoredRun.model_validate_json(line) for line in body]
            return cls.model_validate({**header, "runs": runs})
        except ValidationError:
            raise DataError(
                f"{path.name}: was written by another version of this project; run its experiment again."
            ) from None


def _seal(header: dict[str, Any], body: list[str]) -> str:
    content = "\n".join([json.dumps(header, sort_keys=True, separators=(",", ":")), *body])
    return hashlib.sha256(content.encode("utf-8")).hexdigest()


def _slim(run: StoredRun) -> StoredRun:
    """A run without the pictures of all validations but the last, and without opened layers but in the first and last
    record that has them: what is looked at, not computed with, and most of a file's bytes."""
    validated = [record.update for record in run.result.records if record.validation is not None]
    opened = [record.update for record in run.result.records if "norm_statistics" in record.instruments]

    def slim(record: UpdateRecord) -> UpdateRecord:
        changes: dict[str, Any] = {}
        if record.validation is not None and record.update != validated[-1]:
            changes["validation"] = record.validation.model_copy(update={"pictures": ()})
        if record.update in opened[1:-1]:
            statistics = record.instruments["norm_statistics"]
            layers = [{**layer, "opened": None} for layer in statistics["layers"]]
            changes["instruments"] = {**record.instruments, "norm_statistics": {**statistics, "layers": layers}}
        return record.model_copy(update=changes)

    records = tuple(slim(record) for record in run.result.records)
    return run.model_copy(update={"result": run.result.model_copy(update={"records": records})})
