"""Text to train on in the shapes in which people keep it: JSON lines with a text, a prompt and completion, or messages.

One JSON object a line, in UTF-8; blank lines do not count. Its keys say which of three it is, and others are ignored:

- ``{"text": "..."}``: every token is learnt;
- ``{"prompt": "...", "completion": "..."}``: the completion is learnt;
- ``{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}, ...]}``: what the
  assistant says is learnt.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accum_core.errors import DataError

KEYS = ("messages", "prompt", "completion", "text")
SHAPES = '{"text": ...}, {"prompt": ..., "completion": ...} or {"messages": [...]}'


@dataclass(frozen=True, slots=True)
class Text:
    """Running text."""

    text: str


@dataclass(frozen=True, slots=True)
class Pair:
    """What is asked, and what is to be said."""

    prompt: str
    completion: str


@dataclass(frozen=True, slots=True)
class Chat:
    """Messages in their order, each with ``role`` and ``content``; at least one of the role assistant."""

    messages: tuple[Mapping[str, str], ...]


Written = Text | Pair | Chat


def read_lines(path: Path) -> Iterator[tuple[str, Written]]:
    """What the lines of a file hold, in their order, each behind its place as a sentence names it.

    Raises:
        DataError: naming the file and, for a damaged line, its number and what is wrong with it; or that none is there.
    """
    count = 0
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip() and (number > 1 or line.strip() != b"\xef\xbb\xbf"):
                    place = f"{path}, line {number}"
                    yield place, _line(line, place)
                    count += 1
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): name a JSON-lines file that can.") from None
    if not count:
        raise DataError(f"{path} holds no line: write one JSON object a line, {SHAPES}.")


def _line(line: bytes, place: str) -> Written:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{place}: byte {error.start + 1} is not UTF-8: save the file in UTF-8.") from None
    except json.JSONDecodeError as error:
        fault = error.msg.removesuffix(" at")
        what = f"is no JSON ({fault[0].lower()}{fault[1:]} at character {error.colno})"
        raise DataError(f"{place}: {what}: write one JSON object a line, {SHAPES}.") from None
    except (RecursionError, ValueError):
        what = "is nested too deeply, or holds a number of too many digits"
        raise DataError(f"{place}: {what}: write one JSON object a line, {SHAPES}.") from None
    return parse(row, place)


def parse(row: Any, place: str) -> Written:
    """What a row of a file or data set holds.

    Args:
        row: as JSON gives it.
        place: where it stands, for a refusal.

    Raises:
        DataError: naming the place, what is wrong and what to write there.
    """
    if not isinstance(row, Mapping):
        raise DataError(f"{place}: is {_kind(row)} and no object: write {SHAPES}.")
    # A data set of several shapes has all columns in every row, and null in those of the others.
    known = {key: row[key] for key in KEYS if row.get(key) is not None} or row
    if "messages" in known:
        return Chat(_messages(known["messages"], place))
    if "prompt" in known and "completion" in known:
        pair = Pair(_string(row, "prompt", place), _string(row, "completion", place))
        if not pair.completion:
            raise DataError(f"{place}: its completion is empty, so there is nothing to learn: fill it, or take it out.")
        return pair
    if "text" in known:
        text = Text(_string(row, "text", place))
        if not text.text.strip():
            raise DataError(f"{place}: its text is empty: fill it, or take the line out.")
        return text
    there = ", ".join(map(str, row)) or "nothing"
    raise DataError(f"{place}: has {there} and none of the known shapes: write {SHAPES}.")


def _messages(messages: Any, place: str) -> tuple[Mapping[str, str], ...]:
    if not isinstance(messages, list) or not messages:
        raise DataError(f"{place}: messages is {_kind(messages)}: give a list of objects with role and content.")
    found = []
    for number, message in enumerate(messages, 1):
        where = f"{place}, message {number}"
        if not isinstance(message, Mapping):
            raise DataError(f"{where}: is {_kind(message)}: give an object with role and content.")
        found.append({key: _string(message, key, where) for key in ("role", "content")})
    if not any(message["role"] == "assistant" and message["content"] for message in found):
        raise DataError(
            f"{place}: no message is the assistant's, so there is nothing to learn: add one, or take it out."
        )
    return tuple(found)


def _string(row: Mapping[Any, Any], key: str, place: str) -> str:
    if not isinstance(value := row.get(key), str):
        raise DataError(f"{place}: {key} is {_kind(value)}: give text in quotation marks.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise DataError(f"{place}: {key} holds half of a character pair, which is no text: mend it.") from None
    return value


def _kind(value: Any) -> str:
    kinds = {type(None): "missing", bool: "true or false", str: "a string", list: "a list", dict: "an object"}
    if value == []:
        return "an empty list"
    return kinds.get(type(value), "a number")


def digest_of(texts: Iterable[Written]) -> str:
    """SHA-256 of what was read, in its order, hexadecimal."""
    found = hashlib.sha256()
    for text in texts:
        found.update(f"{text!r}\n".encode())
    return found.hexdigest()


def digest(path: Path) -> str:
    """SHA-256 of a file, hexadecimal.

    Raises:
        DataError: for a file that cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): name a JSON-lines file that can.") from None
