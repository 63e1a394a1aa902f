"""What an experiment's runs have in common, and where each differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from accum_core.experiment import SeedRuns
from accum_core.records import RunConfig


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings by name, as ``RunConfig`` has them.

    Attributes:
        shared: name -> value that every run has.
        differing: names of the others, without the seed.
        runs: label -> its values of those.
        seeds: label -> the seeds that ran it.
    """

    shared: Mapping[str, object]
    differing: tuple[str, ...]
    runs: Mapping[str, Mapping[str, object]]
    seeds: Mapping[str, tuple[int, ...]]


def compare(runs: Mapping[int, SeedRuns]) -> Settings:
    """The settings of all runs of all seeds; a label's own are those of its first seed."""
    configs: dict[str, dict[str, object]] = {}
    seeds: dict[str, tuple[int, ...]] = {}
    for seed, of_seed in runs.items():
        for label, run in of_seed.items():
            configs.setdefault(label, {name: getattr(run.config, name) for name in RunConfig.model_fields})
            seeds[label] = (*seeds.get(label, ()), seed)
    names = [name for name in RunConfig.model_fields if name != "seed"]
    differing = tuple(name for name in names if len({config[name] for config in configs.values()}) > 1)
    first = next(iter(configs.values()))
    return Settings(
        shared={name: first[name] for name in names if name not in differing},
        differing=differing,
        runs={label: {name: config[name] for name in differing} for label, config in configs.items()},
        seeds=seeds,
    )
