"""Cutting what yields micro-batches, of known length or not, into windows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from accum_core.errors import SettingError
from accum_core.reduction import TAIL_RULES, TailRule

T = TypeVar("T")


def windows(micro_batches: Iterable[T], accumulation_steps: int, *, tail: TailRule = "rescale") -> Iterator[list[T]]:
    """Windows of N micro-batches in their order; the last one may be short.

    For one epoch: the iterable is read to its end and nothing is kept for the next. It is read lazily, N micro-batches
    when a window is asked for, and a window that was handed out is not held any longer (tests/test_windows.py).

    A window is full when it holds N micro-batches, whatever their sizes. Of M micro-batches come ceil(M / N) windows,
    floor(M / N) when the tail is dropped: ``len(BatchPlan(N, 1).windows(M, drop_tail=tail == "drop"))``.

    Args:
        micro_batches: a DataLoader, a generator, a list; its length is not asked for.
        accumulation_steps: N.
        tail: ``drop`` leaves out a window that is not full; with ``rescale`` and ``divide_by_n`` it comes, and the
            ``LossReduction`` with the same rule divides it.

    Raises:
        SettingError: at once, for an N that is no count or an unknown rule.
    """
    steps: object = accumulation_steps
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise SettingError("accumulation_steps", steps, "must be a whole number of at least 1")
    if tail not in TAIL_RULES:
        raise SettingError("tail", tail, f"use one of {', '.join(TAIL_RULES)}")
    return _cut(iter(micro_batches), steps, keep_tail=tail != "drop")


def _cut(micro_batches: Iterator[T], steps: int, *, keep_tail: bool) -> Iterator[list[T]]:
    full = True
    while full:
        window = list(islice(micro_batches, steps))
        full = len(window) == steps
        if full or (window and keep_tail):
            yield window
        # While the next window is read, this one must not be held.
        del window
