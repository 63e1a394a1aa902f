"""Text that a language model over bytes goes on with: the likeliest byte each time, or one drawn by its probability."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from accum_core.engine.language import START, as_tokens
from accum_core.engine.models.gpt import GPT
from accum_core.engine.modes import evaluating
from accum_core.errors import SettingError


def continuations(
    model: GPT, prompts: Sequence[bytes], *, longest: int, temperature: float = 0.0, seed: int = 0
) -> list[bytes]:
    """What the model writes after each prompt, up to a line feed or ``longest`` bytes, or where its context is full.

    The model and all random states are left as they were. A prompt's continuation does not depend on the other prompts
    while no byte is drawn.

    Args:
        prompts: none of them empty; they are passed together.
        longest: bytes written after each.
        temperature: what the logits are divided by before a byte is drawn; 0 takes the likeliest byte.
        seed: of what is drawn.

    Raises:
        SettingError: for a temperature below 0, and for prompts that are empty or fill the context.
    """
    context = model.positions.num_embeddings
    if temperature < 0:
        raise SettingError("temperature", temperature, "must be 0, which takes the likeliest byte, or above")
    if any(not 0 < len(prompt) < context for prompt in prompts):
        raise SettingError("prompts", [len(prompt) for prompt in prompts], f"must have 1 to {context - 1} bytes each")
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    texts = [bytes(prompt) for prompt in prompts]
    going = list(range(len(prompts)))
    with evaluating(model):
        for _ in range(longest):
            if not going:
                break
            read = [as_tokens(texts[index]).long() for index in going]
            # Padding lies behind a text's end, where none of its bytes sees it.
            inputs = torch.nn.utils.rnn.pad_sequence(read, batch_first=True, padding_value=START)
            ends = torch.tensor([len(text) - 1 for text in read])
            logits = model(inputs.to(device))[torch.arange(len(read)), ends.to(device)].float().cpu()
            for index, byte in zip(going, _chosen(logits, temperature, generator).tolist(), strict=True):
                texts[index] += bytes([byte])
            going = [index for index in going if texts[index][-1] != START and len(texts[index]) < context]
    return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]


def _chosen(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """The next byte of each text, ``[M]`` of ``[M, vocabulary]``."""
    if not temperature:
        return logits.argmax(1)
    return torch.multinomial((logits / temperature).softmax(1), 1, generator=generator)[:, 0]
