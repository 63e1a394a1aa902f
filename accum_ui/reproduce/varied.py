"""One run of an experiment with other settings, beside the committed one: what differs, seed by seed. No Streamlit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from accum_core.errors import SettingError
from accum_core.experiment import Experiment
from accum_core.records import RunConfig
from accum_core.runs.rows import Run
from accum_core.runs.store import Store
from accum_ui.reproduce.choice import Choice, base_of, label_of
from experiments.report.findings import Findings


@dataclass(frozen=True, slots=True)
class Varied:
    """One seed of a varied run.

    Attributes:
        config: with the changed settings.
        run: that stands for it in the store, or None.
        numbers: of the varied run once it is done, by metric.
        committed: of the committed run of this seed; empty where there is none.
    """

    seed: int
    config: RunConfig
    run: Run | None
    numbers: Mapping[str, float]
    committed: Mapping[str, float]


def settings(experiment: Experiment, choice: Choice, seed: int) -> RunConfig:
    """The varied run of one seed.

    Raises:
        SettingError: for settings that cannot be together.
    """
    base = base_of(experiment, choice)
    steps = choice.steps or base.accumulation_steps
    changed = {
        "micro_batch_size": base.effective_batch_size // steps,
        "norm": choice.norm or base.norm,
        "seed": seed,
    }
    return RunConfig.of(**base.model_dump() | changed)


def changes(experiment: Experiment, choice: Choice) -> bool:
    """Whether the settings are others than the experiment's own."""
    base = base_of(experiment, choice)
    own_seed = set(seeds_of(experiment, choice)) <= set(experiment.preset("bench").seeds)
    return settings(experiment, choice, base.seed) != base or not own_seed


def seeds_of(experiment: Experiment, choice: Choice) -> tuple[int, ...]:
    """The seeds to vary it on."""
    return choice.seeds or experiment.preset("bench").seeds[:1]


def look(store: Store, experiment: Experiment, choice: Choice, found: Findings | None) -> list[Varied]:
    """The varied runs, a seed each, with what the store holds of them.

    Args:
        found: the committed result.

    Raises:
        SettingError: for settings that cannot be together.
        StoreError: when the store cannot be read.
    """
    label = label_of(experiment, choice)
    varied = []
    for seed in seeds_of(experiment, choice):
        config = settings(experiment, choice, seed)
        run = store.find(config)
        committed = found.runs.get(seed, {}).get(label) if found is not None else None
        varied.append(
            Varied(
                seed=seed,
                config=config,
                run=run,
                numbers=store.result(run.id).metrics if run is not None and run.state == "done" else {},
                committed=committed.metrics if committed is not None else {},
            )
        )
    return varied


def refusal(experiment: Experiment, choice: Choice) -> str:
    """Why the settings cannot be run, in one sentence; "" if they can."""
    try:
        settings(experiment, choice, seeds_of(experiment, choice)[0]).check()
    except SettingError as error:
        return str(error)
    return ""
