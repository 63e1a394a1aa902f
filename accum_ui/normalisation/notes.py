"""What the page on normalisation says of one layer, of the costs and of the family. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from accum_core.noise_scale import NoiseScale, Steps
from accum_core.quantities import number
from accum_core.records import Environment
from accum_ui.normalisation.costs import CostRow
from accum_ui.normalisation.opened import Cut, RunLayers
from accum_ui.normalisation.words import norm_constants
from accum_ui.readings import mebibytes
from accum_ui.words import percent


def cut_title(cut: Cut) -> str:
    """What the dots show."""
    if cut.steps == 1:
        return f"One batch of {cut.samples}: its own statistics are the window's"
    size = cut.sizes[0]
    return (
        f"{cut.steps} × {size}: the means lie {cut.distances.mean:.2f} deviations from the window's, "
        f"the variances {cut.distances.variance:.2f} of its variance"
    )


def cut_note(cut: Cut, held: RunLayers) -> str:
    """The same over all channels, and what it means."""
    share = cut.distances.mean**2
    lines = [
        f"{percent(share) if share else '0 %'} of this channel's variance lies between the micro-batches, "
        "so that their own variances are too small by as much on average."
    ]
    steps, size = held.config.accumulation_steps, held.config.micro_batch_size
    if steps > 1:
        lines.append(
            f"As the run itself was split ({steps} × {size}), over all channels of this layer: "
            f"means {cut.recorded.mean:.2f} deviations, variances {cut.recorded.variance:.2f}."
        )
    return " ".join(lines)


def noise_line(noise: NoiseScale, steps: Steps | None, micro: int) -> str:
    """The gradient noise scale of a run, with the accumulation steps that it suggests."""
    if noise.value is None:
        return f"Gradient noise scale: none for this run. {noise.reason}"
    line = f"Gradient noise scale of this run: about {number(noise.value)} samples"
    if noise.low is not None and noise.high is not None:
        high = "no upper end" if noise.high == float("inf") else f"to {number(noise.high)}"
        line += f" ({percent(noise.level)} interval from {number(noise.low)}, {high}; {noise.windows} windows)"
    if steps is not None:
        line += f". A batch of that size is N = {steps.steps} micro-batches of {micro}"
    return f"{line}."


def cost_title(model: str, rows: Mapping[str, Mapping[int, CostRow]], field: str) -> str:
    """What sync_batch on the host takes at most, over the micro-batch sizes, against naive accumulation."""
    if field == "host_bytes":
        most = max((row.host_bytes for row in rows.get("host", {}).values()), default=0)
        return f"{model}: sync_batch keeps at most {bytes_shown(most)} on the host"
    ratios = ratio(rows, "host", field)
    subject = "device memory" if field == "device_bytes" else "time"
    if not ratios:
        return f"{model}: {subject} of one window"
    micro = max(ratios, key=lambda micro: ratios[micro])
    return f"{model}: on the host, sync_batch takes at most {ratios[micro]:.2f} × naive accumulation's {subject}"


def ratio(rows: Mapping[str, Mapping[int, CostRow]], how: str, field: str) -> dict[int, float]:
    """Micro-batch size -> a cost of one way as a multiple of naive accumulation's."""
    naive = rows.get("naive", {})
    return {
        micro: float(getattr(row, field) / getattr(naive[micro], field))
        for micro, row in rows.get(how, {}).items()
        if micro in naive
    }


def exactness(norm: str) -> str:
    """Whether accumulation with a norm is exact, and why."""
    constants = norm_constants(norm)
    if constants.get("BATCH_INDEPENDENT"):
        return "yes: no sample depends on another"
    if constants.get("EXACT_UNDER_ACCUMULATION"):
        return "yes: all see the whole window"
    return "no: samples depend on their micro-batch"


def lost_from_batch_norm(norm: str) -> str:
    """What a trained BatchNorm loses on the way to a norm."""
    return " and ".join(norm_constants(norm).get("LOST", ())) or "nothing"


def bytes_shown(count: float) -> str:
    """Bytes for people."""
    return mebibytes(round(count))


def measured_line(environment: Environment) -> str:
    """Where the costs were measured."""
    threads = "1 thread" if environment.threads == 1 else f"{environment.threads} threads"
    return (
        f"Measured on {environment.date[:10]} by code version {environment.code_version} on {environment.processor}, "
        f"{threads}, torch {environment.torch}."
    )
