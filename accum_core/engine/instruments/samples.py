"""What a language model over bytes writes after held-out prompts, at the parameters before this window's step.

So the first measurement is the model before its training. Prompts are signatures of functions of the standard library
that no training sees (``accum_core.python_functions``).
"""

from __future__ import annotations

from typing import Any

from accum_core import python_functions
from accum_core.engine.generation import continuations
from accum_core.engine.instrument import Instrument, Window
from accum_core.engine.models.gpt import GPT

TITLE = "Samples"
DEFAULT = False
LONGEST = 80
TEMPERATURE = 0.7


class Samples(Instrument):
    """Fields ``prompts``, ``likeliest`` and ``drawn``: texts; the last two are empty for a model of another kind."""

    def measure(self, window: Window) -> dict[str, Any]:
        """Write up to 80 bytes after each prompt, the likeliest ones and some drawn at a temperature of 0.7."""
        prompts = python_functions.load().prompts
        written: dict[str, list[str]] = {"likeliest": [], "drawn": []}
        if isinstance(window.model, GPT):
            for name, temperature in (("likeliest", 0.0), ("drawn", TEMPERATURE)):
                texts = continuations(window.model, prompts, longest=LONGEST, temperature=temperature)
                written[name] = [text.decode(errors="replace") for text in texts]
        return {"prompts": [prompt.decode() for prompt in prompts], **written}


def create() -> Instrument:
    """A new instrument of samples."""
    return Samples()
