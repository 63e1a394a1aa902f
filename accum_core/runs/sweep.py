"""Many runs through the store: submitted together, computed by the workers, waited for, collected.

A sweep keeps nothing of its own. What is done lies in the store, so asking again computes only what is missing, and
a sweep that was interrupted goes on where it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from accum_core.claims import Verdict
from accum_core.errors import LabError, SettingError
from accum_core.experiment import Experiment
from accum_core.records import RunConfig, RunResult
from accum_core.result_file import ResultFile, StoredRun
from accum_core.runs.store import Run, Store
from accum_core.runs.supervisor import Supervisor


class SweepError(LabError):
    """Some runs of a sweep did not come to their end, or their numbers cannot be judged."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a sweep stands; updates and runs are counted over the whole sweep.

    Attributes:
        updates, total_updates: recorded so far, and in all.
        runs_done, runs: at their end, and in all.
        paused: ids of runs that somebody paused; the sweep waits for them to be resumed.
    """

    updates: int
    total_updates: int
    runs_done: int
    runs: int
    paused: tuple[str, ...]


Watch = Callable[[Progress], None]


def run_experiment(
    experiment: Experiment, preset: str, seeds: Sequence[int], store: Store, watch: Watch, *, fresh: bool = False
) -> ResultFile:
    """Carry out an experiment and judge its claims.

    Args:
        preset: one of the experiment's presets.
        seeds: at least two different ones; one verdict a claim rests on all of them.
        watch: called about twice a second; its first call, before any work, counts what the store already holds.
        fresh: compute every run anew, whatever the store holds.

    Raises:
        SettingError: for an unknown preset or unfit seeds, before any run is submitted.
        SweepError: if a run failed or was stopped, or a number that the claims need is not finite.
        StoreError: if the store cannot be read or written.
    """
    if len(set(seeds)) != len(seeds):
        raise SettingError("seeds", ",".join(map(str, seeds)), "names a seed twice; give each one once")
    if len(seeds) < 2:
        remedy = "a verdict needs at least 2 seeds, as one has no interval; give more, separated by commas"
        raise SettingError("seeds", ",".join(map(str, seeds)), remedy)
    by_seed = {seed: experiment.preset(preset).configs(seed) for seed in seeds}
    computed = run_all([c for configs in by_seed.values() for c in configs.values()], store, watch, fresh=fresh)
    runs = tuple(
        StoredRun(label=label, seed=seed, result=computed[config.digest()])
        for seed, configs in by_seed.items()
        for label, config in configs.items()
    )
    newest = max((run.result.environment for run in runs), key=lambda environment: environment.date)
    return ResultFile(
        experiment=experiment.name,
        preset=preset,
        seeds=tuple(seeds),
        claims=judge(experiment, preset, runs),
        environment=newest,
        runs=runs,
    )


def judge(experiment: Experiment, preset: str, runs: Sequence[StoredRun]) -> tuple[Verdict, ...]:
    """One verdict a claim of the preset, from the records of every seed's runs.

    Raises:
        SweepError: if a number that the claims need is not finite.
    """
    by_seed: dict[int, dict[str, RunResult]] = {}
    for run in runs:
        by_seed.setdefault(run.seed, {})[run.label] = run.result
    try:
        return tuple(Verdict(**verdict) for verdict in experiment.verdicts(preset, list(by_seed.values())))
    except SettingError as error:
        raise SweepError(f"The claims of {experiment.name} cannot be judged: {error}") from None


def run_all(
    configs: Sequence[RunConfig], store: Store, watch: Watch, *, fresh: bool = False, poll_seconds: float = 0.5
) -> dict[str, RunResult]:
    """Have every configuration computed once and return the results by the configuration's digest.

    Workers are started here unless the app (or another sweep) on the same store already keeps them.

    Raises:
        SweepError: once all others are done, if a run failed or was stopped.
        StoreError: if the store cannot be read or written.
    """
    wanted = {config.digest(): config for config in configs}
    ids = {digest: store.submit(config, fresh=fresh) for digest, config in wanted.items()}
    with ExitStack() as stack:
        started = False
        while True:
            runs = {digest: store.get(ids[digest]) for digest in wanted}
            for digest, run in runs.items():
                if run.altered:  # somebody changed it while it ran: it no longer is the run that was asked for
                    ids[digest] = store.submit(wanted[digest])
                    runs[digest] = store.get(ids[digest])
            watch(_progress(runs.values()))
            if all(run.state in ("done", "failed", "stopped") for run in runs.values()):
                break
            if not started:
                stack.enter_context(Supervisor(store.path))
                started = True
            time.sleep(poll_seconds)
    _refuse_unfinished(runs.values())
    return {digest: store.result(run.id) for digest, run in runs.items()}


def _progress(runs: Collection[Run]) -> Progress:
    return Progress(
        updates=sum(run.update for run in runs),
        total_updates=sum(run.total for run in runs),
        runs_done=sum(run.state == "done" for run in runs),
        runs=len(runs),
        paused=tuple(run.id for run in runs if run.state == "paused"),
    )


def _refuse_unfinished(runs: Collection[Run]) -> None:
    unfinished = [run for run in runs if run.state != "done"]
    if unfinished:
        first = unfinished[0]
        why = f" ({first.error.rstrip('.')})" if first.error else ""
        raise SweepError(
            f"{len(unfinished)} of {len(runs)} runs did not finish: run {first.id} {first.state} after update "
            f"{first.update} of {first.total}{why}; the others are kept, so the same command computes what is missing."
        )
