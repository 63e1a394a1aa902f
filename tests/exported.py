"""An export run in this process, and what it printed."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Sequence
from typing import Any

from accum_core.measures import MEASURES
from accum_core.records import UpdateRecord


def execute(text: str) -> tuple[dict[str, Any], str]:
    """The names that a script leaves, and its output."""
    names: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(text, "export.py", "exec"), names)
    return names, output.getvalue()


def printed(output: str) -> tuple[list[float], float]:
    """The losses of the updates, and the last validation."""
    losses = [float(loss) for loss in re.findall(r"^update \d+: loss (\S+)$", output, re.MULTILINE)]
    quality = re.findall(r"^validation .* (\S+)$", output, re.MULTILINE)
    assert quality, output
    return losses, float(quality[-1])


def recorded(records: Sequence[UpdateRecord]) -> tuple[list[float], float]:
    """The same of a run."""
    validation = records[-1].validation
    assert validation is not None
    (quality,) = (found for field in MEASURES if (found := getattr(validation, field)) is not None)
    return [record.loss for record in records], quality
