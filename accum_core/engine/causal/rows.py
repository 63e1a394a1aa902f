"""Samples laid out for a model: one text a row, padded, or several in a row of fixed length, packed."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

import torch
from torch import Tensor

from accum_core.engine.causal.tokens import Tokens
from accum_core.engine.language import IGNORED

Row = tuple[Tokens, ...]
"""Texts that lie one behind the other."""


def packed(texts: Sequence[Tokens], context: int) -> list[Row]:
    """The texts in rows of at most ``context`` tokens read: the longest first, each where it leaves the least room.

    Best-fit decreasing, at most 11/9 of the fewest rows possible and 1 more (Johnson 1974, for the bin packing problem
    that this is). The rows' order is that of their longest texts.
    """
    rows: list[list[Tokens]] = []
    room: list[tuple[int, int]] = []  # left in a row, and the row's number; rising
    for text in sorted(texts, key=lambda text: -len(text.tokens)):
        needed = len(text.tokens) - 1
        place = bisect_left(room, (needed, -1))
        if place == len(room):
            rows.append([text])
            insort(room, (context - needed, len(rows) - 1))
        else:
            left, row = room.pop(place)
            rows[row].append(text)
            insort(room, (left - needed, row))
    return [tuple(row) for row in rows]


def laid_out(rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """Inputs int64 ``[B, 2, T]`` and targets int64 ``[B, T]``, T that of the longest row.

    The first of the two inputs holds tokens, the second the number of the text in its row, from 1; both are 0 beyond
    the end. A target is the token that follows in the same text, or ``IGNORED`` where that is not learnt: no text's
    end predicts the next one's beginning, so a text weighs its learnt tokens wherever it lies.
    """
    longest = max(sum(len(text.tokens) - 1 for text in row) for row in rows)
    inputs = torch.zeros(len(rows), 2, longest, dtype=torch.int64)
    targets = torch.full((len(rows), longest), IGNORED)
    for line, row in enumerate(rows):
        start = 0
        for number, text in enumerate(row, 1):
            tokens = torch.tensor(text.tokens)
            end = start + len(tokens) - 1
            inputs[line, 0, start:end] = tokens[:-1]
            inputs[line, 1, start:end] = number
            targets[line, start:end] = tokens[1:].where(torch.tensor(text.learnt[1:]), IGNORED)
            start = end
    return inputs, targets


def positions(numbers: Tensor) -> Tensor:
    """Each token's place in its own text, from 0: ``[M, T]`` of the texts' numbers ``[M, T]``."""
    places = torch.arange(numbers.shape[1], device=numbers.device).expand_as(numbers)
    begins = torch.ones_like(numbers, dtype=torch.bool)
    begins[:, 1:] = numbers[:, 1:] != numbers[:, :-1]
    return places - places.where(begins, 0).cummax(1).values
