"""What a conformance run found: rows, the file that holds them, and how it is read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, ValidationError

from accum_core.errors import DataError
from accum_core.records import Environment, Record

Verdict = Literal["exact", "wrong", "refuses", "user's duty"]
COMMITTED: Final = Path(__file__).parents[2] / "results" / "conformance.json"


class Measured(Record):
    """What one training left.

    Attributes:
        gradient_error: norm(movement - right movement) / norm(right movement) of the weights over the whole training;
            for one update of SGD that is the gradient error. None for weights that are not finite, or where nothing
            was trained.
        updates, final_lr: optimizer steps made, and the rate after the last.
        logged: training losses that were logged, in order.
        formula: the candidate that gives the same weights to rounding, or None if none does; in the case
            ``logged_loss``, the one that gives the logged values.
        same_here: other candidates that give the same on this case's data, and differ from it in their division alone
            or in all but that.
        verdict: of this training alone; never ``user's duty``, but for a loss that is not logged at all.
        explanation: what was seen, one sentence.
        seconds: of the training alone.
    """

    gradient_error: float | None = None
    updates: int | None = None
    final_lr: float | None = None
    logged: tuple[float | None, ...] = ()
    formula: str | None = None
    same_here: tuple[str, ...] = ()
    verdict: Verdict
    explanation: str
    seconds: float | None = None


class Right(Record):
    """What a right training of a problem has: its updates, its last rate and the loss of each window."""

    updates: int
    final_lr: float
    logged: tuple[float, ...]


class Row(Measured):
    """One framework, one kind, one case.

    Attributes:
        framework: its short name.
        version: installed, or of what was read for a recipe.
        kind, case: names.
        right: what a right training has; None where the trial ended before that was known.
        verdict: ``exact``: weights within 1e-10 in float64 (1e-6 where a head computes in float32;
            under bfloat16 twice as far as one batch at most), updates
            and rate as they should be, and, in ``logged_loss``, the logged values within 1e-4. ``wrong``: it ran and
            something differs. ``refuses``: it raised an error, crashed or did not end. ``user's duty``: wrong as
            documented, but the documentation leaves this to the user's own code, and that code was measured to be
            exact.
        remark: what the framework's users should know where it is exact, one sentence, or "".
        mend: the option or code that mends it, one sentence, or "".
        mended_error, mended_verdict: the same training with the mend, None where no mend was measured.
    """

    framework: str
    version: str
    kind: str
    case: str
    right: Right | None = None
    remark: str = ""
    mend: str = ""
    mended_error: float | None = None
    mended_verdict: Verdict | None = None


class Results(Record):
    """All rows of a run.

    Attributes:
        results: by framework, kind and case.
        missing: frameworks that are not installed -> what to do, one sentence.
        environment: where it was run.
    """

    results: tuple[Row, ...]
    missing: Mapping[str, str] = Field(default_factory=dict)
    environment: Environment

    @classmethod
    def read(cls, path: Path = COMMITTED) -> Self:
        """The file's content.

        Raises:
            DataError: for a file that is missing or is none of this version's.
        """
        again = "run python -m experiments conformance --json"
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise DataError(f"{path.name}: cannot be read ({error.strerror}); {again} {path.name}.") from None
        except ValidationError:
            raise DataError(
                f"{path.name}: is no conformance result of this version; {again} {path.name}, or restore it."
            ) from None

    def write(self, path: Path) -> None:
        """Replace the file in one step: strict JSON, null for what is not finite.

        Raises:
            OSError: when the disk is full or the folder cannot be written; the old file is untouched.
        """
        content = self.model_dump_json(indent=1).encode() + b"\n"
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            part.write_bytes(content)
            os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
