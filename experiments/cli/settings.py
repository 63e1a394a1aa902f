"""Options that set the fields of ``RunConfig``, with their defaults."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import get_args

import click

from accum_core import catalogue
from accum_core.errors import SettingError
from accum_core.records import RunConfig
from accum_core.reduction import REDUCTION_KINDS, TAIL_RULES
from accum_core.run_config import DecaySpares, NonFinitePolicy, Offload, OptimizerName, Precision, ScalingRule
from accum_core.schedule import SCHEDULE_KINDS
from experiments.cli.output import Command

FIELDS = RunConfig.model_fields
WARMUP = FIELDS["warmup_updates"].default


def run_settings(command: Command) -> Command:
    """All options of a run, in the order in which ``--help`` lists them."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def completed(settings: dict[str, object]) -> RunConfig:
    """The configuration of a run: a short one gets a short warm-up where none is asked for.

    Raises:
        SettingError: naming the field, the value and what to do.
    """
    updates = settings["updates"]
    if settings["warmup_updates"] is None and isinstance(updates, int):
        settings["warmup_updates"] = min(WARMUP, updates // 5)
    return RunConfig.of(**settings)


def _setting(flag: str, field: str, kind: type, text: str) -> Callable[[Command], Command]:
    default = FIELDS[field].default
    shown = "none" if default is None else True
    return click.option(flag, field, type=kind, default=default, show_default=shown, help=text)


def _switch(flags: str, field: str, text: str) -> Callable[[Command], Command]:
    return click.option(flags, field, default=FIELDS[field].default, show_default="/" in flags, is_flag=True, help=text)


def _names(kind: catalogue.Kind) -> str:
    return ", ".join(catalogue.entries(kind))


def _expensive() -> list[str]:
    return [name for name, given in catalogue.entries("instruments").items() if not given.get("DEFAULT", True)]


def _whole_numbers(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    if text and not re.fullmatch(r"\s*[0-9]+\s*(,\s*[0-9]+\s*)*", text):
        raise SettingError("milestones", text, "must be updates separated by commas, such as 60,120")
    return tuple(int(number) for number in text.split(",")) if text else ()


OPTIONS = (
    _setting("--workload", "workload", str, f"Data and task: {_names('workloads')}."),
    _setting("--model", "model", str, f"Network: {_names('models')}."),
    _setting("--norm", "norm", str, f"Normalisation layer: {_names('norms')}."),
    _setting("--groups", "norm_groups", int, "Groups of the norms over groups of channels."),
    _setting("--channels-per-group", "norm_channels_per_group", int, "Channels in a group, in the place of --groups."),
    _setting("--ghost-batch", "ghost_batch_size", int, "Samples that ghost_batch normalises over at a time."),
    _setting("--renorm-r-max", "renorm_r_max", float, "Bound of batch_renorm's correction of the deviation."),
    _setting("--renorm-d-max", "renorm_d_max", float, "Bound of batch_renorm's correction of the mean."),
    _setting("--renorm-warmup", "renorm_warmup", int, "Passes of plain BatchNorm before batch_renorm's correction."),
    _setting("--offload", "offload", str, f"Where sync_batch keeps a window's work: {', '.join(get_args(Offload))}."),
    _setting("--effective", "effective_batch_size", int, "Samples an update, over all ranks."),
    _setting("--micro", "micro_batch_size", int, "Samples a forward and backward pass; divides the effective batch."),
    _setting("--reduction", "reduction", str, f"What divides the loss: {', '.join(REDUCTION_KINDS)}."),
    _setting("--tail", "tail", str, f"What to do with a last window that is not full: {', '.join(TAIL_RULES)}."),
    _setting("--updates", "updates", int, "Optimizer steps."),
    _setting("--optimizer", "optimizer", str, f"{', '.join(get_args(OptimizerName))}."),
    _switch("--nesterov", "nesterov", "Nesterov's form of sgd's momentum."),
    _setting(
        "--decay-spares",
        "weight_decay_spares",
        str,
        f"Parameters without weight decay: {', '.join(get_args(DecaySpares))}.",
    ),
    _setting("--beta2", "beta2", float, "Decay of adamw's squared gradients, an update."),
    _setting("--lr", "learning_rate", float, "Peak learning rate, which the schedule multiplies."),
    click.option(
        "--warmup",
        "warmup_updates",
        type=int,
        help="Updates of linear warm-up, from 0, or from --lr where --scaling raises it.  "
        f"[default: {WARMUP}, or a fifth of the updates if that is fewer]",
    ),
    _setting("--schedule", "schedule", str, f"Course of the learning rate: {', '.join(SCHEDULE_KINDS)}."),
    click.option(
        "--milestones",
        "milestones",
        default="",
        metavar="UPDATES",
        callback=_whole_numbers,
        help="Of the schedule step: updates after which the rate falls, such as 60,120.",
    ),
    _setting("--decay-factor", "decay_factor", float, "What each milestone multiplies the rate by."),
    _setting("--decay", "decay", str, "What a milestone changes: the rate, or the batch, whose N grows instead."),
    _setting("--largest-batch", "largest_batch_size", int, "Effective batch that --decay batch may not grow beyond."),
    _setting(
        "--scaling",
        "scaling",
        str,
        f"Rule that carries the settings from --base-batch over to --effective: {', '.join(get_args(ScalingRule))}.",
    ),
    _setting("--base-batch", "base_batch_size", int, "Effective batch that the settings are meant for, for --scaling."),
    _setting("--clip-norm", "clip_norm", float, "Bound on the norm of a window's gradient."),
    _setting("--clip-value", "clip_value", float, "Bound on each entry of a window's gradient."),
    _setting("--precision", "precision", str, f"Number types: {', '.join(get_args(Precision))}."),
    _switch(
        "--accumulate-in-float32/--accumulate-in-parameters",
        "accumulate_in_float32",
        "Sum the gradients of bfloat16 parameters in float32, or in their own type.",
    ),
    _setting("--average-decay", "average_decay", float, "Moving average of the weights, used to validate: its decay."),
    _setting(
        "--non-finite",
        "non_finite",
        str,
        f"What becomes of a loss or gradient that is not finite: {', '.join(get_args(NonFinitePolicy))}.",
    ),
    _switch(
        "--shrink-on-out-of-memory",
        "shrink_on_out_of_memory",
        "Halve the micro-batch and double N when a window does not fit into the memory.",
    ),
    _switch(
        "--activation-checkpointing",
        "activation_checkpointing",
        "Keep only the inputs of each block and compute it again in the backward pass.",
    ),
    _switch(
        "--exchange-every-micro-batch",
        "exchange_every_micro_batch",
        "Under torchrun, average the gradients after each micro-batch, not once a window.",
    ),
    click.option(
        "--instrument",
        "extra_instruments",
        multiple=True,
        metavar="NAME",
        help=f"Watch with an expensive instrument too: {', '.join(_expensive())}. May be given several times.",
    ),
    _setting("--seed", "seed", int, "Seed of the weights and of the order of the samples."),
)
