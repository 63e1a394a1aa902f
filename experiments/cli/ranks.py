"""The processes that torchrun starts: how they meet, who speaks, and how they end by one sentence.

torchrun stops all processes as soon as one of them has ended with an error, so the last words need care: whoever has
them says them, nobody leaves before they are said, and rank 0 is not stopped before it has written what it has.
"""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING

import click

from accum_core.errors import LabError, SettingError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

PATIENCE = 5.0  # seconds


class LostRankError(LabError):
    """Another process of the same training ended before this one."""

    def __init__(self) -> None:
        super().__init__("Another process of this training ended: this one stopped too; start all of them again.")


def world_size() -> int:
    """Processes that train together; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def rank() -> int:
    """This process's number among them, from 0."""
    return int(os.environ["RANK"]) if world_size() > 1 else 0


@contextmanager
def together(threads: int | None) -> Iterator[str | None]:
    """Be one of the ranks while the block runs: over gloo, or over nccl with one CUDA device a rank.

    Args:
        threads: of this process; by default each rank has its share of the cores, one alone what torch chooses.

    Yields:
        The device of this rank; None, without torchrun, for the usual one.

    Raises:
        SettingError: for more ranks than CUDA devices.
        LostRankError: when another rank ended during the block.
    """
    import torch
    from torch import distributed

    if world_size() == 1:
        if threads is not None:
            torch.set_num_threads(threads)
        yield None
        return
    from accum_core.runs.worker import cores

    here = int(os.environ["LOCAL_WORLD_SIZE"])
    torch.set_num_threads(threads or max(1, cores() // here))
    device = _device(int(os.environ["LOCAL_RANK"]), here)
    if rank() != 0:
        warnings.simplefilter("ignore")  # rank 0 has the same ones
    distributed.init_process_group(
        "gloo" if device == "cpu" else "nccl",
        store=_meeting(),
        rank=rank(),
        world_size=world_size(),
        device_id=None if device == "cpu" else torch.device(device),
    )
    if rank() == 0:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it ends as by Ctrl-C
    try:
        yield device
    except RuntimeError as error:
        # gloo has no error class of its own: it says in words where the connection broke.
        if not isinstance(error, distributed.DistError) and "/gloo/transport/" not in str(error):
            raise
        _listen()  # the rank that ended first knows why
        raise LostRankError from None
    finally:
        # Now it only writes and leaves. A terminal and torchrun both pass Ctrl-C on: the second is not to hit that.
        for heard in (signal.SIGINT, signal.SIGTERM) if rank() == 0 else (signal.SIGINT,):
            signal.signal(heard, signal.SIG_IGN)
        distributed.destroy_process_group()


def end(sentence: str | None) -> None:
    """Say on standard error why this process ends, unless another rank has said why all do.

    Args:
        sentence: None where it is for rank 0 to say it.
    """
    if world_size() == 1:
        click.echo(sentence, err=True)
        return
    from torch.distributed import DistError

    with suppress(DistError):  # without torchrun rank 0 keeps the store, and may be gone
        if sentence is not None and _meeting().add("speakers", 1) == 1:
            click.echo(sentence, err=True)
            _meeting().set("told", "")
        _listen()


def _listen() -> None:
    """Wait until a rank has said why all end, but not for ever: it may have been killed."""
    patience = time.monotonic() + PATIENCE
    while time.monotonic() < patience and not _meeting().check(["told"]):
        time.sleep(0.02)


@cache
def _meeting() -> Store:
    """What all ranks read and write, of torchrun: it is there before the ranks have met and after they have parted."""
    from torch.distributed.rendezvous import rendezvous

    store: Store = next(rendezvous("env://"))[0]
    return store


def _device(local_rank: int, local_world_size: int) -> str:
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    if local_world_size > (devices := torch.cuda.device_count()):
        raise SettingError(
            "--nproc-per-node",
            local_world_size,
            f"is more than the CUDA devices of this machine; use at most {devices}, or hide them for a run on the CPU",
        )
    torch.cuda.set_device(local_rank)
    return f"cuda:{local_rank}"
