"""GPT-2 small's shape (Radford et al. 2019): 12 blocks of 768 units with 12 heads.

GPT-2 has 124 million parameters with its vocabulary of 50,257 tokens; over 256 bytes the blocks' 85 million remain.
"""

from __future__ import annotations

from torch import nn

from accum_core.engine.models.gpt import GPT

TITLE = "GPT-2 small over bytes"


def build(vocabulary: int, context: int) -> nn.Module:
    """The network with new weights."""
    return GPT(vocabulary, context, width=768, depth=12, heads=12)
