"""A small GPT over bytes: two blocks of 64 units with four heads, 137 thousand parameters at 64 bytes of context.

Decoder of Radford et al. 2019 (GPT-2): learned positions, LayerNorm before attention and before the perceptron, GELU,
initial weights of deviation 0.02 at its width of 768, over sqrt(2 x depth) where a layer adds to the residual stream;
at another width, sqrt(768 / width) as much. There is no dropout, and the output layer has weights of its own.

A position sees itself and those before it, so padding at a sample's end changes nothing that comes before it. Packed
rows hold several texts, which do not see one another, each with positions of its own.
``nn.LayerNorm`` is batch-independent and stays whatever the norm's setting.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TITLE = "small GPT"
DEVIATION = 0.02
ITS_WIDTH = 768


class Block(nn.Module):
    """Causal self-attention and a perceptron, each added to what it reads: ``[M, T, width]`` to the same.

    A mask ``[M, 1, T, T]`` takes the place of the causal one; it is true where a position (third) sees another (last).
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, stream: Tensor, mask: Tensor | None = None) -> Tensor:
        """One forward pass."""
        samples, length, width = stream.shape
        mixed = self.attention(self.norm1(stream)).view(samples, length, 3, self.heads, width // self.heads)
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None)
        stream = stream + self.merge(heads.transpose(1, 2).reshape(samples, length, width))
        added: Tensor = self.narrow(F.gelu(self.widen(self.norm2(stream))))
        return stream + added


class GPT(nn.Module):
    """Logits ``[M, T, vocabulary]`` of the next token after each of ``[M, T]``, T at most ``context``.

    Packed rows are ``[M, 2, T]``: tokens, and the number of the text that each belongs to, which lies in one piece.

    Args:
        vocabulary: different tokens.
        context: tokens that one pass can read.
        width, depth, heads: units of the residual stream, blocks, and heads of each block, which divide the width.
    """

    def __init__(self, vocabulary: int, context: int, *, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        deviation = DEVIATION * (ITS_WIDTH / width) ** 0.5
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                adds = any(module in (block.merge, block.narrow) for block in self.blocks)
                nn.init.normal_(module.weight, std=deviation / (2 * depth) ** 0.5 if adds else deviation)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """One forward pass."""
        mask = None
        places = torch.arange(tokens.shape[-1], device=tokens.device)
        if tokens.ndim == 3:
            tokens, numbers = tokens.unbind(1)
            same = numbers[:, :, None] == numbers[:, None, :]
            mask = (same & (places[:, None] >= places))[:, None]
            places = places - same.long().argmax(2)  # where its text begins
        stream = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            stream = block(stream, mask)
        logits: Tensor = self.head(self.norm(stream))
        return logits


def build(vocabulary: int, context: int) -> nn.Module:
    """The network with new weights."""
    return GPT(vocabulary, context, width=64, depth=2, heads=4)
