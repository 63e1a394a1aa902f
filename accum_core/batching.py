"""Which samples make a micro-batch, and which micro-batches make a window.

effective batch size = micro-batch size x accumulation steps x world size.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from accum_core.errors import SettingError


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """How an effective batch is split into micro-batches over one or more ranks.

    Args:
        effective_batch_size: samples in a full window over all ranks.
        micro_batch_size: samples in one forward and backward pass on one rank.
        world_size: number of ranks that share a window.
        allow_tail: let the last micro-batch of a full window be smaller when the sizes do not divide.

    Raises:
        SettingError: for a size below 1, an effective batch smaller than one micro-batch a rank, or sizes that do
            not divide (unless ``allow_tail``).

    >>> BatchPlan(32, 2).accumulation_steps
    16
    >>> BatchPlan(10, 4, allow_tail=True).slices()
    (slice(0, 4, None), slice(4, 8, None), slice(8, 10, None))
    """

    effective_batch_size: int
    micro_batch_size: int
    world_size: int = 1
    allow_tail: bool = False

    def __post_init__(self) -> None:
        for field in ("effective_batch_size", "micro_batch_size", "world_size"):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool):
                raise SettingError(field, value, "must be a whole number of at least 1")
            if value < 1:
                raise SettingError(field, value, "must be at least 1")
        effective, micro, world = self.effective_batch_size, self.micro_batch_size, self.world_size
        per_pass = micro * world
        if effective < per_pass:
            raise SettingError(
                "effective_batch_size",
                effective,
                f"is smaller than one micro-batch of {micro} on each of {world} rank(s), {per_pass} samples; "
                f"use a micro-batch of at most {max(1, effective // world)}",
            )
        if effective % world:
            raise SettingError("effective_batch_size", effective, f"does not divide among {world} ranks")
        if effective % per_pass and not self.allow_tail:
            raise SettingError(
                "micro_batch_size",
                micro,
                f"does not divide the effective batch of {effective}"
                + (f" over {world} ranks" if world > 1 else "")
                + f"; use one of {', '.join(map(str, near(micro, divisors(effective // world))))}",
            )

    @property
    def samples_per_rank(self) -> int:
        """Samples of a full window that one rank sees."""
        return self.effective_batch_size // self.world_size

    @property
    def accumulation_steps(self) -> int:
        """Micro-batches in a full window on one rank (N)."""
        return -(-self.samples_per_rank // self.micro_batch_size)

    def slices(self, num_samples: int | None = None) -> tuple[slice, ...]:
        """Cut one rank's samples of a window into micro-batches; the last one may be short.

        Args:
            num_samples: samples that this rank holds; a full window's by default, fewer in the tail.

        Raises:
            SettingError: for a negative number, or more samples than a full window holds.
        """
        total = self.samples_per_rank if num_samples is None else num_samples
        if not 0 <= total <= self.samples_per_rank:
            raise SettingError("num_samples", total, f"a window on one rank holds 0 to {self.samples_per_rank} samples")
        micro = self.micro_batch_size
        return tuple(slice(start, min(start + micro, total)) for start in range(0, total, micro))

    def share(self, rank: int, num_samples: int) -> slice:
        """The part of a window's samples that one rank sees; parts differ by one sample at most.

        Args:
            rank: 0 to world_size - 1.
            num_samples: samples in the window over all ranks, fewer than a full window's in the tail.
        """
        each, left = divmod(num_samples, self.world_size)
        start = rank * each + min(rank, left)
        return slice(start, start + each + (rank < left))

    def smaller(self) -> BatchPlan | None:
        """The same effective batch with at most half the micro-batch and so at least twice N; None below 1."""
        share = self.samples_per_rank
        fitting = [size for size in divisors(share) if size <= self.micro_batch_size // 2]
        return replace(self, micro_batch_size=fitting[-1]) if fitting else None

    def windows(self, num_samples: int, *, drop_tail: bool = False) -> tuple[range, ...]:
        """Cut an epoch into windows, over all ranks; the last one may be short.

        Args:
            num_samples: samples in the epoch.
            drop_tail: leave out a last window that is not full.
        """
        size = self.effective_batch_size
        end = num_samples - num_samples % size if drop_tail else num_samples
        return tuple(range(start, min(start + size, end)) for start in range(0, end, size))


def divisors(number: int) -> list[int]:
    """Every divisor of a number of at least 1, rising."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return small + [number // n for n in reversed(small) if n * n != number]


def near(asked: int, possible: Sequence[int], most: int = 16) -> Sequence[int]:
    """Of rising numbers those next to the one asked for, as many as a sentence holds."""
    place = bisect_left(possible, asked)
    start = max(0, min(place - most // 2, len(possible) - most))
    return possible[start : start + most]
