"""What the reader of the page on normalisation chose, as the page's address. Pure: no Streamlit.

``/normalisation?norms=batch,group&seeds=11&run=0123456789ab&layer=stem.1&n=16``: what differs from the defaults stands
in the address, so that the address alone rebuilds the page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Final, get_args

from accum_core import catalogue
from accum_core.batching import divisors
from accum_core.errors import SettingError
from accum_core.records import RunConfig
from accum_core.run_config import Offload
from experiments import discover, find

EXPERIMENTS: Final = ("segmentation_batch_size", "wu_he_2018_group_norm")
"""Whose settings the race takes over, so that their committed runs are in it, and whose papers stand beside it."""
MOST_SEED: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Choice:
    """What the page shows.

    Attributes:
        on: workload and model, such as ``landcover-deeplab``.
        norms: the layers that race, in the catalogue's order.
        seeds: that are wanted of each run; none stands for whatever is stored.
        run: id of the run that is opened; "" for the page's own choice, as for the other fields below.
        layer: name of its layer; ``channel`` is one of those that were kept, ``update`` a measured one.
        steps: N that the window is cut into; 0 for the page's own choice.
    """

    on: str = "landcover-deeplab"
    norms: tuple[str, ...] = ("batch", "sync_batch", "group")
    seeds: tuple[int, ...] = ()
    run: str = ""
    layer: str = ""
    channel: int = -1
    update: int = 0
    steps: int = 0


DEFAULT: Final = Choice()


@cache
def subjects() -> Mapping[str, RunConfig]:
    """Workload and model -> the settings that its runs share: those of the experiments' ``bench`` presets."""
    found: dict[str, RunConfig] = {}
    for name in EXPERIMENTS:
        preset = find(name).preset("bench")
        for config in preset.configs(preset.seeds[0]).values():
            found.setdefault(f"{config.workload}-{config.model}", config)
    return found


@cache
def usual_seeds(on: str) -> tuple[int, ...]:
    """The seeds of all experiments whose ``bench`` presets hold runs of this race."""
    found: dict[int, None] = {}
    for experiment in discover().values():
        preset = experiment.preset("bench")
        for seed in preset.seeds:
            alike_in_size = (
                one
                for one in preset.configs(seed).values()
                if (f"{one.workload}-{one.model}", one.effective_batch_size)
                == (on, subjects()[on].effective_batch_size)
            )
            if any(one in alike(config(on, one.norm, one.micro_batch_size, seed)) for one in alike_in_size):
                found[seed] = None
    return tuple(sorted(found))


def micros(on: str) -> list[int]:
    """The micro-batch sizes that the effective batch can be cut into, the largest first."""
    return divisors(subjects()[on].effective_batch_size)[::-1]


def config(on: str, norm: str, micro: int, seed: int) -> RunConfig:
    """One run of the race."""
    return subjects()[on].model_copy(update={"norm": norm, "micro_batch_size": micro, "seed": seed})


def alike(config: RunConfig) -> list[RunConfig]:
    """The configurations whose numbers are this one's.

    Where a window keeps its work changes none of them, and with N = 1 a BatchNorm over the window is BatchNorm.
    """
    norms = [config.norm]
    if config.accumulation_steps == 1 and catalogue.entries("norms")[config.norm].get("EXACT_UNDER_ACCUMULATION"):
        norms.append("batch")
    places = dict.fromkeys((config.offload, *get_args(Offload)))
    return [config.model_copy(update={"norm": norm, "offload": place}) for norm in norms for place in places]


def in_order(norms: object) -> tuple[str, ...]:
    """Norms as the catalogue orders them, each once."""
    wanted = set(norms) if isinstance(norms, (list, tuple, set)) else set()
    return tuple(name for name in catalogue.entries("norms") if name in wanted)


def read(address: Mapping[str, str]) -> Choice:
    """The choice that an address asks for.

    Raises:
        SettingError: naming the parameter, the value and what can be.
    """
    choice = DEFAULT
    for name, (field, parse, _) in PARAMETERS.items():
        if name in address:
            try:
                choice = replace(choice, **{field: parse(address[name])})
            except ValueError as error:
                raise SettingError(name, address[name], str(error)) from None
    return choice


def address(choice: Choice) -> dict[str, str]:
    """The query parameters that ``read`` turns back into the choice."""
    return {
        name: write(getattr(choice, field))
        for name, (field, _, write) in PARAMETERS.items()
        if getattr(choice, field) != getattr(DEFAULT, field)
    }


def _on(text: str) -> str:
    if text not in subjects():
        raise ValueError(f"use one of {', '.join(subjects())}")
    return text


def _norms(text: str) -> tuple[str, ...]:
    known = catalogue.entries("norms")
    names = [name for name in text.split(",") if name]
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"{unknown[0]} is no norm; use some of {', '.join(known)}")
    return in_order(names)


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and low <= int(text[:11]) <= high):
            raise ValueError(f"use a whole number from {low} to {high}")
        return int(text)

    return parse


def _seeds(text: str) -> tuple[int, ...]:
    seed = _whole(0, MOST_SEED)
    return tuple(sorted({seed(part) for part in text.split(",")}))


def _run(text: str) -> str:
    if not (text.isascii() and text.replace("-", "").isalnum() and len(text) <= 32):
        raise ValueError("use the id of a run, such as 0123456789ab")
    return text


def _layer(text: str) -> str:
    if not (text and len(text) <= 200 and text.isprintable()):
        raise ValueError("use the name of a layer, such as stem.1")
    return text


def _listed(values: tuple[Any, ...]) -> str:
    return ",".join(map(str, values))


PARAMETERS: Final[dict[str, tuple[str, Callable[[str], Any], Callable[[Any], str]]]] = {
    # name: field, from text, to text
    "on": ("on", _on, str),
    "norms": ("norms", _norms, _listed),
    "seeds": ("seeds", _seeds, _listed),
    "run": ("run", _run, str),
    "layer": ("layer", _layer, str),
    "channel": ("channel", _whole(0, 1_000_000), str),
    "update": ("update", _whole(1, 1_000_000), str),
    "n": ("steps", _whole(1, 65536), str),
}
assert {field for field, _, _ in PARAMETERS.values()} == {field.name for field in fields(Choice)}
