"""What a run's settings mean for its exports: the expressions, names and switches that the templates write out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from accum_core import catalogue
from accum_core.measures import measure_of
from accum_core.records import RunConfig
from accum_core.reduction import ReductionKind

UNITS: Final = {"miou": "pixels", "error": "samples", "token_loss": "tokens"}
"""What a loss counts, by the measure of the workload."""
LOSSES: Final = {"cross_entropy": "all", "cross_entropy_of_valid_labels": "valid", "cross_entropy_of_heads": "heads"}
"""A workload's ``LOSS`` -> the kind here; one that names none has some other objective."""
DTYPES: Final = {
    "float32": ("float32", ""),
    "float64": ("float64", ""),
    "bfloat16_autocast": ("float32", "bfloat16"),
    "float16_autocast": ("float32", "float16"),
    "bfloat16": ("bfloat16", ""),
}
"""Precision -> type of the parameters, and type of the passes under autocast."""
WHY: Final[Mapping[ReductionKind, str]] = {
    "exact": "one divisor for the window: every {each} weighs the same, whatever the split",
    "mean_of_means": "the mean of the micro-batches' means: right only where all of them hold as many {unit}",
    "sum_of_means": "the sum of the micro-batches' means: N times too large",
    "sum": "divided by nothing: the step grows with the number of {unit}",
}
TAILS: Final = {
    "drop": "the tail is dropped: an epoch's last window when it is not full",
    "rescale": "the tail is kept: an epoch's last window may be short",
    "divide_by_n": "the tail is kept: an epoch's last window may be short",
}


MOST_SKIPS: Final = 30
"""Windows in a row that a script leaves out before it stops, as ``engine.training`` does."""


def facts(config: RunConfig) -> dict[str, Any]:
    """Every name that the templates use, apart from the imports and the statements of an export."""
    norm, measure = catalogue.entries("norms")[config.norm], measure_of(config.workload)
    loss = loss_kind(config)
    dtype, autocast = DTYPES[config.precision]
    is_text = measure.field == "token_loss"
    steps = config.accumulation_steps
    growing = config.plan_at(config.updates) != config.plan
    scaler = autocast == "float16"
    waits = (
        config.norm == "sync_batch"
        and not is_text
        and any(config.plan_at(update).accumulation_steps > 1 for update in (1, config.updates))
    )  # for the other micro-batches of its window
    spares = config.weight_decay_spares
    multiplies = loss in ("heads", "other") or _has_rates(config.model)
    skips = scaler or config.non_finite == "skip_window"
    by_terms = loss in ("heads", "other")
    unit = UNITS[measure.field]
    return {
        "title": f"{norm['TITLE']} at {steps} × {config.micro_batch_size}",
        "config": config,
        "effective": config.effective_batch_size,
        "micro": config.micro_batch_size,
        "steps": steps,
        "updates": config.updates,
        "warmup": config.warmup_updates,
        "rate": repr(config.peak_learning_rate),
        "seed": config.seed,
        "load": _load(config),
        "model": config.model,
        "norm": config.norm,
        "options": _options(config, growing),
        "measure": measure,
        "unit": unit,
        "loss": loss,
        "by_terms": by_terms,
        "is_text": is_text,
        "checkpointing": config.activation_checkpointing,
        "dtype": dtype,
        "autocast": autocast,
        "cast": dtype != "float32" and not is_text,
        "wide": ".float()" if autocast or dtype == "bfloat16" else "",
        "widens": dtype == "bfloat16" and config.accumulate_in_float32,
        "scaler": scaler,
        "skips": skips,
        "skip_window": config.non_finite == "skip_window",
        "counts": skips or growing,
        "spares": spares,
        "multiplies": multiplies,
        "grouped": multiplies or spares != "nothing",
        "decay": repr(config.weight_decay),
        "optimizer_call": _optimizer(config, "groups" if multiplies or spares != "nothing" else "model.parameters()"),
        "share": _share(config),
        "average": config.average_decay,
        "clip_norm": config.clip_norm,
        "clip_value": config.clip_value,
        "tail": config.tail,
        "tail_note": TAILS[config.tail],
        "growing": growing,
        "growth": round(1 / config.decay_factor),
        "largest": _largest(config, growing),
        "most_skips": MOST_SKIPS,
        "grows_at": _grows_at(config),
        "split": "len(samples)" if growing and steps == 1 else "MICRO",
        "reconverts": growing and "accumulation_steps" in norm.get("OPTIONS", {}) and not is_text,
        "divides_by_n": _divides_by_n(config),
        "waits": waits,
        "summed_loss": waits or bool(autocast),
        "factor": factor(config, loss, unit),
        "why": _why(config, unit),
        "weight_note": _weight_note(loss, unit),
    }


def loss_kind(config: RunConfig) -> str:
    """``all``: cross-entropy over labels that all count, ``valid``: over those that are not -100, ``heads``: of several
    outputs, or ``other``."""
    return LOSSES.get(catalogue.entries("workloads")[config.workload].get("LOSS", ""), "other")


def weighs_equally(config: RunConfig) -> bool:
    """Whether every micro-batch of the run has the same weight, so that a mean of means is the window's mean."""
    return loss_kind(config) == "all" and config.tail == "drop"


def _has_rates(model: str) -> bool:
    """Whether a network's file gives parts of it learning rates of their own."""
    return "rate_multipliers" in (catalogue.ENGINE / "models" / f"{model}.py").read_text(encoding="utf-8")


def _divides_by_n(config: RunConfig) -> bool:
    return config.tail == "divide_by_n" and config.reduction in ("exact", "mean_of_means")


# The order of the operations is that of ``LossReduction.factors``, as another order would round differently.
def factor(config: RunConfig, loss: str, unit: str) -> str:
    """What multiplies a micro-batch's summed loss, as an expression; ``loss`` is a kind as ``loss_kind`` gives."""
    total = {"all": unit, "valid": unit, "heads": "weights[name]"}.get(loss, "(weights[name] or 1)")
    own = {"all": "targets.numel()", "valid": "max(1, targets.ne(-100).sum().item())"}.get(
        loss, "(objective.weights(targets)[name] or 1)"
    )
    found = {
        "exact": f"1 / {total}",
        "mean_of_means": f"1 / ({own} * len(micro_batches))",
        "sum_of_means": f"1 / {own}",
        "sum": "1.0",
    }[config.reduction]
    return f"{found} * len(micro_batches) / N" if _divides_by_n(config) else found


def _why(config: RunConfig, unit: str) -> str:
    why = WHY[config.reduction].format(unit=unit, each=unit.removesuffix("s"))
    return f"{why}; a short window counts as if it were full" if _divides_by_n(config) else why


def _weight_note(loss: str, unit: str) -> str:
    return f"  # every {unit.removesuffix('s')} has a label here" if loss == "all" and unit == "pixels" else ""


def _load(config: RunConfig) -> str:
    if config.language is None:
        return f'load("{config.workload}")'
    chosen = config.language.model_dump(exclude_defaults=True)
    language = ", ".join(f"{field}={_literal(value)}" for field, value in chosen.items())
    return f'load_with("{config.workload}", LanguageSettings.of({language}))'


def _literal(value: object) -> str:
    """A value as our code is written, text between double quotes."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _options(config: RunConfig, growing: bool) -> str:
    found = {}
    for option, field in catalogue.entries("norms")[config.norm].get("OPTIONS", {}).items():
        value = getattr(config, field)
        if value is not None:
            found[option] = "N" if field == "accumulation_steps" and growing else _literal(value)
    return "".join(f", {option}={value}" for option, value in found.items())


def _optimizer(config: RunConfig, parameters: str) -> str:
    if config.optimizer == "adamw":
        options = [f"betas=({config.momentum!r}, {config.scaled_beta2!r})"]
    else:
        options = [f"momentum={config.momentum!r}"]
    if config.nesterov:
        options.append("nesterov=True")
    name = {"adamw": "AdamW", "sgd": "SGD"}[config.optimizer]
    return f"{name}({parameters}, LR, {', '.join(options)}, weight_decay={config.weight_decay!r})"


def _share(config: RunConfig) -> str:
    """The schedule as an expression of ``made``, in the order of operations of ``Schedule``."""
    shape = config.shape
    warmup, decayed = "", ""
    if shape.warmup_updates:
        climbed, start = "min(1.0, (made + 1) / WARMUP)", shape.warmup_from
        warmup = f"({start!r} + (1 - {start!r}) * {climbed})" if start else climbed
    if shape.kind == "poly":
        decayed = "((UPDATES - made) / UPDATES) ** 0.9"
    elif shape.kind == "step" and shape.factor != 1:
        decayed = f"{shape.factor!r} ** sum(made >= milestone for milestone in {list(shape.milestones)})"
    elif shape.kind in ("cosine", "linear"):
        left = "(UPDATES - made) / (UPDATES - WARMUP)" if warmup else "(UPDATES - made) / UPDATES"
        rest = f"min(1.0, {left})" if warmup else left
        decayed = f"math.sin(math.pi / 2 * {rest if warmup else f'({left})'}) ** 2" if shape.kind == "cosine" else rest
    return " * ".join(part for part in (warmup, decayed) if part) or "1.0"


def _largest(config: RunConfig, growing: bool) -> str:
    """The samples of the largest window, as an expression."""
    if not growing:
        return "EFFECTIVE"
    return f"EFFECTIVE * {config.plan_at(config.updates).effective_batch_size // config.effective_batch_size}"


def _grows_at(config: RunConfig) -> list[int]:
    """The milestones at which the batch grows."""
    sizes = {milestone: config.plan_at(milestone + 1).effective_batch_size for milestone in config.milestones}
    before = {milestone: config.plan_at(milestone).effective_batch_size for milestone in config.milestones}
    return [milestone for milestone in config.milestones if sizes[milestone] != before[milestone]]
