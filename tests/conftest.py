"""What several tests of the store and its workers stand on."""

from __future__ import annotations

import os

# Before torch is imported, here and in every process that a test starts: two test processes share the cores, and
# numbers are bit-equal at equal numbers of threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Iterator
from pathlib import Path

import pytest
from small_runs import CONFIG, course

from accum_core.runs import patience, session
from accum_core.runs.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs.sqlite")


@pytest.fixture(scope="session")
def one_thread() -> Iterator[None]:
    """Runs are bit-equal at the same number of threads; the workers of the tests have one."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def uninterrupted(one_thread: None) -> list[str]:
    """The course of ``CONFIG`` without a store, a worker or an interruption."""
    from accum_core.engine import train

    return course(list(train(CONFIG)))


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every update is a checkpoint, and a refused write is repeated at once."""
    monkeypatch.setattr(session, "CHECKPOINT_SECONDS", 0)
    monkeypatch.setattr(patience, "RETRY_SECONDS", 0)


@pytest.fixture(scope="module")
def moving() -> Iterator[None]:
    """A window in step moves its work to the host, as from a GPU, though a CPU's memory is the host's already."""
    from accum_core.engine.lockstep import keeping

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keeping, "is_on_the_host", lambda model: False)
        yield
