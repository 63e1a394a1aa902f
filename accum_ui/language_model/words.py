"""What the page Language model says of runs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from accum_core.quantities import number
from accum_core.records import RunConfig
from accum_ui.language_model.measured import Arm
from accum_ui.readings import duration, mebibytes

SAMPLES: Final = {"sft": "functions", "sft_packed": "rows"}
PACKING: Final = {
    "sft": "One function a row, padded to the window's longest: padding costs time and memory and weighs nothing.",
    "sft_packed": "Rows of 256 bytes hold several functions, which do not see one another: the gradient is that of the "
    "same functions padded, to rounding, and only the cost is another. A sample is a row here.",
}
ADVICE: Final = (
    "Marek et al. 2025 (arXiv 2507.07101) advise against accumulating: at equal tokens a smaller effective batch makes "
    "more updates, and with beta2 carried over at equal half-life it trains at least as well. Accumulate where the "
    "batch that trains best does not fit into the memory, or where a recipe is to be followed as published."
)


def cut(config: RunConfig) -> str:
    """A run's effective batch and how it is cut ("32 = 8 × 4")."""
    return f"{config.effective_batch_size} = {config.accumulation_steps} × {config.micro_batch_size}"


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


def cost_table(arms: Sequence[Arm]) -> str:
    """A Markdown table: a row a micro-batch size."""
    lines = [
        "| Micro-batch | N | Kept for backward | One update | Learnt tokens a second |",
        "|---:|---:|---:|---:|---:|",
    ]
    for arm in arms:
        config, found = arm.config, arm.measured
        cells = (
            ("missing" if arm.is_missing else str(arm.run and arm.run.state), "", "")
            if found is None
            else (mebibytes(found.kept_bytes), f"{found.seconds:.2f} s", f"{found.tokens_per_second:,.0f}")
        )
        lines.append(f"| {config.micro_batch_size} | {config.accumulation_steps} | {' | '.join(cells)} |")
    return "\n".join(lines)


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


def advice_table(arms: Sequence[Arm]) -> str:
    """A Markdown table: the two runs."""
    lines = [
        "| Effective batch | Updates | Learning rate | beta2 | Held-out loss (nats a byte) | Time |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for arm in arms:
        config, found = arm.config, arm.measured
        state = "missing" if arm.is_missing else str(arm.run and arm.run.state)
        loss = state if found is None or found.token_loss is None else f"{found.token_loss:.4f}"
        passed = "" if found is None else duration(found.total_seconds)
        lines.append(
            f"| {cut(config)} | {config.updates} | {config.peak_learning_rate:g} | {config.scaled_beta2:.5g} | "
            f"{loss} | {passed} |"
        )
    return "\n".join(lines)


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
