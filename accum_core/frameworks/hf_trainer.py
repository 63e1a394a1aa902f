"""The Trainer of Hugging Face transformers: a model that returns its loss, and arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

from accum_core.frameworks import hf_heads, plain
from accum_core.frameworks.contract import Batch, Outcome, Task
from accum_core.frameworks.harness.own_problems import own_problem
from accum_core.frameworks.harness.problem import Problem
from accum_core.frameworks.hf_modules import MODULES, Interrupt, Interrupted, NoLoss, Own, SizedStream

NAME = "transformers"
TITLE = "Hugging Face Trainer"
DISTRIBUTION = "transformers"
ORDER = 20
KINDS = {
    "kwargs_ignored": "a module of your own whose forward takes **kwargs and uses none",
    "kwargs_used": "a module of your own that divides its sum by num_items_in_batch",
    "loss_func": "a module of your own, and compute_loss_func",
    "sized_stream": "a module of your own, and data that is iterable and has a length",
    "causal": "a causal language model (GPT-2)",
    "llama": "a causal language model (Llama)",
    "masked": "a masked language model (BERT)",
    "token_classes": "a token classifier (BERT)",
    "sequence_classes": "a sequence classifier (BERT)",
    "segmentation": "a segmentation model (SegFormer)",
    "mixture": "a mixture of experts (Mixtral)",
}


DUTIES = (
    "own/ragged",
    "own/unequal_tokens",
    "own/ignored_pixels",
    "own/class_weights",
    "own/empty_micro_batch",
    "own/two_ranks",
    "own/logged_loss",
    "kwargs_ignored/*",
    "kwargs_used/ignored_pixels",
    "kwargs_used/class_weights",
    "loss_func/ignored_pixels",
    "loss_func/class_weights",
)
EXPLANATIONS = {
    "ragged": "The module returns a mean, which the Trainer divides by the window's number of micro-batches, so a "
    "smaller one counts as much as a full one.",
    "unequal_tokens": "The module returns a mean, which the Trainer divides by the window's number of micro-batches, "
    "so a token among few counts more.",
    "ignored_pixels": "The module returns a mean, which the Trainer divides by the window's number of micro-batches, "
    "however few of its pixels are valid.",
    "class_weights": "The module returns a mean, which the Trainer divides by the window's number of micro-batches, "
    "whatever its class weights add up to.",
    "empty_micro_batch": "Without a label the mean is no number and its gradient in torch zero; the others' means are "
    "divided by the number of all micro-batches.",
    "two_ranks": "Each rank divides its means by its micro-batches, and the exchange takes the mean over ranks.",
    "logged_loss": "It logs the sum of what the module returned, each divided as for the gradient.",
    "batch_norm": "Each forward pass normalises by its own micro-batch, and no argument changes that; use layers that "
    "do not look across samples.",
    "iterable": "Without a length it takes every epoch for as long as max_steps: the micro-batches of a short last "
    "window are divided by their own number, no update follows, and their gradient stays for the next epoch's first "
    "window; to make as many updates it then shows samples once more.",
    "kwargs_ignored/*": "A forward with **kwargs says to the Trainer that it divides by num_items_in_batch; as this "
    "one does not, nobody divides.",
    "kwargs_used/ignored_pixels": "It counts the labels that are not -100, whatever label the loss ignores.",
    "kwargs_used/class_weights": "It counts labels, where a class-weighted mean divides by their class weights.",
    "loss_func/ignored_pixels": "It counts the labels that are not -100, whatever label the loss ignores.",
    "loss_func/class_weights": "It counts labels, where a class-weighted mean divides by their class weights.",
    "causal/*": "The first label of a sequence is never predicted. The Trainer leaves it out of its count only for "
    "models whose loss_type is one of its causal losses, which it takes from the class's name: "
    "GPT2LMHeadModel has none, so each sequence adds a token.",
    "causal/iterable": "Its count includes the first label of each sequence, which is never predicted; and without a "
    "length the gradient of a short last window stays for the next epoch.",
    "llama/iterable": "Without a length it takes every epoch for as long as max_steps: the gradient of a short last "
    "window stays for the next epoch's first window, and samples are shown once more.",
    "masked/*": "BERT's heads take **kwargs, so the Trainer leaves the division to them, and they compute a plain mean "
    "all the same: nobody divides by the window.",
    "token_classes/*": "BERT's heads take **kwargs, so the Trainer leaves the division to them, and they compute a "
    "plain mean all the same: nobody divides by the window.",
    "sequence_classes/*": "BERT's heads take **kwargs, so the Trainer leaves the division to them, and they compute a "
    "plain mean all the same: the gradient is N times too large.",
    "segmentation/*": "The head takes **kwargs, so the Trainer leaves the division to it, and it computes a plain mean "
    "all the same: nobody divides by the window.",
    "mixture/*": "The sum over tokens is divided rightly, but the router's load-balancing loss, a mean of each "
    "micro-batch, is added to each and not divided by their number; and a mean over micro-batches would not be that of "
    "the batch either, as it is a product of two means.",
}
MENDS = {
    "mixture/*": "",
    "equal": "Divide in forward by num_items_in_batch, or leave **kwargs away: then the Trainer divides.",
    "ragged": "Override get_batch_samples to give what the window's mean divides by, and divide by it in "
    "compute_loss_func.",
    "unequal_tokens": "Pass compute_loss_func, and divide its sum by the num_items_in_batch that it is given.",
    "ignored_pixels": "Override get_batch_samples to count the valid pixels, and divide by it in compute_loss_func; or "
    "mark ignored pixels by -100.",
    "class_weights": "Override get_batch_samples to add up the class weights, and divide by it in compute_loss_func.",
    "empty_micro_batch": "Pass compute_loss_func, and divide its sum by the num_items_in_batch that it is given.",
    "short_window": "Divide in forward by num_items_in_batch, or leave **kwargs away: then the Trainer divides.",
    "iterable": "Give the data set a length (__len__); the Trainer then knows an epoch's last window.",
    "n_above_epoch": "Divide in forward by num_items_in_batch, or leave **kwargs away: then the Trainer divides.",
    "clipping": "Divide in forward by num_items_in_batch, or leave **kwargs away: then the Trainer divides.",
    "schedule": "Divide in forward by num_items_in_batch, or leave **kwargs away: then the Trainer divides.",
    "weight_decay": "Divide in forward by num_items_in_batch, or leave **kwargs away: then the Trainer divides.",
    "bf16": "Divide in forward by num_items_in_batch, or leave **kwargs away: then the Trainer divides.",
    "resume": "Divide in forward by num_items_in_batch, or leave **kwargs away: then the Trainer divides.",
    "two_ranks": "Pass compute_loss_func, and divide its sum by the num_items_in_batch that it is given.",
    "logged_loss": "Pass compute_loss_func, and divide its sum by the num_items_in_batch that it is given.",
    "causal/*": "Set model.loss_type to ForCausalLM before the Trainer is made.",
    "causal/iterable": "Set model.loss_type to ForCausalLM, and give the data set a length (__len__).",
    "masked/*": "Pass compute_loss_func, and divide its sum by the num_items_in_batch that it is given.",
    "token_classes/*": "Pass compute_loss_func, and divide its sum by the num_items_in_batch that it is given.",
    "sequence_classes/*": "Pass compute_loss_func, and divide its sum by the num_items_in_batch that it is given.",
    "segmentation/*": "Override get_batch_samples to count the valid pixels, and divide by it in compute_loss_func.",
}


def _labels(batch: Batch) -> float:
    return float((batch["labels"] != -100).sum())


COUNTS = {"labels that are not -100": _labels}


def problem(kind: str, case: str) -> Problem | None:
    """The user's own modules go through every case, data with a length through that of short windows."""
    if kind in MODULES:
        return own_problem(case)
    if kind == "sized_stream":
        return own_problem(case) if case in ("short_window", "n_above_epoch") else None
    return hf_heads.problem(kind, case)


def train(task: Task) -> Outcome:
    """Arguments, a Trainer, train()."""
    stop = task.settings.stop_after
    if stop is None:
        return Outcome(logged=losses(trainer(task)))
    first = trainer(task)
    first.add_callback(Interrupt(stop))
    with suppress(Interrupted):
        first.train()
    return Outcome(logged=losses(trainer(task), resume=True))


def trainer(task: Task) -> Trainer:
    """A Trainer of the model, with the loss that it returns."""
    data: Any = task.samples if task.settings.sized else plain.Stream(task.samples)
    if task.kind == "sized_stream":
        data = SizedStream(task.samples)
    model = task.model if task.kind in hf_heads.HEADS else MODULES.get(task.kind, Own)(task)
    return Trainer(
        model=model,
        args=arguments(task, has_length=task.settings.sized),
        data_collator=task.collate,
        train_dataset=data,
        optimizers=steps(task),
        compute_loss_func=loss_of(task) if task.kind == "loss_func" else None,
    )


def arguments(task: Task, *, has_length: bool) -> TrainingArguments:
    """What the command line of a training says."""
    settings = task.settings
    # Without a length it has to be told when to end.
    end: dict[str, int] = {"num_train_epochs": settings.epochs} if has_length else {"max_steps": updates(task)}
    return TrainingArguments(
        output_dir=str(task.folder),
        per_device_train_batch_size=settings.micro_batch_size,
        gradient_accumulation_steps=settings.accumulation_steps,
        learning_rate=settings.learning_rate,
        max_grad_norm=settings.clip_norm or 0.0,
        bf16=settings.precision == "bfloat16",
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        logging_steps=1,
        save_strategy="steps" if settings.stop_after else "no",
        save_steps=1,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        ddp_backend="gloo" if settings.world_size > 1 else None,
        **end,
    )


def steps(task: Task) -> tuple[Any, Any]:
    """Optimizer and schedule, as ``optimizers`` takes them."""
    optimizer = plain.optimizer(task)
    return optimizer, plain.scheduler(task, optimizer)


def loss_of(task: Task) -> Any:
    """What ``compute_loss_func`` takes: a sum over the number that the Trainer gives."""

    def loss(outputs: Mapping[str, Tensor], labels: Tensor, num_items_in_batch: Tensor | None = None) -> Tensor:
        if num_items_in_batch is None:
            return task.loss(outputs["logits"], labels)
        return task.total(outputs["logits"], labels) / num_items_in_batch

    return loss


def losses(made: Trainer, *, resume: bool = False) -> list[float]:
    """Train, and give what was logged."""
    made.train(resume_from_checkpoint=True if resume else None)
    return [entry["loss"] for entry in made.state.log_history if "loss" in entry]


def updates(task: Task) -> int:
    """The updates of a training, short last windows included."""
    settings = task.settings
    window = settings.micro_batch_size * settings.accumulation_steps * settings.world_size
    return settings.epochs * -(-len(task.samples) // window)


class Weighed(Trainer):
    """A Trainer whose ``num_items_in_batch`` is what the task's mean divides by."""

    def __init__(self, weight: Callable[[Tensor], float], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.weight = weight

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> tuple[list[Any], Any]:
        """A window's micro-batches, and their weight over all ranks."""
        window, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        own = torch.tensor(sum(self.weight(batch["labels"]) for batch in window), dtype=torch.float64)
        return window, self.accelerator.reduce(own, reduction="sum")


def train_mended(task: Task) -> Outcome:
    """The loss by ``compute_loss_func``, divided by what the window holds; a length for all data."""
    if task.kind == "causal":
        task.model.loss_type = "ForCausalLM"  # type: ignore[assignment]
        return Outcome(logged=losses(Trainer(**mended_parts(task, task.model))))
    model = task.model if task.kind in hf_heads.HEADS else NoLoss(task)
    return Outcome(logged=losses(Weighed(task.weight, compute_loss_func=loss_of(task), **mended_parts(task, model))))


def mended_parts(task: Task, model: nn.Module) -> dict[str, Any]:
    """What both Trainers of ``train_mended`` take."""
    return {
        "model": model,
        "args": arguments(task, has_length=True),
        "data_collator": task.collate,
        "train_dataset": SizedStream(task.samples) if not task.settings.sized else task.samples,
        "optimizers": steps(task),
    }
