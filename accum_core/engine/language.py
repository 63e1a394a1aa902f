"""What workloads of text share: bytes as tokens, samples of equal and unequal length, and loss per token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from accum_core.engine.objectives import CrossEntropy
from accum_core.records import Validation

VOCABULARY = 256
"""Tokens are the bytes of UTF-8."""
START = 10
"""What a paragraph's first byte is predicted from: the line feed before it."""
IGNORED = -100


def as_tokens(text: bytes) -> Tensor:
    """Bytes as uint8 ``[T]``."""
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def blocks(text: bytes, length: int) -> Tensor:
    """Running text cut into blocks ``[S, length + 1]``, uint8: each block's last byte is the next one's first.

    What fills no block at the end is left out.
    """
    return as_tokens(text).unfold(0, length + 1, length)


def next_token(block: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and targets int64 ``[B, T]`` of blocks ``[B, T + 1]``: each token is to be followed by the next."""
    tokens = block.long()
    return tokens[:, :-1], tokens[:, 1:]


def padded(paragraphs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Inputs and targets int64 ``[B, T]`` of paragraphs of unequal length, T that of the longest.

    A paragraph of n bytes weighs n targets. What is beyond its end is ``START`` in the inputs, ``IGNORED`` in the
    targets, and seen by no byte before it.
    """
    targets = nn.utils.rnn.pad_sequence([p.long() for p in paragraphs], batch_first=True, padding_value=IGNORED)
    inputs = torch.cat([torch.full_like(targets[:, :1], START), targets[:, :-1]], 1)
    return inputs.where(inputs != IGNORED, START), targets


def validate(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Validation:
    """Loss per token, in nats; call in evaluation mode without gradients.

    Args:
        model: gives logits ``[M, T, vocabulary]``.
        batches: inputs and targets ``[M, T]`` on the CPU; at least one valid token in all.
    """
    device = next(model.parameters()).device
    objective = CrossEntropy(IGNORED)
    loss = tokens = 0.0
    for inputs, targets in batches:
        loss += objective.sums(model, inputs.to(device), targets.to(device))["cross_entropy"].item()
        tokens += objective.weights(targets)["cross_entropy"]
    return Validation(token_loss=loss / tokens, loss=loss / tokens)
