"""What the Lab says: a question made from the settings, an answer and chart titles made from the run's numbers.

Pure: a ``Numbers`` in, sentences out. Thresholds are named here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Context
from typing import Final

from accum_core import catalogue
from accum_core.measures import Measure, measure_of
from accum_core.quantities import POINT, number
from accum_core.records import RunConfig

SAME: Final = 1e-3  # a gradient error up to here is the order in which floats were added
PARTED: Final = 0.05  # losses have parted when they stay this share of the reference's loss apart
RECENT: Final = 20  # updates that a speed is the median of, under the present norm and N
AGREES: Final = 2  # points of mIoU or of an error; runs whose mathematics is equal differ by less
NATS_AGREE: Final = 0.01


@dataclass(frozen=True, slots=True)
class Numbers:
    """What is known of a run so far; None for what is not yet.

    Attributes:
        config: the run's settings at its start; ``state`` is the run's state now.
        norm, accumulation_steps: the present ones.
        update: updates made; ``measured_from`` is the first one under the present norm and N.
        loss: ``(first, last)`` of the smoothed training loss.
        losses: smoothed losses of run and reference at the last update that both have made.
        parted_at: the update after which the two stay apart; None while they do not.
        widest: ``(share of the reference's loss, update)`` where the two are furthest apart.
        quality: ``(run, reference, update)`` of the workload's measure at the newest validation; the reference's may
            be None.
        gradient_error, cosine: medians since ``measured_from``; ``reference_*`` are the reference run's own.
        layers: name -> median error since ``measured_from``.
        saved_bytes: ``(one micro-batch, full batch)``, kept for backward.
        speed, reference_speed: samples a second, median of the last ``RECENT`` updates since ``measured_from``.
        weight_distance: newest.
    """

    config: RunConfig
    norm: str
    accumulation_steps: int
    state: str = "running"
    update: int = 0
    measured_from: int = 1
    loss: tuple[float, float] | None = None
    losses: tuple[float, float] | None = None
    parted_at: int | None = None
    widest: tuple[float, int] | None = None
    quality: tuple[float, float | None, int] | None = None
    gradient_error: float | None = None
    cosine: float | None = None
    reference_error: float | None = None
    reference_cosine: float | None = None
    layers: dict[str, float] = field(default_factory=dict)
    saved_bytes: tuple[int, int] | None = None
    speed: float | None = None
    reference_speed: float | None = None
    weight_distance: float | None = None

    @property
    def measure(self) -> Measure:
        """What ``quality`` is of."""
        return measure_of(self.config.workload)

    @property
    def micro_batch_size(self) -> int:
        """Samples that the norm sees at a time now."""
        return self.config.effective_batch_size // self.accumulation_steps


def question(config: RunConfig) -> str:
    """The page's title."""
    if config == config.reference():
        return f"How does one batch of {config.effective_batch_size} train?"
    return f"Is {config.accumulation_steps} × {config.micro_batch_size} the same as 1 × {config.effective_batch_size}?"


def norm_title(norm: str) -> str:
    """The norm's name for people ("GroupNorm")."""
    return str(catalogue.entries("norms").get(norm, {}).get("TITLE", norm))


def model_title(model: str) -> str:
    """The network's name for people ("U-Net")."""
    return str(catalogue.entries("models").get(model, {}).get("TITLE", model))


def layer_title(layer: str) -> str:
    """A layer's name for people."""
    return layer.replace("_", " ")


def _rounded_up(value: float) -> float:
    """The next number of one digit that is not below the value: what "no more than" may name."""
    return float(Context(prec=1, rounding=ROUND_CEILING).create_decimal(repr(value)))


def percent(share: float) -> str:
    """A share as a whole percentage, or with digits where it is below one percent."""
    return f"{100 * share:.0f} %" if 0.01 <= share < 100 else f"{number(100 * share, 1)} %"


def answer(numbers: Numbers) -> str:
    """The sentence under the title."""
    config, norm = numbers.config, norm_title(numbers.norm)
    if numbers.gradient_error is None:
        if numbers.update:
            return f"The first measurement{' since the change' * (numbers.measured_from > 1)} is still to come."
        if numbers.state in ("failed", "stopped"):
            return f"The run {numbers.state} before its first update, so there is nothing to see yet."
        return "The first update is still to come: the curves appear as soon as it is made."
    if numbers.accumulation_steps == 1 and config.reduction == "exact":
        return f"This is the batch itself, in one pass.{_standing(numbers, 'It stands')}"
    if numbers.gradient_error <= SAME:
        return (
            f"Yes, with {norm}: at the same parameters the gradient is the batch's to within "
            f"{number(numbers.gradient_error, 1)}, which is rounding.{_standing(numbers, 'The run stands')}"
        )
    samples = catalogue.entries("workloads").get(config.workload, {}).get("SAMPLES", "samples")
    if _norm_is_to_blame(numbers):
        opening = f"Not with {norm}. It sees {numbers.micro_batch_size} {samples} at a time: its"
    else:
        opening = f"Not with the reduction {config.reduction}. The"
    cosine = "" if numbers.cosine is None else f" has a cosine of {number(numbers.cosine)} to the batch's and"
    off = percent(numbers.gradient_error)
    return f"{opening} gradient{cosine} is off by {off}.{_standing(numbers, 'The run stands')}"


def _norm_is_to_blame(numbers: Numbers) -> bool:
    constants = catalogue.entries("norms").get(numbers.norm, {})
    exact = constants.get("BATCH_INDEPENDENT", False) or constants.get("EXACT_UNDER_ACCUMULATION", False)
    return not exact and numbers.accumulation_steps > 1


def _standing(numbers: Numbers, subject: str) -> str:
    if numbers.quality is None:
        return ""
    run, reference, update = numbers.quality
    measure = numbers.measure
    stands = f"{subject} at {measure.shown(run)} {measure.title} after {update} updates"
    if reference is None:
        return f" {stands}."
    config = numbers.config
    its_norm = "" if numbers.norm == config.norm else f" with {norm_title(config.norm)}"
    beside = f"one batch of {config.effective_batch_size}{its_norm} at {measure.shown(reference)}"
    return f" {stands}, {beside}."


def labels(numbers: Numbers) -> dict[str, str]:
    """What the lines of the run and of its reference are called on the charts."""
    config = numbers.config
    steps, effective = config.accumulation_steps, config.effective_batch_size
    ours = f"{steps} micro-batches of {config.micro_batch_size}" if steps > 1 else f"one batch of {effective}"
    changed = numbers.measured_from > 1
    return {"run": "this run, changed live" if changed else ours, "reference": f"reference: one batch of {effective}"}


def titles(numbers: Numbers) -> dict[str, str]:
    """One finding a panel, by the panel's key."""
    return {
        "loss": _loss_title(numbers),
        "quality": _quality_title(numbers),
        "gradient": _gradient_title(numbers),
        "layers": _layers_title(numbers),
        "distance": _distance_title(numbers),
        "memory": _memory_title(numbers),
        "maps": "What it does to the maps",
    }


def _loss_title(numbers: Numbers) -> str:
    if numbers.loss is None:
        return "Training loss"
    if numbers.losses is None:
        first, last = numbers.loss
        return f"Training loss went from {first:.2f} to {last:.2f}"
    if numbers.parted_at is None:
        if numbers.widest is None or numbers.widest[0] <= PARTED:
            return "The losses stay together"
        run, reference = numbers.losses
        share, update = numbers.widest
        return f"The losses are {percent(abs(run / reference - 1))} apart, at most {percent(share)} (update {update})"
    run, reference = numbers.losses
    return f"The losses part at update {numbers.parted_at}: now {run:.2f} and {reference:.2f}"


def _quality_title(numbers: Numbers) -> str:
    if numbers.quality is None:
        return f"First validation at update {min(numbers.config.validate_every, numbers.config.updates)}"
    run, reference, _ = numbers.quality
    measure = numbers.measure
    if reference is None:
        return f"Validation {measure.title} stands at {measure.shown(run)}"
    gap = run - reference
    points = gap / POINT
    name = measure.title if measure.higher_is_better else f"The {measure.title}"
    if measure.unit == "nats":
        if abs(gap) < NATS_AGREE:
            return f"{name} agrees within {NATS_AGREE} nats"
        return f"{name} stands {number(abs(gap))} nats {'higher' if gap > 0 else 'lower'}"
    if abs(points) < AGREES:
        return f"{name} agrees within {AGREES} points"
    if measure.higher_is_better and points < 0:
        return f"{-points:.0f} points of {name} are lost"
    return f"{name} stands {abs(points):.0f} points {'higher' if points > 0 else 'lower'}"


def _gradient_title(numbers: Numbers) -> str:
    if numbers.gradient_error is None:
        return "Gradient against the batch's"
    if numbers.gradient_error <= SAME:
        return f"The gradient is the batch's to within {number(numbers.gradient_error, 1)}"
    return f"{norm_title(numbers.norm)}: the gradient is off by {percent(numbers.gradient_error)}"


def _layers_title(numbers: Numbers) -> str:
    if not numbers.layers:
        return "Gradient error by layer"
    worst = max(numbers.layers, key=numbers.layers.__getitem__)
    most, least = numbers.layers[worst], min(numbers.layers.values())
    if most <= SAME:
        return f"No layer is off by more than {number(_rounded_up(most), 1)}"
    return f"{'Every layer' if least > SAME else 'Not every layer'} is off, {layer_title(worst)} most"


def _distance_title(numbers: Numbers) -> str:
    if numbers.weight_distance is None:
        return "Weight distance to the reference"
    return f"The weights are {percent(numbers.weight_distance)} away from the reference's"


def _memory_title(numbers: Numbers) -> str:
    if numbers.saved_bytes is None:
        return "Kept for backward"
    micro, full = numbers.saved_bytes
    if micro >= full:
        return "One pass keeps the whole batch"
    return f"One micro-batch keeps {number(full / micro)} times less than the batch"
