"""Paragraphs of unequal length, one a padded sample: each weighs the bytes that it holds."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from accum_core import python_documentation
from accum_core.engine import language
from accum_core.engine.objectives import CrossEntropy
from accum_core.records import Validation

VALIDATION_BATCH = 64


class Paragraphs:
    """A workload of paragraphs.

    Args:
        training, held_out: UTF-8, none of them empty.
        longest: bytes that are kept of each, from its beginning.
    """

    def __init__(self, training: Sequence[bytes], held_out: Sequence[bytes], longest: int) -> None:
        self._training = training
        # By length, so that a batch holds little padding.
        self._held_out = sorted(held_out, key=len)
        self._longest = longest
        self.num_samples = len(training)
        self.objective = CrossEntropy(language.IGNORED)

    def build_model(self, name: str) -> nn.Module:
        """A network that reads the longest paragraph."""
        module = importlib.import_module(f"accum_core.engine.models.{name}")
        model: nn.Module = module.build(language.VOCABULARY, self._longest)
        return model

    def samples(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Bytes and the byte after each, int64 ``[B, T]``, padded to the longest of these paragraphs."""
        return self._padded([self._training[index] for index in indices])

    def validate(self, model: nn.Module) -> Validation:
        """Loss per byte over the held-out paragraphs, in nats."""
        return language.validate(model, self._batches())

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(self._held_out), VALIDATION_BATCH):
            yield self._padded(self._held_out[start : start + VALIDATION_BATCH])

    def _padded(self, paragraphs: Sequence[bytes]) -> tuple[Tensor, Tensor]:
        return language.padded([language.as_tokens(paragraph[: self._longest]) for paragraph in paragraphs])


def of_documentation(*, shortest: int = 1, longest: int | None = None, cut: int) -> Paragraphs:
    """The paragraphs of Python's documentation of some range of lengths.

    Args:
        shortest, longest: bytes of the paragraphs that are taken.
        cut: bytes that are kept of each.

    Raises:
        DataError: for a Python without its documentation.
    """
    found = python_documentation.load()

    def taken(topics: Sequence[Sequence[bytes]]) -> list[bytes]:
        paragraphs = (paragraph for topic in topics for paragraph in topic)
        return [p for p in paragraphs if shortest <= len(p) and (longest is None or len(p) <= longest)]

    return Paragraphs(taken(found.training), taken(found.held_out), cut)
