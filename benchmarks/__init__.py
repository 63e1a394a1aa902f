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
        bar: what it must not exceed.
        unit: "x", "%", "s" or "ms".
        detail: how it was taken, in a clause.
    """

    name: str
    value: float
    bar: float
    unit: str
    detail: str

    @property
    def holds(self) -> bool:
        """Whether the value keeps to its bar."""
        return self.value <= self.bar
