"""Python's own documentation as text to train on: the topics that ``help()`` shows. Standard library alone, no torch.

``pydoc_data.topics`` comes with every Python, so nothing is fetched; its text is that of the Python that runs, whose
version a run's environment names. In 3.11.7 it holds 79 topics of 465 thousand characters, 2,608 paragraphs of 1 to 780
words, and a fifth of it twice: the topic of ``for`` also stands within that of compound statements. So a paragraph
counts once here, and training has none of what is held out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Final

from accum_core.errors import DataError

HELD_OUT: Final = ("debugger", "formatstrings")
"""Topics to validate on: an eighth of the text, which the others hardly share."""
_BETWEEN: Final = re.compile(rb"\n\s*\n")


@dataclass(frozen=True, slots=True)
class Documentation:
    """The paragraphs of each topic, by topics in the order of their names; no paragraph stands in it twice."""

    training: tuple[tuple[bytes, ...], ...]
    held_out: tuple[tuple[bytes, ...], ...]


@cache
def load() -> Documentation:
    """The documentation of the Python that runs, as UTF-8.

    Raises:
        DataError: for a Python without it, or without a topic that is held out.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise DataError(
            "workload text: this Python comes without pydoc_data.topics; use one from python.org or conda-forge."
        ) from None
    if missing := [name for name in HELD_OUT if name not in topics]:
        raise DataError(f"workload text: this Python's documentation has no topic {', '.join(missing)}; use 3.11.")
    seen: set[bytes] = set()
    # Held out first, so that training goes without what both have.
    held_out = _filled(_new(topics[name], seen) for name in HELD_OUT)
    training = _filled(_new(topics[name], seen) for name in sorted(set(topics) - set(HELD_OUT)))
    return Documentation(training, held_out)


def paragraphs(text: bytes) -> list[bytes]:
    """What stands between empty lines, without the white space around it."""
    return [part.strip() for part in _BETWEEN.split(text) if part.strip()]


def joined(topics: Iterable[Iterable[bytes]]) -> bytes:
    """Topics as one running text, with an empty line between paragraphs."""
    return b"\n\n".join(paragraph for topic in topics for paragraph in topic) + b"\n"


def _new(text: str, seen: set[bytes]) -> tuple[bytes, ...]:
    """The paragraphs that were not seen before."""
    new = tuple(paragraph for paragraph in dict.fromkeys(paragraphs(text.encode())) if paragraph not in seen)
    seen.update(new)
    return new


def _filled(topics: Iterable[tuple[bytes, ...]]) -> tuple[tuple[bytes, ...], ...]:
    return tuple(topic for topic in topics if topic)
