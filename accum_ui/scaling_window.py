"""The window that the page on loss scaling is about: what the reader chose, and the window it makes.

Pure: no Streamlit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from accum_core import label_sources
from accum_core.loss_scaling import Window, numbers
from accum_core.reduction import LossReduction, ReductionKind

MOST_STEPS: Final = 16  # micro-batches in a window
MOST_FULL: Final = 64  # micro-batches in a full window
MOST_TILES: Final = 4  # tiles in a micro-batch
MOST_NUMBERS: Final = 64  # numbers in a micro-batch
TILES: Final = 793  # training tiles of the embedded data set
SOURCES: Final = {
    "counts": "Pixels, counted by you",
    "sentences": "Sentences of Python's documentation",
    "masks": "Maps with ignored classes",
    "numbers": "Numbers to check by hand",
}
UNITS: Final = {"counts": "pixels", "sentences": "tokens", "masks": "pixels", "numbers": "labels"}
TOKENS: Final = ("words", "bytes")


@dataclass(frozen=True, slots=True)
class Choice:
    """What the reader chose.

    Attributes:
        source: one of ``SOURCES``; the other fields but the last three belong to one of them each.
        counts: ``(samples, valid labels a sample)`` of each micro-batch.
        topics, sentences, token: an entry a micro-batch, sentences of each, and what they are cut into.
        first, steps, micro, ignore: first tile, micro-batches, tiles in each, and classes that are ignored.
        numbers: the labels' gradients in each micro-batch.
        class_weights: weigh pixels by the inverse of their class's frequency.
        tail: what becomes of a window that is not full.
        full: N of a full window; None, or less than the window holds, for the window's own.
    """

    source: str = "counts"
    counts: tuple[tuple[int, int], ...] = ((4, 16), (4, 16), (4, 2), (4, 1))
    topics: tuple[str, ...] = ("pass", "return", "if", "lambda")
    sentences: int = 2
    token: str = "words"
    first: int = 104  # four tiles that hold much water, and less and less of it
    steps: int = 4
    micro: int = 1
    ignore: tuple[int, ...] = (0,)
    numbers: tuple[tuple[float, ...], ...] = ((10.0,), (2.0, 2.0, 2.0))
    class_weights: bool = False
    tail: str = "rescale"
    full: int | None = None

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches in the window."""
        sizes = {"counts": len(self.counts), "sentences": len(self.topics), "numbers": len(self.numbers)}
        return sizes.get(self.source, self.steps)

    @property
    def accumulation_steps(self) -> int:
        """N of a full window, never less than this one holds."""
        return max(self.full or 0, self.num_micro_batches)

    @property
    def weighable(self) -> bool:
        """Whether the labels are pixels, which class weights are for."""
        return self.source in ("counts", "masks")

    def rule(self, kind: ReductionKind) -> LossReduction:
        """The reduction with the chosen tail rule."""
        return LossReduction(kind, self.tail, self.accumulation_steps)  # type: ignore[arg-type]

    def window(self) -> Window:
        """The window, computed."""
        if self.source == "sentences":
            return label_sources.from_sentences(self.texts(), self.token)  # type: ignore[arg-type]
        if self.source == "masks":
            return label_sources.from_masks(self.masks(), class_weights=self.class_weights)
        if self.source == "numbers":
            return numbers(self.numbers)
        return label_sources.strips(self.counts, class_weights=self.class_weights)

    def texts(self) -> list[tuple[str, ...]]:
        """The sentences of each micro-batch."""
        return [label_sources.sentences(topic)[: self.sentences] for topic in self.topics]

    def masks(self) -> list[label_sources.Masks]:
        """The tiles of each micro-batch."""
        return label_sources.masks(self.first, self.steps, self.micro, self.ignore)


DEFAULT: Final = Choice()
PRESETS: Final[dict[str, Choice]] = {
    "Equal": Choice(counts=((4, 16),) * 4),
    "Short sequences": DEFAULT,
    "One without a valid label": Choice(counts=((4, 16), (4, 16), (4, 0), (4, 16))),
    "A ragged last micro-batch": Choice(counts=((4, 16), (4, 16), (1, 16))),
    "A short window divided by N": Choice(counts=((4, 16),) * 2, tail="divide_by_n", full=4),
    "Class weights": Choice(counts=((4, 16),) * 4, class_weights=True),
    "Sentences": Choice(source="sentences"),
    "Maps without water": Choice(source="masks"),
    "1 token and 3 tokens": Choice(source="numbers"),
}
WORKED: Final = PRESETS["1 token and 3 tokens"]


def settled(choice: Choice) -> Choice:
    """The choice with no N of its own where the window is full anyway."""
    return choice if choice.full is None or choice.full > choice.num_micro_batches else replace(choice, full=None)
