"""The choice of the page on loss scaling as its address.

``/loss-scaling?w=4x16,4x2&tail=divide_by_n&full=4``: what differs from the defaults stands in the address, so that the
address alone rebuilds the page. Pure: no Streamlit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, Final

from accum_core import landcover
from accum_core.errors import SettingError
from accum_core.label_sources import MOST_SAMPLES, MOST_SENTENCES, STRIP, TOPICS
from accum_core.reduction import TAIL_RULES
from accum_ui.scaling_window import (
    DEFAULT,
    MOST_FULL,
    MOST_NUMBERS,
    MOST_STEPS,
    MOST_TILES,
    SOURCES,
    TILES,
    TOKENS,
    Choice,
    settled,
)

Parse = Callable[[str, Choice], Any]


def read(address: Mapping[str, str]) -> Choice:
    """The choice that an address asks for.

    Raises:
        SettingError: naming the parameter, the value and what can be.
    """
    choice = DEFAULT
    for name, (field, parse, _, _) in PARAMETERS.items():
        if name in address:
            try:
                choice = replace(choice, **{field: parse(address[name], choice)})
            except ValueError as error:
                raise SettingError(name, address[name], str(error)) from None
    return settled(choice)


def address(choice: Choice) -> dict[str, str]:
    """The query parameters that ``read`` turns back into the choice, as far as its source uses it."""
    return {
        name: write(getattr(choice, field))
        for name, (field, _, write, sources) in PARAMETERS.items()
        if choice.source in sources and getattr(choice, field) != getattr(DEFAULT, field)
    }


def used(choice: Choice) -> Choice:
    """The choice with what its source does not use at the defaults: what its address stands for."""
    unused = [f.name for f in fields(Choice) if choice.source not in _SOURCES_OF[f.name]]
    return replace(choice, **{name: getattr(DEFAULT, name) for name in unused})


def whole(text: str, low: int, high: int, why: str = "") -> int:
    """The whole number that a text is.

    Args:
        text: digits, or else refused.
        low, high: the least and the greatest that can be.
        why: that the least one is such, in a few words.

    Raises:
        ValueError: saying what can be.
    """
    if not (text.isascii() and text.isdigit() and low <= int(text[:9]) <= high):
        raise ValueError(f"use a whole number from {low}{why and f', {why},'} to {high}")
    return int(text)


def parse_full(text: str, choice: Choice) -> int:
    """N of a full window, of which this one is at most as long.

    Raises:
        ValueError: saying what can be.
    """
    return whole(text, choice.num_micro_batches, MOST_FULL, "which this window holds")


def parse_first(text: str, _: Choice = DEFAULT) -> int:
    """The first tile.

    Raises:
        ValueError: saying what can be.
    """
    return whole(text, 0, TILES - 1)


def _whole(low: int, high: int) -> Parse:
    return lambda text, _: whole(text, low, high)


def _one_of(*names: str) -> Parse:
    def parse(text: str, _: Choice) -> str:
        if text not in names:
            raise ValueError(f"use one of {', '.join(names)}")
        return text

    return parse


def _class_weights(text: str, _: Choice) -> bool:
    if text != "classes":
        raise ValueError("use classes, or leave it out")
    return True


def _counts(text: str, _: Choice) -> tuple[tuple[int, int], ...]:
    remedy = (
        f"use 1 to {MOST_STEPS} micro-batches such as 4x16,1x8: "
        f"1 to {MOST_SAMPLES} samples of 0 to {STRIP} valid labels"
    )
    parts = [part.split("x") for part in text.split(",")]
    try:
        found = tuple((whole(samples, 1, MOST_SAMPLES), whole(valid, 0, STRIP)) for samples, valid in parts)
    except ValueError:
        raise ValueError(remedy) from None
    if len(found) > MOST_STEPS:
        raise ValueError(remedy)
    return found


def _topics(text: str, _: Choice) -> tuple[str, ...]:
    found = tuple(text.split(","))
    if not text:
        raise ValueError(f"name at least one of {', '.join(TOPICS)}")
    if not set(found) <= set(TOPICS):
        raise ValueError(f"use only {', '.join(TOPICS)}, with commas in between")
    if twice := [topic for topic in TOPICS if found.count(topic) > 1]:
        raise ValueError(f"{twice[0]} stands there {found.count(twice[0])} times; name each entry once")
    return found


def _classes(text: str, _: Choice) -> tuple[int, ...]:
    last = len(landcover.CLASS_NAMES) - 1
    remedy = f"use numbers from 0 to {last}, each once and with commas in between, or none"
    if text == "none":
        return ()
    try:
        found = tuple(whole(part, 0, last) for part in text.split(","))
    except ValueError:
        raise ValueError(remedy) from None
    if len(set(found)) < len(found):
        raise ValueError(remedy)
    return found


def parse_numbers(text: str) -> tuple[tuple[float, ...], ...]:
    """Micro-batches from text such as ``10; 2, 2, 2``.

    Raises:
        ValueError: saying what can be.
    """
    remedy = (
        f"use 1 to {MOST_STEPS} micro-batches such as 10; 2, 2, 2: "
        f"at most {MOST_NUMBERS} numbers each, none beyond a million"
    )
    try:
        found = tuple(tuple(float(x) for x in part.split(",") if x.strip()) for part in text.split(";"))
    except ValueError:
        raise ValueError(remedy) from None
    flat = [x for xs in found for x in xs]
    if len(found) > MOST_STEPS or any(len(xs) > MOST_NUMBERS for xs in found):
        raise ValueError(remedy)
    if not all(math.isfinite(x) and abs(x) <= 1e6 for x in flat):
        raise ValueError(remedy)
    return found


def write_numbers(values: tuple[tuple[float, ...], ...]) -> str:
    """The text that ``parse_numbers`` turns back into the numbers."""
    return "; ".join(", ".join(repr(x).removesuffix(".0") for x in xs) for xs in values)


def _listed(values: tuple[Any, ...]) -> str:
    return ",".join(map(str, values))


_EVERY: Final = tuple(SOURCES)
PARAMETERS: Final[dict[str, tuple[str, Parse, Callable[[Any], str], tuple[str, ...]]]] = {
    # name: field, from text (and what stands before it in the address), to text, sources that use it
    "source": ("source", _one_of(*SOURCES), str, _EVERY),
    "w": ("counts", _counts, lambda counts: ",".join(f"{s}x{v}" for s, v in counts), ("counts",)),
    "topics": ("topics", _topics, _listed, ("sentences",)),
    "sentences": ("sentences", _whole(1, MOST_SENTENCES), str, ("sentences",)),
    "token": ("token", _one_of(*TOKENS), str, ("sentences",)),
    "first": ("first", parse_first, str, ("masks",)),
    "steps": ("steps", _whole(1, MOST_STEPS), str, ("masks",)),
    "micro": ("micro", _whole(1, MOST_TILES), str, ("masks",)),
    "ignore": ("ignore", _classes, lambda classes: _listed(classes) or "none", ("masks",)),
    "x": ("numbers", lambda text, _: parse_numbers(text), write_numbers, ("numbers",)),
    "weigh": ("class_weights", _class_weights, lambda _: "classes", ("counts", "masks")),
    "tail": ("tail", _one_of(*TAIL_RULES), str, _EVERY),
    "full": ("full", parse_full, str, _EVERY),
}
_SOURCES_OF: Final = {field: sources for field, _, _, sources in PARAMETERS.values()}
