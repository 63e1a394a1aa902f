"""The forms in which a run is taken home."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Form = Literal["script", "notebook", "trainer", "lightning", "accelerate"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A form of export.

    Attributes:
        title: for people.
        suffix, mime: of its file.
        what: what it is, in a sentence.
        needs: requirements file beside the app's own, if any.
    """

    title: str
    suffix: str
    mime: str
    what: str
    needs: str = ""


_PYTHON: Final = "text/x-python"
_EXTRA: Final = "requirements-frameworks.txt"
FORMS: Final[dict[Form, Kind]] = {
    "script": Kind("PyTorch", ".py", _PYTHON, "The loop in plain PyTorch."),
    "notebook": Kind("Notebook", ".ipynb", "application/x-ipynb+json", "The same loop as a notebook with plots."),
    "trainer": Kind("Trainer", "_trainer.py", _PYTHON, "Hugging Face's TrainingArguments and Trainer.", _EXTRA),
    "lightning": Kind("Lightning", "_lightning.py", _PYTHON, "A module and a Trainer of PyTorch Lightning.", _EXTRA),
    "accelerate": Kind("Accelerate", "_accelerate.py", _PYTHON, "A loop with Hugging Face Accelerate.", _EXTRA),
}
