"""One file a workload: data, networks, objective and validation.

Each file gives the literal constants ``TITLE``, ``MODELS`` (names of files under ``models``), ``MEASURE`` (what its
runs are compared by, of ``accum_core.measures``) and ``SAMPLES`` (what a sentence calls its samples), and a function
``load()`` that returns a ``Workload``. ``LOSS``, if given, says which objective it has, so that a run can be exported
for frameworks: ``cross_entropy`` of labels that all count, ``cross_entropy_of_valid_labels`` (-100 does not), or
``cross_entropy_of_heads``. One with ``IN_LAB = False`` is for experiments and not on the Lab's menu. One with
``LANGUAGE = True`` reads a model and text of the user's own: it has a function ``load_with(language)`` as well.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Protocol

from torch import Tensor, nn

from accum_core import catalogue
from accum_core.engine.objectives import Objective
from accum_core.engine.sampling import WindowSampler
from accum_core.language_settings import LanguageSettings
from accum_core.records import Validation


class Workload(Protocol):
    """What ``train`` asks of a workload; everything is on the CPU, in float32 where it is floating point.

    One that shows its training samples otherwise in every epoch has a method ``augmented(indices, seed, epoch)``
    beside ``samples(indices)``: what it gives depends on these three alone, and not on what is asked for together.
    With a method ``expect`` of the same arguments it is told what comes next, to have it ready. One whose networks need
    several objectives has a method ``objective_of(model)``.
    """

    num_samples: int
    objective: Objective

    def build_model(self, name: str) -> nn.Module:
        """A new network, initial weights from the global random state."""
        ...

    def samples(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Training samples ``[B, ...]`` and their targets."""
        ...

    def validate(self, model: nn.Module) -> Validation:
        """Quality on the held-out samples; called in evaluation mode without gradients, and changes nothing."""
        ...


def epoch_samples(workload: Workload, indices: Sequence[int], seed: int, epoch: int) -> tuple[Tensor, Tensor]:
    """Training samples and targets as an epoch of a run shows them: augmented, where the workload does that."""
    augmented: Callable[[Sequence[int], int, int], tuple[Tensor, Tensor]] | None
    augmented = getattr(workload, "augmented", None)
    return workload.samples(indices) if augmented is None else augmented(indices, seed, epoch)


def expect_samples(workload: Workload, sampler: WindowSampler, size: int, seed: int) -> None:
    """Tell a workload that wants to know which samples the sampler's next window of that size will hold."""
    expect: Callable[[Sequence[int], int, int], None] | None = getattr(workload, "expect", None)
    if expect is not None:
        ahead = copy.copy(sampler)
        indices = ahead.next(size)
        expect(indices, seed, ahead.epoch)


def objective_of(workload: Workload, model: str) -> Objective:
    """The objective of one of the workload's networks."""
    find: Callable[[str], Objective] | None = getattr(workload, "objective_of", None)
    return workload.objective if find is None else find(model)


@cache
def load(name: str) -> Workload:
    """The workload of that name, its data read once a process.

    Raises:
        SettingError: for an unknown name.
        DataError: for data that is missing or damaged.
    """
    catalogue.check("workloads", "workload", name)
    workload: Workload = importlib.import_module(f"accum_core.engine.workloads.{name}").load()
    return workload


@cache
def load_with(name: str, language: LanguageSettings) -> Workload:
    """The workload of that name with a model and text of the user's own, read once a process.

    Raises:
        SettingError: for what cannot be used as it is asked for.
        DataError: for a model or text that is missing or damaged.
    """
    workload: Workload = importlib.import_module(f"accum_core.engine.workloads.{name}").load_with(language)
    return workload
