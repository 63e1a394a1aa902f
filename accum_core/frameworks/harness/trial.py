"""One trial: a framework trains one problem, on one rank or two, and what it left is seen."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import multiprocessing.connection
import os
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from accum_core.conformance.results import Measured, Right
from accum_core.frameworks.harness.judge import Judge, Seen
from accum_core.frameworks.harness.own_problems import own_problem
from accum_core.frameworks.harness.problem import Problem
from accum_core.records import Record

HERE = "accum_core.frameworks."
RIGHT, MEASURED = "right.json", "measured.json"
GRACE = 10.0
"""Seconds that a rank may take to end after another has failed."""


def framework(file: str) -> ModuleType:
    """The framework's file, imported."""
    return importlib.import_module(HERE + file)


def problem_of(module: ModuleType, kind: str, case: str) -> Problem | None:
    """What the framework is to train; None where the case says nothing about the kind."""
    if kind == "own":
        return own_problem(case)
    made: Problem | None = module.problem(kind, case)
    return made


def run(module: ModuleType, kind: str, case: str, folder: Path, *, mended: bool = False) -> None:
    """Train in this process (or in one a rank), judge, and leave ``RIGHT`` and ``MEASURED`` in the folder.

    Args:
        folder: empty; it becomes the working directory, for what the framework writes there.
        mended: train with the file's mend.
    """
    problem = problem_of(module, kind, case)
    assert problem is not None
    torch.set_num_threads(1)
    world = problem.settings.world_size
    train = module.train_mended if mended else module.train
    judge = Judge(problem, case, getattr(module, "COUNTS", None))
    right = Right(updates=judge.right.updates, final_lr=judge.right.final_lr, logged=judge.right_logged)
    _leave(right, folder / RIGHT)
    if world == 1:
        found = _train(train, problem, kind, case, folder, 0)
    else:
        found = _ranks(train, problem, kind, case, folder, world)
    measured = Measured(verdict="refuses", explanation=found) if isinstance(found, str) else judge.measure(found)
    _leave(measured, folder / MEASURED)


def _leave(found: Record, path: Path) -> None:
    """Write it where the waiting process reads it, whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(found.model_dump_json(), encoding="utf-8")
    os.replace(part, path)


@dataclass
class _Steps:
    """Counts optimizer steps while it is open, and keeps the optimizer that stepped last."""

    count: int = 0
    last: list[Optimizer] = field(default_factory=list)

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Watch every torch optimizer of this process."""
        handle = register_optimizer_step_post_hook(self._stepped)
        try:
            yield
        finally:
            handle.remove()

    def _stepped(self, optimizer: Optimizer, *_: Any) -> None:
        self.count += 1
        self.last = [optimizer]


def _train(train: Any, problem: Problem, kind: str, case: str, folder: Path, rank: int) -> Seen | str:
    """What one process left, or the error that it raised, as a sentence."""
    own = folder / f"rank{rank}" if problem.settings.world_size == 1 else folder / "shared"
    own.mkdir(exist_ok=True)
    os.chdir(own)
    task = problem.task(own, kind=kind, case=case, rank=rank)
    steps = _Steps()
    started = time.perf_counter()
    try:
        with steps.open():
            outcome = train(task)
    except Exception as error:
        return sentence(error)
    rate = steps.last[0].param_groups[0]["lr"] if steps.last else problem.settings.learning_rate
    weights: Mapping[str, torch.Tensor] = outcome.weights or dict(task.model.named_parameters())
    return Seen(
        weights={name: value.detach().cpu() for name, value in weights.items()},
        updates=steps.count if outcome.updates is None else outcome.updates,
        final_lr=float(rate if outcome.final_lr is None else outcome.final_lr),
        logged=[float(value) for value in outcome.logged],
        seconds=time.perf_counter() - started,
    )


def sentence(error: Exception) -> str:
    """An error in one line, of whose text at most 300 characters, with a full stop."""
    text = " ".join(str(error).split())
    text = text if len(text) <= 300 else f"{text[:297]}..."
    told = f"It raised {type(error).__name__}{': ' if text else ''}{text}"
    return told if told.endswith((".", "!", "?")) else f"{told}."


def _ranks(train: Any, problem: Problem, kind: str, case: str, folder: Path, world: int) -> Seen | str:
    """Two processes as torchrun starts them; what rank 0 left, if the others left the same."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    fork = multiprocessing.get_context("fork")
    arguments = (train, problem, kind, case, folder)
    ranks = [fork.Process(target=_rank, args=(*arguments, rank, world, port)) for rank in range(world)]
    failure = _wait(ranks)
    files = [folder / f"{rank}.pt" for rank in range(world)]
    found: list[Seen | str] = [torch.load(file, weights_only=False) for file in files if file.exists()]
    if failed := [seen for seen in found if isinstance(seen, str)]:
        return failed[0]
    if len(found) < world:
        return f"A rank ended with exit code {failure} and left nothing."
    first, *others = [seen for seen in found if isinstance(seen, Seen)]
    agree = all(torch.equal(value, other.weights[name]) for other in others for name, value in first.weights.items())
    return replace(first, ranks_agree=agree)


def _wait(ranks: list[Any]) -> int:
    """Until all ranks have ended; one that waits in vain for another that failed is stopped after a while.

    Returns the exit code of the first that failed, or 0.
    """
    for process in ranks:
        process.start()
    waiting, failed = list(ranks), 0
    while waiting:
        multiprocessing.connection.wait([p.sentinel for p in waiting], timeout=GRACE if failed else None)
        ended = [process for process in waiting if process.exitcode is not None]
        if failed and not ended:
            for process in waiting:
                process.kill()
                process.join()
            break
        failed = failed or next((process.exitcode for process in ended if process.exitcode), 0)
        waiting = [process for process in waiting if process not in ended]
    return failed


def _rank(train: Any, problem: Problem, kind: str, case: str, folder: Path, rank: int, world: int, port: int) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        GROUP_RANK="0",
        ROLE_RANK=str(rank),
        ROLE_WORLD_SIZE=str(world),
        WORLD_SIZE=str(world),
        LOCAL_WORLD_SIZE=str(world),
        GROUP_WORLD_SIZE="1",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_RUN_ID="conformance",
        TORCHELASTIC_RESTART_COUNT="0",
        TORCHELASTIC_MAX_RESTARTS="0",
    )
    seen = _train(train, problem, kind, case, folder, rank)
    torch.save(seen, folder / f"{rank}.part")
    os.replace(folder / f"{rank}.part", folder / f"{rank}.pt")
    if isinstance(seen, str):
        os._exit(1)  # its peers may wait for it: an orderly end would wait for them
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
