"""What the reader of the page Language model chose, as runs and as the page's address. Pure: no Streamlit.

``/language-model?rows=packed&micro=2&reduction=mean_of_means``: what differs from the defaults stands in the address,
so that the address alone rebuilds the page; a run is found by its settings. The defaults are an experiment's, whose
committed runs the page opens with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Final, get_args

from accum_core.batching import divisors
from accum_core.errors import SettingError
from accum_core.export import FORMS
from accum_core.records import RunConfig
from accum_core.reduction import ReductionKind
from accum_ui.settings import USUAL_FORM, check_axis
from experiments import find

EXPERIMENT: Final = "docstring_finetuning"
"""Whose runs these are."""
ROWS: Final = ("padded", "packed")
"""How functions are laid out."""
EFFECTIVE: Final = (8, 16, 32, 64)
UPDATES: Final = (16, 64, 256)
"""Powers of four: one less divides by three, so that the last update is measured too."""
RATES: Final = (0.0001, 0.0003, 0.001, 0.003)
SMALL: Final = (1, 2, 4, 8)
COSTED: Final = (1, 2, 4, 8, 16)
"""Micro-batch sizes of the table of costs."""
COST_UPDATES: Final = 4


@dataclass(frozen=True, slots=True)
class Choice:
    """What the page shows.

    Attributes:
        rows: one of ``ROWS``.
        effective, micro: sizes in samples: functions, or packed rows.
        rate: the learning rate that the schedule multiplies.
        small: the smaller effective batch that is tried beside this one.
        form: in which the run is taken home.
    """

    rows: str = "padded"
    effective: int = 32
    micro: int = 4
    reduction: str = "exact"
    rate: float = 0.001
    updates: int = 16
    seed: int = 41
    small: int = 4
    form: str = USUAL_FORM


DEFAULT: Final = Choice()


def config(choice: Choice) -> RunConfig:
    """The run that the page is about.

    Raises:
        SettingError: for a micro-batch that does not divide the effective batch.
    """
    return _run(choice, choice.effective, choice.micro, choice.updates, choice.rate, choice.reduction)


def division_configs(choice: Choice) -> tuple[RunConfig, RunConfig, RunConfig]:
    """One pass, the same window cut and divided exactly, and cut with its micro-batches' means averaged."""
    size = choice.effective, choice.micro, choice.updates, choice.rate
    exact = _run(choice, *size)
    return exact.reference(), exact, _run(choice, *size, "mean_of_means")


def cost_configs(choice: Choice) -> list[RunConfig]:
    """Runs of a few updates, one a micro-batch size, for what the effective batch costs; divided exactly."""
    once = {"extra_instruments": (), "measure_every": COST_UPDATES, "validate_every": COST_UPDATES}
    sizes = [size for size in COSTED if choice.effective % size == 0]
    runs = [_run(choice, choice.effective, size, COST_UPDATES, choice.rate) for size in sizes]
    return [run.model_copy(update=once) for run in runs]


def advice_configs(choice: Choice) -> tuple[RunConfig, RunConfig]:
    """The effective batch accumulated, and the smaller one over the same samples, both divided exactly.

    The smaller one has beta2 at equal half-life in samples, and a rate that falls by half while the batch falls to a
    512th: what the best rates of Marek et al. 2025 did (``experiments.marek_2025_small_batches``).
    """
    small = choice.small
    large = _run(choice, choice.effective, choice.micro, choice.updates, choice.rate)
    rate = choice.rate * (small / choice.effective) ** (1 / 9)
    updates = choice.updates * choice.effective // small
    run = _run(choice, small, min(small, choice.micro), updates, float(f"{rate:.3g}"))
    return large, run.model_copy(update={"scaling": "half_life", "base_batch_size": choice.effective})


def _run(choice: Choice, effective: int, micro: int, updates: int, rate: float, reduction: str = "exact") -> RunConfig:
    run = usual(choice.rows).model_copy(
        update={
            "effective_batch_size": effective,
            "micro_batch_size": micro,
            "reduction": reduction,
            "updates": updates,
            "learning_rate": rate,
            "warmup_updates": updates // 16,
            "seed": choice.seed,
            "validate_every": updates // 4,
            "measure_every": (updates - 1) // 3,
        }
    )
    run.check()
    return run


@cache
def usual(rows: str) -> RunConfig:
    """The experiment's exact run of its first seed, whose other settings all runs of the page have."""
    return find(EXPERIMENT).preset("bench").configs(seeds()[0])[f"{rows}_exact"]


def seeds() -> tuple[int, ...]:
    """The experiment's seeds."""
    return find(EXPERIMENT).preset("bench").seeds


def micros(choice: Choice) -> list[int]:
    """The micro-batch sizes that the effective batch can be cut into."""
    return divisors(choice.effective)


def smaller(choice: Choice) -> list[int]:
    """The smaller effective batches that can be tried beside this one."""
    return [size for size in SMALL if size < choice.effective]


def adjusted(choice: Choice, **changed: Any) -> Choice:
    """The choice with other settings; sizes that they have no room for become the next smaller ones."""
    found = replace(choice, **changed)
    micro = max(size for size in micros(found) if size <= found.micro)
    return replace(found, micro=micro, small=max(size for size in smaller(found) if size <= found.small))


def read(address: Mapping[str, str]) -> Choice:
    """The choice that an address asks for.

    Raises:
        SettingError: naming the parameter, the value and what can be.
    """
    check_axis(address)
    found = {}
    for field in fields(Choice):
        if field.name in address:
            text = address[field.name]
            options = OPTIONS.get(field.name)
            by_text = {str(option): option for option in options or ()}
            if options and text in by_text:
                found[field.name] = by_text[text]
            elif options:
                raise SettingError(field.name, text, f"use one of {', '.join(by_text)}")
            elif text.isascii() and text.isdigit() and int(text[:11]) < 2**31:
                found[field.name] = int(text)
            else:
                raise SettingError(field.name, text, "use a whole number from 0 to 2147483647")
    choice = replace(DEFAULT, **found)
    if choice.micro not in micros(choice):
        wanted = ", ".join(map(str, micros(choice)))
        raise SettingError(
            "micro", choice.micro, f"does not divide effective = {choice.effective}; use one of {wanted}"
        )
    if choice.small not in smaller(choice):
        raise SettingError("small", choice.small, f"must be below effective = {choice.effective}; use a smaller one")
    return choice


def address(choice: Choice) -> dict[str, str]:
    """The query parameters that ``read`` turns back into the choice."""
    return {
        field.name: str(getattr(choice, field.name))
        for field in fields(Choice)
        if getattr(choice, field.name) != getattr(DEFAULT, field.name)
    }


OPTIONS: Final[Mapping[str, tuple[Any, ...]]] = {
    "rows": ROWS,
    "effective": EFFECTIVE,
    "reduction": get_args(ReductionKind),
    "rate": RATES,
    "updates": UPDATES,
    "small": SMALL,
    "form": tuple(FORMS),
}
