"""The next byte of Python's documentation, paragraph by paragraph: 4 to 256 bytes, so that samples weigh unequally.

1,827 paragraphs to train on, 132 bytes in the mean with a deviation of two thirds of it; 244 are held out. What is
longer than 256 bytes, every fifth paragraph, is cut there: a padded window would be mostly padding otherwise.
"""

from __future__ import annotations

from accum_core.engine.paragraphs import Paragraphs, of_documentation

TITLE = "Python's documentation, paragraphs of all lengths"
MODELS = ("gpt",)
MEASURE = "token_loss"
LOSS = "cross_entropy_of_valid_labels"
SAMPLES = "paragraphs"
ORDER = 31
IN_LAB = False
"""Its network has no layer that the Lab could exchange."""


def load() -> Paragraphs:
    """The documentation of the Python that runs.

    Raises:
        DataError: for a Python without it.
    """
    return of_documentation(cut=256)
