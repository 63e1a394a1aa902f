"""The next byte of Python's documentation in blocks of 256 bytes: what the weights that come with the project learnt.

1,272 blocks to train on and 177 from topics that are held out, with the documentation of Python 3.11.7. Each block
weighs as much. ``data/train_tiny_lm.py`` says with which settings they were learnt.
"""

from __future__ import annotations

from accum_core import python_documentation
from accum_core.engine.models.tiny_lm import CONTEXT
from accum_core.engine.workloads.pydoc_blocks import Blocks

TITLE = "Python's documentation, blocks of 256 bytes"
MODELS = ("tiny_lm",)
MEASURE = "token_loss"
LOSS = "cross_entropy"
SAMPLES = "blocks"
ORDER = 33
IN_LAB = False
"""Its network has no layer that the Lab could exchange."""


def load() -> Blocks:
    """The documentation of the Python that runs.

    Raises:
        DataError: for a Python without it.
    """
    found = python_documentation.load()
    training, held_out = map(python_documentation.joined, (found.training, found.held_out))
    return Blocks(training, held_out, CONTEXT)
