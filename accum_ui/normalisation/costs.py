"""What ``sync_batch`` costs, as ``python -m benchmarks sync_batch`` measured it. No Streamlit."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from accum_core.errors import DataError
from accum_core.records import Environment
from experiments import RESULTS

PATH: Final = RESULTS / "sync_batch_costs.json"
COMMAND: Final = "python -m benchmarks sync_batch"
HOWS: Final = {
    "naive": "naive accumulation",
    "none": "sync_batch, all on the device",
    "host": "sync_batch, kept on the host",
    "recompute": "sync_batch, computed again",
    "true_batch": "true batch",
}


class CostRow(BaseModel):
    """One window of one model; bytes at the peak, seconds of forward and backward passes."""

    model_config = ConfigDict(frozen=True)

    model: str
    micro_batch_size: int
    how: str
    device_bytes: int
    host_bytes: int
    seconds: float


class Costs(BaseModel):
    """All that was measured, and where."""

    model_config = ConfigDict(frozen=True)

    environment: Environment
    effective_batch_size: int
    rows: tuple[CostRow, ...]

    @property
    def models(self) -> list[str]:
        """The models in the order of the file."""
        return list(dict.fromkeys(row.model for row in self.rows))

    def of(self, model: str) -> dict[str, dict[int, CostRow]]:
        """The rows of a model: how -> micro-batch size -> row, in the order of ``HOWS``."""
        found: dict[str, dict[int, CostRow]] = {how: {} for how in HOWS}
        for row in self.rows:
            if row.model == model:
                found.setdefault(row.how, {})[row.micro_batch_size] = row
        return {how: dict(sorted(rows.items())) for how, rows in found.items() if rows}


def read(path: Path = PATH) -> Costs | None:
    """The measured costs; None if nobody has measured them.

    Raises:
        DataError: for a file that is damaged.
    """
    try:
        return Costs.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError, UnicodeDecodeError):
        raise DataError(f"{path.name}: is no table of costs; run {COMMAND} to write it anew.") from None


def to_csv(costs: Costs) -> str:
    """A line a row."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(CostRow.model_fields), lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.model_dump() for row in costs.rows)
    return text.getvalue()
