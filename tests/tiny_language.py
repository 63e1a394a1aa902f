"""Causal models of a few thousand parameters over bytes, saved as transformers saves its models, and files of text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PreTrainedTokenizerFast

END = 256
"""The end of a text; the others are the bytes of UTF-8, in the order of the tokenizer's alphabet."""
PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
MARKED = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}\n"
    "{% endgeneration %}{% else %}{{ m.content }}\n{% endif %}{% endfor %}"
)
SIZES: dict[str, Any] = {"vocab_size": 257, "bos_token_id": END, "eos_token_id": END}


def tokenizer(template: str | None = None) -> PreTrainedTokenizerFast:
    """One token a byte, and the end."""
    alphabet = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocab={**alphabet, "<|end|>": END}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>", chat_template=template)


def model(kind: str, **settings: Any) -> torch.nn.Module:
    """A ``gpt2`` or ``llama`` with weights from a fixed seed, large enough that attention is far from even."""
    torch.manual_seed(0)
    if kind == "gpt2":
        sizes = dict(n_positions=64, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        config: Any = GPT2Config(**{**SIZES, **sizes, "initializer_range": 0.2, **settings})
    else:
        sizes = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2)
        more = dict(num_key_value_heads=1, max_position_embeddings=64, initializer_range=0.2)
        config = LlamaConfig(**{**SIZES, **sizes, **more, **settings})
    return AutoModelForCausalLM.from_config(config)


def saved(folder: Path, kind: str, template: str | None = None, **settings: Any) -> str:
    """The folder of a model and its tokenizer."""
    model(kind, **settings).save_pretrained(folder)
    tokenizer(template).save_pretrained(folder)
    return str(folder)


def written(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def sums(count: int) -> list[dict[str, str]]:
    """Prompts and completions of unequal length."""
    return [{"prompt": f"{i} plus {i} is ", "completion": str(2 * i) * (1 + i % 4)} for i in range(count)]
