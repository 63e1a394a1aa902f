"""The cases that every framework is put through, and the numbers of each.

The data of a case is made so that what is wrong is far from what is right (tests/test_conformance_formulas.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Settings:
    """The numbers of one training, as a framework's user sets them.

    Attributes:
        micro_batch_size: samples a forward and backward pass, on each rank.
        accumulation_steps: N, micro-batches in a full window on each rank.
        epochs: passes over the samples.
        learning_rate: of plain SGD or AdamW, constant unless there is a ``gamma``.
        gamma: the rate is multiplied by it after every update, if given.
        clip_norm: bound of the window's gradient, if any.
        precision: ``bfloat16``: autocast, as the framework offers it.
        sized: whether the loader knows its length; without, it is an iterable data set.
        stop_after: micro-batches after which the training is interrupted and then resumed from its checkpoint, if any.
    """

    micro_batch_size: int
    accumulation_steps: int
    epochs: int = 1
    learning_rate: float = 0.1
    optimizer: Literal["sgd", "adamw"] = "sgd"
    weight_decay: float = 0.0
    gamma: float | None = None
    clip_norm: float | None = None
    precision: Literal["float64", "bfloat16"] = "float64"
    world_size: int = 1
    sized: bool = True
    stop_after: int | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One question to a framework.

    Attributes:
        title: a few words.
        question: what is asked, one sentence.
        right: what a right answer is, one clause.
        settings: the numbers that a user sets.
        model: which of the small networks: ``classes``, ``pixels``, ``tokens`` or ``batch_norm``.
    """

    title: str
    question: str
    right: str
    settings: Settings
    model: Literal["classes", "pixels", "tokens", "batch_norm"]


CASES: Final = MappingProxyType(
    {
        "equal": Case(
            "equal micro-batches",
            "Do N micro-batches of equal weight give the gradient of one batch?",
            "the mean over the window's samples",
            Settings(micro_batch_size=2, accumulation_steps=4),
            "classes",
        ),
        "ragged": Case(
            "ragged last micro-batch",
            "Does a last micro-batch of fewer samples count for fewer?",
            "the mean over the window's samples, each counted once",
            Settings(micro_batch_size=4, accumulation_steps=3),
            "classes",
        ),
        "unequal_tokens": Case(
            "unequal token counts",
            "Does each token count the same when sequences are of unequal length?",
            "the sum over the window's valid tokens, divided by their number",
            Settings(micro_batch_size=1, accumulation_steps=8),
            "tokens",
        ),
        "ignored_pixels": Case(
            "ignored pixels",
            "Does each valid pixel count the same when maps are labelled in unequal parts?",
            "the sum over the window's valid pixels, divided by their number",
            Settings(micro_batch_size=1, accumulation_steps=4),
            "pixels",
        ),
        "class_weights": Case(
            "class weights",
            "Is a class-weighted loss divided by the class weights of the whole window?",
            "the weighted sum over the window's samples, divided by the sum of their class weights",
            Settings(micro_batch_size=2, accumulation_steps=4),
            "classes",
        ),
        "empty_micro_batch": Case(
            "a micro-batch with no valid label",
            "Does a micro-batch whose labels are all ignored add nothing, and leave the rest as it is?",
            "the gradient of the other micro-batches",
            Settings(micro_batch_size=1, accumulation_steps=4),
            "tokens",
        ),
        "short_window": Case(
            "short last window",
            "Is a last window of fewer than N micro-batches stepped, and divided by what it holds?",
            "one more update an epoch, of the mean over that window's samples",
            Settings(micro_batch_size=2, accumulation_steps=4, epochs=2),
            "classes",
        ),
        "iterable": Case(
            "short last window, unknown length",
            "The same for a loader that does not know its length?",
            "as with a loader that does",
            Settings(micro_batch_size=2, accumulation_steps=4, epochs=2, sized=False),
            "classes",
        ),
        "n_above_epoch": Case(
            "N above the epoch's length",
            "Is there an update an epoch when an epoch has fewer than N micro-batches?",
            "one update an epoch, of the mean over its samples",
            Settings(micro_batch_size=2, accumulation_steps=4, epochs=2),
            "classes",
        ),
        "clipping": Case(
            "clipping",
            "Is the gradient clipped once a window, after it was divided?",
            "the window's mean gradient, scaled down to the bound",
            Settings(micro_batch_size=2, accumulation_steps=4, clip_norm=0.05),
            "classes",
        ),
        "schedule": Case(
            "schedule over an epoch",
            "Does the schedule step once an update?",
            "the first rate times gamma to the power of the updates",
            Settings(micro_batch_size=2, accumulation_steps=2, gamma=0.3),
            "classes",
        ),
        "weight_decay": Case(
            "weight decay",
            "Are decoupled weight decay and Adam's count of steps applied once an update?",
            "one step of AdamW on the window's mean gradient",
            Settings(micro_batch_size=2, accumulation_steps=4, optimizer="adamw", learning_rate=0.01, weight_decay=0.5),
            "classes",
        ),
        "bf16": Case(
            "bf16",
            "Is the sum over a window as exact as the number type of its passes allows?",
            "as near to the float64 gradient as one batch under bfloat16 autocast is, or twice as far at most",
            Settings(micro_batch_size=2, accumulation_steps=8, precision="bfloat16"),
            "classes",
        ),
        "two_ranks": Case(
            "two ranks",
            "Does each token count the same when two processes share a window?",
            "the sum over both ranks' valid tokens, divided by their number",
            Settings(micro_batch_size=1, accumulation_steps=4, world_size=2),
            "tokens",
        ),
        "batch_norm": Case(
            "BatchNorm",
            "Are the statistics of BatchNorm those of the whole window?",
            "the gradient of one batch through BatchNorm",
            Settings(micro_batch_size=2, accumulation_steps=4),
            "batch_norm",
        ),
        "resume": Case(
            "resume in mid-epoch",
            "Does a training that was interrupted inside a window and an epoch end where it would have ended?",
            "the weights and the rate of a training that was not interrupted",
            Settings(micro_batch_size=2, accumulation_steps=4, gamma=0.5, stop_after=6),
            "classes",
        ),
        "logged_loss": Case(
            "logged loss",
            "Is the loss that is logged that of each window?",
            "the sum over each window's valid tokens, divided by their number, one value an update",
            Settings(micro_batch_size=1, accumulation_steps=4),
            "tokens",
        ),
    }
)
