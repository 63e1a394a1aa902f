"""The next byte of Python's documentation: running text in blocks of 64 bytes, each of which weighs as much.

5,091 blocks to train on and 709 from topics that are held out, with the documentation of Python 3.11.7
(``accum_core.python_documentation``).
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from accum_core import python_documentation
from accum_core.engine import language
from accum_core.engine.objectives import CrossEntropy
from accum_core.records import Validation

TITLE = "Python's documentation, blocks of 64 bytes"
MODELS = ("gpt",)
MEASURE = "token_loss"
LOSS = "cross_entropy"
SAMPLES = "blocks"
ORDER = 30
IN_LAB = False
"""Its network has no layer that the Lab could exchange."""
LENGTH = 64
VALIDATION_BATCH = 128


class Blocks:
    """Running text, cut.

    Args:
        training, held_out: text, of which each block's last byte is the next one's first.
        length: bytes that a block predicts.
    """

    def __init__(self, training: bytes, held_out: bytes, length: int) -> None:
        self._training = language.blocks(training, length)
        self._held_out = language.blocks(held_out, length)
        self._length = length
        self.num_samples = len(self._training)
        self.objective = CrossEntropy(language.IGNORED)

    def build_model(self, name: str) -> nn.Module:
        """A network that reads one block."""
        module = importlib.import_module(f"accum_core.engine.models.{name}")
        model: nn.Module = module.build(language.VOCABULARY, self._length)
        return model

    def samples(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Bytes and the byte after each, int64 ``[B, length]``."""
        return language.next_token(self._training[torch.as_tensor(indices)])

    def validate(self, model: nn.Module) -> Validation:
        """Loss per byte over the held-out blocks, in nats."""
        return language.validate(model, map(language.next_token, self._held_out.split(VALIDATION_BATCH)))


def load() -> Blocks:
    """The documentation of the Python that runs.

    Raises:
        DataError: for a Python without it.
    """
    found = python_documentation.load()
    training, held_out = map(python_documentation.joined, (found.training, found.held_out))
    return Blocks(training, held_out, LENGTH)
