"""The window that the page on loss scaling is about: what the reader chose, as an address, and the window it makes.

``/loss-scaling?w=4x16,4x2&tail=divide_by_n&full=4``: what differs from the defaults stands in the address, so that the
address alone rebuilds the page. Pure: no Streamlit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from accum_core import label_sources, landcover
from accum_core.errors import SettingError
from accum_core.label_sources import MOST_SAMPLES, MOST_SENTENCES, STRIP, TOPICS
from accum_core.loss_scaling import Window, numbers
from accum_core.reduction import TAIL_RULES, LossReduction, ReductionKind

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
        full: N of a full window; None for the window's own.
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
    def weighable(self) -> bool:
        """Whether the labels are pixels, which class weights are for."""
        return self.source in ("counts", "masks")

    def rule(self, kind: ReductionKind) -> LossReduction:
        """The reduction with the chosen tail rule."""
        return LossReduction(kind, self.tail, self.full or self.num_micro_batches)  # type: ignore[arg-type]

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


def read(address: Mapping[str, str]) -> Choice:
    """The choice that an address asks for.

    Raises:
        SettingError: naming the parameter, the value and what can be.
    """
    wanted: dict[str, Any] = {}
    for name, (field, parse, _, _) in PARAMETERS.items():
        if name in address:
            try:
                wanted[field] = parse(address[name])
            except ValueError as error:
                raise SettingError(name, address[name], str(error)) from None
    choice = replace(DEFAULT, **wanted)
    held = choice.num_micro_batches
    if choice.full is not None and choice.full < held:
        raise SettingError("full", choice.full, f"the window holds {held} micro-batches; use {held} to {MOST_FULL}")
    return settled(choice)


def settled(choice: Choice) -> Choice:
    """The choice with no N of its own where the window is full anyway."""
    return choice if choice.full is None or choice.full > choice.num_micro_batches else replace(choice, full=None)


def address(choice: Choice) -> dict[str, str]:
    """The query parameters that ``read`` turns back into the choice, as far as its source uses it."""
    return {
        name: write(getattr(choice, field))
        for name, (field, _, write, sources) in PARAMETERS.items()
        if choice.source in sources and getattr(choice, field) != getattr(DEFAULT, field)
    }


def used(choice: Choice) -> Choice:
    """The choice with what its source does not use at the defaults: what its address stands for."""
    unused = [f.name for f in fields(Choice) if choice.source not in _SOURCES_OF[f.name]]
    return replace(choice, **{name: getattr(DEFAULT, name) for name in unused})


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and low <= int(text[:9]) <= high):
            raise ValueError(f"use a whole number from {low} to {high}")
        return int(text)

    return parse


def _one_of(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"use one of {', '.join(names)}")
        return text

    return parse


def _counts(text: str) -> tuple[tuple[int, int], ...]:
    remedy = (
        f"use 1 to {MOST_STEPS} micro-batches such as 4x16,1x8: "
        f"1 to {MOST_SAMPLES} samples of 0 to {STRIP} valid labels"
    )
    parts = [part.split("x") for part in text.split(",")]
    try:
        found = tuple((_whole(1, MOST_SAMPLES)(samples), _whole(0, STRIP)(valid)) for samples, valid in parts)
    except ValueError:
        raise ValueError(remedy) from None
    if len(found) > MOST_STEPS:
        raise ValueError(remedy)
    return found


def _topics(text: str) -> tuple[str, ...]:
    found = tuple(text.split(","))
    if not set(found) <= set(TOPICS) or len(set(found)) < len(found):
        raise ValueError(f"use each at most once of {', '.join(TOPICS)}")
    return found


def _classes(text: str) -> tuple[int, ...]:
    last = len(landcover.CLASS_NAMES) - 1
    if text == "none":
        return ()
    found = tuple(_whole(0, last)(part) for part in text.split(","))
    if len(set(found)) < len(found):
        raise ValueError(f"use each at most once of 0 to {last}, or none")
    return found


def parse_numbers(text: str) -> tuple[tuple[float, ...], ...]:
    """Micro-batches from text such as ``10; 2, 2, 2``.

    Raises:
        ValueError: saying what can be.
    """
    remedy = (
        f"use 1 to {MOST_STEPS} micro-batches such as 10; 2, 2, 2: "
        f"at most {MOST_NUMBERS} numbers each, none beyond a million"
    )
    try:
        found = tuple(tuple(float(x) for x in part.split(",") if x.strip()) for part in text.split(";"))
    except ValueError:
        raise ValueError(remedy) from None
    flat = [x for xs in found for x in xs]
    if len(found) > MOST_STEPS or any(len(xs) > MOST_NUMBERS for xs in found):
        raise ValueError(remedy)
    if not all(math.isfinite(x) and abs(x) <= 1e6 for x in flat):
        raise ValueError(remedy)
    return found


def write_numbers(values: tuple[tuple[float, ...], ...]) -> str:
    """The text that ``parse_numbers`` turns back into the numbers."""
    return "; ".join(", ".join(repr(x).removesuffix(".0") for x in xs) for xs in values)


def _listed(values: tuple[Any, ...]) -> str:
    return ",".join(map(str, values))


_EVERY: Final = tuple(SOURCES)
PARAMETERS: Final[dict[str, tuple[str, Callable[[str], Any], Callable[[Any], str], tuple[str, ...]]]] = {
    # name: field, from text, to text, sources that use it
    "source": ("source", _one_of(*SOURCES), str, _EVERY),
    "w": ("counts", _counts, lambda counts: ",".join(f"{s}x{v}" for s, v in counts), ("counts",)),
    "topics": ("topics", _topics, _listed, ("sentences",)),
    "sentences": ("sentences", _whole(1, MOST_SENTENCES), str, ("sentences",)),
    "token": ("token", _one_of(*TOKENS), str, ("sentences",)),
    "first": ("first", _whole(0, TILES - 1), str, ("masks",)),
    "steps": ("steps", _whole(1, MOST_STEPS), str, ("masks",)),
    "micro": ("micro", _whole(1, MOST_TILES), str, ("masks",)),
    "ignore": ("ignore", _classes, lambda classes: _listed(classes) or "none", ("masks",)),
    "x": ("numbers", parse_numbers, write_numbers, ("numbers",)),
    "weigh": (
        "class_weights",
        lambda text: _one_of("classes")(text) == "classes",
        lambda _: "classes",
        ("counts", "masks"),
    ),
    "tail": ("tail", _one_of(*TAIL_RULES), str, _EVERY),
    "full": ("full", _whole(1, MOST_FULL), str, _EVERY),
}
_SOURCES_OF: Final = {field: sources for field, _, _, sources in PARAMETERS.values()}
