"""What stored runs of a language model say: costs, quality and samples, from their records. No Streamlit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

from accum_core.records import RunConfig, UpdateRecord
from accum_core.runs.rows import Run
from accum_core.runs.store import LIVE, Store

INSTRUMENT: Final = "samples"


@dataclass(frozen=True, slots=True)
class Measured:
    """A run in numbers; None for what it did not measure.

    Attributes:
        token_loss: held-out loss a byte of the docstrings, in nats, at the last validation.
        kept_bytes: that one micro-batch's forward pass keeps for its backward pass.
        seconds: of one update, median; instruments and validation are not in it.
        tokens_per_second: learnt tokens, those that the loss is of, median over updates.
        gradient_error: median over the measured updates.
        total_seconds: training alone.
    """

    token_loss: float | None
    kept_bytes: int | None
    seconds: float
    tokens_per_second: float
    gradient_error: float | None
    total_seconds: float


@dataclass(frozen=True, slots=True)
class Written:
    """What the model wrote after one prompt when it had made so many updates."""

    updates: int
    prompt: str
    likeliest: str
    drawn: str


@dataclass(frozen=True, slots=True)
class Arm:
    """A configuration and the stored run that stands for it, if there is one; ``measured`` once it is done."""

    config: RunConfig
    run: Run | None
    measured: Measured | None

    @property
    def is_done(self) -> bool:
        """It was run to its end."""
        return self.measured is not None

    @property
    def is_live(self) -> bool:
        """It waits, runs or pauses."""
        return self.run is not None and self.run.state in LIVE

    @property
    def is_missing(self) -> bool:
        """Nobody has run it to its end, nor is anybody about to."""
        return self.run is None or self.run.state in ("failed", "stopped")


def arm(store: Store, config: RunConfig) -> Arm:
    """What the store holds of a configuration.

    Raises:
        StoreError: when the store cannot be read.
    """
    run = store.find(config)
    done = run is not None and run.state == "done"
    return Arm(config, run, _measured(store.path, run.id) if run is not None and done else None)


@lru_cache(maxsize=500)
def _measured(path: Path, run_id: str) -> Measured:
    return summary(Store(path).records(run_id))


def summary(records: Sequence[UpdateRecord]) -> Measured:
    """The numbers of a run from its records, at least one."""
    validations = [record.validation for record in records if record.validation is not None]
    errors = _fields(records, "gradient_error", "relative_error")
    kept = _fields(records, "saved_bytes", "micro_batch")
    windows = [size / record.samples_per_second for record, size in zip(records, _sizes(records), strict=True)]
    return Measured(
        token_loss=validations[-1].token_loss if validations else None,
        kept_bytes=int(kept[0]) if kept else None,
        seconds=median(windows),
        tokens_per_second=median(tokens(record) / passed for record, passed in zip(records, windows, strict=True)),
        gradient_error=median(errors) if errors else None,
        total_seconds=records[-1].seconds,
    )


def tokens(record: UpdateRecord) -> float:
    """Learnt tokens of the record's window."""
    return sum(term.weight for term in record.terms.values())


def _sizes(records: Sequence[UpdateRecord]) -> list[int]:
    """Samples of each record's window."""
    seen = [0, *(record.samples for record in records)]
    return [after - before for before, after in pairwise(seen)]


def _fields(records: Sequence[UpdateRecord], instrument: str, field: str) -> list[float]:
    return [record.instruments[instrument][field] for record in records if instrument in record.instruments]


def written(records: Sequence[UpdateRecord]) -> tuple[list[Written], list[Written]]:
    """The first and the newest samples of a run, prompt by prompt; both empty while there are none."""
    kept = [(r.update - 1, r.instruments[INSTRUMENT]) for r in records if INSTRUMENT in r.instruments]
    if not kept:
        return [], []
    first, last = (
        [Written(made, *texts) for texts in zip(found["prompts"], found["likeliest"], found["drawn"], strict=True)]
        for made, found in (kept[0], kept[-1])
    )
    return first, last


def estimate(missing: Sequence[RunConfig], known: Sequence[Arm]) -> float | None:
    """Seconds that missing runs take one after another, by the speed of the stored ones; None without any."""
    speeds = [
        other.config.effective_batch_size / other.measured.seconds for other in known if other.measured is not None
    ]
    if not speeds:
        return None
    return sum(one.updates * one.effective_batch_size for one in missing) / median(speeds)
