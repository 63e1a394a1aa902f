"""What a run leaves: its records, frozen, typed, round-trip to JSON; ``run_config`` says what a run is."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from accum_core.run_config import LiveField, NonFinitePolicy, Record, RunConfig

__all__ = [
    "Change",
    "Environment",
    "Incident",
    "LiveField",
    "Message",
    "NonFinitePolicy",
    "Record",
    "RunConfig",
    "RunResult",
    "Term",
    "UpdateRecord",
    "Validation",
    "summarise",
]

IncidentKind = Literal["no_valid_label", "non_finite", "skipped_micro_batches", "overflow", "out_of_memory"]
MessageKind = Literal["set", "pause", "resume", "stop"]


class Term(Record):
    """One named term of a window's loss: its weighted mean over the window and the window's weight."""

    loss: float
    weight: float


class Change(Record):
    """A live change that took effect before an update, or was refused with a reason."""

    field: LiveField
    old: int | float | str
    new: int | float | str
    refused: str | None = None


class Incident(Record):
    """Something that went wrong in a window and was dealt with as the configuration says.

    Attributes:
        kind: ``no_valid_label``, ``non_finite`` and ``overflow`` made no update and held the schedule;
            ``skipped_micro_batches`` and ``out_of_memory`` made it all the same.
        text: what happened, for people.
    """

    kind: IncidentKind
    text: str


class Message(Record):
    """What a watcher asks of a running training; it is taken between two updates."""

    kind: MessageKind
    field: LiveField | None = None
    value: int | float | str | None = None


class Validation(Record):
    """Quality on the held-out samples, at the model's present parameters in evaluation mode.

    Each kind of task has its own measures, and None where they do not apply; a workload's ``MEASURE`` names the one
    that its runs are compared by (``accum_core.measures``).

    Attributes:
        loss: weighted mean of the objective.
        miou: mean over classes of intersection over union, in [0, 1]; classes absent from both are left out.
        pixel_accuracy: share of valid pixels that are right.
        class_iou: one value a class, NaN where the class is absent from both; empty without maps.
        error: share of samples whose class is wrong, in [0, 1].
        token_loss: mean cross-entropy of the valid tokens, in nats.
        pictures: predictions on the workload's display samples, as base64 PNG files.
    """

    loss: float
    miou: float | None = None
    pixel_accuracy: float | None = None
    class_iou: tuple[float, ...] = ()
    error: float | None = None
    token_loss: float | None = None
    pictures: tuple[str, ...] = ()


class UpdateRecord(Record):
    """What one optimizer step leaves behind.

    Attributes:
        update: updates made, this one included (the first record has 1).
        epoch: passes over the training samples that were finished before this window.
        samples, micro_batches: seen in the run so far.
        seconds: spent on training so far (windows and steps; neither instruments, validation nor pauses).
        samples_per_second: of this window alone.
        loss: the window's loss, the weighted mean over its samples, before the step.
        terms: the same for each named term of the objective.
        learning_rate: that this update used.
        gradient_norm: L2 norm of the accumulated gradient, before clipping.
        instruments: what was due, by instrument: name -> its fields. Gradient error, for example, is
            ``instruments["gradient_error"]["relative_error"]``.
        validation: when due.
        changes: live changes that took effect before this update.
        incidents: what went wrong since the update before.
    """

    update: int
    epoch: int
    samples: int
    micro_batches: int
    seconds: float
    samples_per_second: float
    loss: float
    terms: dict[str, Term]
    learning_rate: float
    micro_batch_size: int
    accumulation_steps: int
    norm: str
    gradient_norm: float
    instruments: dict[str, dict[str, Any]] = Field(default_factory=dict)
    validation: Validation | None = None
    changes: tuple[Change, ...] = ()
    incidents: tuple[Incident, ...] = ()


class Environment(Record):
    """Where and with what a run was computed."""

    code_version: str
    python: str
    torch: str
    platform: str
    processor: str
    device: str
    threads: int
    date: str


class RunResult(Record):
    """A finished run as a file or a committed result holds it."""

    config: RunConfig
    environment: Environment
    records: tuple[UpdateRecord, ...]

    @property
    def metrics(self) -> dict[str, float]:
        """The run's final numbers: the last validation's ``loss`` and whatever of ``miou``, ``pixel_accuracy``,
        ``error`` and ``token_loss`` it has, and the medians over updates of ``gradient_error`` and ``cosine`` against
        the full batch at equal weights."""
        return summarise(self.records)


def summarise(records: tuple[UpdateRecord, ...] | list[UpdateRecord]) -> dict[str, float]:
    """Final metrics of a list of records; a metric that was never measured is left out."""
    from statistics import median

    metrics: dict[str, float] = {}
    validations = [record.validation for record in records if record.validation is not None]
    if validations:
        for name in ("miou", "pixel_accuracy", "error", "token_loss", "loss"):
            if (value := getattr(validations[-1], name)) is not None:
                metrics[name] = value
    for name, field in (("gradient_error", "relative_error"), ("cosine", "cosine")):
        measured = [r.instruments["gradient_error"][field] for r in records if "gradient_error" in r.instruments]
        if measured:
            metrics[name] = median(measured)
    return metrics
