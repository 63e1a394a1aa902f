"""Measurements with a bar, as ratios within one process; ``python -m benchmarks`` runs them all.

Each file gives ``measure() -> list[Result]``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Result:
    """One number beside its bar.

    Attributes:
        name: what was measured.
        value: the number; for ratios the median over interleaved repetitions.
        bar: what it must not exceed; None for a number that is only told.
        unit: "x", "%", "s", "ms" or "runs".
        detail: how it was taken, in a clause.
    """

    name: str
    value: float
    bar: float | None
    unit: str
    detail: str

    @property
    def holds(self) -> bool:
        """Whether the value keeps to its bar."""
        return self.bar is None or self.value <= self.bar
