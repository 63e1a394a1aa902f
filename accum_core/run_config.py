"""What a run is: the settings that decide its numbers, checked, frozen and round-trip to JSON."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from accum_core import catalogue, scaling
from accum_core.batching import BatchPlan, divisors, near
from accum_core.errors import SettingError
from accum_core.language_settings import LanguageSettings
from accum_core.reduction import ReductionKind, TailRule
from accum_core.schedule import Schedule, ScheduleKind

OptimizerName = Literal["sgd", "adamw"]
ScalingRule = Literal["none", "linear", "square_root", "half_life"]
Precision = Literal["float32", "float64", "bfloat16_autocast", "float16_autocast", "bfloat16"]
NonFinitePolicy = Literal["stop", "skip_micro_batch", "skip_window"]
Offload = Literal["none", "host", "recompute"]
DecaySpares = Literal["nothing", "norms", "norms_and_biases"]
LiveField = Literal["accumulation_steps", "norm", "learning_rate"]
LARGEST_BATCH = 65536
LARGEST_RATE = 100.0


class Record(BaseModel):
    """Base of everything stored: immutable, no unknown fields, NaN and infinity kept in JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants", allow_inf_nan=True)


class RunConfig(Record):
    """Everything that decides a run's numbers, apart from the code, the machine and its thread count.

    Build it with ``RunConfig.of(...)`` to get refusals as one sentence. Counts are in updates or samples as named.

    Attributes:
        norm_groups, norm_channels_per_group: groups of the norms over groups, or channels in each, if given.
        ghost_batch_size: samples that ghost BatchNorm normalises over at a time.
        renorm_r_max, renorm_d_max, renorm_warmup: bounds of batch renorm's correction, and the passes before it.
        offload: where a window that runs in step (sync_batch) keeps what its backward pass needs: on the ``host``, or
            there and computed again where that is cheap (``recompute``), or on the device (``none``), which then holds
            what the undivided batch would.
        learning_rate: what the schedule multiplies; by default a linear warm-up times (1 - t/T)^0.9 after t of T
            updates.
        nesterov: Nesterov's form of sgd's momentum (Sutskever et al. 2013).
        weight_decay_spares: parameters without weight decay: those of norms, or those and every bias.
        scaling: how the settings, meant for an effective batch of ``base_batch_size``, are carried over to this one
            (``accum_core.scaling``): the learning rate in proportion or by the square root, or, for adamw, beta2 at
            equal half-life.
        milestones, decay_factor, decay: for the schedule ``step``: after each of these updates the rate is multiplied
            by the factor, or, with ``decay = "batch"``, N is divided by it instead (Smith et al. 2018).
        largest_batch_size: bound, if any, on the effective batch that ``decay = "batch"`` grows; the rate falls there.
        clip_norm, clip_value: bounds of the window's gradient, once a window; None for none.
        precision: ``bfloat16_autocast`` and ``float16_autocast`` compute passes in that type, the latter under a
            GradScaler; ``bfloat16`` holds the parameters in it too.
        accumulate_in_float32: sum the gradients of bfloat16 parameters in float32.
        non_finite: what becomes of a micro-batch or window whose loss or gradient is infinite or not a number. A loss
            of the whole window at once (contrastive) can only ``stop`` or ``skip_window``, and never shrinks.
        shrink_on_out_of_memory: halve the micro-batch and double N when a window does not fit into the memory.
        activation_checkpointing: keep only the inputs of each block and compute it again in the backward pass.
        average_decay: of an exponential moving average of the weights, moved once an update and used to validate.
        extra_instruments: names of those that watch only the runs that ask for them.
        exchange_every_micro_batch: under torchrun, average the gradients after each micro-batch, not once a window.
        language: model and text of a workload that reads the user's own; other workloads take none.
    """

    workload: str = "landcover"
    model: str = "deeplab"
    norm: str = "batch"
    norm_groups: int = Field(8, ge=1, le=4096)
    norm_channels_per_group: int | None = Field(None, ge=1, le=4096)
    ghost_batch_size: int = Field(2, ge=1, le=LARGEST_BATCH)
    renorm_r_max: float = Field(3.0, ge=1, le=1000)
    renorm_d_max: float = Field(5.0, ge=0, le=1000)
    renorm_warmup: int = Field(0, ge=0, le=1_000_000)
    offload: Offload = "host"
    effective_batch_size: int = Field(32, ge=1, le=LARGEST_BATCH)
    micro_batch_size: int = Field(2, ge=1, le=65536)
    reduction: ReductionKind = "exact"
    tail: TailRule = "drop"
    updates: int = Field(150, ge=1, le=1_000_000)
    learning_rate: float = Field(0.03, gt=0, le=LARGEST_RATE, allow_inf_nan=False)
    warmup_updates: int = Field(20, ge=0, le=1_000_000)
    momentum: float = Field(0.9, ge=0, lt=1)
    nesterov: bool = False
    weight_decay: float = Field(1e-4, ge=0, le=1)
    weight_decay_spares: DecaySpares = "nothing"
    seed: int = Field(0, ge=0, le=2**31 - 1)
    validate_every: int = Field(15, ge=1, le=1_000_000)
    measure_every: int = Field(15, ge=1, le=1_000_000)
    precision: Precision = "float32"
    optimizer: OptimizerName = "sgd"
    beta2: float = Field(0.999, ge=0, lt=1)
    schedule: ScheduleKind = "poly"
    milestones: tuple[int, ...] = ()
    decay_factor: float = Field(0.1, ge=0.001, lt=1)
    decay: Literal["rate", "batch"] = "rate"
    largest_batch_size: int | None = Field(None, ge=1, le=LARGEST_BATCH)
    scaling: ScalingRule = "none"
    base_batch_size: int = Field(32, ge=1, le=65536)
    clip_norm: float | None = Field(None, gt=0, allow_inf_nan=False)
    clip_value: float | None = Field(None, gt=0, allow_inf_nan=False)
    average_decay: float | None = Field(None, gt=0, lt=1)
    accumulate_in_float32: bool = True
    non_finite: NonFinitePolicy = "stop"
    shrink_on_out_of_memory: bool = False
    activation_checkpointing: bool = False
    exchange_every_micro_batch: bool = False
    extra_instruments: tuple[str, ...] = ()
    language: LanguageSettings | None = None

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
        if self.language is not None and not catalogue.entries("workloads")[self.workload].get("LANGUAGE"):
            raise SettingError("language", self.language.model, f"is nothing that {self.workload} reads; leave it away")
        catalogue.check("norms", "norm", self.norm)
        _ = self.shape
        if self.decay == "batch" and (self.schedule != "step" or abs(self._growth * self.decay_factor - 1) > 1e-9):
            raise SettingError("decay", self.decay, "needs schedule = step, and a decay_factor of 1/2, 1/3, 1/4, ...")
        if (bound := self.largest_batch_size) and (self.decay != "batch" or bound < self.effective_batch_size):
            remedy = f"needs decay = batch, and at least the effective batch of {self.effective_batch_size}"
            raise SettingError("largest_batch_size", bound, remedy)
        if self.milestones and self.milestones[-1] >= self.updates:
            raise SettingError("milestones", self.milestones, f"must be smaller than updates = {self.updates}")
        if self.nesterov and (self.optimizer != "sgd" or not self.momentum):
            raise SettingError("nesterov", True, "is a form of sgd's momentum; use optimizer = sgd, momentum above 0")
        if self.exchange_every_micro_batch and (self.shrink_on_out_of_memory or self.non_finite == "skip_micro_batch"):
            remedy = "cannot be with shrink_on_out_of_memory or skip_micro_batch, whose ranks decide at a window's end"
            raise SettingError("exchange_every_micro_batch", True, remedy)
        if self.norm == "sync_batch" and self.non_finite == "skip_micro_batch":
            remedy = "cannot take a micro-batch out of the statistics that sync_batch shares; use skip_window or stop"
            raise SettingError("non_finite", self.non_finite, remedy)
        for name in self.extra_instruments:
            catalogue.check("instruments", "extra_instruments", name)
        self._check_scaling()
        _ = self.plan
        if (largest := self.plan_at(self.updates).effective_batch_size) > LARGEST_BATCH:
            remedy = f"grows the effective batch to {largest}; use fewer milestones, or a largest_batch_size"
            raise SettingError("decay", self.decay, remedy)

    def _check_scaling(self) -> None:
        if self.scaling == "half_life" and self.optimizer != "adamw":
            raise SettingError("scaling", self.scaling, "is a rule for adamw's beta2; use linear or square_root")
        if self.scaling == "half_life" and not (self.beta2 > 0 and self.scaled_beta2 < 1):
            remedy = (
                f"has no equal half-life at an effective batch of {self.effective_batch_size}; use one between 0 and 1"
            )
            raise SettingError("beta2", self.beta2, remedy)
        if self.peak_learning_rate > LARGEST_RATE:
            remedy = f"becomes {self.peak_learning_rate:g} by the rule {self.scaling}; use a smaller one"
            raise SettingError("learning_rate", self.learning_rate, remedy)

    @property
    def plan(self) -> BatchPlan:
        """The split of the effective batch on one rank."""
        return BatchPlan(self.effective_batch_size, self.micro_batch_size)

    def plan_at(self, update: int, world_size: int = 1) -> BatchPlan:
        """The split of the window that makes an update (counted from 1).

        It differs from ``plan`` when the batch grows where a schedule would divide the rate, and over several ranks.
        A run whose micro-batch is its effective batch stays without a split.

        Raises:
            SettingError: for ranks that the effective batch does not divide among.
        """
        growth = self._growth ** sum(update > milestone for milestone in self.milestones[: self._growths])
        whole = self.micro_batch_size == self.effective_batch_size
        micro = self.micro_batch_size * growth // world_size if whole else self.micro_batch_size
        return BatchPlan(self.effective_batch_size * growth, micro, world_size)

    @property
    def _growth(self) -> int:
        return round(1 / self.decay_factor)

    @property
    def _growths(self) -> int:
        """How many of the milestones, the first ones, multiply the batch; the others multiply the rate."""
        if self.decay == "rate":
            return 0
        bound = self.largest_batch_size or math.inf
        grown = range(1, len(self.milestones) + 1)
        return sum(self.effective_batch_size * self._growth**times <= bound for times in grown)

    @property
    def shape(self) -> Schedule:
        """The learning rate's course, as shares of ``peak_learning_rate``.

        A rate that ``scaling`` raised is warmed up gradually from ``learning_rate``, which was right for the base batch
        (Goyal et al. 2017, section 2.2). One that it left or lowered has nothing to climb from: like a run without a
        rule, it is warmed up from 0.

        Raises:
            SettingError: for a warm-up or milestones that the updates have no room for.
        """
        is_raised = self.peak_learning_rate > self.learning_rate
        of_rate = self.milestones[self._growths :]
        return Schedule(
            self.schedule,
            self.updates,
            self.warmup_updates,
            warmup_from=self.learning_rate / self.peak_learning_rate if is_raised else 0.0,
            milestones=of_rate or self.milestones,
            factor=self.decay_factor if of_rate else 1.0,
        )

    @property
    def peak_learning_rate(self) -> float:
        """What the schedule multiplies, carried over to this effective batch."""
        rules = {"linear": scaling.linear_rate, "square_root": scaling.square_root_rate}
        rule = rules.get(self.scaling)
        sizes = self.base_batch_size, self.effective_batch_size
        return self.learning_rate if rule is None else rule(self.learning_rate, *sizes)

    @property
    def scaled_beta2(self) -> float:
        """Adam's beta2, carried over to this effective batch."""
        if self.scaling != "half_life":
            return self.beta2
        return scaling.beta_at_equal_half_life(self.beta2, self.base_batch_size, self.effective_batch_size)

    @property
    def accumulation_steps(self) -> int:
        """N, the micro-batches in a full window."""
        return self.plan.accumulation_steps

    @property
    def is_watched(self) -> bool:
        """Whether instruments watch the run."""
        return self.language is None or self.language.watched

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
                asked = value if isinstance(value, int) else 1
                possible = near(asked, divisors(self.effective_batch_size))
                raise SettingError(
                    field,
                    value,
                    f"does not divide the effective batch of {self.effective_batch_size}; "
                    f"use one of {', '.join(map(str, possible))}",
                )
            settings["micro_batch_size"] = self.effective_batch_size // value
        elif field in ("norm", "learning_rate"):
            settings[field] = value
        else:
            raise SettingError("field", field, "only accumulation_steps, norm and learning_rate change during a run")
        return type(self).of(**settings)

    def digest(self) -> str:
        """The configuration's hash (hexadecimal, 64 digits), equal for equal settings."""
        # A run without it keeps the hash that it had before there was this setting.
        unused = {"language"} if self.language is None else set()
        canonical = json.dumps(self.model_dump(mode="json", exclude=unused), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()
