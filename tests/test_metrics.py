"""Segmentation quality against scikit-learn's confusion matrix, Jaccard score and accuracy."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import accuracy_score, confusion_matrix, jaccard_score, log_loss

from accum_core import landcover
from accum_core.engine.metrics import class_iou, confusion, pixel_accuracy
from accum_core.engine.workloads import load

IGNORED = -100


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 6), st.integers(1, 60), st.floats(0, 1), st.integers(0, 2**31))
def test_matrix_iou_and_accuracy_agree_with_scikit_learn(classes: int, size: int, ignored: float, seed: int):
    """Over the valid pixels; a class in neither map has no IoU (scikit-learn is asked for those present)."""
    numbers = np.random.default_rng(seed)
    predictions, targets = numbers.integers(classes, size=(2, size))
    kept = numbers.random(size) >= ignored
    targets = np.where(kept, targets, IGNORED)
    matrix = confusion(torch.from_numpy(predictions), torch.from_numpy(targets), classes)
    if not kept.any():
        assert int(matrix.sum()) == 0
        assert math.isnan(pixel_accuracy(matrix))
        return
    truth, guess = targets[kept], predictions[kept]
    assert matrix.tolist() == confusion_matrix(truth, guess, labels=range(classes)).tolist()
    assert pixel_accuracy(matrix) == pytest.approx(accuracy_score(truth, guess), rel=1e-12)
    present = sorted(set(truth) | set(guess))
    found = class_iou(matrix)
    assert found[present].numpy() == pytest.approx(jaccard_score(truth, guess, labels=present, average=None), rel=1e-12)
    assert all(math.isnan(found[k]) for k in range(classes) if k not in present)


def test_shape_of_the_maps_does_not_matter():
    maps = torch.randint(4, (2, 3, 5, 7), generator=torch.Generator().manual_seed(0))
    assert torch.equal(confusion(maps[0], maps[1], 4), confusion(maps[0].flatten(), maps[1].flatten(), 4))


def test_known_maps():
    """Rows are the truth: of three pixels of class 0 one is taken for class 1; class 2 is nowhere."""
    matrix = confusion(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 0, 1]), 3)
    assert matrix.tolist() == [[2, 1, 0], [0, 1, 0], [0, 0, 0]]
    assert class_iou(matrix).tolist() == [
        pytest.approx(2 / 3),
        pytest.approx(1 / 2),
        pytest.approx(math.nan, nan_ok=True),
    ]
    assert pixel_accuracy(matrix) == 0.75


class Stub(torch.nn.Module):
    """Logits from the mean colour of a pixel's row: no training needed, all classes predicted, nothing saturated."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = torch.nn.Conv2d(3, 6, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(images)


def test_validation_of_the_embedded_data_agrees_with_scikit_learn():
    """Fold 0 of the file, colours normalised by the training folds; scored from the file's own arrays."""
    with np.load(landcover.FILE) as arrays:
        pictures, labels, fold = arrays["images"] / 255.0, arrays["labels"], arrays["fold"]
    training = pictures[fold != 0]
    mean, deviation = training.mean(axis=(0, 1, 2)), training.std(axis=(0, 1, 2))
    inputs = torch.from_numpy((pictures[fold == 0] - mean) / deviation).permute(0, 3, 1, 2)
    model = Stub().eval()
    with torch.no_grad():
        found = load("landcover").validate(model)
        probabilities = model.double()(inputs).softmax(1).permute(0, 2, 3, 1).reshape(-1, 6).numpy()
    truth, guess = labels[fold == 0].ravel(), probabilities.argmax(1)
    present = sorted(set(truth) | set(guess))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        iou = jaccard_score(truth, guess, labels=present, average=None)
    # A pixel on the border between two classes may fall to either side in float32.
    assert found.miou == pytest.approx(iou.mean(), abs=2e-4)
    assert [found.class_iou[k] for k in present] == pytest.approx(list(iou), abs=2e-4)
    assert found.pixel_accuracy == pytest.approx(accuracy_score(truth, guess), abs=2e-4)
    assert found.loss == pytest.approx(log_loss(truth, probabilities, labels=range(6)), rel=1e-4)
    assert len(found.pictures) == len(landcover.DISPLAY_TILES)
