"""Which of transformers' architectures may be packed is tried out, not believed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from accum_core.engine.causal.model import CausalModel
from accum_core.errors import SettingError

# What transformers warns of is its own to mend.
pytestmark = pytest.mark.filterwarnings("ignore")
SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 32, "initializer_range": 0.2,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def built(kind: str, **more: Any) -> CausalModel:
    torch.manual_seed(0)
    return CausalModel(AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES, **more)), packed=True)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("qwen3", {}),
        ("gemma2", {"sliding_window": 4}),  # attends to its last 4 tokens in every other layer
        ("gpt_neox", {}),
        ("mixtral", {"num_local_experts": 2}),
    ],
)
def test_attention_by_positions_keeps_texts_apart(kind: str, more: dict[str, Any]) -> None:
    model = built(kind, **more)
    model.check()
    assert len(list(model.activation_blocks())) == 2


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("opt", {"word_embed_proj_dim": 32, "ffn_dim": 32}),  # learnt positions counted from the attention mask
        ("bloom", {"n_head": 2, "n_layer": 2}),  # distances between tokens in the place of positions
        ("mamba", {}),  # a state that is carried from token to token
    ],
)
def test_what_cannot_keep_texts_apart_is_refused(kind: str, more: dict[str, Any]) -> None:
    model = built(kind, **more)
    model.packed = False
    model.check()
    model.packed = True
    with pytest.raises(SettingError, match=r"^packed = True: does not keep the texts"):
        model.check()


def test_a_model_that_reads_both_ways_is_refused() -> None:
    with pytest.raises(SettingError, match=r"^model = 'BertLMHeadModel': is not causal"):
        built("bert").check()
