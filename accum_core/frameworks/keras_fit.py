"""Keras 3 on PyTorch: ``fit`` with ``gradient_accumulation_steps`` of its optimizers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"  # read when keras is imported

import keras
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from accum_core.frameworks import keras_layers, plain
from accum_core.frameworks.contract import Outcome, Task
from accum_core.frameworks.keras_layers import problem
from accum_core.frameworks.keras_windows import Shares, WindowLosses

__all__ = ["problem", "train", "train_mended"]

NAME = "keras"
TITLE = "Keras 3 on PyTorch"
DISTRIBUTION = "keras"
ORDER = 60
KINDS = {"layers": "layers and losses of Keras's own"}
DUTIES = ("schedule",)
EXPLANATIONS = {
    "ragged": "The optimizer divides the sum of the micro-batches' means by gradient_accumulation_steps.",
    "unequal_tokens": "The optimizer divides the sum of the micro-batches' means by gradient_accumulation_steps.",
    "ignored_pixels": "The optimizer divides the sum of the micro-batches' means by gradient_accumulation_steps.",
    "class_weights": "The optimizer divides the sum of the micro-batches' means by gradient_accumulation_steps.",
    "empty_micro_batch": "The optimizer divides by gradient_accumulation_steps, however many micro-batches have a "
    "label.",
    "short_window": "The optimizer steps at every N-th call and knows no epochs; what is left at the end of the "
    "training stays in its accumulators.",
    "iterable": "The optimizer steps at every N-th call and knows no epochs; what is left at the end of the training "
    "stays in its accumulators.",
    "n_above_epoch": "The optimizer steps at every N-th call and knows no epochs.",
    "schedule": "Schedules count micro-batches, as the documentation of gradient_accumulation_steps says.",
    "bf16": "TorchModuleWrapper hands bfloat16 inputs to a module whose weights stay float32.",
    "two_ranks": "There is no torch backend in keras.distribution, and fit exchanges no gradients.",
    "batch_norm": "Each micro-batch passes the layer alone; use layers that do not look across samples.",
    "resume": "A backup holds the accumulators and the count of micro-batches, but fit begins the epoch again, so what "
    "was seen of it counts twice; the schedule counts micro-batches.",
    "logged_loss": "What fit logs is an epoch's mean over micro-batches, each weighing as many as its samples.",
}
MENDS = {
    "ragged": "Give the loss reduction='sum', and each label a sample weight of N over the window's weight.",
    "unequal_tokens": "Give the loss reduction='sum', and each label a sample weight of N over the window's weight.",
    "ignored_pixels": "Give the loss reduction='sum', and each label a sample weight of N over the window's weight.",
    "class_weights": "Give the loss reduction='sum', and each label a sample weight of N over the window's weight.",
    "empty_micro_batch": "Give the loss reduction='sum', and each label a sample weight of N over the window's weight.",
    "short_window": "Fill up the window with micro-batches of weight 0, and weigh the labels by N over its weight.",
    "iterable": "Fill up the window with micro-batches of weight 0, and weigh the labels by N over its weight.",
    "n_above_epoch": "Fill up the window with micro-batches of weight 0, and weigh the labels by N over its weight.",
    "schedule": "Give the schedule N times the decay_steps, and staircase=True.",
    "bf16": "Put torch.autocast around the module, under the policy float32.",
    "two_ranks": "Wrap the module in DistributedDataParallel first, and give each rank its part of the data.",
    "resume": "Begin the data of the resumed epoch behind what was seen, and let the schedule count updates.",
    "logged_loss": "Add a callback that resets the metrics at the start of each window and reads them at its end.",
}
DEFECTS = (
    (
        "The moving average of the weights is taken once a micro-batch",
        "With gradient_accumulation_steps, use_ema averages after every micro-batch and not after every "
        "update, so the average forgets N times as fast.",
        """
import os
os.environ["KERAS_BACKEND"] = "torch"
import keras
import torch

for steps in (None, 4):
    weight = keras.Variable([0.0])
    sgd = keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5, gradient_accumulation_steps=steps)
    for _ in range(3 * (steps or 1)):
        sgd.apply([torch.tensor([-1.0])], [weight])
    sgd.finalize_variable_values([weight])
    print(float(weight.numpy()[0]))  # 2.25, then 2.46875
""",
    ),
    (
        "An infinite gradient stays in the accumulators for good",
        "On PyTorch the accumulators are emptied by multiplying with 0, so an infinite gradient, which "
        "clipvalue makes finite, leaves NaN behind.",
        """
import os
os.environ["KERAS_BACKEND"] = "torch"
import keras
import torch

weight = keras.Variable([0.0])
sgd = keras.optimizers.SGD(1.0, clipvalue=1.0, gradient_accumulation_steps=2)
for gradient in (float("inf"), 0.0, 0.0, 0.0):
    sgd.apply([torch.tensor([gradient])], [weight])
    print(float(weight.numpy()[0]))  # 0, -1, -1, nan
""",
    ),
    (
        "float64 is rounded to float32",
        "Outside TensorFlow, operations on a float64 tensor and a number give float32, even where floatx is "
        "float64; the measurements here were made with that rounding taken out.",
        """
import os
os.environ["KERAS_BACKEND"] = "torch"
import keras
import torch

keras.config.set_floatx("float64")
print(keras.ops.minimum(torch.ones(1, dtype=torch.float64), 1.0).dtype)  # torch.float32
""",
    ),
    (
        "A backup within an epoch counts micro-batches twice",
        "BackupAndRestore saves weights, accumulators and the batch that was reached, but never reads "
        "the last, and fit begins the epoch again.",
        """
import contextlib
import os
import tempfile
os.environ["KERAS_BACKEND"] = "torch"
import keras
import torch

class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            raise InterruptedError

def fit(folder, *more):
    network.compile(keras.optimizers.SGD(1.0), loss=lambda labels, outputs: outputs.mean())
    backup = keras.callbacks.BackupAndRestore(folder, save_freq=2)
    network.fit(torch.ones(4, 1), torch.ones(4, 1), batch_size=1, verbose=0, callbacks=[backup, *more])

network = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, "linear", False, "zeros")])
with tempfile.TemporaryDirectory() as folder:
    with contextlib.suppress(InterruptedError):
        fit(folder, Stop())
    fit(folder)
print(float(network.get_weights()[0][0, 0]))  # -6, where four steps of 1 give -4
""",
    ),
)


class Net(keras.Model):
    """The user's torch module as a Keras model."""

    def __init__(self, module: nn.Module, autocast: bool = False) -> None:
        super().__init__()
        self.module = keras.layers.TorchModuleWrapper(module)
        self.autocast = autocast

    def call(self, inputs: Tensor) -> Tensor:
        """Logits."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            logits: Tensor = self.module(inputs)
        return logits


def train(task: Task) -> Outcome:
    """As its guides have it, under KERAS_BACKEND=torch: a compiled model, ``fit``, and ``BackupAndRestore``."""
    settings = task.settings
    set_types(task, "mixed_bfloat16")
    if settings.world_size > 1:
        keras.distribution.set_distribution(keras.distribution.DataParallel())
    by_samples = "sum_over_batch_size"
    loss = of_logits(task.loss) if task.kind == "own" else keras_layers.loss(task.case, by_samples)

    def live(stop_after: int = 0) -> Outcome:
        network = Net(task.model) if task.kind == "own" else task.model
        return fit(task, network, loss, plain.loader(task, Pairs), stop_after=stop_after)

    if settings.stop_after:
        live(settings.stop_after)
    return live()


def train_mended(task: Task) -> Outcome:
    """Sums, whose weights in the window come with the data; short windows filled up; a schedule told of N."""
    settings = task.settings
    set_types(task, "float32")
    module = task.model
    if settings.world_size > 1:
        torch.distributed.init_process_group("gloo")
        module = DistributedDataParallel(module)
    loss = of_logits(task.total) if task.kind == "own" else keras_layers.loss(task.case, "sum")

    def live(stop_after: int = 0, skipped: int = 0) -> Outcome:
        network = Net(module, settings.precision == "bfloat16") if task.kind == "own" else module
        data = DataLoader(Shares(task, skipped), batch_size=None)
        steps, window_losses = settings.accumulation_steps, WindowLosses(settings.accumulation_steps)
        fitted = fit(task, network, loss, data, decay_steps=steps, callbacks=[window_losses], stop_after=stop_after)
        return replace(fitted, logged=window_losses.losses)

    if settings.stop_after:
        live(settings.stop_after)
    return live(skipped=settings.stop_after or 0)


def fit(
    task: Task,
    network: keras.Model,
    loss: Any,
    data: DataLoader[Any],
    *,
    decay_steps: int = 1,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    stop_after: int = 0,
) -> Outcome:
    """The life of one process, to the end or to an interruption, from its backup if there is one."""
    settings = task.settings
    rate = keras.optimizers.schedules.ExponentialDecay(
        settings.learning_rate, decay_steps=decay_steps, decay_rate=settings.gamma or 1.0, staircase=True
    )
    options = {
        "learning_rate": rate if settings.gamma else settings.learning_rate,
        "weight_decay": settings.weight_decay,
        "global_clipnorm": settings.clip_norm,
        "gradient_accumulation_steps": settings.accumulation_steps,
    }
    if settings.optimizer == "adamw":
        # Keras adds epsilon before it corrects the bias; at the first update this is torch's 1e-8.
        optimizer = keras.optimizers.AdamW(**options, epsilon=1e-8 * (1 - 0.999) ** 0.5)
    else:
        optimizer = keras.optimizers.SGD(**options)
    network.compile(optimizer=optimizer, loss=loss)
    callbacks = list(callbacks)
    if settings.stop_after:
        network(task.collate(task.samples[:1])["inputs"])  # a backup is read into a network that has been called
        callbacks.append(keras.callbacks.BackupAndRestore(task.folder, save_freq=settings.stop_after))
    if stop_after:
        callbacks.append(Interruption(stop_after))
    try:
        history = network.fit(data, epochs=settings.epochs, shuffle=False, verbose=0, callbacks=callbacks)
    except InterruptedError:
        return Outcome()
    return Outcome(
        logged=history.history["loss"], updates=int(optimizer.iterations), final_lr=float(optimizer.learning_rate)
    )


class Pairs(DataLoader[Any]):
    """A loader of inputs with their labels, and with the weights of these where samples have such."""

    def __iter__(self) -> Any:
        """One epoch."""
        for batch in super().__iter__():
            yield tuple(batch.values())


class Interruption(keras.callbacks.Callback):
    """The end of a process after some micro-batches."""

    def __init__(self, stop_after: int) -> None:
        super().__init__()
        self.stop_after = stop_after

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """As a signal would come."""
        if batch + 1 == self.stop_after:
            raise InterruptedError


def of_logits(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """The user's loss as Keras calls it: labels first, and as floats."""
    return lambda labels, logits: loss(logits, labels.long())


def set_types(task: Task, policy: str) -> None:
    """float64 all through, or layers under a policy for bfloat16."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy(policy if task.settings.precision == "bfloat16" else "float64")
