"""Which heads of transformers divide by ``num_items_in_batch``: a sum over one item is not the mean of two."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import transformers

# transformers warns of its own deprecations, which are its to mend.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(180)]

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "num_labels": 4}
TEXT = {**SIZES, "vocab_size": 24, "max_position_embeddings": 64, "pad_token_id": 0}
GROUPED = {"num_key_value_heads": 2}
FAMILIES: dict[str, dict[str, Any]] = {
    "Bert": {},
    "Roberta": {},
    "DistilBert": {"dim": 16, "hidden_dim": 32, "n_heads": 2, "n_layers": 1},
    "Electra": {"embedding_size": 16},
    "Albert": {"embedding_size": 16},
    "ModernBert": {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
    "DebertaV2": {},
    "XLMRoberta": {},
    "MPNet": {},
    "Camembert": {},
    "Llama": {},
    "GPT2": {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64},
    "Qwen2": GROUPED,
    "Mistral": GROUPED,
    "GPTNeoX": {},
    "OPT": {"ffn_dim": 32, "word_embed_proj_dim": 16},
}
PATCHES = {**SIZES, "image_size": 32, "patch_size": 8}
PICTURES: dict[str, tuple[dict[str, Any], bool]] = {
    "ViT": (PATCHES, True),
    "DeiT": (PATCHES, True),
    "Dinov2": (PATCHES, True),
    "Swin": ({"image_size": 32, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4}, True),
    "Segformer": (
        {
            "hidden_sizes": [8, 16],
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
        },
        True,
    ),
    "Beit": (PATCHES, False),
    "ResNet": ({"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}, False),
    "MobileViT": ({"image_size": 32}, False),
}


def uses_the_count(family: str, head: str, sizes: dict[str, Any], batch: dict[str, torch.Tensor]) -> bool:
    """Whether a head to which the Trainer leaves the division has another loss when it is told a count of one."""
    torch.manual_seed(0)
    made = getattr(transformers, family + head)(getattr(transformers, family + "Config")(**sizes)).eval()
    parameters = inspect.signature(made.forward).parameters.values()
    assert any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    told = made(**batch, num_items_in_batch=torch.tensor(1)).loss
    return not torch.allclose(told, made(**batch).loss)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_sequence_or_token_classifier_does(family: str) -> None:
    sizes, tokens = {**TEXT, **FAMILIES[family]}, torch.arange(2, 10).repeat(2, 1)
    sequences = {"input_ids": tokens, "labels": torch.tensor([0, 1])}
    assert not uses_the_count(family, "ForSequenceClassification", sizes, sequences)
    if hasattr(transformers, f"{family}ForTokenClassification"):
        batch = {"input_ids": tokens, "labels": tokens % 4}
        assert not uses_the_count(family, "ForTokenClassification", sizes, batch)


@pytest.mark.parametrize("family", [name for name in FAMILIES if hasattr(transformers, f"{name}ForMaskedLM")])
def test_of_masked_heads_modernberts_alone_does(family: str) -> None:
    tokens = torch.arange(2, 10).repeat(2, 1)
    batch = {"input_ids": tokens, "labels": tokens}
    used = uses_the_count(family, "ForMaskedLM", {**TEXT, **FAMILIES[family]}, batch)
    assert used == (family == "ModernBert")


@pytest.mark.parametrize(("family", "does"), [(name, does) for name, (_, does) in PICTURES.items()])
def test_image_classifiers_of_some_families_do(family: str, does: bool) -> None:
    pictures = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    batch = {"pixel_values": pictures, "labels": torch.tensor([0, 1])}
    sizes = {"num_labels": 4, **PICTURES[family][0]}
    assert uses_the_count(family, "ForImageClassification", sizes, batch) == does
