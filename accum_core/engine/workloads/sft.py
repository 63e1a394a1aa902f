"""Fine-tuning on functions of the standard library: from the line that begins one to what its docstring says.

One pair a padded sample, and the loss is that of the docstring's bytes alone, so each sample weighs as many targets as
its docstring has bytes (``accum_core.python_functions``). The network begins with the weights that come with the
project. ``sft_packed`` has the same pairs, several in a row.

With Python 3.11.7: 2,344 functions to train on, whose docstrings weigh 57 bytes in the mean with a deviation of 33, and
227 of other modules to validate on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from accum_core import python_functions
from accum_core.engine import language
from accum_core.engine.models import tiny_lm
from accum_core.engine.objectives import CrossEntropy
from accum_core.python_functions import Pair
from accum_core.records import Validation

TITLE = "Python's functions, signature to docstring"
MODELS = ("tiny_lm",)
MEASURE = "token_loss"
LOSS = "cross_entropy_of_valid_labels"
SAMPLES = "functions"
ORDER = 34
IN_LAB = False
"""Its network has no layer that the Lab could exchange."""
VALIDATION_BATCH = 32


class Completions:
    """Pairs, one a sample.

    Attributes:
        training, held_out: the pairs; held-out ones by length, so that a batch holds little padding.
    """

    def __init__(self, training: Sequence[Pair], held_out: Sequence[Pair]) -> None:
        self.training = training
        self.held_out = sorted(held_out, key=lambda pair: len(pair.prompt + pair.completion))
        self.num_samples = len(training)
        self.objective = CrossEntropy(language.IGNORED)

    def build_model(self, name: str) -> nn.Module:
        """The network with the weights that come with the project.

        Raises:
            DataError: when their file is missing or damaged.
        """
        return tiny_lm.trained()

    def samples(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Bytes and the byte after each, int64 ``[B, T]``, padded to the longest of these pairs."""
        return padded([self.training[index] for index in indices])

    def validate(self, model: nn.Module) -> Validation:
        """Loss per byte of the held-out docstrings, in nats."""
        return language.validate(model, self._batches())

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(self.held_out), VALIDATION_BATCH):
            yield padded(self.held_out[start : start + VALIDATION_BATCH])


def padded(pairs: Sequence[Pair]) -> tuple[Tensor, Tensor]:
    """Inputs and targets int64 ``[B, T]``: a target is a docstring's byte, and ``IGNORED`` everywhere else."""
    texts = [language.as_tokens(pair.prompt + pair.completion).long() for pair in pairs]
    inputs = nn.utils.rnn.pad_sequence([text[:-1] for text in texts], batch_first=True, padding_value=language.START)
    targets = torch.full_like(inputs, language.IGNORED)
    for line, (pair, text) in enumerate(zip(pairs, texts, strict=True)):
        targets[line, len(pair.prompt) - 1 : len(text) - 1] = text[len(pair.prompt) :]
    return inputs, targets


def load() -> Completions:
    """The functions of the Python that runs.

    Raises:
        DataError: for a Python without its source.
    """
    found = python_functions.load()
    return Completions(found.training, found.held_out)
