"""Training as a generator: it yields a record an update, takes live changes, and does not know who watches."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from accum_core.engine import building, checkpoints, environment
from accum_core.engine.controls import Controls, obey
from accum_core.engine.instrument import Window, load_instruments, measure_all, watching
from accum_core.engine.modes import evaluating
from accum_core.engine.normalization import check_sizes
from accum_core.engine.passes import Passes, shrunk
from accum_core.engine.ranks import present_ranks
from accum_core.engine.recompute import checkpoint_activations
from accum_core.engine.reproducible import reproducible
from accum_core.engine.sampling import WindowSampler, micro_batch_sizes
from accum_core.engine.schedules import rescale
from accum_core.engine.update import Update
from accum_core.engine.workloads import epoch_samples, expect_samples, load, load_with, objective_of
from accum_core.errors import DataError, NonFiniteLossError, SettingError
from accum_core.provenance import code_version
from accum_core.records import Change, Environment, Incident, Message, RunConfig, UpdateRecord, Validation

MOST_SKIPS = 30  # windows in a row without an update; a GradScaler finds its scale within 20


def train(
    config: RunConfig, controls: Controls | None = None, *, device: torch.device | str | None = None
) -> Iterator[UpdateRecord]:
    """Train as configured and yield a record after each update.

    Two runs of one configuration are bit-equal on one machine with the same number of threads, and every split of an
    effective batch sees the same samples in the same order (tests/test_training.py). Under torchrun every rank calls
    it and passes its share of each window; the records are those of all ranks together, and instruments and
    validation are computed on rank 0 alone.

    Args:
        config: what to train.
        controls: where live messages come from; none by default.
        device: CUDA when there is one, else the CPU, by default.

    Raises:
        SettingError: for a configuration that cannot work, before the first update.
        NonFiniteLossError: when a window's loss or gradient is infinite or not a number and ``non_finite`` is
            ``stop``, or no window of many was finite; that update is not made.
        OutOfMemoryError: when not even one sample fits into the memory and the micro-batch may shrink.
        DataError: when the workload's data is missing or damaged.
    """
    yield from Training(config, device=device).run(controls)


class Training:
    """A training that can be stopped after any update, or inside a window, saved, loaded and gone on with.

    Attributes:
        config: the present settings; live changes change them.
        model: the network in training; a live change of norm changes it in place.
        inside_window: it was left between two micro-batches of a window.

    Args and errors are those of ``train``.
    """

    def __init__(self, config: RunConfig, *, device: torch.device | str | None = None) -> None:
        config.check()
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.config = self._asked = config
        self._rank, self._world_size = present_ranks()
        name, language = config.workload, config.language
        self._workload = load(name) if language is None else load_with(name, language)
        self._instruments = load_instruments(config.extra_instruments) if self._rank == 0 and config.is_watched else {}
        with reproducible(config.seed, 0, self.device):
            model = self._workload.build_model(config.model)
        self._plan = config.plan_at(1, self._world_size)
        model = building.normalised(model, config, self._plan)
        if config.activation_checkpointing:
            model = checkpoint_activations(model)
        # Convolutions on channels-last tensors are faster, on the CPU too: by 5 to 21 % here (docs/log.md).
        self._dtype = building.TYPES[config.precision][0]
        self.model = model.to(self.device, self._dtype).to(memory_format=torch.channels_last)
        self._sampler = WindowSampler(self._workload.num_samples, drop_tail=config.tail == "drop", seed=config.seed)
        self._check(self.model, config)
        self._updater, self._scheduler = building.updater(config, self.model, self.device)
        self._passes = Passes(self.model, objective_of(self._workload, config.model))
        self._seconds = self._lasted = 0.0
        self._split_is_new, self._place = True, (0, 0)

    @property
    def update(self) -> int:
        """Updates made so far."""
        return self._updater.updates

    @property
    def inside_window(self) -> bool:
        """Whether it was left between two of a window's micro-batches."""
        return self._passes.left is not None

    def run(self, controls: Controls | None = None, leave: Callable[[], bool] | None = None) -> Iterator[UpdateRecord]:
        """Make the updates that are left, yielding a record after each; ends early on a message to stop.

        Between two micro-batches ``leave`` is asked; once it says so the run ends inside the window, and a saved state
        goes on from there. A window that is watched, shared by ranks or may be begun again is finished first.
        """
        while self.update < self.config.updates:
            changes = [] if controls is None or self.inside_window else obey(controls, self.update + 1, self._change)
            if changes is None:
                return
            if (record := self._make_update(tuple(changes), leave)) is None:
                return
            yield record

    def environment(self) -> Environment:
        """The process that it runs in."""
        return environment.describe(self.device)

    def state_dict(self) -> dict[str, Any]:
        """Everything that ``load_state_dict`` needs to go on bit-equal: tensors and plain values."""
        return {
            "asked": self._asked.model_dump_json(),
            "config": self.config.model_dump_json(),
            "code_version": code_version(),
            "model": self.model.state_dict(),
            "updater": self._updater.state_dict(),
            "place": (self._sampler.epoch, self._sampler.position),
            "window": self._passes.left,
            "seconds": self._seconds,
            "split_is_new": self._split_is_new,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state of the same configuration, with the live changes made until then.

        Raises:
            SettingError: when it is of another configuration or code version, naming what differs and both values.
        """
        checkpoints.check(state, self._asked)
        self.config = RunConfig.model_validate_json(state["config"])
        self._normalise()
        self.model.load_state_dict(state["model"])
        self._updater.load_state_dict(state["updater"])
        self._sampler.epoch, self._sampler.position = state["place"]
        self._passes.left = state["window"]
        self._seconds, self._split_is_new = state["seconds"], state["split_is_new"]

    def validate(self) -> Validation:
        """Quality on the held-out samples now, of the averaged weights if any; training goes on as if not asked."""
        average = self._updater.average
        model = self.model if average is None else average.module
        with evaluating(model):
            return self._workload.validate(model)

    def _make_update(self, changes: tuple[Change, ...], leave: Callable[[], bool] | None) -> UpdateRecord | None:
        """Pass windows until one makes the update; None when one was left on request."""
        number = self.update + 1
        rate = self._updater.learning_rate
        incidents: list[Incident] = []
        skips = 0
        while True:
            # A window that is left is begun again from its samples alone, so nothing else may have happened yet.
            update, measured = self._pass_window(number, incidents, None if changes else leave)
            if update is None:
                self._sampler.epoch, self._sampler.position = self._place
                return None
            incidents += update.incidents
            if update.made:
                break
            if (skips := skips + 1) == MOST_SKIPS:
                raise NonFiniteLossError(number, update.gradient_norm, "gradient norm")
        due = number == self.config.updates or number % self.config.validate_every == 0
        return UpdateRecord(
            update=number,
            epoch=self._sampler.epoch,
            samples=self._updater.samples,
            micro_batches=self._updater.micro_batches,
            seconds=self._seconds,
            samples_per_second=update.window.samples / self._lasted,
            loss=update.window.loss,
            terms=update.window.terms,
            learning_rate=rate,
            micro_batch_size=self._plan.micro_batch_size,
            accumulation_steps=self._plan.accumulation_steps,
            norm=self.config.norm,
            gradient_norm=update.gradient_norm,
            instruments=measured,
            validation=self.validate() if due and self._rank == 0 else None,
            changes=changes,
            incidents=tuple(incidents),
        )

    def _pass_window(
        self, number: int, incidents: list[Incident], leave: Callable[[], bool] | None
    ) -> tuple[Update | None, dict[str, Any]]:
        window = self._next_window(number, incidents)
        due = {name: instrument for name, instrument in self._instruments.items() if instrument.due(window)}
        measured: dict[str, Any] = {}
        spent = 0.0

        def observe(index: int) -> None:
            nonlocal spent
            started = time.perf_counter()
            for instrument in due.values():
                instrument.after_micro_batch(window, index)
            spent += time.perf_counter() - started

        def measure() -> None:
            nonlocal spent
            started = time.perf_counter()
            measured.update(measure_all(due, replace(window, buffers=outcome.start.buffers), incidents))
            spent += time.perf_counter() - started

        precision = building.precision(self.config, self._updater.loss_scale)
        started = time.perf_counter()
        with reproducible(self._asked.seed, number, self.device, self._rank):
            observing, leaving = observe if due else None, None if due or incidents else leave
            with watching(due.values(), window):
                outcome = self._passes.accumulate(
                    self.config, self._plan, (window.inputs, window.targets), precision, observing, leaving
                )
            spent += sum(instrument.seconds for instrument in due.values())
            if outcome.plan != self._plan:
                incidents.append(shrunk(self._plan, outcome.plan))
                self._plan = outcome.plan
                self.config = self.config.model_copy(update={"micro_batch_size": self._plan.micro_batch_size})
                self._normalise()
                self._check(self.model, self.config)  # of the tails, which are smaller now as well
                window = replace(window, micro_batches=self._passes.cut(window.inputs, window.targets, self._plan))
            passed = outcome.window
            update = None if passed is None else self._updater.step(passed, measure if due else None, outcome.start)
        self._lasted = time.perf_counter() - started - spent
        self._seconds += self._lasted
        self._split_is_new = False
        return update, measured

    def _next_window(self, number: int, incidents: list[Incident]) -> Window:
        """The next window that holds a valid label; without one there is nothing to step by."""
        before, self._plan = self._plan, self.config.plan_at(number, self._world_size)
        if self._plan != before:
            self._normalise()
        size = self._plan.effective_batch_size
        for _ in range(self._sampler.windows_an_epoch(size) + 1):
            self._place = self._sampler.epoch, self._sampler.position
            indices = self._sampler.next(size)
            inputs, targets = epoch_samples(self._workload, indices, self._asked.seed, self._sampler.epoch)
            expect_samples(self._workload, self._sampler, size, self._asked.seed)
            if any(self._passes.objective.weights(targets).values()):
                inputs = building.cast(inputs, self._dtype)
                return Window(
                    model=self.model,
                    inputs=inputs,
                    targets=targets,
                    micro_batches=self._passes.cut(inputs, targets, self._plan),
                    objective=self._passes.objective,
                    update=number,
                    every=self.config.measure_every,
                    split_is_new=self._split_is_new,
                    loss_scale=self._updater.loss_scale * self._world_size,  # which averaging over ranks divides by
                    num_samples=self._workload.num_samples,
                    draw=partial(epoch_samples, self._workload, seed=self._asked.seed, epoch=self._sampler.epoch),
                )
            text = f"a window before update {number} holds no valid label: no update was made"
            warnings.warn(text, stacklevel=2)
            incidents.append(Incident(kind="no_valid_label", text=text))
        raise DataError(f"workload {self.config.workload} holds no valid label in a whole epoch: check its targets.")

    def _change(self, message: Message) -> Change:
        """Make a live change, or say why not; training goes on either way."""
        if message.field is None or message.value is None:
            raise SettingError("message", message.kind, "a change names a field and a value")
        old = getattr(self.config, message.field)
        try:
            config = self.config.changed(message.field, message.value)
            if message.field != "learning_rate":
                # A refusal must leave no trace, so norm and N are tried on a copy first.
                self._check(building.normalised(copy.deepcopy(self.model), config, self._plan), config)
        except SettingError as refusal:
            return Change(field=message.field, old=old, new=message.value, refused=str(refusal))
        self._split_is_new |= message.field != "learning_rate"
        self.config = config
        self._normalise()
        if message.field == "learning_rate":
            rescale(self._scheduler, config.peak_learning_rate)
        return Change(field=message.field, old=old, new=message.value)

    def _check(self, model: nn.Module, config: RunConfig) -> None:
        sizes = micro_batch_sizes(config, self._sampler, self._world_size)
        inputs, _ = self._workload.samples(range(min(max(sizes), self._workload.num_samples)))
        check_sizes(model, building.cast(inputs, self._dtype).to(self.device), sizes, config.tail)

    def _normalise(self) -> None:
        self.model = building.normalised(self.model, self.config, self._plan)
        if building.follow(self._updater, self.model, self.config, self._plan):
            self._passes = Passes(self.model, self._passes.objective)  # over ranks, new parameters are exchanged too
