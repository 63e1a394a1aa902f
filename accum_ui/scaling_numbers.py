"""How the page on loss scaling writes its numbers: shares, counts, and the weight of a label. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Final

from accum_core.quantities import number
from accum_ui.words import percent as breakable_percent

EQUAL: Final = 1e-9  # label weights and errors up to here are equal but for rounding
MANY_TIMES: Final = 1000  # shares from here on are percentages with a power of ten


def percent(share: float) -> str:
    """A share as a percentage that no line break parts."""
    text = f"{number(100 * share, 3)} %" if share >= MANY_TIMES else breakable_percent(share)
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def counted(count: int, unit: str) -> str:
    """So many labels ("140 pixels", "1 pixel"); ``unit`` is a plural."""
    return f"{count} {unit.removesuffix('s') if count == 1 else unit}"


def listed(names: Sequence[str]) -> str:
    """Names in a sentence ("a, b and c")."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def weights(values: Sequence[float]) -> list[str]:
    """Weights of labels as multiples of the fair one, with the digits that tell them from one another and from 1."""
    every = [1.0, *values]
    for digits in range(3, 10):
        texts = [f"{w:.{digits}g}" if 1e-3 <= w < 10**digits else number(w, digits) for w in every]
        pairs = combinations(zip(every, texts, strict=True), 2)
        if all(one != other or math.isclose(w, v, rel_tol=EQUAL) for (w, one), (v, other) in pairs):
            break
    return texts[1:]


def times(weight: float) -> str:
    """A label's weight as a multiple of the fair one."""
    return f"{weights([weight])[0]} ×"


def span(values: Iterable[float]) -> str:
    """The least and the greatest weight of a label, one where they are equal; NaN counts for nothing."""
    known = [weight for weight in values if not math.isnan(weight)]
    if not known:
        return "–"
    low, high = min(known), max(known)
    return times(high) if high - low <= EQUAL * high else " to ".join(f"{text} ×" for text in weights([low, high]))
