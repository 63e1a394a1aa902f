"""What the page Language model says of runs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from accum_core.quantities import number
from accum_core.records import RunConfig
from accum_ui.language_model.measured import Arm
from accum_ui.readings import duration
from accum_ui.words import percent

SAMPLES: Final = {"sft": "functions", "sft_packed": "rows"}
PACKING: Final = {
    "sft": "One function a row, padded to the window's longest: padding costs time and memory and weighs nothing.",
    "sft_packed": "Rows of 256 bytes hold several functions, which do not see one another: the gradient is that of the "
    "same functions padded, to rounding, and only the cost is another. A sample is a row here.",
}
DIVISIONS: Final = (
    "Docstrings are of unequal length, so micro-batches hold unequally many bytes to learn. A mean of their means is "
    "then not the window's mean: each byte of a micro-batch with few of them weighs more. Nothing crashes, and the "
    "loss falls all the same."
)
ADVICE: Final = (
    "Marek et al. 2025 (arXiv 2507.07101) advise against accumulating: at equal tokens a smaller effective batch makes "
    "more updates, and with beta2 carried over at equal half-life it trains at least as well. Accumulate where the "
    "batch that trains best does not fit into the memory, or where a recipe is to be followed as published."
)


def division_line(exact: Arm, means: Arm) -> str:
    """The finding above the table of divisions."""
    ours, theirs = exact.measured, means.measured
    if ours is None or theirs is None or ours.gradient_error is None or theirs.gradient_error is None:
        return "What comes of averaging the micro-batches' means?"
    return (
        f"Averaging the micro-batches' means is off by {percent(theirs.gradient_error)}, dividing by the window's "
        f"bytes by {number(ours.gradient_error, 1)}"
    )


def cost_line(arms: Sequence[Arm]) -> str:
    """The finding above the table of costs."""
    done = [(arm.config.micro_batch_size, arm.measured) for arm in arms if arm.measured is not None]
    sized = [(micro, found.kept_bytes, found.seconds) for micro, found in done if found.kept_bytes]
    if len(sized) < 2:
        return "What does the same effective batch cost, cut otherwise?"
    (small, less, slow), (large, more, fast) = sized[0], sized[-1]
    return (
        f"Micro-batches of {small} keep {number(more / less)} times less for the backward pass than those of {large} "
        f"and take {number(slow / fast)} times as long"
    )


def advice_line(large: Arm, small: Arm) -> str:
    """The finding above the advice's table."""
    ours, theirs = large.measured, small.measured
    sizes = large.config.effective_batch_size, small.config.effective_batch_size
    if ours is None or theirs is None or ours.token_loss is None or theirs.token_loss is None:
        return f"Is an effective batch of {sizes[1]} the better use of the same {SAMPLES[large.config.workload]}?"
    gain = ours.token_loss - theirs.token_loss
    word = "below" if gain >= 0 else "above"
    return (
        f"With this seed the batch of {sizes[1]} ends {number(abs(gain))} nats a byte {word} the accumulated "
        f"{sizes[0]}, after the same {SAMPLES[large.config.workload]}"
    )


def button(missing: Sequence[RunConfig], seconds: float | None) -> str:
    """The label of a button that queues runs."""
    count = f"Run the {len(missing)} missing runs" if len(missing) > 1 else "Run the missing one"
    return count if seconds is None else f"{count}: about {duration(seconds)}"


def progress(arms: Sequence[Arm]) -> tuple[float, str]:
    """The share of the updates that are made, and the line beside the bar."""
    runs = [arm.run for arm in arms if arm.run is not None]
    done, total = sum(run.update for run in runs), sum(run.total for run in runs)
    waiting = sum(run.state == "queued" for run in runs)
    line = f"update {done} of {total}" + (f" · {waiting} waiting" if waiting else "")
    return (done / total if total else 0.0), line
