"""What a run is (its configuration) and what it leaves (its records): frozen, typed, round-trip to JSON."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from accum_core import catalogue
from accum_core.batching import BatchPlan
from accum_core.errors import SettingError
from accum_core.reduction import ReductionKind, TailRule

Precision = Literal["float32", "float64"]
LiveField = Literal["accumulation_steps", "norm", "learning_rate"]
MessageKind = Literal["set", "pause", "resume", "stop"]


class Record(BaseModel):
    """Base of everything stored: immutable, no unknown fields, NaN and infinity kept in JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants", allow_inf_nan=True)


class RunConfig(Record):
    """Everything that decides a run's numbers, apart from the code, the machine and its thread count.

    Build it with ``RunConfig.of(...)`` to get refusals as one sentence. Counts are in updates or samples as named;
    the learning rate is what the schedule multiplies: a linear warm-up times (1 - t/T)^0.9 after t of T updates.
    """

    workload: str = "landcover"
    model: str = "deeplab"
    norm: str = "batch"
    norm_groups: int = Field(8, ge=1, le=4096)
    effective_batch_size: int = Field(32, ge=1, le=65536)
    micro_batch_size: int = Field(2, ge=1, le=65536)
    reduction: ReductionKind = "exact"
    tail: TailRule = "drop"
    updates: int = Field(150, ge=1, le=1_000_000)
    learning_rate: float = Field(0.03, gt=0, le=100, allow_inf_nan=False)
    warmup_updates: int = Field(20, ge=0, le=1_000_000)
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(1e-4, ge=0, le=1)
    seed: int = Field(0, ge=0, le=2**31 - 1)
    validate_every: int = Field(15, ge=1, le=1_000_000)
    measure_every: int = Field(15, ge=1, le=1_000_000)
    precision: Precision = "float32"

    @classmethod
    def of(cls, **settings: Any) -> Self:
        """A checked configuration.

        Raises:
            SettingError: naming the field, the value and what to do.
        """
        try:
            config = cls(**settings)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"])) or "settings"
            if first["type"] == "extra_forbidden":
                raise SettingError(field, first["input"], f"is no setting; use {', '.join(cls.model_fields)}") from None
            remedy = first["msg"][0].lower() + first["msg"][1:]
            raise SettingError(field, first["input"], remedy) from None
        config.check()
        return config

    def check(self) -> None:
        """Refuse what can be refused without building the model.

        Raises:
            SettingError: for unknown names, and sizes that do not divide.
        """
        catalogue.check("workloads", "workload", self.workload)
        models = catalogue.entries("workloads")[self.workload]["MODELS"]
        if self.model not in models:
            raise SettingError("model", self.model, f"is no model of {self.workload}; use one of {', '.join(models)}")
        catalogue.check("norms", "norm", self.norm)
        if self.warmup_updates >= self.updates:
            raise SettingError("warmup_updates", self.warmup_updates, f"must be smaller than updates = {self.updates}")
        _ = self.plan

    @property
    def plan(self) -> BatchPlan:
        """The split of the effective batch on one rank."""
        return BatchPlan(self.effective_batch_size, self.micro_batch_size)

    @property
    def accumulation_steps(self) -> int:
        """N, the micro-batches in a full window."""
        return self.plan.accumulation_steps

    def reference(self) -> RunConfig:
        """The run to hold this one against: one true batch, divided exactly, everything else equal."""
        return self.model_copy(update={"micro_batch_size": self.effective_batch_size, "reduction": "exact"})

    def changed(self, field: LiveField, value: object) -> RunConfig:
        """This configuration with one live setting changed; N changes the micro-batch, never the effective batch.

        Raises:
            SettingError: for a value that the field cannot take.
        """
        settings = self.model_dump()
        if field == "accumulation_steps":
            if not isinstance(value, int) or isinstance(value, bool) or value < 1 or self.effective_batch_size % value:
                divisors = [n for n in range(1, self.effective_batch_size + 1) if self.effective_batch_size % n == 0]
                raise SettingError(
                    field,
                    value,
                    f"does not divide the effective batch of {self.effective_batch_size}; "
                    f"use one of {', '.join(map(str, divisors))}",
                )
            settings["micro_batch_size"] = self.effective_batch_size // value
        elif field in ("norm", "learning_rate"):
            settings[field] = value
        else:
            raise SettingError("field", field, "only accumulation_steps, norm and learning_rate change during a run")
        return type(self).of(**settings)

    def digest(self) -> str:
        """The configuration's hash (hexadecimal, 64 digits), equal for equal settings."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


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


class Message(Record):
    """What a watcher asks of a running training; it is taken between two updates."""

    kind: MessageKind
    field: LiveField | None = None
    value: int | float | str | None = None


class Validation(Record):
    """Quality on the held-out samples, at the model's present parameters in evaluation mode.

    Attributes:
        miou: mean over classes of intersection over union, in [0, 1]; classes absent from both are left out.
        pixel_accuracy: share of valid pixels that are right.
        class_iou: one value a class, NaN where the class is absent from both.
        loss: weighted mean of the objective.
        pictures: predictions on the workload's display samples, as base64 PNG files.
    """

    miou: float
    pixel_accuracy: float
    class_iou: tuple[float, ...]
    loss: float
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
        gradient_norm: L2 norm of the accumulated gradient.
        instruments: what was due, by instrument: name -> its fields. Gradient error, for example, is
            ``instruments["gradient_error"]["relative_error"]``.
        validation: when due.
        changes: live changes that took effect before this update.
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
    instruments: dict[str, dict[str, Any]] = {}
    validation: Validation | None = None
    changes: tuple[Change, ...] = ()


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
        """The run's final numbers: ``miou`` and ``loss`` (validation, last), and the medians over updates of
        ``gradient_error`` and ``cosine`` against the full batch at equal weights."""
        return summarise(self.records)


def summarise(records: tuple[UpdateRecord, ...] | list[UpdateRecord]) -> dict[str, float]:
    """Final metrics of a list of records; a metric that was never measured is left out."""
    from statistics import median

    metrics: dict[str, float] = {}
    validations = [record.validation for record in records if record.validation is not None]
    if validations:
        metrics["miou"] = validations[-1].miou
        metrics["pixel_accuracy"] = validations[-1].pixel_accuracy
        metrics["loss"] = validations[-1].loss
    for name, field in (("gradient_error", "relative_error"), ("cosine", "cosine")):
        measured = [r.instruments["gradient_error"][field] for r in records if "gradient_error" in r.instruments]
        if measured:
            metrics[name] = median(measured)
    return metrics
