"""The ranks of test_ranks_command.py: ``train`` in processes that meet as torchrun's do, on a tiny workload.

Nobody ends a rank here but itself, so one that waited for ever would be seen. ``python one_rank_command.py FOLDER``
leaves, for each scenario, FOLDER/NAME with what each rank printed and how it ended.
"""

from __future__ import annotations

import gc
import importlib
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from tiny_workload import TinyWorkload
from torch.distributed import TCPStore, is_initialized

from accum_core.engine import Training, training
from accum_core.engine.sampling import WindowSampler
from accum_core.errors import LabError
from accum_core.runs import worker
from experiments.cli import main, ranks

TRAIN = "train --effective 8 --micro 1 --norm group --groups 4 --updates 4 --precision float64".split()
SAMPLES = 32


def at_update(number: int, action: Callable[[], None]) -> None:
    """Have something happen in this process before an update is made."""
    make = Training._make_update

    def make_update(self: Training, *others: object) -> object:
        if self.update + 1 == number:
            action()
        return make(self, *others)

    Training._make_update = make_update


def fail() -> None:
    raise LabError("The moon is full: wait for another one.")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def poisoned(rank: int) -> None:
    """One sample of update 3 is infinite, on whichever rank it comes."""
    sampler = WindowSampler(SAMPLES, drop_tail=True, seed=0)
    window = [sampler.next(8) for _ in range(3)][-1]
    workload = TinyWorkload(num_samples=SAMPLES, poisoned=window[-1:])
    training.load = lambda _: workload


def one_fails(rank: int) -> None:
    if rank == 1:
        at_update(3, fail)


def one_dies(rank: int) -> None:
    ranks.PATIENCE = 0.5
    if rank == 1:
        at_update(3, die)


def one_stopped(rank: int) -> None:
    if rank == 0:
        at_update(3, lambda: os.kill(os.getpid(), signal.SIGTERM))


def all_interrupted(rank: int) -> None:
    at_update(3, interrupt)


def eight_cores(rank: int) -> None:
    worker.cores = lambda: 8


def nothing(rank: int) -> None:
    """No fault."""


# name: (ranks, arguments, what goes wrong in a rank)
SCENARIOS: dict[str, tuple[int, list[str], Callable[[int], None]]] = {
    "trains": (2, TRAIN, eight_cores),
    "threads": (2, [*TRAIN, "--threads", "3"], eight_cores),
    "option": (2, [*TRAIN, "--updates", "ten"], nothing),
    "value": (2, [*TRAIN, "--micro", "3"], nothing),
    "world": (4, [*TRAIN, "--effective", "6"], nothing),
    "whole": (4, [*TRAIN, "--micro", "8"], nothing),
    "not_finite": (4, TRAIN, poisoned),
    "skipped": (4, [*TRAIN, "--non-finite", "skip_micro_batch"], poisoned),
    "one_fails": (2, TRAIN, one_fails),
    "one_dies": (4, TRAIN, one_dies),
    "stopped": (2, TRAIN, one_stopped),
    "interrupted": (2, TRAIN, all_interrupted),
}


def play(folder: Path, world: int, arguments: list[str], fault: Callable[[int], None]) -> list[int | None]:
    """Run a scenario's ranks; how each ended."""
    folder.mkdir()
    agent = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # torchrun holds it, no rank does
    fork = multiprocessing.get_context("fork")
    command = [*arguments, "--json", str(folder / "run.json")]
    processes = [
        fork.Process(target=rank_of, args=(rank, world, agent.port, folder, command, fault)) for rank in range(world)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        process.kill()
    return [process.exitcode for process in processes]


def rank_of(rank: int, world: int, port: int, folder: Path, command: list[str], fault: Callable[[int], None]) -> None:
    for descriptor, stream in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / f"{rank}.{stream}", os.O_WRONLY | os.O_CREAT), descriptor)
    sizes = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in sizes.items()})
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True"})
    workload = TinyWorkload(num_samples=SAMPLES)
    training.load = lambda _: workload
    fault(rank)
    code = main(command)
    sys.exit(99 if is_initialized() else code)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    importlib.import_module("torch._dynamo")  # once, before the forks: the optimizers load it
    gc.freeze()
    for name, scenario in SCENARIOS.items():
        codes = play(folder / name, *scenario)
        (folder / name / "codes.json").write_text(json.dumps(codes))
