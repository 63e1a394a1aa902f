"""Training as a generator: it yields a record an update, takes live changes, and does not know who watches."""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from accum_core.engine import environment
from accum_core.engine.accumulate import WindowResult, accumulate_gradients
from accum_core.engine.controls import Controls
from accum_core.engine.instrument import Window, load_instruments
from accum_core.engine.modes import evaluating
from accum_core.engine.normalization import check_norms, convert_norms, norm_kinds
from accum_core.engine.sampling import WindowSampler
from accum_core.engine.workloads import load
from accum_core.errors import DataError, NonFiniteLossError, SettingError
from accum_core.records import Change, Environment, Message, RunConfig, UpdateRecord, Validation
from accum_core.reduction import LossReduction


def train(
    config: RunConfig, controls: Controls | None = None, *, device: torch.device | str | None = None
) -> Iterator[UpdateRecord]:
    """Train as configured and yield a record after each update.

    Two runs of one configuration are bit-equal on one machine with the same number of threads, and every split of an
    effective batch sees the same samples in the same order (tests/test_training.py).

    Args:
        config: what to train.
        controls: where live messages come from; none by default.
        device: CUDA when there is one, else the CPU, by default.

    Raises:
        SettingError: for a configuration that cannot work, before the first update.
        NonFiniteLossError: when a window's loss is infinite or not a number; that update is not made.
        DataError: when the workload's data is missing or damaged.
    """
    yield from Training(config, device=device).run(controls)


def learning_rate(config: RunConfig, update: int) -> float:
    """The rate of an update (counted from 1): linear warm-up, times (1 - t/T)^0.9 after t updates.

    The polynomial is torchvision's segmentation recipe; warm-up ends with update ``warmup_updates``.
    """
    made = update - 1
    warmup = min(1.0, update / config.warmup_updates) if config.warmup_updates else 1.0
    return float(config.learning_rate * warmup * (1 - made / config.updates) ** 0.9)


class Training:
    """A training that can be stopped after any update, saved, loaded and gone on with.

    Attributes:
        config: the present settings; live changes change them.
        model: the network in training; a live change of norm changes it in place.
        update: updates made so far.

    Args and errors are those of ``train``.
    """

    def __init__(self, config: RunConfig, *, device: torch.device | str | None = None) -> None:
        config.check()
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.config = config
        self.update = 0
        self._asked = config
        self._dtype = getattr(torch, config.precision)
        self._workload = load(config.workload)
        self._instruments = load_instruments()
        with self._reproducible(0):
            model = self._workload.build_model(config.model)
        self.model = convert_norms(model, config.norm, **_norm_options(config))
        # Convolutions on channels-last tensors are faster, on the CPU too: by 5 to 21 % here (docs/log.md).
        self.model.to(self.device, self._dtype).to(memory_format=torch.channels_last)
        self._sampler = WindowSampler(
            self._workload.num_samples, config.plan, drop_tail=config.tail == "drop", seed=config.seed
        )
        self._check_norms(self.model, config)
        self._optimizer = torch.optim.SGD(
            self.model.parameters(), config.learning_rate, config.momentum, weight_decay=config.weight_decay
        )
        self._samples, self._micro_batches, self._seconds = 0, 0, 0.0
        self._split_is_new = True

    def run(self, controls: Controls | None = None) -> Iterator[UpdateRecord]:
        """Make the updates that are left, yielding a record after each; ends early on a message to stop."""
        while self.update < self.config.updates:
            changes: list[Change] = []
            if controls is not None and not self._obey(controls, changes):
                return
            yield self._make_update(tuple(changes))

    def environment(self) -> Environment:
        """The process that this training runs in."""
        return environment.describe(self.device)

    def state_dict(self) -> dict[str, Any]:
        """Everything that ``load_state_dict`` needs to go on bit-equal: tensors and plain values."""
        return {
            "asked": self._asked.model_dump_json(),
            "config": self.config.model_dump_json(),
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "update": self.update,
            "epoch": self._sampler.epoch,
            "position": self._sampler.position,
            "samples": self._samples,
            "micro_batches": self._micro_batches,
            "seconds": self._seconds,
            "split_is_new": self._split_is_new,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state of the same configuration, with the live changes made until then.

        Raises:
            SettingError: when the state belongs to another configuration, naming what differs.
        """
        saved = RunConfig.model_validate_json(state["asked"]).model_dump()
        for field, value in self._asked.model_dump().items():
            if saved[field] != value:
                raise SettingError(
                    field, value, f"the checkpoint was made with {saved[field]!r}; use that, or start anew"
                )
        present = RunConfig.model_validate_json(state["config"])
        self.model = convert_norms(self.model, present.norm, **_norm_options(present))
        self.config = present
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.update = state["update"]
        self._sampler.epoch, self._sampler.position = state["epoch"], state["position"]
        self._samples, self._micro_batches = state["samples"], state["micro_batches"]
        self._seconds, self._split_is_new = state["seconds"], state["split_is_new"]

    def validate(self) -> Validation:
        """Quality on the held-out samples now; training goes on as if it had not been asked."""
        with evaluating(self.model):
            return self._workload.validate(self.model)

    def _make_update(self, changes: tuple[Change, ...]) -> UpdateRecord:
        number = self.update + 1
        rate = learning_rate(self.config, number)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        window = self._next_window(number)
        due = {name: instrument for name, instrument in self._instruments.items() if instrument.due(window)}
        watching = 0.0

        def observe(index: int) -> None:
            nonlocal watching
            started = time.perf_counter()
            for instrument in due.values():
                instrument.after_micro_batch(window, index)
            watching += time.perf_counter() - started

        with self._reproducible(number):
            started = time.perf_counter()
            result = accumulate_gradients(
                self.model,
                window.micro_batches,
                window.objective,
                reduction=LossReduction(self.config.reduction, self.config.tail, self.config.accumulation_steps),
                after_micro_batch=observe if due else None,
            )
            seconds = time.perf_counter() - started - watching
            if not math.isfinite(result.loss):
                raise NonFiniteLossError(number, result.loss)
            measured = {name: instrument.measure(window) for name, instrument in due.items()}
        started = time.perf_counter()
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients).item()
        if not math.isfinite(norm):
            raise NonFiniteLossError(number, norm, "gradient norm")
        self._optimizer.step()
        self._optimizer.zero_grad()
        seconds += time.perf_counter() - started
        self._count(result, seconds)
        due_now = number == self.config.updates or number % self.config.validate_every == 0
        return UpdateRecord(
            update=number,
            epoch=self._sampler.epoch,
            samples=self._samples,
            micro_batches=self._micro_batches,
            seconds=self._seconds,
            samples_per_second=result.samples / seconds,
            loss=result.loss,
            terms=result.terms,
            learning_rate=rate,
            micro_batch_size=self.config.micro_batch_size,
            accumulation_steps=self.config.accumulation_steps,
            norm=self.config.norm,
            gradient_norm=norm,
            instruments=measured,
            validation=self.validate() if due_now else None,
            changes=changes,
        )

    def _count(self, result: WindowResult, seconds: float) -> None:
        self.update += 1
        self._samples += result.samples
        self._micro_batches += result.micro_batches
        self._seconds += seconds
        self._split_is_new = False

    def _next_window(self, number: int) -> Window:
        """The next window that holds a valid label; without one there is nothing to step by."""
        objective = self._workload.objective
        for _ in range(self._sampler.windows_an_epoch + 1):
            inputs, targets = self._workload.samples(self._sampler.next())
            if any(objective.weights(targets).values()):
                inputs = inputs.to(self._dtype) if inputs.is_floating_point() else inputs
                slices = self.config.plan.slices(len(inputs))
                micro_batches = [(inputs[part], targets[part]) for part in slices]
                every, new = self.config.measure_every, self._split_is_new
                return Window(self.model, inputs, targets, micro_batches, objective, number, every, new)
            warnings.warn(f"a window before update {number} holds no valid label: no update was made", stacklevel=2)
        raise DataError(f"workload {self.config.workload} holds no valid label in a whole epoch: check its targets.")

    def _obey(self, controls: Controls, changes: list[Change]) -> bool:
        """Take messages until the training is not paused; False when it is to stop."""
        paused = False
        while True:
            for message in controls.take(self.update + 1, paused):
                if message.kind == "stop":
                    return False
                if message.kind == "set":
                    changes.append(self._change(message))
                else:
                    paused = message.kind == "pause"
            if not paused:
                return True

    def _change(self, message: Message) -> Change:
        """Make a live change, or say why not; training goes on either way."""
        if message.field is None or message.value is None:
            raise SettingError("message", message.kind, "a change names a field and a value")
        old = getattr(self.config, message.field)
        try:
            config = self.config.changed(message.field, message.value)
            # A refusal must leave no trace, so a new norm is tried on a copy first.
            trial = copy.deepcopy(self.model) if config.norm != self.config.norm else self.model
            self._check_norms(convert_norms(trial, config.norm, **_norm_options(config)), config)
        except SettingError as refusal:
            return Change(field=message.field, old=old, new=message.value, refused=str(refusal))
        self.model = convert_norms(self.model, config.norm, **_norm_options(config))
        self._split_is_new |= message.field != "learning_rate"
        self.config = config
        return Change(field=message.field, old=old, new=message.value)

    def _check_norms(self, model: nn.Module, config: RunConfig) -> None:
        """Find a layer that would fail at any micro-batch size that will come, the tail's included."""
        smallest = min(part.stop - part.start for part in config.plan.slices(self._sampler.tail))
        inputs, _ = self._workload.samples(range(min(config.micro_batch_size, self._workload.num_samples)))
        check_norms(model, inputs.to(self.device, self._dtype))
        try:
            check_norms(model, inputs[:smallest].to(self.device, self._dtype))
        except SettingError as refusal:
            raise SettingError(
                "tail",
                config.tail,
                f"leaves a last micro-batch of {smallest} an epoch, and {refusal.remedy}, or tail = 'drop'",
            ) from None

    @contextmanager
    def _reproducible(self, number: int) -> Iterator[None]:
        """Random state that depends on the seed and the update alone, and kernels that give the same bits twice."""
        devices: Sequence[torch.device] = [self.device] if self.device.type == "cuda" else []
        exact = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
        with torch.random.fork_rng(devices=devices), exact:
            torch.manual_seed(self._asked.seed * 1_000_003 + number)
            yield


def _norm_options(config: RunConfig) -> dict[str, int]:
    """The options of the configuration's norm, from the fields that its file names."""
    fields: dict[str, str] = getattr(norm_kinds()[config.norm], "OPTIONS", {})
    return {option: getattr(config, field) for option, field in fields.items()}
