"""What runs leave on the disk, and whether there is room for it."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accum_core.errors import LabError

if TYPE_CHECKING:
    from accum_core.engine import Training


class DiskError(LabError):
    """A disk too small for what is to be written."""


class _Counted(io.RawIOBase):
    """A file that keeps nothing but its length."""

    length = 0

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.length += size
        return size


def checkpoint_bytes(training: Training) -> int:
    """The size of a checkpoint of this training, which is also what it leaves at its end."""
    import torch

    file = _Counted()
    torch.save(training.state_dict(), file)  # type: ignore[arg-type]
    return file.length


def check_room(needed: int, store: Path) -> None:
    """Refuse what the store's disk cannot take.

    Args:
        needed: bytes that the runs write.
        store: its file.

    Raises:
        DiskError: naming what is needed and what is free.
    """
    free = shutil.disk_usage(store.parent).free
    if needed > free:
        raise DiskError(
            f"The runs write {size(needed)} beside the store {store}, where {size(free)} are free: free some space, or "
            "name a file on another disk in ACCUMULATION_LAB_STORE; nothing was started."
        )


def size(count: int) -> str:
    """Bytes for people."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 / 10 else f"{count / 2**20:.1f} MiB"
