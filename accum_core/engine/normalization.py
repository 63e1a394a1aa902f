"""Exchange a model's normalising layers, and find those that will fail before training does."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.utils.hooks import RemovableHandle

from accum_core import catalogue
from accum_core.engine.channels import ChannelSource
from accum_core.engine.modes import evaluating
from accum_core.engine.norms.none import ChannelAffine
from accum_core.engine.tolerant import is_out_of_memory
from accum_core.errors import SettingError


@cache
def norm_kinds() -> dict[str, ModuleType]:
    """Every file of ``norms``, by its name."""
    return {name: importlib.import_module(f"accum_core.engine.norms.{name}") for name in catalogue.entries("norms")}


def convert_norms(model: nn.Module, kind: str, **options: float | str | None) -> nn.Module:
    """Replace every channel normalisation of a model by one kind.

    Converted are BatchNorm and InstanceNorm of any rank, GroupNorm and this project's own layers, with their
    affine parameters (the same Parameter objects) and eps. ``nn.LayerNorm`` is left alone: it normalises the last
    dimensions, and which of them holds channels is not recorded in it. Running statistics move between
    kinds of BatchNorm, are lost on the way to other norms, and start afresh on the way back; ``conversion_losses``
    tells beforehand. Some kinds add parameters of their own or change the layers beside the norm (see ``norms``); on
    the way to another kind the first go and the second are as they were.

    Args:
        model: changed in place.
        kind: a file name under ``norms``.
        options: the kind's own, such as ``num_groups=8`` for ``group``.

    Returns:
        The model, or the new layer when the model itself was a normalising layer.

    Raises:
        SettingError: for an unknown kind or option, or one that does not suit a layer, named in the message. The
            model is then as it was.
    """
    catalogue.check("norms", "norm", kind)
    build = norm_kinds()[kind].build
    replaced: dict[nn.Module, nn.Module] = {}
    for name, module in model.named_modules():
        if (channels := _channels(module)) is None:
            continue
        eps = float(module.eps) if isinstance(module.eps, float) else 1e-5
        tensors = itertools.chain(module.parameters(), module.buffers(), model.parameters(), model.buffers())
        like = next((tensor for tensor in tensors if tensor.is_floating_point()), None)
        try:
            source = ChannelSource(name or type(module).__name__, module, channels, eps, like)
            replaced[module] = build(source, **options)
        except TypeError:
            raise SettingError("options", options, f"norm {kind} does not take them") from None
    _call("restore", model)
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if name and module in replaced:
            model.set_submodule(name, replaced[module])
    model = replaced.get(model, model)
    _call("prepare", model, kind)
    return model


def _call(function: str, model: nn.Module, *kinds: str) -> None:
    """Call an optional function of some kinds, or of all, on the model."""
    for kind in kinds or norm_kinds():
        if (found := getattr(norm_kinds()[kind], function, None)) is not None:
            found(model)


def conversion_losses(model: nn.Module, kind: str) -> list[str]:
    """What trained BatchNorms would lose if the model were converted to a kind, one sentence each; maybe nothing.

    Layers whose running statistics are fresh (mean 0, variance 1) have nothing to lose.

    Raises:
        SettingError: for an unknown kind.
    """
    catalogue.check("norms", "norm", kind)
    trained = sum(_is_trained(module) for module in model.modules())
    layers = f"{trained} trained BatchNorm layer{'s lose their' if trained > 1 else ' loses its'}"
    return [f"{layers} {lost}" for lost in getattr(norm_kinds()[kind], "LOST", ()) if trained]


def _is_trained(module: nn.Module) -> bool:
    if not isinstance(module, _BatchNorm) or module.running_mean is None or module.running_var is None:
        return False
    return bool((module.running_mean != 0).any() or (module.running_var != 1).any())


def check_norms(model: nn.Module, inputs: Tensor) -> None:
    """Find a normalising layer that cannot work at this micro-batch size, by one pass without side effects.

    Args:
        inputs: a micro-batch ``[M, ...]`` of the size that will be used; its values do not matter.

    Raises:
        SettingError: naming the layer, what it would see, and what to use instead.
    """
    handles: list[RemovableHandle] = []
    for name, module in model.named_modules():
        for kind in norm_kinds().values():
            if kind.owns(module):
                handles.append(module.register_forward_pre_hook(_guard(name, kind, module.training)))
    try:
        # Running statistics do not move in evaluation mode, so the pass leaves no trace; each guard knows the mode
        # that its layer trains in.
        devices = [inputs.device] if inputs.device.type == "cuda" else []
        with evaluating(model), torch.random.fork_rng(devices=devices):
            model(inputs)
    except Exception as error:
        # What does not fit is training's to tell, or to cut into smaller micro-batches.
        if not is_out_of_memory(error):
            raise
    finally:
        for handle in handles:
            handle.remove()


def check_sizes(model: nn.Module, inputs: Tensor, sizes: Sequence[int], tail: str) -> None:
    """``check_norms`` at every micro-batch size that a run will meet.

    Args:
        inputs: samples, as many as the largest size or all that there are.
        sizes: the usual size first, then those of the tails.
        tail: the rule for the tail, named in a refusal of its size.

    Raises:
        SettingError: as ``check_norms``.
    """
    check_norms(model, inputs[: sizes[0]])
    for size in sizes[1:]:
        try:
            check_norms(model, inputs[:size])
        except SettingError as refusal:
            raise SettingError(
                "tail", tail, f"leaves a last micro-batch of {size} an epoch, and {refusal.remedy}, or tail = 'drop'"
            ) from None


def _guard(name: str, kind: ModuleType, training: bool) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    """A hook that refuses an input on which the layer cannot work."""

    def refuse(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        shape = arguments[0].shape
        if (reason := kind.failure(module, shape, training)) is not None:
            remedy = "a norm over more values (group, layer) or a network without pooling to one pixel"
            if not kind.BATCH_INDEPENDENT:
                remedy = "a micro-batch of 2 or more, or a norm that does not look across samples (group, layer)"
            remedy = getattr(kind, "REMEDY", remedy)
            raise SettingError(
                "micro_batch_size" if not kind.BATCH_INDEPENDENT else "norm",
                shape[0] if not kind.BATCH_INDEPENDENT else kind.__name__.rpartition(".")[2],
                f"layer {name} ({kind.TITLE}) would have {reason} in an input of {list(shape)}; use {remedy}",
            )

    return refuse


def _channels(module: nn.Module) -> int | None:
    """Channels of a layer that ``convert_norms`` replaces; None for any other layer."""
    if isinstance(module, (_BatchNorm, _InstanceNorm)):
        return int(module.num_features)
    if isinstance(module, (nn.GroupNorm, ChannelAffine)):
        return int(module.num_channels)
    return None
