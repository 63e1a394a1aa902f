"""The next byte of text files of one's own, paragraph by paragraph: at most 1,024 bytes, so samples weigh unequally.

What stands between empty lines is a paragraph; of a longer one the beginning is taken. The last hundredth, at most
10,000, validates. The networks are those of ``text_file``.
"""

from __future__ import annotations

from accum_core.engine.paragraphs import Paragraphs
from accum_core.engine.text_folder import lacking, read_text
from accum_core.python_documentation import paragraphs

TITLE = "Text files, paragraphs"
MODELS = ("gpt2_small", "gpt")
MEASURE = "token_loss"
LOSS = "cross_entropy_of_valid_labels"
SAMPLES = "paragraphs"
ORDER = 83
IN_LAB = False
"""It needs data that do not come with the project: for experiments, not for the Lab's menu."""
LONGEST = 1024
MOST_HELD_OUT = 10_000


def load() -> Paragraphs:
    """The text of the data folder.

    Raises:
        DataError: saying what to place where, when there are fewer than two paragraphs.
    """
    found = paragraphs(read_text("text_file_paragraphs"))
    if len(found) < 2:
        raise lacking("text_file_paragraphs", "one paragraph")
    held_out = max(1, min(len(found) // 100, MOST_HELD_OUT))
    return Paragraphs(found[:-held_out], found[-held_out:], LONGEST)
