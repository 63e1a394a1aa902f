"""What a fine-tuning takes: counted from its parameters, and measured on the longest sample there is."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from accum_core.batching import divisors
from accum_core.engine import building
from accum_core.engine.instrument import seeing
from accum_core.engine.instruments.saved_bytes import saved_for_backward
from accum_core.engine.objectives import Objective
from accum_core.engine.precision import LOW
from accum_core.records import RunConfig


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes that a training holds at once, besides what it holds for moments.

    Attributes:
        parameters: of the whole model.
        trained: of the parameters that are trained.
        gradients: summed in float32 where parameters have fewer bits, and rounded to them at a window's end.
        optimizer: both of AdamW's moments.
        a_sample: what the forward pass of the longest sample keeps for its backward pass, and the loss's gradients.
    """

    parameters: int
    trained: int
    gradients: int
    optimizer: int
    a_sample: int

    def at(self, micro_batch_size: int) -> int:
        """What comes on top of the parameters at a micro-batch."""
        return self.gradients + self.optimizer + micro_batch_size * self.a_sample

    def largest(self, effective_batch_size: int, free: int) -> int | None:
        """The largest micro-batch for which there is room on top of the parameters; None where there is none."""
        return max((size for size in divisors(effective_batch_size) if self.at(size) <= free), default=None)


def needs(config: RunConfig, model: Any, objective: Objective, longest: tuple[Tensor, Tensor]) -> Needs:
    """Count and measure, by one or two forward passes of one sample.

    Args:
        config: of the run.
        model: a ``CausalModel`` as the training passes it, on its device.
        longest: inputs ``[1, 2, T]`` and targets ``[1, T]`` of the sample with the most tokens.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    low = 4 if config.accumulate_in_float32 else 0
    return Needs(
        parameters=sum(parameter.nbytes for parameter in model.parameters()),
        trained=sum(parameter.nbytes for parameter in trained),
        gradients=sum(p.nbytes + (low * p.numel() if p.dtype in LOW else 0) for p in trained),
        optimizer=2 * sum(parameter.nbytes for parameter in trained),
        a_sample=_a_sample(config, model, objective, longest),
    )


def _a_sample(config: RunConfig, model: Any, objective: Objective, longest: tuple[Tensor, Tensor]) -> int:
    first = next(model.parameters())
    size = model.network.get_input_embeddings().num_embeddings
    # While the loss is passed back, the gradients of the logits and of their log-softmax are there at once.
    of_logits = 2 * longest[0].shape[-1] * size * max(4, first.element_size())

    def saved() -> int:
        with building.precision(config, 1.0).forward(first.device):
            return saved_for_backward(model, *longest, objective)

    if not config.activation_checkpointing:
        return int(saved() + of_logits)
    blocks: list[nn.Module] = list(model.activation_blocks())
    read: list[int] = []
    with seeing({str(index): block for index, block in enumerate(blocks)}, lambda _, x: read.append(x.nbytes)):
        outside = saved()
    # Blocks are computed again one at a time, so what one of them keeps is needed once.
    again: Callable[..., Any] = blocks[0].__dict__.pop("forward")
    try:
        one_block = saved() - outside
    finally:
        setattr(blocks[0], "forward", again)  # noqa: B010 (a method to the type checker)
    return int(outside + sum(read) + one_block + of_logits)


def free_bytes(device: torch.device) -> int:
    """Memory that nobody uses: of a CUDA device, or of this machine."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    told = Path("/proc/meminfo")
    if told.is_file():
        for line in told.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
