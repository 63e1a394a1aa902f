"""What the reader of the page of papers chose, as the page's address. Pure: no Streamlit.

``/reproduce?paper=wu_he_2018_group_norm&run=batch_2&n=4&norm=group&seeds=11,12``: the opened paper, and the settings to
vary where they differ from those of the run that is varied. The address, in which stands the form too that a run is
taken home in, alone rebuilds the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from accum_core import catalogue
from accum_core.batching import divisors
from accum_core.errors import SettingError
from accum_core.experiment import Experiment
from accum_core.measures import measure_of
from accum_core.records import RunConfig
from accum_ui import settings
from experiments import discover

MOST_SEED: Final = 2**31 - 1
MOST_SEEDS: Final = 12


@dataclass(frozen=True, slots=True)
class Choice:
    """What the page shows.

    Attributes:
        paper: name of the opened experiment; "" for the list of all.
        run: label of the run that is varied; "" for the first that is split.
        steps: its N; 0 for its own.
        norm: its norm; "" for its own.
        seeds: to vary it on; none for the bench's first.
        form: in which it is taken home.
    """

    paper: str = ""
    run: str = ""
    steps: int = 0
    norm: str = ""
    seeds: tuple[int, ...] = ()
    form: str = settings.USUAL_FORM


def read(address: Mapping[str, str]) -> Choice:
    """The choice that an address asks for.

    Raises:
        SettingError: naming the parameter, the value and what can be.
    """
    paper = address.get("paper", "")
    if not paper:
        return Choice()
    if paper not in discover():
        raise SettingError("paper", paper, f"is no experiment; use one of {', '.join(discover())}")
    experiment, run, norm = discover()[paper], address.get("run", ""), address.get("norm", "")
    labels = runs_of(experiment)
    if run and run not in labels:
        raise SettingError("run", run, f"is no run of {paper}; use one of {', '.join(labels)}")
    base = base_of(experiment, Choice(run=run))
    if norm:
        catalogue.check("norms", "norm", norm)
        if not takes_norm(base):
            raise SettingError("norm", norm, "has no effect on this network, which keeps its LayerNorm; leave it out")
    steps = _whole("n", address.get("n", "0"))
    if steps and steps not in steps_of(base):
        raise SettingError(
            "n", steps, f"must divide {base.effective_batch_size}: {', '.join(map(str, steps_of(base)))}"
        )
    seeds = tuple(dict.fromkeys(_whole("seeds", part) for part in address.get("seeds", "").split(",") if part))
    if len(seeds) > MOST_SEEDS:
        raise SettingError("seeds", address["seeds"], f"are too many; give at most {MOST_SEEDS}")
    return Choice(paper, run, steps, norm, seeds, settings.form(address))


def address(choice: Choice) -> dict[str, str]:
    """The query parameters that ``read`` turns back into the choice."""
    named = {
        "paper": choice.paper,
        "run": choice.run,
        "n": str(choice.steps or ""),
        "norm": choice.norm,
        "seeds": ",".join(map(str, choice.seeds)),
        settings.FORM: choice.form if choice.form != settings.USUAL_FORM else "",
    }
    return {name: value for name, value in named.items() if value}


def runs_of(experiment: Experiment) -> dict[str, RunConfig]:
    """Label -> the bench's configuration, of the first seed that has it."""
    preset = experiment.preset("bench")
    found: dict[str, RunConfig] = {}
    for seed in preset.seeds:
        for label, config in preset.configs(seed).items():
            found.setdefault(label, config)
    return found


def base_of(experiment: Experiment, choice: Choice) -> RunConfig:
    """The run that is varied."""
    return runs_of(experiment)[label_of(experiment, choice)]


def label_of(experiment: Experiment, choice: Choice) -> str:
    """Its label: the chosen one, or the first that is split, or the first."""
    runs = runs_of(experiment)
    split = [label for label, config in runs.items() if config.accumulation_steps > 1]
    return choice.run or (split or list(runs))[0]


def steps_of(config: RunConfig) -> list[int]:
    """The N that its effective batch can be cut into."""
    return divisors(config.effective_batch_size)


def takes_norm(config: RunConfig) -> bool:
    """Whether its network's layers are those that the norm names; the language models keep their LayerNorm."""
    return measure_of(config.workload).field != "token_loss"


def _whole(name: str, text: str) -> int:
    digits = text.lstrip("0") if text.isascii() and text.isdigit() else "-"
    if digits == "-" or len(digits) > len(str(MOST_SEED)) or int(digits or 0) > MOST_SEED:
        raise SettingError(name, text, f"must be a whole number from 0 to {MOST_SEED}")
    return int(digits or 0)
