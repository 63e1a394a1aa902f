"""A GPT of 0.9 million parameters over bytes: four blocks of 128 units with four heads; trained weights come with it.

The network is that of ``gpt``. ``trained`` gives it the weights of ``data/tiny_lm``, which ``data/train_tiny_lm.py``
made from Python's documentation; they are stored as float16 and computed with as float32.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from safetensors.torch import load

from accum_core.engine.models.gpt import GPT
from accum_core.errors import DataError

TITLE = "tiny language model"
CONTEXT = 256
FILE = Path(__file__).parents[3] / "data" / "tiny_lm" / "tiny_lm.safetensors"
SHA256 = "8af8113e638d713d239db65d058ba5c6691917e7200f393f3b9c001709f6372b"


def build(vocabulary: int, context: int) -> GPT:
    """The network with new weights."""
    return GPT(vocabulary, context, width=128, depth=4, heads=4)


def trained(file: Path = FILE) -> GPT:
    """The network over 256 bytes and a context of 256 with the weights that come with the project, in float32.

    Raises:
        DataError: when the file is missing or its hash is not the one this version was made for.
    """
    remedy = f"restore data/tiny_lm/{file.name} from the repository or make it with data/train_tiny_lm.py."
    try:
        content = file.read_bytes()
    except OSError as error:
        raise DataError(f"weights {file.name} cannot be read ({error.strerror}): {remedy}") from None
    if (found := hashlib.sha256(content).hexdigest()) != SHA256:
        raise DataError(
            f"weights {file.name} are damaged: their SHA-256 begins with {found[:12]}, expected {SHA256[:12]}; {remedy}"
        )
    model = build(256, CONTEXT)
    model.load_state_dict(load(content))
    return model
