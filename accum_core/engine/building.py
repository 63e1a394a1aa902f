"""A configuration made into the parts of a training: optimizer, schedule, scaler, number types."""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from accum_core.batching import BatchPlan
from accum_core.engine import schedules
from accum_core.engine.averaging import WeightAverage
from accum_core.engine.normalization import convert_norms, norm_kinds
from accum_core.engine.parameter_groups import parameter_groups
from accum_core.engine.precision import Precision
from accum_core.engine.update import Updater
from accum_core.records import RunConfig

# Parameters; autocast passes.
TYPES: dict[str, tuple[torch.dtype, torch.dtype | None]] = {
    "float32": (torch.float32, None),
    "float64": (torch.float64, None),
    "bfloat16_autocast": (torch.float32, torch.bfloat16),
    "float16_autocast": (torch.float32, torch.float16),
    "bfloat16": (torch.bfloat16, None),
}


def updater(config: RunConfig, model: nn.Module, device: torch.device) -> tuple[Updater, LambdaLR]:
    """What makes the updates of a run, at its beginning, and its schedule."""
    optimizer = _optimizer(config, model)
    shape = config.shape
    scheduler = schedules.build(
        optimizer,
        shape.kind,
        updates=shape.updates,
        warmup_updates=shape.warmup_updates,
        warmup_from=shape.warmup_from,
        milestones=shape.milestones,
        factor=shape.factor,
    )
    autocast = TYPES[config.precision][1]
    made = Updater(
        model,
        optimizer,
        scheduler=scheduler,
        scaler=torch.amp.GradScaler(device.type) if autocast is torch.float16 else None,
        clip_norm=config.clip_norm,
        clip_value=config.clip_value,
        average=None if config.average_decay is None else WeightAverage(model, config.average_decay),
        non_finite=config.non_finite,
    )
    return made, scheduler


def precision(config: RunConfig, loss_scale: float) -> Precision:
    """Number types of a run's windows."""
    accumulators = torch.float32 if config.accumulate_in_float32 else None
    return Precision(TYPES[config.precision][1], accumulators, loss_scale)


def cast(inputs: Tensor, dtype: torch.dtype) -> Tensor:
    """A workload's inputs in the model's type; tokens stay whole numbers."""
    return inputs.to(dtype) if inputs.is_floating_point() else inputs


def normalised(model: nn.Module, config: RunConfig, plan: BatchPlan) -> nn.Module:
    """The model with the configuration's norm, changed in place.

    Args:
        plan: the present split; what it decides, such as N on one rank, is asked of it and not of the configuration.
    """
    fields: dict[str, str] = getattr(norm_kinds()[config.norm], "OPTIONS", {})
    options = {option: getattr(plan if hasattr(plan, field) else config, field) for option, field in fields.items()}
    return convert_norms(model, config.norm, **options)


def follow(updater: Updater, model: nn.Module, config: RunConfig, plan: BatchPlan) -> bool:
    """Have a run's updater follow its model to the configuration's norm: the average, and the optimizer's groups.

    A norm with parameters of its own brings some that the optimizer does not know and takes others away. The state of
    those that stay stays, new ones start without any, and the order is that of a model that was built so: a saved state
    fits both.

    Args:
        model: with the new norm.

    Returns:
        Whether the model's parameters are others than before.
    """
    if (average := updater.average) is not None:
        average.module = normalised(average.module, config, plan)
    optimizer, present = updater.optimizer, [group["params"] for group in parameter_groups(model, config)]
    before = [group["params"] for group in optimizer.param_groups]
    if _identities(before) == _identities(present):
        return False
    for parameter in set(chain(*before)) - set(chain(*present)):
        optimizer.state.pop(parameter, None)
    for group, parameters in zip(optimizer.param_groups, present, strict=True):
        group["params"] = parameters
    return True


def _identities(groups: list[list[nn.Parameter]]) -> list[list[int]]:
    return [[id(parameter) for parameter in group] for group in groups]


def _optimizer(config: RunConfig, model: nn.Module) -> Optimizer:
    groups = parameter_groups(model, config)
    if config.optimizer == "adamw":
        return AdamW(groups, betas=(config.momentum, config.scaled_beta2))
    return SGD(groups, momentum=config.momentum, nesterov=config.nesterov)
