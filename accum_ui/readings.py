"""The row of numbers above the charts and the line beside the progress bar. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from accum_core.quantities import number
from accum_ui.words import RECENT, Numbers


@dataclass(frozen=True, slots=True)
class Tile:
    """One number with its reference beside it, as text."""

    key: str
    label: str
    value: str
    note: str


def tiles(numbers: Numbers) -> list[Tile]:
    """The row of numbers above the charts; a dash for what is not known yet."""
    batch = f"one batch of {numbers.config.effective_batch_size}"
    median = "median" if numbers.measured_from == 1 else f"median since update {numbers.measured_from}"
    run, reference, _ = numbers.quality or (None, None, 0)
    measure = numbers.measure
    saved = numbers.saved_bytes or (None, None)
    return [
        Tile(
            "quality",
            f"validation {measure.title}",
            "–" if run is None else measure.shown(run),
            f"reference {'–' if reference is None else measure.shown(reference)}",
        ),
        Tile(
            "gradient_error",
            "gradient error",
            _error(numbers.gradient_error),
            f"{median}; reference " + _error(numbers.reference_error),
        ),
        Tile(
            "cosine",
            "cosine to the batch",
            _plain(numbers.cosine, "{:.2f}"),
            f"{median}; reference {_plain(numbers.reference_cosine, '{:.2f}')}",
        ),
        Tile("memory", "kept for backward", mebibytes(saved[0]), f"{batch}: {mebibytes(saved[1])}"),
        Tile(
            "speed",
            "samples a second",
            _plain(numbers.speed, "{:.0f}"),
            f"last {RECENT} updates; reference {_plain(numbers.reference_speed, '{:.0f}')}",
        ),
    ]


def _error(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}" if value >= 0.01 else number(value, 1)


def _plain(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def mebibytes(count: int | None) -> str:
    """A number of bytes as text."""
    if count is None:
        return "–"
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 / 10 else f"{count / 2**10:.1f} KiB"


def progress(state: str, update: int, total: int, queue: int, speed: float | None, seconds_left: float | None) -> str:
    """The line beside the progress bar."""
    if state == "queued":
        place = "next in the queue" if queue <= 1 else f"number {queue} in the queue"
        return f"{place}" if update == 0 else f"{place}, goes on after update {update}"
    parts = [f"update {update} of {total}"]
    if state == "running":
        if speed:
            parts.append(f"{speed:.0f} samples a second")
        if seconds_left is not None:
            parts.append(f"{duration(seconds_left)} left")
    return " · ".join(parts)


def duration(seconds: float) -> str:
    """A time to wait, in the unit that reads best."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
