"""The stored runs of a choice: what each measured, which are missing, and how long those would take. No Streamlit."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any, Final

from accum_core.measures import measure_of
from accum_core.records import RunConfig, UpdateRecord
from accum_core.runs.rows import Run
from accum_core.runs.store import LIVE, Store
from accum_core.runs.worker import cores
from accum_ui.normalisation.choice import Choice, alike, config, micros, usual_seeds

MOST_KEPT: Final = 2000  # finished runs whose numbers stay in memory, some hundred bytes each
MOST_LOOKED_AT: Final = 100_000  # runs of the store, newest first


@dataclass(frozen=True, slots=True)
class Measured:
    """One finished run in numbers; None for what it did not measure.

    Attributes:
        quality: the workload's measure at the last validation, in [0, 1].
        gradient_error: median over the measured updates, against the batch in one pass at the same weights.
        distance: how far the micro-batches' means lie from the window's at the first normalising layer, in deviations
            of the window; median over the measured updates.
        seconds: of one update, median; instruments and validation are not in it.
        kept_bytes: that the forward pass of one micro-batch keeps for its backward pass.
        opened: its records hold single samples' statistics.
        source: "lab" or the committed result that it comes from.
    """

    run: str
    norm: str
    micro: int
    seed: int
    quality: float | None
    gradient_error: float | None
    distance: float | None
    seconds: float | None
    kept_bytes: int | None
    opened: bool
    source: str
    code_version: str


@dataclass(frozen=True, slots=True)
class Race:
    """The runs of a choice.

    Attributes:
        done: finished ones.
        live: those that wait, run or pause.
        failed: those that came to no end, with a sentence in ``error``.
        missing: what the choice asks for and nobody has run: where no seeds are chosen, one run of each norm and
            micro-batch size that has none.
    """

    choice: Choice
    done: tuple[Measured, ...]
    live: tuple[Run, ...]
    failed: tuple[Run, ...]
    missing: tuple[RunConfig, ...]

    def of(self, norm: str, micro: int) -> list[Measured]:
        """The finished runs of one norm at one micro-batch size, a seed each."""
        return [run for run in self.done if (run.norm, run.micro) == (norm, micro)]


def look(store: Store, choice: Choice) -> Race:
    """What the store holds of a choice.

    Raises:
        StoreError: when it cannot be read.
    """
    done: list[Measured] = []
    live: list[Run] = []
    failed: list[Run] = []
    missing: list[RunConfig] = []
    seeds = choice.seeds or usual_seeds(choice.on)
    stored = {run.config_digest for run in store.runs(MOST_LOOKED_AT)}
    for norm in choice.norms:
        for micro in micros(choice.on):
            wanted = [config(choice.on, norm, micro, seed) for seed in seeds]
            absent, before = [], (len(done), len(live), len(failed))
            for one in wanted:
                run = _find(store, stored, one)
                if run is None or run.state == "stopped":
                    absent.append(one)
                elif run.state == "failed":
                    failed.append(run)
                elif run.state in LIVE:
                    live.append(run)
                else:
                    done.append(replace(measured(store, run), norm=norm))
            if choice.seeds:
                missing += absent
            elif before == (len(done), len(live), len(failed)):
                missing.append(absent[0])
    return Race(choice, tuple(done), tuple(live), tuple(failed), tuple(missing))


def _find(store: Store, stored: Container[str], config: RunConfig) -> Run | None:
    """The run that stands for a configuration or one with the same numbers; a finished one first."""
    found = [store.find(one) for one in alike(config) if one.digest() in stored]
    runs = [run for run in found if run is not None]
    return min(runs, key=lambda run: run.state != "done", default=None)


def measured(store: Store, run: Run) -> Measured:
    """The numbers of a finished run, read once."""
    return _measured(store.path, run.id, run.update)


@lru_cache(maxsize=MOST_KEPT)
def _measured(path: Path, run_id: str, updates: int) -> Measured:
    store = Store(path)
    run = store.get(run_id)
    return summary(run, store.records(run_id))


def summary(run: Run, records: Sequence[UpdateRecord]) -> Measured:
    """The numbers of a run from its records."""
    validations = [record.validation for record in records if record.validation is not None]
    field = measure_of(run.config.workload).field
    errors = _measured_fields(records, "gradient_error", "relative_error")
    layers = _measured_fields(records, "norm_statistics", "layers")
    kept = _measured_fields(records, "saved_bytes", "micro_batch")
    speeds = [record.samples_per_second for record in records if record.samples_per_second > 0]
    return Measured(
        run=run.id,
        norm=run.config.norm,
        micro=run.config.micro_batch_size,
        seed=run.config.seed,
        quality=getattr(validations[-1], field) if validations else None,
        gradient_error=median(errors) if errors else None,
        distance=median(found) if (found := [every[0]["mean_distance"] for every in layers if every]) else None,
        seconds=run.config.effective_batch_size / median(speeds) if speeds else None,
        kept_bytes=kept[0] if kept else None,
        opened=any(layer["opened"] for every in layers for layer in every),
        source=run.source,
        code_version=run.code_version,
    )


def _measured_fields(records: Sequence[UpdateRecord], instrument: str, field: str) -> list[Any]:
    return [record.instruments[instrument][field] for record in records if instrument in record.instruments]


@dataclass(frozen=True, slots=True)
class Estimate:
    """How long missing runs take: ``seconds`` with so many ``workers`` at once; norms in ``guessed`` have no stored
    run, so that theirs is the time of the others."""

    seconds: float
    workers: int
    guessed: tuple[str, ...]


def estimate(missing: Sequence[RunConfig], done: Sequence[Measured], workers: int | None = None) -> Estimate | None:
    """The time that missing runs would take, from the stored runs' seconds an update; None without any to go by.

    A norm's time is that of its run at the nearest micro-batch size; one without a run takes the median of the others
    at the nearest size.

    Args:
        missing: at least one, of one workload and model.
        done: runs of the same workload and model.
        workers: that compute side by side; as many as the app keeps by default.
    """
    timed = [run for run in done if run.seconds is not None]
    if not timed or not missing:
        return None
    guessed = []
    total = 0.0
    for one in missing:
        own = [run for run in timed if run.norm == one.norm]
        if not own:
            guessed.append(one.norm)
        near = _nearest(own or timed, one.micro_batch_size)
        total += one.updates * median(run.seconds or 0.0 for run in near)
    workers = min(2, cores()) if workers is None else workers
    workers = min(workers, len(missing))
    return Estimate(total / workers, workers, tuple(dict.fromkeys(guessed)))


def _nearest(runs: Sequence[Measured], micro: int) -> list[Measured]:
    def doublings(run: Measured) -> float:
        return abs(math.log2(run.micro / micro))

    least = min(map(doublings, runs))
    return [run for run in runs if doublings(run) == least]
