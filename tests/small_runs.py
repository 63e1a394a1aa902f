"""Runs of a few seconds for the tests of the store and its processes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from accum_core.provenance import code_version
from accum_core.records import Environment, Message, RunConfig, Term, UpdateRecord
from accum_core.runs.controls import StoreControls
from accum_core.runs.lease import Lease
from accum_core.runs.lifecycle import claim
from accum_core.runs.session import execute
from accum_core.runs.store import Store

ROOT = Path(__file__).parents[1]
ENVIRONMENT = Environment(
    code_version="0" * 12,
    python="3.11",
    torch="2",
    platform="Linux",
    processor="any",
    device="cpu",
    threads=1,
    date="2026-01-01",
)


def small(**settings: Any) -> RunConfig:
    """A run of 12 updates of 4 samples, in micro-batches of 1 (N = 4)."""
    sizes = {"updates": 12, "effective_batch_size": 4, "micro_batch_size": 1, "warmup_updates": 2}
    return RunConfig.of(**(sizes | {"validate_every": 12, "norm": "group"} | settings))


CONFIG = small()


def record(update: int, **fields: Any) -> UpdateRecord:
    """A record as a training might leave it."""
    made = dict(
        update=update,
        epoch=0,
        samples=4 * update,
        micro_batches=4 * update,
        seconds=0.1 * update,
        samples_per_second=40.0,
        loss=1 / update,
        terms={"pixels": Term(loss=1 / update, weight=4.0)},
        learning_rate=0.01,
        micro_batch_size=1,
        accumulation_steps=4,
        norm="group",
        gradient_norm=1.0,
    )
    return UpdateRecord.model_validate(made | fields)


def claimed(store: Store) -> Lease:
    """The next run of the queue."""
    lease = claim(store.database, code_version())
    assert lease is not None
    return lease


def compute(store: Store, leaving: threading.Event | None = None) -> None:
    """Claim the next run and compute it in this process."""
    execute(claimed(store), leaving or threading.Event())


def course(records: list[UpdateRecord]) -> list[str]:
    """What must be equal, to the last bit, in two runs that made the same updates: all but the times."""
    times = {"seconds", "samples_per_second"}
    return [json.dumps(entry.model_dump(mode="json", exclude=times), sort_keys=True) for entry in records]


def set_message(field: str, value: float | str) -> Message:
    """A live change."""
    return Message.model_validate({"kind": "set", "field": field, "value": value})


class Script:
    """Controls that send each message before its update: the same changes without a store."""

    def __init__(self, *messages: tuple[int, Message]) -> None:
        self.messages = messages

    def take(self, next_update: int, wait: bool) -> list[Message]:
        return [message for update, message in self.messages if update == next_update]


class Killed(BaseException):
    """Stands for a kill in this process: nobody catches it, so nothing is written after it."""


def die(*_: Any, **__: Any) -> None:
    raise Killed


def after(update: int, action: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ``action`` happen once, in this process, between an update and the next."""
    take, done = StoreControls.take, []

    def acting(self: StoreControls, next_update: int, wait: bool) -> Any:
        if next_update == update + 1 and not done:
            done.append(True)
            action()
        return take(self, next_update, wait)

    monkeypatch.setattr(StoreControls, "take", acting)


def kinds(store: Store, run_id: str) -> list[str]:
    """What happened to a run, in order."""
    return [event.kind for event in store.events(run_id)]


def wait_until(condition: Callable[[], Any], seconds: float = 60) -> None:
    """Wait for another process."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "what the test waits for did not happen"
        time.sleep(0.005)


@contextmanager
def worker(store: Store, constants: Mapping[str, float] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A real worker process that waits before each update, so that it can be met in the middle of a run.

    Args:
        constants: other values for constants of ``session``.
    """
    code = "import time; from accum_core.runs import controls, session, worker; take = controls.StoreControls.take\n"
    code += "controls.StoreControls.take = lambda *asked: time.sleep(0.2) or take(*asked)\n"
    code += "".join(f"session.{name} = {value}\n" for name, value in (constants or {}).items()) + "worker.main()"
    command = [sys.executable, "-c", code, "--store", str(store.path), "--threads", "1"]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
