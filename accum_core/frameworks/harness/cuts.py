"""How an epoch's samples become micro-batches: in order, or as loaders and samplers are known to cut them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType
from typing import Final, Literal, TypeVar

from accum_core.conformance.cases import Settings

Cut = Literal["in order", "whole", "filled up", "by turns", "each rank all"]
CUTS: Final[Mapping[Cut, str]] = MappingProxyType(
    {
        "in order": "",
        "whole": "a smaller last micro-batch is left out",
        "filled up": "a smaller last micro-batch is filled up with the epoch's first samples",
        "by turns": "the ranks take samples by turns, and then make micro-batches of them",
        "each rank all": "every rank passes all samples",
    }
)
"""What is said of each in a formula's name."""
Part = TypeVar("Part")


def cut_epoch(samples: Sequence[Part], settings: Settings, cut: Cut) -> list[Sequence[Part]]:
    """An epoch's micro-batches in their order: of each rank the first, then of each the second."""
    size, ranks = settings.micro_batch_size, settings.world_size
    if cut == "by turns":
        of_ranks = [in_parts(samples[rank::ranks], size) for rank in range(ranks)]
        return [part for parts in zip_longest(*of_ranks) for part in parts if part is not None]
    if cut == "each rank all":
        return [part for part in in_parts(samples, size) for _ in range(ranks)]
    rest = len(samples) % size
    if cut == "whole":
        return in_parts(samples[: len(samples) - rest], size)
    if cut == "filled up" and rest:
        return in_parts([*samples, *samples[: size - rest]], size)
    return in_parts(samples, size)


def cuts(samples: int, settings: Settings) -> Iterator[tuple[Cut, bool]]:
    """The cuts of so many samples that differ, each with whether the epoch then ends with a short window."""
    seen: list[list[list[int]]] = []
    for cut in CUTS:
        parts = cut_epoch(range(samples), settings, cut)
        told = [list(part) for part in parts]
        if told not in seen:
            seen.append(told)
            yield cut, len(parts) % (settings.accumulation_steps * settings.world_size) != 0


def in_parts(whole: Sequence[Part], size: int) -> list[Sequence[Part]]:
    """Pieces of so many, the last of which may be smaller."""
    return [whole[start : start + size] for start in range(0, len(whole), size)]
