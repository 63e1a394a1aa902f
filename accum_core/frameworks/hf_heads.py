"""The heads of Hugging Face transformers as problems for its Trainer: small networks, built from configurations.

Their losses are computed here from their logits, as mathematics, in float64; the Trainer uses those that the heads
return, which most compute in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    SegformerConfig,
    SegformerForSemanticSegmentation,
)

from accum_core.conformance.cases import CASES
from accum_core.frameworks.contract import Batch, Sample
from accum_core.frameworks.harness.problem import Problem, seeded

IGNORED, IGNORED_PIXEL = -100, 255
VOCABULARY, CLASSES, CONTEXT = 24, 4, 64
IN_FLOAT32 = 1e-6
"""Relative error that a loss computed in float32 brings into a gradient."""
LENGTHS = (4, 53, 11, 7, 29, 16, 5, 41)
COUNTS = {
    "empty_micro_batch": 4,
    "ignored_pixels": 4,
    "iterable": 20,
    "n_above_epoch": 6,
    "ragged": 10,
    "resume": 24,
    "short_window": 20,
}
OF_TOKENS = ("unequal_tokens", "empty_micro_batch", "two_ranks", "logged_loss")
OF_CAUSAL = (*OF_TOKENS, "short_window", "iterable", "n_above_epoch", "resume")


@dataclass(frozen=True, slots=True)
class Head:
    """One kind of head.

    Attributes:
        build: a new network.
        sample: the sample of an index and a length.
        cases: that it goes through.
        shifts: whether its labels are the inputs themselves, each to be predicted from those before it.
        beside: coefficient of its loss beside the sum, if it has one.
    """

    build: Callable[[], nn.Module]
    sample: Callable[[int, int], Sample]
    cases: Sequence[str]
    shifts: bool = False
    beside: float | None = None


def _draw(index: int, length: int) -> Tensor:
    """Tokens of which each sequence has three of its own, so that one that counts too much turns the gradient."""
    generator = torch.Generator().manual_seed(100 + index)
    return (index * 3 + torch.randint(3, (length,), generator=generator)) % VOCABULARY


def _next_tokens(index: int, length: int) -> Sample:
    tokens = _draw(index, length)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}


def _masked_tokens(index: int, length: int) -> Sample:
    """Every third token is to be guessed."""
    tokens = _draw(index, length)
    asked = torch.arange(length) % 3 == 0
    return {
        "input_ids": tokens.masked_fill(asked, 0),
        "attention_mask": torch.ones_like(tokens),
        "labels": tokens.where(asked, torch.tensor(IGNORED)),
    }


def _tagged_tokens(index: int, length: int) -> Sample:
    tokens = _draw(index, length)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": (tokens + index) % CLASSES}


def _classified(index: int, length: int) -> Sample:
    tokens = _draw(index, length)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": torch.tensor(index % CLASSES)}


def _map(index: int, length: int) -> Sample:
    """A picture of 32 x 32 pixels, of whose map other rows are labelled."""
    generator = torch.Generator().manual_seed(200 + index)
    pixels = torch.randn(3, 32, 32, generator=generator, dtype=torch.float64) + index / 2 - 1
    labels = torch.full((32, 32), IGNORED_PIXEL)
    labels[: 2 + length // 2] = index % CLASSES
    return {"pixel_values": pixels, "labels": labels}


def _bert(head: type[Any]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        made: nn.Module = head(
            BertConfig(
                vocab_size=VOCABULARY,
                hidden_size=16,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=32,
                max_position_embeddings=CONTEXT,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
                num_labels=CLASSES,
            )
        )
        return made

    return build


def _gpt2() -> nn.Module:
    sizes = {"vocab_size": VOCABULARY, "n_positions": CONTEXT, "n_embd": 16, "n_layer": 2, "n_head": 2}
    made: nn.Module = GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    return made


def _llama() -> nn.Module:
    made: nn.Module = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=CONTEXT,
        )
    )
    return made


def _mixtral() -> nn.Module:
    made: nn.Module = MixtralForCausalLM(
        MixtralConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            num_local_experts=4,
            max_position_embeddings=CONTEXT,
            output_router_logits=True,
            router_aux_loss_coef=0.5,
            experts_implementation="eager",  # the fused one knows no float64
        )
    )
    return made


def _segformer() -> nn.Module:
    """Without the BatchNorm of its head, which looks across samples."""
    sizes = {"hidden_sizes": [8, 16], "decoder_hidden_size": 16, "num_encoder_blocks": 2, "depths": [1, 1]}
    strides = {"sr_ratios": [2, 1], "patch_sizes": [7, 3], "strides": [4, 2], "num_attention_heads": [1, 2]}
    none = {"classifier_dropout_prob": 0.0, "drop_path_rate": 0.0, "hidden_dropout_prob": 0.0}
    config = SegformerConfig(**sizes, **strides, **none, mlp_ratios=[2, 2], num_labels=CLASSES)
    made = SegformerForSemanticSegmentation(config)
    made.decode_head.batch_norm = nn.Identity()
    network: nn.Module = made
    return network


HEADS: Mapping[str, Head] = MappingProxyType(
    {
        "causal": Head(_gpt2, _next_tokens, OF_CAUSAL, shifts=True),
        "llama": Head(_llama, _next_tokens, OF_CAUSAL, shifts=True),
        "masked": Head(_bert(BertForMaskedLM), _masked_tokens, OF_TOKENS),
        "token_classes": Head(_bert(BertForTokenClassification), _tagged_tokens, OF_TOKENS),
        "sequence_classes": Head(
            _bert(BertForSequenceClassification), _classified, ("equal", "ragged", "short_window", "two_ranks")
        ),
        "segmentation": Head(_segformer, _map, ("ignored_pixels",)),
        "mixture": Head(_mixtral, _next_tokens, ("unequal_tokens", "empty_micro_batch"), shifts=True, beside=0.5),
    }
)


def problem(kind: str, case: str) -> Problem | None:
    """The head of that kind with a case's numbers; None for a case that it does not go through."""
    head = HEADS[kind]
    if case not in head.cases:
        return None
    count = COUNTS.get(case, 8)
    samples = [head.sample(index, LENGTHS[index % len(LENGTHS)]) for index in range(count)]
    if case == "empty_micro_batch":
        samples[2] = {**samples[2], "labels": torch.full_like(samples[2]["labels"], IGNORED)}
    ignored = IGNORED_PIXEL if kind == "segmentation" else IGNORED

    def predicted(labels: Tensor) -> Tensor:
        return labels[..., 1:] if head.shifts else labels

    def total(logits: Tensor, labels: Tensor) -> Tensor:
        if head.shifts:
            logits = logits[:, :-1]
        if kind == "segmentation":
            logits = F.interpolate(logits, size=labels.shape[-2:], mode="bilinear", align_corners=False)
        elif logits.ndim == 3:
            logits = logits.transpose(1, 2)
        return F.cross_entropy(logits, predicted(labels), ignore_index=ignored, reduction="sum")

    def weight(labels: Tensor) -> float:
        return float((predicted(labels) != ignored).sum())

    def mean(logits: Tensor, labels: Tensor) -> Tensor:
        return total(logits, labels) / weight(labels)

    def batch_total(model: nn.Module, batch: Batch) -> Tensor:
        return total(model(**_inputs(batch)).logits, batch["labels"])

    def beside(model: nn.Module, batch: Batch) -> Tensor:
        auxiliary: Tensor = model(**_inputs(batch)).aux_loss
        return auxiliary * (head.beside or 0.0)

    return Problem(
        settings=CASES[case].settings,
        build=seeded(head.build),
        samples=samples,
        collate=_padded,
        loss=mean,
        total=total,
        weight=weight,
        batch_total=batch_total,
        beside=None if head.beside is None else beside,
        rounding=IN_FLOAT32,
    )


def _inputs(batch: Batch) -> Batch:
    return {name: value for name, value in batch.items() if name != "labels"}


def _padded(samples: Sequence[Sample]) -> Batch:
    """Padding at the end, which the attention mask hides and no label asks for."""
    first = samples[0]
    if "pixel_values" in first:
        return {name: torch.stack([sample[name] for sample in samples]) for name in first}
    filled: Batch = {}
    for name, value in first.items():
        values = [sample[name] for sample in samples]
        fill = IGNORED if name == "labels" else 0
        filled[name] = (
            nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=fill)
            if value.ndim
            else torch.stack(values)
        )
    return filled
