"""TRL's SFTTrainer: the Trainer of transformers with a loss, a collator and a preparation of data of its own."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from datasets import Dataset
from transformers import GPT2Tokenizer
from trl import SFTConfig, SFTTrainer

from accum_core.frameworks import hf_heads
from accum_core.frameworks.contract import Batch, Outcome, Sample, Task
from accum_core.frameworks.harness.problem import Problem
from accum_core.frameworks.hf_modules import Interrupt, Interrupted
from accum_core.frameworks.hf_trainer import losses, steps

NAME = "trl"
TITLE = "TRL's SFTTrainer"
DISTRIBUTION = "trl"
ORDER = 25
OWN = False
KINDS = {
    "llama": "a causal language model (Llama), loss on every token",
    "prompt_completion": "a causal language model (Llama), loss on completions alone",
    "packed": "a causal language model (Llama), several sequences packed in one",
    "causal": "a causal language model (GPT-2), loss on every token",
    "causal_completion": "a causal language model (GPT-2), loss on completions alone",
    "mixture": "a mixture of experts (Mixtral), loss on every token",
}
EXPLANATIONS = {
    "iterable": "As in the Trainer, every epoch without a length is taken for as long as max_steps: the gradient of a "
    "short last window stays for the next epoch's first window, and samples are shown once more.",
    "causal/*": "It divides its sum by the Trainer's num_items_in_batch, which includes the first label of each "
    "sequence, never predicted, unless the model's loss_type is a causal loss; GPT2LMHeadModel has none.",
    "causal/iterable": "Its count includes the first label of each sequence, which is never predicted; and without a "
    "length the gradient of a short last window stays for the next epoch.",
    "mixture/empty_micro_batch": "It drops a sequence without a label before training; the router's load-balancing "
    "loss is the mean of the other micro-batches' own, which is not that of the batch.",
    "mixture/*": "The sum over tokens is divided rightly, and the router's load-balancing loss by the number of "
    "micro-batches; but a mean over micro-batches is not that of the batch, as it is a product of two means.",
}
MENDS = {
    "iterable": "Give a Dataset, which has a length, and no IterableDataset.",
    "causal/iterable": "Set model.loss_type to ForCausalLM, and give a Dataset, which has a length.",
    "causal/*": "Set model.loss_type to ForCausalLM before the SFTTrainer is made, or learn completions alone: the "
    "first label is then ignored and not counted.",
}
HEADS = {"llama": "llama", "prompt_completion": "llama", "packed": "llama", "mixture": "mixture"}
NARROW = {
    "packed": ("unequal_tokens",),  # packing changes the order, of which only the sum over one window knows nothing
    "prompt_completion": hf_heads.OF_TOKENS,
    "causal_completion": hf_heads.OF_TOKENS,
}
"""Kinds that go through fewer cases than their heads."""


def _labels(batch: Batch) -> float:
    return float((batch["labels"] != hf_heads.IGNORED).sum())


COUNTS = {"labels that are not -100": _labels}


def problem(kind: str, case: str) -> Problem | None:
    """The causal heads of transformers; where completions alone are learnt, a sequence's first third is the prompt."""
    made = hf_heads.problem(HEADS.get(kind, "causal"), case)
    if made is None or case not in NARROW.get(kind, (case,)):
        return None
    if kind.endswith("completion"):
        return replace(made, samples=[_prompted(sample) for sample in made.samples])
    return made


def _prompted(sample: Sample) -> Sample:
    labels = sample["labels"].clone()
    labels[: 1 + len(labels) // 3] = hf_heads.IGNORED
    return {**sample, "labels": labels}


def train(task: Task) -> Outcome:
    """Tokenised data, arguments, an SFTTrainer, train()."""
    stop = task.settings.stop_after
    if stop is None:
        return Outcome(logged=losses(trainer(task)))
    first = trainer(task)
    first.add_callback(Interrupt(stop))
    with suppress(Interrupted):
        first.train()
    return Outcome(logged=losses(trainer(task), resume=True))


def train_mended(task: Task) -> Outcome:
    """The model says that its loss is causal, as GPT-2's class name does not; and data has a length."""
    task.model.loss_type = "ForCausalLM"  # type: ignore[assignment]
    return train(replace(task, settings=replace(task.settings, sized=True)))


def trainer(task: Task) -> SFTTrainer:
    """An SFTTrainer of the model; collator and loss are its own."""
    data = tokenised(task)
    return SFTTrainer(
        model=task.model,
        args=arguments(task),
        train_dataset=data if task.settings.sized else data.to_iterable_dataset(),
        processing_class=tokenizer(),
        optimizers=steps(task),
    )


def arguments(task: Task) -> SFTConfig:
    """What the command line of a training says."""
    settings = task.settings
    window = settings.micro_batch_size * settings.accumulation_steps * settings.world_size
    # Without a length it has to be told when to end.
    end = -1 if settings.sized else settings.epochs * -(-len(task.samples) // window)
    return SFTConfig(
        output_dir=str(task.folder),
        per_device_train_batch_size=settings.micro_batch_size,
        gradient_accumulation_steps=settings.accumulation_steps,
        num_train_epochs=settings.epochs,
        max_steps=end,
        learning_rate=settings.learning_rate,
        max_grad_norm=settings.clip_norm or 0.0,
        bf16=settings.precision == "bfloat16",
        max_length=hf_heads.CONTEXT,
        packing=task.kind == "packed",
        train_sampling_strategy="sequential",
        logging_steps=1,
        save_strategy="steps" if settings.stop_after else "no",
        save_steps=1,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        ddp_backend="gloo" if settings.world_size > 1 else None,
    )


def tokenised(task: Task) -> Dataset:
    """Tokens, and -100 where none is to be learnt."""
    return Dataset.from_list(
        [{name: sample[name].tolist() for name in ("input_ids", "labels")} for sample in task.samples]
    )


def tokenizer() -> GPT2Tokenizer:
    """One of the vocabulary's size, which pads by its first token."""
    words = {f"<{token}>": token for token in range(hf_heads.VOCABULARY)}
    return GPT2Tokenizer(words, [], unk_token="<0>", bos_token="<0>", eos_token="<1>", pad_token="<0>")
