"""Activation checkpointing: keep a block's input for the backward pass and compute the rest again when it is due.

torch.utils.checkpoint computes a block twice, and what a forward pass changes on its way would change twice: running
statistics of BatchNorm move twice a micro-batch. Here the second pass works on copies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint


def checkpoint_activations(model: nn.Module) -> nn.Module:
    """Have the model's blocks computed again in the backward pass instead of kept.

    Blocks are the model's children that hold layers of their own (those inside a ModuleList or ModuleDict too), or what
    its method ``activation_blocks()`` gives. A Sequential of plain layers is cut into about the square root of its
    length. Nothing is replaced: names, parameters,
    hooks and ``state_dict`` stay, the model can be copied, and ``convert_norms`` works on it as before.

    The second pass sees the parameters, buffers and random state of the first, also under ``functional_call``, and
    leaves all of them alone: gradients are those of the model without this, and buffers move once
    (tests/test_recompute.py). Hooks inside a block run in both passes. Without gradients nothing is computed twice.
    A block must not change its input in place.

    Args:
        model: changed in place.

    Returns:
        The model.
    """
    if isinstance(model, nn.Sequential) and not any(True for _ in _blocks(model)):
        _set_forward(model, _Segments(model))
    for block in _blocks(model):
        _set_forward(block, _Block(block))
    return model


def is_computed_again(model: nn.Module) -> bool:
    """Whether ``checkpoint_activations`` was called on the model."""
    return any(isinstance(module.__dict__.get("forward"), (_Block, _Segments)) for module in model.modules())


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    if (own := getattr(model, "activation_blocks", None)) is not None:
        yield from own()
        return
    for child in model.children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            yield from _blocks(child)
        elif any(True for _ in child.children()):
            yield child


def _set_forward(module: nn.Module, forward: _Block | _Segments) -> None:
    setattr(module, "forward", forward)  # noqa: B010 (a method to the type checker)


class _Block:
    """The forward of a block. It is an object, not a closure, so that a copy of the block gets one of its own."""

    def __init__(self, block: nn.Module) -> None:
        self.block = block

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _computed_again(_Bare(self.block), *args, **kwargs)


class _Segments:
    """The forward of a Sequential of plain layers."""

    def __init__(self, model: nn.Sequential) -> None:
        self.model = model

    def __call__(self, input: Any) -> Any:
        segments: list[list[nn.Module]] = []
        longest = math.isqrt(len(self.model))
        for layer in self.model:
            # A layer that works in place overwrites its input, which is not to be the one that is kept.
            if not segments or (len(segments[-1]) >= longest and not getattr(layer, "inplace", False)):
                segments.append([])
            segments[-1].append(layer)
        for segment in segments:
            input = _computed_again(nn.Sequential(*segment), input)
        return input


class _Bare(nn.Module):
    """A block as its class computes it, without its hooks, which run around this."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return type(self.block).forward(self.block, *args, **kwargs)


def _computed_again(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():  # no backward pass will ask for copies
        return module(*args, **kwargs)
    # The backward pass may come when functional_call has given the module its own tensors back, or after a step.
    parameters = dict(module.named_parameters())
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    is_first = True

    def compute(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_first
        if is_first:
            is_first = False
            return module(*args, **kwargs)
        copies = {name: buffer.clone() for name, buffer in buffers.items()}
        return functional_call(module, {**parameters, **copies}, args, kwargs)

    return checkpoint(compute, *args, use_reentrant=False, **kwargs)
