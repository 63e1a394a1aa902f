"""The next byte of Python's documentation, in the first 128 bytes of longer paragraphs: all weigh the same.

837 paragraphs to train on; 97 are held out.
"""

from __future__ import annotations

from accum_core.engine.paragraphs import Paragraphs, of_documentation

TITLE = "Python's documentation, paragraphs cut to 128 bytes"
MODELS = ("gpt",)
MEASURE = "token_loss"
LOSS = "cross_entropy_of_valid_labels"
SAMPLES = "paragraphs"
ORDER = 33
IN_LAB = False
"""Its network has no layer that the Lab could exchange."""


def load() -> Paragraphs:
    """The documentation of the Python that runs.

    Raises:
        DataError: for a Python without it.
    """
    return of_documentation(shortest=128, cut=128)
