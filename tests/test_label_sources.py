"""Real windows: what each holds, and that its loss is -log of how often the label's class or token occurs.

The shares are counted here anew from the tiles and the sentences, as each model knows nothing else yet.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import nn

from accum_core import label_sources, landcover
from accum_core.errors import SettingError
from accum_core.label_sources import TOPICS
from accum_core.loss_scaling import divide
from accum_core.reduction import LossReduction

BAR = 1e-12


@pytest.mark.parametrize("weighed", [False, True])
def test_strips_hold_what_was_asked(weighed: bool) -> None:
    tiles, _ = landcover.load()
    share = np.bincount(tiles.labels.ravel()) / tiles.labels.size
    parts = label_sources.strips([(4, 16), (2, 3), (5, 0)], class_weights=weighed).micro_batches
    assert [(p.samples, p.labels, p.valid) for p in parts] == [(4, 64, 64), (2, 32, 6), (5, 80, 0)]
    if weighed:
        counts = np.array([1 / (6 * share[label]) for label in range(6)])
        assert label_sources.colour_model(class_weights=True).class_weights == pytest.approx(counts)
        assert (share * counts).sum() == pytest.approx(1)
    else:
        assert [p.weight for p in parts] == [64, 6, 0]
        # The loss of a label is -log f of its class, so it lies between those of the commonest and the rarest.
        low, high = -np.log(share.max()), -np.log(share.min())
        assert all(low <= p.mean_loss <= high for p in parts[:2])


def test_masks_ignore_the_asked_classes() -> None:
    tiles, _ = landcover.load()
    share = np.bincount(tiles.labels.ravel()) / tiles.labels.size
    chosen = label_sources.masks(792, 2, 2, [0, 3])
    parts = label_sources.from_masks(chosen).micro_batches
    for part, batch, places in zip(parts, chosen, ([792, 0], [1, 2]), strict=True):  # after the last the first follows
        labels = tiles.labels[places]
        kept = labels[(labels != 0) & (labels != 3)]
        assert (part.samples, part.labels, part.valid) == (2, 2 * 64 * 64, kept.size)
        assert part.loss_sum == pytest.approx(-np.log(share[kept]).sum(), rel=BAR)
        picture = batch.picture("#010203")
        assert picture.shape == (256, 256, 3)
        assert (picture[128:] == [1, 2, 3]).all(-1).sum() == 4 * (labels.size - kept.size)


@pytest.mark.parametrize("topic", TOPICS)
def test_sentences_are_running_text(topic: str) -> None:
    found = label_sources.sentences(topic)
    assert len(found) >= 2
    for sentence in found:
        assert "  " not in sentence and "***" not in sentence and sentence == sentence.strip()


def test_every_byte_after_the_first_is_a_label_and_padding_is_none() -> None:
    batches = [label_sources.sentences(topic)[:2] for topic in ("pass", "try")]
    window = label_sources.from_sentences(batches, "bytes")
    for part, texts in zip(window.micro_batches, batches, strict=True):
        sizes = [len(text.encode()) for text in texts]
        assert (part.samples, part.labels, part.valid) == (2, 2 * (max(sizes) - 1), sum(sizes) - 2)


def words(sentence: str) -> list[str]:
    """Words, and each mark on its own."""
    return re.sub(r"([^\w\s])", r" \1 ", sentence.lower()).split()


def test_the_gradient_of_sentences_is_autograds() -> None:
    """Words of two sentences, numbered anew here: the same loss and the same gradient norm."""
    batches = [label_sources.sentences(topic)[:1] for topic in ("pass", "if")]
    window = label_sources.from_sentences(batches, "words")
    pieces = [words(texts[0]) for texts in batches]
    every = [word for topic in TOPICS for sentence in label_sources.sentences(topic) for word in words(sentence)]
    names = sorted(set(every))
    share = torch.tensor([every.count(name) / len(every) for name in names], dtype=torch.float64)
    weights = share.log().repeat(len(names), 1).requires_grad_()
    rows = [[names.index(piece) for piece in line] for line in pieces]
    before, after = ([place for row in rows for place in row[cut]] for cut in (slice(None, -1), slice(1, None)))
    loss = nn.functional.cross_entropy(weights[torch.tensor(before)], torch.tensor(after))
    loss.backward()
    outcome = divide(window, LossReduction("exact"))
    assert outcome.loss == pytest.approx(loss.item(), rel=BAR)
    assert weights.grad is not None
    assert np.linalg.norm(outcome.gradient) == pytest.approx(weights.grad.norm().item(), rel=BAR)


def test_an_unknown_topic_is_refused() -> None:
    with pytest.raises(SettingError, match="topics = 'spam': use some of pass, break"):
        label_sources.sentences("spam")
