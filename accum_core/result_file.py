"""A committed result: one experiment's verdicts and runs in one file of JSON lines, sealed by a hash of its content.

The first line holds the experiment's name, preset, seeds, verdicts, environment and ``sha256`` and is all that a card
needs (``ResultHeader.read``); each further line is one run with the label that the experiment knows it by, its records
as columns (``record_columns``) or, in files that were written before those, one after another. The hash covers
everything but itself, so that an edited or truncated file is noticed instead of believed. Line ends do not count. A
file is named after its experiment, so that one under another's name is noticed too.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final, Self

from pydantic import model_validator

from accum_core.claims import Verdict
from accum_core.errors import DataError
from accum_core.record_columns import pack, unpack
from accum_core.records import Environment, Record, RunResult, UpdateRecord

LONG: Final = 1000
KEPT: Final = 128


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


class ResultHeader(Record):
    """What a finished experiment found, without its runs.

    Attributes:
        experiment, preset: names.
        seeds: those that the verdicts rest on.
        claims: one verdict a claim.
        environment: where the experiment was run, with its date and code version.
    """

    experiment: str
    preset: str
    seeds: tuple[int, ...]
    claims: tuple[Verdict, ...]
    environment: Environment

    @classmethod
    def read(cls, path: Path) -> Self:
        """The file's first line, the whole file checked against its hash; no run is parsed, which takes longest.

        Raises:
            DataError: for a file that is missing, is no result file, was changed after it was written, or lies under
                the name of another experiment.
        """
        header, body = _opened(path)
        try:
            made = cls._made(header, body)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            raise DataError(
                f"{path.name}: was written by another version of this project; run its experiment again."
            ) from None
        if made.experiment != path.stem:
            raise DataError(
                f"{path.name}: holds the result of {made.experiment}; restore the committed file, or run the "
                f"experiment {path.stem} again."
            )
        return made

    @classmethod
    def _made(cls, header: dict[str, Any], body: bytes) -> Self:
        return cls.model_validate(header)


class ResultFile(ResultHeader):
    """What a finished experiment leaves: what it found, and every run of every seed."""

    runs: tuple[StoredRun, ...]

    @model_validator(mode="after")
    def _whole(self) -> Self:
        """Every seed has runs, and every run was recorded: what the file's readers rely on."""
        if not self.seeds or {run.seed for run in self.runs} != set(self.seeds):
            raise ValueError("the runs are those of other seeds")
        if not all(run.result.records for run in self.runs):
            raise ValueError("a run has no record")
        return self

    def write(self, path: Path) -> None:
        """Replace the file in one step; of a run's pictures and opened layers a few are kept (``_slim``).

        Raises:
            OSError: where it cannot be written; the file is then what it was, and nothing is left beside it.
        """
        header = self.model_dump(mode="json", exclude={"runs"})
        body = "\n".join(_line(_slim(run)) for run in self.runs).encode()
        header["sha256"] = _seal(header, body)
        path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as leaving:
            part = leaving.enter_context(NamedTemporaryFile("wb", dir=path.parent, suffix=".part", delete=False))
            leaving.callback(Path(part.name).unlink, missing_ok=True)  # on a full disk; else it has its name by then
            part.write(json.dumps(header).encode() + b"\n" + body + b"\n")
            part.close()
            os.chmod(part.name, 0o644)  # a temporary file is the owner's alone; a result is for everyone
            os.replace(part.name, path)

    @classmethod
    def _made(cls, header: dict[str, Any], body: bytes) -> Self:
        return cls.model_validate({**header, "runs": [_run(line) for line in body.split(b"\n")]})


def _opened(path: Path) -> tuple[dict[str, Any], bytes]:
    """The first line, without its seal, and the bytes of the others, which belong to it."""
    try:
        first, _, body = path.read_bytes().replace(b"\r\n", b"\n").rstrip(b"\n").partition(b"\n")
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
    return header, body


def _seal(header: dict[str, Any], body: bytes) -> str:
    canonical = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(canonical + b"\n" + body).hexdigest()


def _line(run: StoredRun) -> str:
    content = run.model_dump(mode="json", exclude={"result": {"records"}})
    content["result"]["records"] = pack(run.result.records)
    return json.dumps(content, separators=(",", ":"))


def _run(line: bytes) -> StoredRun:
    content = json.loads(line)
    result = content["result"]
    if isinstance(result["records"], dict):
        result["records"] = unpack(result["records"])
    return StoredRun.model_validate(content)


def _slim(run: StoredRun) -> StoredRun:
    """A run without what is looked at, not computed with, and most of a file's bytes: the pictures of all validations
    but the last, opened layers but in the first and last record that has them, and most records of a long run."""
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

    records = tuple(slim(record) for record in _kept(run.result.records))
    return run.model_copy(update={"result": run.result.model_copy(update={"records": records})})


def _kept(records: Sequence[UpdateRecord]) -> Sequence[UpdateRecord]:
    """All records of a run of at most ``LONG`` updates; of a longer one some ``KEPT`` evenly spaced, and every record
    that holds more than an update leaves anyway."""
    if len(records) <= LONG:
        return records
    every = -(-len(records) // KEPT)
    more = ("instruments", "validation", "changes", "incidents")
    return [r for r in records if r.update % every == 0 or r is records[-1] or any(getattr(r, name) for name in more)]
