"""Lines about a run: its settings, where it comes from, and how the controls differ from it. Pure."""

from __future__ import annotations

from typing import Final

from accum_core.records import Environment, RunConfig
from accum_ui.words import norm_title

SETTINGS: Final = {
    "workload": "workload",
    "model": "model",
    "norm": "norm",
    "effective_batch_size": "effective batch size",
    "micro_batch_size": "micro-batch",
    "reduction": "reduction",
    "learning_rate": "learning rate",
    "updates": "updates",
    "seed": "seed",
}


def change(field: str, value: object) -> str:
    """A live setting and its value, as a person says it ("N = 4")."""
    name = {"accumulation_steps": "N", "norm": "Norm", "learning_rate": "Learning rate"}[field]
    return f"{name} = {norm_title(str(value)) if field == 'norm' else value}"


def settings_line(config: RunConfig, present: RunConfig) -> str:
    """A run's settings in one line, with what live changes have made of them."""
    split = f"{config.accumulation_steps} × {config.micro_batch_size}"
    line = (
        f"{config.workload} · {config.model} · {norm_title(config.norm)} · {config.effective_batch_size} = {split} · "
        f"reduction {config.reduction} · learning rate {config.learning_rate:g} · {config.updates} updates · "
        f"seed {config.seed}"
    )
    changed = _differences(present, config)
    return f"This run: {line}" + (f" · changed live to {', '.join(changed)}" if changed else "")


def reference_line(config: RunConfig) -> str:
    """What stands beside the run, in grey."""
    if config == config.reference():
        return "This is one batch, divided exactly: the run is its own reference."
    return f"Its reference, in grey: one batch of {config.effective_batch_size} in one pass, everything else equal."


def provenance_line(source: str, environment: Environment) -> str:
    """Where a finished run comes from."""
    origin = "Computed here" if source == "lab" else f"Stored result of the experiment {source}, computed"
    return (
        f"{origin} on {environment.date[:10]} with code version {environment.code_version}, "
        f"{environment.processor}, {environment.threads} {'thread' if environment.threads == 1 else 'threads'}, "
        f"torch {environment.torch}."
    )


def difference_line(config: RunConfig, present: RunConfig) -> str:
    """What the controls hold that the run shown does not."""
    other = ", ".join(_differences(config, present))
    return f"Settings changed ({other}): press Run to see them. The run below has its own."


def _differences(config: RunConfig, present: RunConfig) -> list[str]:
    found = []
    for setting, name in SETTINGS.items():
        value = getattr(config, setting)
        if value != getattr(present, setting):
            shown = norm_title(value) if setting == "norm" else f"{value:g}" if isinstance(value, float) else value
            found.append(f"{name} {shown}")
    return found
