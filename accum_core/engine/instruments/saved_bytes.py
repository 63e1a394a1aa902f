"""Bytes that a forward pass keeps for its backward pass: of one micro-batch, and of the full batch.

Counted is what the saved tensors need, each element once however many layers save it; parameters and buffers, which
are there anyway, do not count. A view of a larger storage counts by its own elements: a micro-batch cut from a window
does not carry the window's bytes.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from accum_core.engine.instrument import Instrument, Window
from accum_core.engine.lockstep import window_layers
from accum_core.engine.modes import evaluating
from accum_core.engine.objectives import Objective, mean_loss

TITLE = "Kept for backward"


def saved_for_backward(model: nn.Module, inputs: Tensor, targets: Tensor, objective: Objective) -> int:
    """Bytes saved at the end of one forward pass of the samples ``[M, ...]``; the model stays as it is."""
    present = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    present |= {buffer.untyped_storage().data_ptr() for buffer in buffers.values()}
    saved: dict[int, dict[tuple[Any, ...], Tensor]] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage().data_ptr()
        if storage not in present:
            saved.setdefault(storage, {})[tensor.storage_offset(), *tensor.shape, *tensor.stride()] = tensor
        return tensor

    device = next(model.parameters()).device
    inputs, targets = inputs.to(device), targets.to(device)
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        torch.enable_grad(),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
    ):
        parameters = dict(model.named_parameters())
        loss = mean_loss(
            objective, lambda batch: functional_call(model, buffers, (batch,)), inputs, targets, parameters
        )
    del loss
    return sum(_needed(list(views.values())) for views in saved.values())


def _needed(views: list[Tensor]) -> int:
    """Bytes of the elements that the views of one storage touch, each once."""
    first = views[0]
    if len(views) == 1 and first.is_contiguous():
        return first.numel() * first.element_size()
    size = first.element_size()
    touched = torch.zeros(first.untyped_storage().nbytes() // size, dtype=torch.bool)
    for view in views:
        # A stride of 0 repeats an element; a view of another type is taken to touch all of the storage.
        shape = [1 if stride == 0 else length for length, stride in zip(view.shape, view.stride(), strict=True)]
        same = view.element_size() == size
        (touched.as_strided(shape, view.stride(), view.storage_offset()) if same else touched).fill_(True)
    return int(touched.sum()) * size


class SavedBytes(Instrument):
    """Fields: ``micro_batch`` and ``full_batch``, in bytes."""

    def due(self, window: Window) -> bool:
        """On the first window of each N and norm: the count does not depend on the parameters' values."""
        return window.split_is_new

    def measure(self, window: Window) -> dict[str, Any]:
        """Count both in forward passes of their own.

        A window in step keeps what all of its passes save, unless it moves that to the host: then there is no more on
        the device at a time than one micro-batch saves.
        """
        inputs, targets = window.micro_batches[0]
        full_batch = saved_for_backward(window.model, window.inputs, window.targets, window.objective)
        layers = window_layers(window.model)
        if any(layer.offload == "none" for layer in layers):
            return {"micro_batch": full_batch, "full_batch": full_batch}
        # A layer of the whole window needs more than one micro-batch for its statistics; with those that it has, it
        # saves as much of this one.
        with ExitStack() as stack:
            for layer in layers:
                stack.enter_context(evaluating(layer))
            micro_batch = saved_for_backward(window.model, inputs, targets, window.objective)
        return {"micro_batch": micro_batch, "full_batch": full_batch}


def create() -> Instrument:
    """A new memory instrument."""
    return SavedBytes()
