"""Which learning rate and which weight decay each parameter of a model has: the groups of its optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from accum_core.engine.normalization import norm_kinds
from accum_core.errors import SettingError
from accum_core.run_config import RunConfig


def parameter_groups(model: nn.Module, config: RunConfig) -> list[dict[str, Any]]:
    """The groups of a model's optimizer, each with its ``params``, ``lr`` (before any schedule) and ``weight_decay``.

    A model may have an attribute ``rate_multipliers``: the dotted name of one of its modules or parameters -> the
    factor on the learning rate of every parameter in it; where one name lies inside another the longer one counts.
    ``config.weight_decay_spares`` takes the decay off the parameters of norms (those that a norm has besides its weight
    and bias included), or off those and every bias.

    How many groups there are, and in which order, depends on the names and the setting alone and not on the norm, so
    that a live change of norm moves parameters and makes no group; one may be empty. The first has the factor 1, and
    without names and setting it is the only one. Every parameter is in exactly one (tests/test_parameter_groups.py).

    Raises:
        SettingError: for a name in ``rate_multipliers`` that no parameter bears, or a factor that is not above 0.
    """
    multipliers: Mapping[str, float] = getattr(model, "rate_multipliers", {})
    of_norms = {id(p) for module in model.modules() if _is_norm(module) for p in module.parameters(recurse=False)}
    decays = [config.weight_decay] if config.weight_decay_spares == "nothing" else [config.weight_decay, 0.0]
    groups: dict[tuple[float, bool], dict[str, Any]] = {
        (factor, index > 0): {"params": [], "lr": factor * config.peak_learning_rate, "weight_decay": decay}
        for factor in dict.fromkeys([1.0, *multipliers.values()])
        for index, decay in enumerate(decays)
    }
    used = set()
    for name, parameter in model.named_parameters():
        holders = [holder for holder in multipliers if f"{name}.".startswith(f"{holder}.")]
        used.update(holders)
        factor = multipliers[max(holders, key=len)] if holders else 1.0
        is_bias = config.weight_decay_spares == "norms_and_biases" and name.endswith("bias")
        spared = config.weight_decay_spares != "nothing" and (id(parameter) in of_norms or is_bias)
        groups[factor, spared]["params"].append(parameter)
    for holder, factor in multipliers.items():
        if holder not in used or not factor > 0:
            remedy = "must name a module or parameter of the model, with a factor above 0"
            raise SettingError("rate_multipliers", {holder: factor}, remedy)
    return list(groups.values())


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.LayerNorm) or any(kind.owns(module) for kind in norm_kinds().values())
