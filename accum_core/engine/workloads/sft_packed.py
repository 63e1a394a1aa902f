"""Fine-tuning on functions of the standard library, packed: rows of 256 bytes, each filled with several pairs.

The pairs of a row do not see one another: each has positions of its own, and attention stays within it. So a row's
summed loss is that of its pairs padded one a row, and what packing changes is the cost alone
(tests/test_workload_sft.py: 1e-12 in float64). A sample here is a row, and weighs the bytes of its docstrings.
With Python 3.11.7 the 2,344 functions of ``sft`` are 823 rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from accum_core import python_functions
from accum_core.engine.causal import rows
from accum_core.engine.causal.tokens import Tokens
from accum_core.engine.models.tiny_lm import CONTEXT
from accum_core.engine.workloads.sft import Completions
from accum_core.python_functions import Pair

TITLE = "Python's functions, signature to docstring, packed"
MODELS = ("tiny_lm",)
MEASURE = "token_loss"
LOSS = "cross_entropy_of_valid_labels"
SAMPLES = "rows"
ORDER = 35
IN_LAB = False
"""Its network has no layer that the Lab could exchange."""


class PackedCompletions(Completions):
    """Pairs, several a row; they validate padded, as those of ``sft`` do."""

    def __init__(self, training: Sequence[Pair], held_out: Sequence[Pair]) -> None:
        super().__init__(training, held_out)
        self.rows = rows.packed([tokens(pair) for pair in training], CONTEXT)
        self.num_samples = len(self.rows)

    def samples(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Inputs int64 ``[B, 2, T]``, bytes and the number of the pair that each belongs to, and targets ``[B, T]``."""
        return rows.laid_out([self.rows[index] for index in indices])


def tokens(pair: Pair) -> Tokens:
    """A pair's bytes, those of the docstring to be learnt."""
    learnt = (False,) * len(pair.prompt) + (True,) * len(pair.completion)
    return Tokens(tuple(pair.prompt + pair.completion), learnt)


def load() -> PackedCompletions:
    """The functions of the Python that runs.

    Raises:
        DataError: for a Python without its source.
    """
    found = python_functions.load()
    return PackedCompletions(found.training, found.held_out)
