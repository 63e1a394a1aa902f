"""kill -9 at random instants of a run: what the resumed run ends with, against one that nobody touched."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Final, NamedTuple

import torch

from accum_core.engine import checkpoints
from accum_core.engine.workloads import load
from accum_core.provenance import code_version
from accum_core.records import RunConfig
from accum_core.runs import lifecycle, session
from accum_core.runs.store import Store
from benchmarks import Result

INSTANTS: Final = 50
CONFIG: Final = RunConfig.of(
    norm="batch", effective_batch_size=8, micro_batch_size=2, updates=12, warmup_updates=2, validate_every=12
)


class Ending(NamedTuple):
    """What a run left: its records without times as JSON, and its last checkpoint's parameters and buffers."""

    records: tuple[str, ...]
    weights: dict[str, torch.Tensor]


def untouched(folder: Path) -> tuple[Ending, float]:
    """The ending of a run that nobody kills, and the seconds that it took."""
    store = Store(folder / "untouched.sqlite")
    run_id = store.submit(CONFIG)
    started = time.perf_counter()
    os.waitpid(_worker(store), 0)
    return _ending(store, run_id), time.perf_counter() - started


def killed(folder: Path, update: int, delay: float) -> tuple[Ending, int]:
    """The ending of a run whose worker is killed and replaced, and the updates that were recorded by then.

    Args:
        update: recorded updates to wait for.
        delay: seconds to wait after that.
    """
    store = Store(folder / "killed.sqlite")
    run_id = store.submit(CONFIG, fresh=True)
    worker = _worker(store)
    while store.get(run_id).update < update:
        time.sleep(0.001)
    time.sleep(delay)
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)
    recorded = store.get(run_id).update
    lifecycle.lose_worker(store.database, worker, f"worker {worker} was ended by signal 9")
    if store.get(run_id).state == "queued":
        os.waitpid(_worker(store), 0)
    return _ending(store, run_id), recorded


def equal(one: Ending, other: Ending) -> bool:
    """Whether records and weights are equal bit for bit."""
    same = one.weights.keys() == other.weights.keys()
    return same and one.records == other.records and all(map(torch.equal, one.weights.values(), other.weights.values()))


def measure() -> list[Result]:
    """How many of the killed runs end otherwise; the instants are drawn over the whole length of a run."""
    draw = random.Random(0)
    wrong, updates = 0, []
    with tempfile.TemporaryDirectory() as name:
        expected, seconds = untouched(Path(name))
        for _ in range(INSTANTS):
            update = draw.randrange(CONFIG.updates)
            ending, recorded = killed(Path(name), update, draw.uniform(0, seconds / CONFIG.updates))
            wrong += not equal(ending, expected)
            updates.append(recorded)
    how = (
        f"{INSTANTS} runs of {CONFIG.updates} updates, each killed once, after {min(updates)} to {max(updates)} "
        "recorded updates, and gone on with: records or final weights that are not bit-equal to an untouched run's"
    )
    return [Result("runs that kill -9 changed", float(wrong), 0, "runs", how)]


def _worker(store: Store) -> int:
    """The process id of a worker that computes the next run and ends; forked, so that torch and data are there."""
    load(CONFIG.workload)
    worker = os.fork()
    if worker == 0:
        status = 1
        try:
            torch.set_num_threads(1)
            session.CHECKPOINT_SECONDS = 0.2  # type: ignore[misc]
            lease = lifecycle.claim(Store(store.path).database, code_version())
            if lease is not None:
                session.execute(lease, threading.Event())
            status = 0
        finally:
            os._exit(status)
    return worker


def _ending(store: Store, run_id: str) -> Ending:
    times = {"seconds", "samples_per_second"}
    records = tuple(record.model_dump_json(exclude=times) for record in store.records(run_id))
    (file,) = (store.path.parent / "checkpoints" / run_id).iterdir()
    return Ending(records, checkpoints.load(file)["model"])
