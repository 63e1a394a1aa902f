"""The bench's runs in the store: done by the present code, under way, missing; how long they take. No Streamlit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from accum_core.errors import LabError
from accum_core.experiment import Experiment
from accum_core.provenance import code_version
from accum_core.records import Message, RunConfig
from accum_core.result_file import ResultFile, StoredRun
from accum_core.runs.rows import LAB, Run
from accum_core.runs.store import LIVE, Store
from accum_core.runs.worker import cores
from experiments.report import findings
from experiments.report.findings import Findings

BENCH: Final = "bench"
MOST_LOOKED_AT: Final = 100_000  # runs of the store, newest first
WORKERS: Final = 2  # that the app keeps at most

Pace = Mapping[str, float]
"""Label -> seconds of an update, as recorded with the committed runs; without instruments and validations."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One run of the bench, and the newest in the store that stands for it: of the present code, not altered."""

    seed: int
    label: str
    config: RunConfig
    run: Run | None

    @property
    def state(self) -> str:
        """The run's, or "missing"; one that was stopped is missing too."""
        return "missing" if self.run is None or self.run.state == "stopped" else self.run.state


@dataclass(frozen=True, slots=True)
class Plan:
    """All runs of an experiment's bench."""

    items: tuple[Planned, ...]

    def of(self, *states: str) -> list[Planned]:
        """Those in one of these states."""
        return [item for item in self.items if item.state in states]

    @property
    def live(self) -> list[Planned]:
        """Those that wait, run or pause."""
        return self.of(*LIVE)

    @property
    def here(self) -> bool:
        """Every run is done, and at least one was computed by this app, not read from the committed result."""
        done = self.of("done")
        return len(done) == len(self.items) and any(item.run and item.run.source == LAB for item in done)


def look(store: Store, experiment: Experiment) -> Plan:
    """What the store holds of an experiment's bench.

    Raises:
        StoreError: when it cannot be read.
    """
    preset, version = experiment.preset(BENCH), code_version()
    newest: dict[str, Run] = {}
    for run in store.runs(MOST_LOOKED_AT):
        known = newest.get(run.config_digest)
        # One that failed or was stopped stands for its configuration only where no other does.
        better = known is None or (known.state in ("failed", "stopped") and run.state not in ("failed", "stopped"))
        if run.code_version == version and not run.altered and better:
            newest[run.config_digest] = run
    return Plan(
        tuple(
            Planned(seed, label, config, newest.get(config.digest()))
            for seed in preset.seeds
            for label, config in preset.configs(seed).items()
        )
    )


def submit(store: Store, items: Sequence[Planned], *, fresh: bool = False) -> None:
    """Put runs into the queue.

    Args:
        fresh: compute them anew, whatever the store holds.

    Raises:
        LabError: for a run that cannot be, or a store that cannot be written.
    """
    for item in items:
        store.submit(item.config, fresh=fresh)


def stop(store: Store, items: Sequence[Planned]) -> None:
    """Have runs stopped; one that has ended meanwhile is left as it is.

    Raises:
        StoreError: when the store cannot be written.
    """
    for item in items:
        if item.run is not None and store.get(item.run.id).state in LIVE:
            store.send(item.run.id, Message(kind="stop"))


def pace(found: Findings | None) -> Pace:
    """How long an update of each run took; nothing without a result."""
    seconds: dict[str, list[float]] = {}
    for of_seed in found.runs.values() if found is not None else ():
        for label, run in of_seed.items():
            if run.records and run.records[-1].seconds > 0:
                seconds.setdefault(label, []).append(run.records[-1].seconds / run.records[-1].update)
    return {label: fmean(values) for label, values in seconds.items()}


def estimate(items: Sequence[Planned], known: Pace) -> float | None:
    """Seconds that runs take with the app's workers side by side; None where nothing was recorded of them."""
    if not items or not all(item.label in known for item in items):
        return None
    return sum(_updates(item) * known[item.label] for item in items) / workers(items)


def left(plan: Plan, known: Pace, now: float | None = None) -> float | None:
    """Seconds to the end of what is under way, at the pace of this machine so far; None until some updates were made.

    Args:
        known: weighs runs whose updates take longer than others'; one that is not known weighs as much as the mean.
        now: seconds since the epoch; by default the clock's.
    """
    now = time.time() if now is None else now
    usual = fmean(known.values()) if known else 1.0
    busy = made = 0.0
    for item in plan.items:
        run = item.run
        if run is not None and run.source == LAB and run.started is not None and item.state in ("done", "running"):
            busy += (run.finished or now) - run.started
            made += run.update * known.get(item.label, usual)
    if made <= 0 or busy <= 0:
        return None
    open_work = sum(_updates(item) * known.get(item.label, usual) for item in plan.live)
    return open_work * busy / made / workers(plan.live)


def workers(items: Sequence[Planned]) -> int:
    """Processes that compute these runs side by side."""
    return max(1, min(WORKERS, cores(), len(items)))


def _updates(item: Planned) -> int:
    """Updates that are still to be made."""
    made = item.run.update if item.run is not None and item.state in LIVE else 0
    return item.config.updates - made


def judged_here(store: Store, experiment: Experiment, plan: Plan) -> Findings:
    """What follows from the runs of the store, all of which are done.

    Raises:
        LabError: when the store cannot be read, or the runs cannot be judged.
    """
    runs = tuple(
        StoredRun(label=item.label, seed=item.seed, result=store.result(item.run.id))
        for item in plan.items
        if item.run is not None
    )
    if len(runs) != len(plan.items):
        raise LabError(f"{experiment.name}: {len(plan.items) - len(runs)} runs are missing; run them first.")
    newest = max((run.result.environment for run in runs), key=lambda environment: environment.date)
    result = ResultFile(
        experiment=experiment.name,
        preset=BENCH,
        seeds=experiment.preset(BENCH).seeds,
        claims=(),
        environment=newest,
        runs=runs,
    )
    return findings.find(experiment, result)
