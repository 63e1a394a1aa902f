"""The next byte of text files of one's own: running text from the data folder in blocks of 1,024 bytes.

The last hundredth, at most 10 MB, validates. The networks have the shape of GPT-2 small, or are the small one of the
offline workloads, to try out a folder.
"""

from __future__ import annotations

from accum_core.engine.text_folder import lacking, read_text
from accum_core.engine.workloads.pydoc_blocks import Blocks

TITLE = "Text files, blocks of 1,024 bytes"
MODELS = ("gpt2_small", "gpt")
MEASURE = "token_loss"
LOSS = "cross_entropy"
SAMPLES = "blocks"
ORDER = 82
IN_LAB = False
"""It needs data that do not come with the project: for experiments, not for the Lab's menu."""
LENGTH = 1024
MOST_HELD_OUT = 10_000_000


def load() -> Blocks:
    """The text of the data folder.

    Raises:
        DataError: saying what to place where, when there is less text than two blocks.
    """
    text = read_text("text_file")
    held_out = max(LENGTH + 1, min(len(text) // 100, MOST_HELD_OUT))
    if len(text) - held_out <= LENGTH:
        raise lacking("text_file", f"{len(text):,} bytes, fewer than two blocks of {LENGTH:,},")
    return Blocks(text[:-held_out], text[-held_out:], LENGTH)
