"""Processes that meet under torch.distributed (gloo), for tests of what the ranks of a window do together.

A script calls ``main(measure)``; ``found(script, folder, worlds)`` runs it and gives what each rank measured.
"""

from __future__ import annotations

import gc
import importlib
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
Found = dict[str, Any]


def found(script: str, folder: Path, worlds: tuple[int, ...]) -> dict[int, list[Found]]:
    """For each number of ranks, what ``measure(rank, world size)`` of a script in this folder gave on each rank."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS.parent)}
    command = [sys.executable, "-W", "error", str(TESTS / script), str(folder), *map(str, worlds)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150)
    assert ended.returncode == 0, ended.stderr
    return {
        world: [json.loads((folder / f"{world}-{rank}.json").read_text()) for rank in range(world)] for world in worlds
    }


def main(measure: Callable[[int, int], Found]) -> None:
    """Have every rank of every world measure, each world in turn."""
    # The ranks are forked with all that they need: what the optimizers import takes seconds, and so would collecting
    # garbage among it in each of them.
    importlib.import_module("torch._dynamo")
    gc.freeze()
    folder, worlds = Path(sys.argv[1]), map(int, sys.argv[2:])
    fork = multiprocessing.get_context("fork")
    for world in worlds:
        processes = [fork.Process(target=_rank, args=(measure, rank, world, folder)) for rank in range(world)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            sys.exit(1)


def _rank(measure: Callable[[int, int], Found], rank: int, world: int, folder: Path) -> None:
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    store = distributed.FileStore(str(folder / f"{world}-store"), world)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=world)
    (folder / f"{world}-{rank}.json").write_text(json.dumps(measure(rank, world)))
    distributed.destroy_process_group()
