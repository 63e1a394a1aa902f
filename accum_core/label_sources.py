"""Real windows for the arithmetic of the loss: pixels with their class, and sentences whose next token is the label.

NumPy, no torch. Each model is a softmax regression that knows how often each class or token occurs and nothing else
yet, as a network does early in training: its gradient is far from zero, and no training had to be chosen.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from accum_core import landcover
from accum_core.errors import SettingError
from accum_core.loss_scaling import IGNORED, SoftmaxRegression, Window

Token = Literal["words", "bytes"]
STRIP: Final = 16  # labels in one sample of ``strips``
MOST_SAMPLES: Final = 16  # samples in one micro-batch of ``strips``
ROW: Final = 32  # the row of a tile that a strip is cut from
# Short entries of the language reference, in the text that Python itself shows for help("pass").
TOPICS: Final = "pass break continue del global nonlocal return if while for yield lambda raise assert with try".split()
MOST_SENTENCES: Final = 8


@dataclass(frozen=True, slots=True)
class Masks:
    """Tiles of one micro-batch.

    Attributes:
        images: uint8 ``[M, 64, 64, 3]``, RGB.
        targets: int64 ``[M, 64, 64]``, class indices, ``IGNORED`` where a pixel counts for nothing.
    """

    images: NDArray[np.uint8]
    targets: NDArray[np.int64]

    def picture(self, ignored: str) -> NDArray[np.uint8]:
        """The tiles above their classes, uint8 ``[256, M * 128, 3]``, two by two for each pixel.

        Args:
            ignored: the colour of an ignored pixel, ``#RRGGBB``.
        """
        colors = np.array([tuple(bytes.fromhex(c[1:])) for c in (*landcover.CLASS_COLORS, ignored)], dtype=np.uint8)
        classes = colors[np.where(self.targets == IGNORED, -1, self.targets)]
        picture = np.vstack([np.hstack(list(self.images)), np.hstack(list(classes))])
        return picture.repeat(2, axis=0).repeat(2, axis=1)


def strips(counts: Sequence[tuple[int, int]], *, class_weights: bool = False) -> Window:
    """A window of micro-batches of the asked sizes, from real pixels.

    A sample is a strip of 16 pixels of a tile of its own; all but the first ``valid`` of them are ignored.

    Args:
        counts: ``(samples, valid labels a sample)`` of each micro-batch: 1 to 16, 0 to 16.
        class_weights: weigh each label by the inverse of its class's frequency.
    """
    tiles, _ = landcover.load()
    order = np.random.default_rng(0).permutation(len(tiles.labels))  # neighbours in the file look alike
    parts = []
    for index, (samples, valid) in enumerate(counts):
        chosen = order[index * MOST_SAMPLES :][:samples]
        targets = tiles.labels[chosen, ROW, :STRIP].astype(np.int64)
        targets[:, valid:] = IGNORED
        parts.append((_colours(tiles.images[chosen, ROW, :STRIP]), targets.ravel(), samples))
    return colour_model(class_weights=class_weights).window(parts)


def masks(first: int, steps: int, micro: int, ignored: Sequence[int]) -> list[Masks]:
    """Consecutive training tiles as micro-batches, the pixels of some classes ignored.

    Args:
        first: index of the first tile; after the last one of the data set the first follows.
        steps: number of micro-batches.
        micro: tiles in each.
        ignored: class indices.
    """
    tiles, _ = landcover.load()
    chosen = (first + np.arange(steps * micro).reshape(steps, micro)) % len(tiles.labels)
    found = []
    for indices in chosen:
        targets = tiles.labels[indices].astype(np.int64)
        targets[np.isin(targets, ignored)] = IGNORED
        found.append(Masks(tiles.images[indices], targets))
    return found


def from_masks(batches: Sequence[Masks], *, class_weights: bool = False) -> Window:
    """The window of some tiles; a label is a pixel."""
    parts = [(_colours(batch.images), batch.targets.ravel(), len(batch.images)) for batch in batches]
    return colour_model(class_weights=class_weights).window(parts)


@cache
def colour_model(*, class_weights: bool = False) -> SoftmaxRegression:
    """Class from colour, float64 ``[4, 6]``: red, green, blue and a bias that knows each class's frequency.

    With class weights a class of frequency f weighs 1 / (6 f), so that the weight of the average pixel is 1.
    """
    tiles, _ = landcover.load()
    classes = len(landcover.CLASS_NAMES)
    frequency = np.bincount(tiles.labels.ravel(), minlength=classes) / tiles.labels.size
    weights = np.vstack([np.zeros((3, classes)), np.log(frequency)])
    return SoftmaxRegression(weights, 1 / (classes * frequency) if class_weights else None)


def _colours(images: NDArray[np.uint8]) -> NDArray[np.float64]:
    pixels = images.reshape(-1, 3) / 255
    return np.column_stack([pixels, np.ones(len(pixels))])


def sentences(topic: str) -> tuple[str, ...]:
    """The sentences of running text in one entry of Python's own documentation, in their order.

    Raises:
        SettingError: for an entry that is not one of ``TOPICS``.
    """
    if topic not in TOPICS:
        raise SettingError("topics", topic, f"use some of {', '.join(TOPICS)}")
    return _sentences(topic)


@cache
def _sentences(topic: str) -> tuple[str, ...]:
    from pydoc_data.topics import topics  # a megabyte of text that only this needs

    paragraphs = topics[topic].split("\n\n")
    prose = [" ".join(part.split()) for part in paragraphs if re.match(r"\S", part) and not re.search(r"\*\*\*", part)]
    found = [text for part in prose for text in re.split(r"(?<=[.?!:]) (?=[A-Z\"])", part)]
    return tuple(text for text in found if len(_tokens(text, "words")) > 2)


def _tokens(sentence: str, token: Token) -> list[str]:
    if token == "bytes":
        return [chr(byte) for byte in sentence.encode()]
    return re.findall(r"\w+|[^\w\s]", sentence.lower())


@cache
def _vocabulary(token: Token) -> tuple[dict[str, int], SoftmaxRegression]:
    """Every token of ``TOPICS`` with its number, and the model of the next token from the one before, ``[V, V]``."""
    counts = Counter(piece for topic in TOPICS for text in _sentences(topic) for piece in _tokens(text, token))
    frequency = np.array(list(counts.values())) / counts.total()
    weights = np.tile(np.log(frequency), (len(counts), 1))
    return {piece: place for place, piece in enumerate(counts)}, SoftmaxRegression(weights)


def from_sentences(batches: Sequence[Sequence[str]], token: Token) -> Window:
    """The window of some sentences of ``TOPICS``; a label is the next token.

    Each sentence is padded to the longest of its micro-batch, and the padding is ignored.

    Args:
        batches: the sentences of each micro-batch, at least one.
        token: what a sentence is cut into: words and marks, or bytes.
    """
    vocabulary, model = _vocabulary(token)
    parts = []
    for texts in batches:
        rows = [[vocabulary[piece] for piece in _tokens(text, token)] for text in texts]
        longest = max(map(len, rows))
        padded = np.array([row + [IGNORED] * (longest - len(row)) for row in rows], dtype=np.int64)
        before, targets = padded[:, :-1].ravel(), padded[:, 1:].ravel()
        one_hot = csr_array(
            (np.ones(len(before)), (np.arange(len(before)), np.maximum(before, 0))),
            shape=(len(before), len(vocabulary)),
        )
        parts.append((one_hot, targets, len(texts)))
    return model.window(parts)
