"""The address and the settings: a run's configuration as query parameters, with the command line's names.

``/lab?norm=group&micro=4&run=0123456789ab``: what differs from the base (the run's settings where there is a run, the
defaults otherwise) stands in the address, so that the address alone rebuilds the page in another browser.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from accum_core.batching import divisors
from accum_core.errors import SettingError
from accum_core.records import RunConfig

RUN: Final = "run"
AXIS: Final = "x"
AXES: Final = ("updates", "samples", "seconds")
FORM: Final = "form"
USUAL_FORM: Final = "script"
"""Of those in ``accum_core.export.FORMS``."""
FIELDS: Final[Mapping[str, tuple[str, type]]] = {
    "workload": ("workload", str),
    "model": ("model", str),
    "norm": ("norm", str),
    "effective": ("effective_batch_size", int),
    "micro": ("micro_batch_size", int),
    "reduction": ("reduction", str),
    "lr": ("learning_rate", float),
    "updates": ("updates", int),
    "seed": ("seed", int),
}
KINDS: Final = {int: "a whole number", float: "a number"}
PARAMETERS: Final = {field: name for name, (field, _) in FIELDS.items()}


def read(address: Mapping[str, str], base: RunConfig) -> RunConfig:
    """The settings that an address asks for, over those of ``base``.

    The warm-up is no setting of the page: it is the base's, or the longest that a shorter run has room for.

    Raises:
        SettingError: naming the parameter and the value that cannot be.
    """
    check_axis(address)
    form(address)
    wanted: dict[str, Any] = {}
    for name, (field, kind) in FIELDS.items():
        if name in address:
            try:
                wanted[field] = kind(address[name])
            except ValueError:
                raise SettingError(name, address[name], f"must be {KINDS[kind]}") from None
    try:
        return adjusted(base, wanted)
    except SettingError as error:
        # Told as the address has it: "micro" for micro_batch_size.
        raise SettingError(PARAMETERS.get(error.field, error.field), error.value, error.remedy) from None


def check_axis(address: Mapping[str, str]) -> None:
    """Refuse a horizontal axis that the charts have not.

    Raises:
        SettingError: naming those there are.
    """
    if address.get(AXIS, AXES[0]) not in AXES:
        raise SettingError(AXIS, address[AXIS], f"is no horizontal axis; use {', '.join(AXES)}")


def form(address: Mapping[str, str]) -> str:
    """The form of export that an address asks for.

    Raises:
        SettingError: for one that there is not.
    """
    # Here, since the first page reads this file and needs no export.
    from accum_core.export import FORMS

    asked = address.get(FORM, USUAL_FORM)
    if asked not in FORMS:
        raise SettingError(FORM, asked, f"use one of {', '.join(FORMS)}")
    return asked


def adjusted(base: RunConfig, wanted: Mapping[str, Any]) -> RunConfig:
    """``base`` with other settings, and a warm-up that fits into the updates.

    Raises:
        SettingError: for a setting that cannot be.
    """
    settings = base.model_dump() | dict(wanted)
    if isinstance(settings["updates"], int) and settings["updates"] > 0 and settings["updates"] != base.updates:
        settings["warmup_updates"] = min(RunConfig.of().warmup_updates, settings["updates"] - 1)
    return RunConfig.of(**settings)


def address(config: RunConfig, base: RunConfig, run_id: str | None) -> dict[str, str]:
    """The query parameters that ``read`` turns back into ``config``."""
    found = {
        name: str(getattr(config, field)).removesuffix(".0")  # the shortest text that gives the same number back
        for name, (field, _) in FIELDS.items()
        if getattr(config, field) != getattr(base, field)
    }
    return found | ({RUN: run_id} if run_id else {})


def nearest_steps(effective: int, micro: int) -> int:
    """The N whose micro-batch comes nearest to ``micro`` from below, for a new effective batch."""
    return next(n for n in divisors(effective) if effective // n <= micro or n == effective)
