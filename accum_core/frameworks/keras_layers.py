"""Networks of Keras's own layers, with Keras's own losses, for the kind ``layers`` of ``keras_fit``."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "torch"  # read when keras is imported

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import keras
import torch
from keras.src.backend.common import dtypes
from torch import Tensor

from accum_core.frameworks.contract import Sample
from accum_core.frameworks.harness.own_problems import CLASSES, VOCABULARY, own_problem
from accum_core.frameworks.harness.problem import Problem

# Outside TensorFlow, Keras promotes float64 and a number to float32, which would hide what is computed behind rounding
# of 1e-7 (DEFECTS of keras_fit). No formula depends on it.
dtypes.BIT64_TO_BIT32_DTYPE["float64"] = "float64"

CLASS_WEIGHTS: Final = (1.0, 10.0, 0.2, 3.0)
IGNORED: Final = {"unequal_tokens": -100, "empty_micro_batch": -100, "ignored_pixels": 255}


def problem(kind: str, case: str) -> Problem | None:
    """The data of the kind ``own``, for the cases that ask what a loss is divided by."""
    builders: dict[str, Callable[[], keras.Model]] = {
        "equal": _perceptron,
        "ragged": _perceptron,
        "class_weights": _perceptron,
        "unequal_tokens": _reader,
        "empty_micro_batch": _reader,
        "ignored_pixels": _convolutional,
    }
    if case not in builders:
        return None
    keras.config.set_floatx("float64")
    own = own_problem(case)
    return replace(
        own,
        build=builders[case],
        samples=[_sample(case, sample) for sample in own.samples],
        loss=partial(_loss, case=case, reduction="sum_over_batch_size"),
        total=partial(_loss, case=case, reduction="sum"),
        # Weighted losses are divided by the number of samples.
        weight=(lambda labels: float(len(labels))) if case == "class_weights" else own.weight,
    )


def loss(case: str, reduction: str) -> keras.losses.Loss:
    """Cross-entropy of logits, without the label that the case ignores."""
    return keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, ignore_class=IGNORED.get(case), reduction=reduction
    )


def label_weights(case: str, labels: Tensor) -> Tensor:
    """The weight of each label of ``[M, ...]``: 1, or that of its class."""
    if case == "class_weights":
        return torch.tensor(CLASS_WEIGHTS, dtype=torch.float64)[labels]
    return torch.ones(labels.shape, dtype=torch.float64)


def _sample(case: str, sample: Sample) -> Sample:
    if case == "ignored_pixels":  # channels last, as is Keras's default
        return {**sample, "inputs": sample["inputs"].movedim(0, -1)}
    if case == "class_weights":  # fit takes no class_weight beside a torch loader, but a weight with each sample
        return {**sample, "weights": label_weights(case, sample["labels"])}
    return sample


def _loss(logits: Tensor, labels: Tensor, *, case: str, reduction: str) -> Any:
    return loss(case, reduction)(labels, logits, label_weights(case, labels))


def _perceptron() -> keras.Model:
    """``[M, 6]`` to ``[M, 4]``."""
    hidden = keras.layers.Dense(8, activation="tanh", kernel_initializer=_initial(1), name="hidden")
    return _network(keras.layers.Input((6,)), hidden, _head(CLASSES))


def _reader() -> keras.Model:
    """``[M, T]`` to ``[M, T, 24]``; each token is predicted from the one before it."""
    embedding = keras.layers.Embedding(VOCABULARY, 16, embeddings_initializer=_initial(1), name="embedding")
    return _network(keras.layers.Input((None,), dtype="int64"), embedding, _head(VOCABULARY))


def _convolutional() -> keras.Model:
    """``[M, 8, 8, 3]`` to ``[M, 8, 8, 4]``."""
    hidden = keras.layers.Conv2D(6, 3, padding="same", activation="tanh", kernel_initializer=_initial(1), name="hidden")
    return _network(keras.layers.Input((8, 8, 3)), hidden, _head(CLASSES))


def _head(width: int) -> keras.layers.Layer:
    return keras.layers.Dense(width, kernel_initializer=_initial(2), name="logits")


def _network(*layers: keras.layers.Layer) -> keras.Model:
    return keras.Sequential(layers, name="network")


def _initial(seed: int) -> keras.initializers.Initializer:
    return keras.initializers.GlorotUniform(seed=seed)
